//! Unused connections, and what a connection is: the pair of a sender and the connection it drives.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::thread::ThreadId;
use std::time::Instant;

use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;

use super::Timers;
use crate::body::replay::Replay;
use crate::clock;
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

/// A connection and the handle that sends requests on it.
pub struct Link {
    pub sender: SendRequest<Replay>,
    pub connection: Pin<Box<Connection<TokioIo<Stream>, Replay>>>,
    /// The connection has finished; nothing more will come.
    pub dead: bool,
}

impl Link {
    /// Lets the connection do what it can now.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.dead && self.connection.as_mut().poll(cx).is_ready() {
            self.dead = true;
        }
    }

    /// Whether another request may be sent on it.
    pub fn usable(&self) -> bool {
        !self.dead && self.sender.is_ready() && !self.sender.is_closed()
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
        // The oldest stand in front: what is too old is a prefix.
        let young = unused.partition_point(|one| now.duration_since(one.since) >= self.timers.pool_idle.0);
        let old: Vec<Unused> = unused.drain(..young).collect();
        let found = unused.iter().rposition(|one| one.home == here).and_then(|at| unused.remove(at));
        // Closing sockets takes time: not under the lock.
        drop(unused);
        drop(old);
        found.map(|one| one.link)
    }

    /// Keeps a connection for this thread's next request.
    pub fn give(&self, link: Link) {
        let one = Unused { since: clock::now(), home: std::thread::current().id(), link };
        let mut unused = self.lock();
        let displaced = if unused.len() >= self.timers.pool_size { unused.pop_front() } else { None };
        unused.push_back(one);
        drop(unused);
        drop(displaced);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Unused>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
