//! Listeners: accept, TLS, HTTP, drain.

pub mod heads;
pub mod keepalive;
pub mod patient;
pub mod redirected;
mod seldom;
pub mod switched;
pub mod tls;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Body as _;
use hyper::Version;
use hyper::body::Incoming;
use hyper::header::{EXPECT, UPGRADE};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use prometheus::IntCounter;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::body::BoxError;
use crate::body::unread::{Unread, unread};
use crate::units::Span;
use heads::{Ambiguous, Doubt, Watched};
use patient::Patient;
use redirected::Redirected;
use seldom::Seldom;
use switched::Place;
use tls::Tls;

/// What an HTTP/1.1 connection may hold of its peer's bytes, or for a peer that reads slowly. hyper's own 400 KiB are a
/// gigabyte for a thousand slow readers. A request's head must fit too.
const BUFFER: usize = 128 * 1024;

/// Limits of one listener, from `[limits]` and `[listen]`.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
    /// To finish a TLS handshake.
    pub handshake: Span,
    /// To receive a request's head.
    pub header_read: Span,
    /// How long a client may take nothing of what is written to it.
    pub client_stall: Span,
    /// How long live exchanges may go on once the server stops.
    pub drain: Span,
    /// A client that closes its writing side cancels its request; otherwise it may still read the answer.
    pub eof_cancels: bool,
    /// Redirected connections are asked where they were going.
    pub transparent: bool,
}

/// Who is at the other end of the connection a request came over; among the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

/// Where a connection comes from, and where it was going if not here.
#[derive(Clone, Copy)]
struct Source {
    peer: Peer,
    redirected: Option<Redirected>,
}

/// How a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Or for a reason that is counted elsewhere.
    Well,
    /// It brought something that is no head of a request (RFC 9112, section 3).
    ByBadHead,
}

/// A bound listener and how its connections are served.
pub struct Server {
    listener: TcpListener,
    tls: Option<Tls>,
    limits: Limits,
    permits: Arc<Semaphore>,
    bad_heads: Option<IntCounter>,
}

impl Server {
    /// `permits` bounds the open connections of every server it is shared with.
    pub fn new(listener: TcpListener, tls: Option<Tls>, limits: Limits, permits: Arc<Semaphore>) -> Self {
        Self { listener, tls, limits, permits, bad_heads: None }
    }

    /// Counts heads that cannot be read.
    pub fn counting(self, bad_heads: IntCounter) -> Self {
        Self { bad_heads: Some(bad_heads), ..self }
    }

    /// Serves until `stop` turns true, then drains: no new connections, live ones end after their exchange, and what is
    /// left after the drain limit is cut, `before_cut` having been called. Returns how many connections were cut.
    pub async fn run<S, B>(
        self,
        service: S,
        mut stop: watch::Receiver<bool>,
        before_cut: impl FnOnce(),
    ) -> usize
    where
        S: tower::Service<hyper::Request<Incoming>, Response = hyper::Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send + 'static,
        B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
    {
        let protocol = Arc::new(protocol(&self.limits));
        let graceful = GracefulShutdown::new();
        let mut live = JoinSet::new();
        let mut failing = false;
        loop {
            // The permit comes first: at the cap the backlog waits in the kernel, not in our memory.
            let accepted = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => break,
                Some(_) = live.join_next(), if !live.is_empty() => continue,
                accepted = accept(&self.permits, &self.listener) => accepted,
            };
            let (permit, (stream, peer)) = match accepted {
                Ok(accepted) => {
                    failing = false;
                    accepted
                }
                Err(error) => {
                    // Out of files, say: true for every attempt until it is over.
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(%error, "cannot accept connections");
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    continue;
                }
            };
            let (protocol, tls, service) = (protocol.clone(), self.tls.clone(), service.clone());
            let watchers = (graceful.watcher(), graceful.watcher());
            let (limits, bad_heads) = (self.limits, self.bad_heads.clone());
            live.spawn(async move {
                let _permit = permit;
                let _ = stream.set_nodelay(true).and_then(|()| keepalive::switch_on(&stream));
                let redirected = if limits.transparent { Redirected::of(&stream) } else { None };
                let source = Source { peer: Peer(peer), redirected };
                let stream = Patient::new(stream, limits.client_stall.0);
                let ended = match tls {
                    None => serve(&protocol, stream, (service, source), watchers, limits).await,
                    Some(tls) => match tls.accept(stream, limits.handshake.0).await {
                        Some(stream) => serve(&protocol, stream, (service, source), watchers, limits).await,
                        None => Ended::Well,
                    },
                };
                if let (Ended::ByBadHead, Some(bad_heads)) = (ended, bad_heads) {
                    bad_heads.inc();
                }
            });
        }
        drop(self.listener);
        let _ = tokio::time::timeout(self.limits.drain.0, graceful.shutdown()).await;
        while live.try_join_next().is_some() {}
        let cut = live.len();
        if cut > 0 {
            before_cut();
        }
        live.shutdown().await;
        cut
    }
}

