//! Unused connections, and what a connection is: the pair of a sender and the connection it drives.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::ThreadId;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;

use super::Timers;
use crate::body::replay::Replay;
use crate::clock;
use crate::upstream::Request;
use crate::upstream::connect::Stream;

/// One upstream's unused connections and its timers.
pub struct Pool {
    pub timers: Timers,
    unused: Mutex<VecDeque<Unused>>,
}

/// A connection that waits for its next request.
struct Unused {
    since: Instant,
    /// The thread whose runtime the socket is registered with. Used from another one it would work, and wake the wrong
    /// thread every time.
    home: ThreadId,
    link: Link,
}

/// The half of a connection that does its reading and writing, when polled.
pub type Driver = Pin<Box<Connection<TokioIo<Stream>, Replay>>>;

/// A connection and the handle that sends requests on it.
pub struct Link {
    pub sender: SendRequest<Replay>,
    /// Gone once it has finished. It must not be kept then: a request that was queued and never taken comes back to its
    /// sender only when the connection is dropped.
    pub connection: Option<Driver>,
    /// Bytes that have come over it, ever.
    received: Arc<AtomicU64>,
}

/// What a connection may hold that nobody has taken yet, as on the clients' side.
const BUFFER: usize = 128 * 1024;

/// Begins to speak HTTP/1.1 on a connection.
pub async fn handshake(
    stream: Stream,
) -> hyper::Result<(SendRequest<Replay>, Connection<TokioIo<Stream>, Replay>)> {
    Builder::new().preserve_header_case(true).max_buf_size(BUFFER).handshake(TokioIo::new(stream)).await
}

impl Link {
    pub fn new(
        sender: SendRequest<Replay>,
        connection: Connection<TokioIo<Stream>, Replay>,
        received: Arc<AtomicU64>,
    ) -> Self {
        Self { sender, connection: Some(Box::pin(connection)), received }
    }

    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Sends `request` and drives the connection until the head of the answer is here. The request comes back if nothing of
    /// it was sent.
    pub fn exchange(
        &mut self,
        request: Request,
    ) -> impl Future<Output = Result<hyper::Response<Incoming>, (hyper::Error, Option<Request>)>> {
        // Handed over before the future exists, which is moved about and had better be small.
        let answer = self.sender.try_send_request(request);
        let connection = &mut self.connection;
        async move {
            let mut answer = std::pin::pin!(answer);
            let answered = std::future::poll_fn(|cx| {
                if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                    return Poll::Ready(answer);
                }
                if connection.as_mut().is_some_and(|connection| connection.as_mut().poll(cx).is_ready()) {
                    *connection = None;
                }
                answer.as_mut().poll(cx)
            });
            answered.await.map_err(|mut error| {
                let unsent = error.take_message();
                (error.into_error(), unsent)
            })
        }
    }

    /// Lets the connection do what it can now.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        if self.connection.as_mut().is_some_and(|connection| connection.as_mut().poll(cx).is_ready()) {
            self.connection = None;
        }
    }

    pub fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether another request may be sent on it.
    pub fn usable(&self) -> bool {
        self.is_open() && self.sender.is_ready() && !self.sender.is_closed()
    }
}

impl Pool {
    pub fn new(timers: Timers) -> Self {
        Self { timers, unused: Mutex::default() }
    }

    /// The youngest connection of this thread. Old ones are dropped: a server may be about to close them.
    pub fn take(&self) -> Option<Link> {
        let (now, here) = (clock::now(), std::thread::current().id());
        let mut unused = self.lock();
        let old = self.too_old(&mut unused, now);
        let found = unused.iter().rposition(|one| one.home == here).and_then(|at| unused.remove(at));
        // Closing sockets takes time: not under the lock.
        drop(unused);
        drop(old);
        found.map(|one| one.link)
    }

    /// Keeps a connection for this thread's next request.
    pub fn give(&self, link: Link) {
        if self.timers.pool_size == 0 {
            return;
        }
        let one = Unused { since: clock::now(), home: std::thread::current().id(), link };
        let mut unused = self.lock();
        let mut gone = self.too_old(&mut unused, one.since);
        if unused.len() >= self.timers.pool_size {
            gone.extend(unused.pop_front());
        }
        unused.push_back(one);
        drop(unused);
        drop(gone);
    }

    /// The oldest stand in front: what is too old is a prefix.
    fn too_old(&self, unused: &mut VecDeque<Unused>, now: Instant) -> Vec<Unused> {
        let young = unused.partition_point(|one| now.duration_since(one.since) >= self.timers.pool_idle.0);
        unused.drain(..young).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Unused>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
