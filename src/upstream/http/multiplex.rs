//! HTTP/2 connections: each carries many exchanges at once, and so is driven by a task of its own.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::task::JoinSet;

use super::Timers;
use crate::body::replay::Replay;
use crate::clock;
use crate::upstream::Request;
use crate::upstream::connect::Stream;

/// What one stream may have on its way to us before somebody takes it. A client that reads slowly holds back its own stream
/// and no other.
const STREAM_WINDOW: u32 = 128 * 1024;
/// The most there is (RFC 9113, section 6.9.1): the streams' own windows bound what a connection holds. h2 closes one on
/// which more than half of this waits, and takes frames of a few bytes, as a model's tokens come in, for 256 each.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
const MAX_HEAD: u32 = 64 * 1024;

/// One upstream's HTTP/2 connections. Each belongs to the thread that opened it.
#[derive(Default)]
pub struct Multiplexed(Mutex<Vec<Arc<Connection>>>);

struct Connection {
    home: ThreadId,
    sender: SendRequest<Replay>,
    streams: AtomicUsize,
    /// How many of them the server allows at once.
    allowed: Arc<AtomicUsize>,
    /// When the last of its streams ended.
    idle_since: Mutex<Instant>,
    /// Drives the connection until the last that uses it is gone.
    _driver: JoinSet<()>,
}

/// A place on a connection; given back when dropped.
pub struct Place {
    connection: Arc<Connection>,
}

impl Multiplexed {
    /// A place on a connection of this thread that has one.
    pub fn take(&self, timers: &Timers) -> Option<Place> {
        let here = std::thread::current().id();
        let mut open = self.lock();
        let gone = open.extract_if(.., |one| !one.lives(timers)).collect::<Vec<_>>();
        let found = open.iter().find(|one| one.home == here && one.has_room(timers)).cloned();
        drop(open);
        drop(gone);
        found.map(Place::on)
    }

    /// Makes a connection of `stream` and takes the first place on it.
    pub async fn open(&self, stream: Stream, timers: &Timers) -> hyper::Result<Place> {
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEAD)
            .keep_alive_interval(timers.h2_ping.0)
            .keep_alive_timeout(timers.h2_ping.0)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await?;
        let mut driver = JoinSet::new();
        let allowed = Arc::new(AtomicUsize::new(connection.current_max_send_streams()));
        let told = allowed.clone();
        driver.spawn(async move {
            let mut connection = std::pin::pin!(connection);
            let ended = std::future::poll_fn(|cx| {
                let ended = connection.as_mut().poll(cx);
                told.store(connection.current_max_send_streams(), Relaxed);
                ended
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "an HTTP/2 connection to an upstream ended");
            }
        });
        let connection = Arc::new(Connection {
            home: std::thread::current().id(),
            sender,
            streams: AtomicUsize::new(0),
            allowed,
            idle_since: Mutex::new(clock::now()),
            _driver: driver,
        });
        let place = Place::on(connection.clone());
        self.lock().push(connection);
        Ok(place)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    fn streams(&self) -> usize {
        self.streams.load(Relaxed)
    }

    fn has_room(&self, timers: &Timers) -> bool {
        self.streams() < timers.h2_streams.min(self.allowed.load(Relaxed))
    }

    /// Whether it is worth keeping: open, and in use or used lately.
    fn lives(&self, timers: &Timers) -> bool {
        let idle = || self.idle_since.lock().map_or(timers.pool_idle.0, |since| clock::now() - *since);
        !self.sender.is_closed() && (self.streams() > 0 || idle() < timers.pool_idle.0)
    }
}

impl Place {
    fn on(connection: Arc<Connection>) -> Self {
        connection.streams.fetch_add(1, Relaxed);
        Self { connection }
    }

    /// Sends `request` and waits for the head of its answer. The request comes back if nothing of it was sent.
    pub async fn exchange(
        &self,
        request: Request,
    ) -> Result<hyper::Response<Incoming>, (hyper::Error, Option<Request>)> {
        let mut sender = self.connection.sender.clone();
        sender.try_send_request(request).await.map_err(|mut error| {
            let unsent = error.take_message();
            (error.into_error(), unsent)
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(mut since) = self.connection.idle_since.lock() {
            *since = clock::now();
        }
        self.connection.streams.fetch_sub(1, Relaxed);
    }
}