async fn accept(
    permits: &Arc<Semaphore>,
    listener: &TcpListener,
) -> std::io::Result<(tokio::sync::OwnedSemaphorePermit, (TcpStream, SocketAddr))> {
    let permit = permits.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    Ok((permit, listener.accept().await?))
}

fn protocol(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read.0)
        .half_close(!limits.eof_cancels)
        .preserve_header_case(true)
        .max_buf_size(BUFFER)
        .auto_date_header(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.header_read.0)
        .keep_alive_timeout(limits.header_read.0)
        .auto_date_header(false);
    builder
}

async fn serve<I, S, B>(
    protocol: &auto::Builder<TokioExecutor>,
    stream: I,
    (service, source): (S, Source),
    (watcher, until_all_ends): (Watcher, Watcher),
    limits: Limits,
) -> Ended
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    S: tower::Service<hyper::Request<Incoming>, Response = hyper::Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes, Error = BoxError> + Send + 'static,
{
    let brought = Arc::new(AtomicU64::new(0));
    let stream = Watched::new(stream);
    let place = Place::default();
    let (unread, leavings) = unread();
    let service = Numbered {
        inner: service,
        brought: brought.clone(),
        doubt: stream.doubt(),
        place: place.clone(),
        unread,
        source,
    };
    let service = TowerToHyperService::new(service);
    let connection = protocol.serve_connection_with_upgrades(TokioIo::new(stream), service);
    // hyper's own timer starts with a request's first byte; a peer that never sends one would stay for ever.
    let silence = async {
        tokio::time::sleep(limits.header_read.0).await;
        if brought.load(Relaxed) > 0 {
            std::future::pending::<()>().await;
        }
    };
    let mut how = Ended::Well;
    tokio::select! {
        biased;
        ended = watcher.watch(connection) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended with an error");
                how = Ended::by(&error);
            }
        }
        () = Seldom::new(silence) => tracing::debug!("a connection brought no request and was closed"),
        () = Seldom::new(leavings.read(limits.header_read.0)) => {}
    }
    // What no longer speaks HTTP goes on here, under this connection's permit, and is waited for at a stop.
    if let Some(switched) = place.take() {
        switched.await;
    }
    drop(until_all_ends);
    how
}

impl Ended {
    fn by(error: &BoxError) -> Self {
        match error.downcast_ref::<hyper::Error>() {
            Some(error) if error.is_parse() => Self::ByBadHead,
            _ => Self::Well,
        }
    }
}

/// Counts the requests a connection has brought, notes on each who sent it, marks those whose framing is in doubt, and gives
/// one that asks for another protocol its place.
#[derive(Clone)]
struct Numbered<S> {
    inner: S,
    brought: Arc<AtomicU64>,
    doubt: Doubt,
    place: Place,
    unread: Unread,
    source: Source,
}

impl<S> tower::Service<hyper::Request<Incoming>> for Numbered<S>
where
    S: tower::Service<hyper::Request<Incoming>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: hyper::Request<Incoming>) -> S::Future {
        let number = self.brought.fetch_add(1, Relaxed);
        request.extensions_mut().insert(self.source.peer);
        if let Some(redirected) = self.source.redirected {
            request.extensions_mut().insert(redirected);
        }
        if self.doubt.concerns(number, request.headers()) {
            request.extensions_mut().insert(Ambiguous);
        } else if may_be_left(&request) {
            request.extensions_mut().insert(self.unread.clone());
        }
        if request.headers().contains_key(UPGRADE) {
            request.extensions_mut().insert(self.place.clone());
        }
        self.inner.call(request)
    }
}

/// Whether a body can follow that the connection must get past. One that waits to be asked for may never come (RFC 9110,
/// section 10.1.1), and a stream of HTTP/2 is simply reset.
fn may_be_left(request: &hyper::Request<Incoming>) -> bool {
    request.version() <= Version::HTTP_11
        && !request.body().is_end_stream()
        && !request.headers().contains_key(EXPECT)
}
