//! An HTTP/1.1 upstream whose connections are driven by the exchange that uses them.
//!
//! hyper's usual arrangement gives each client connection a task of its own, and every chunk then crosses a channel and
//! a wake-up. Here the pool holds (sender, connection) pairs; the request future and then the response body poll the
//! connection themselves, take every frame that has arrived, and hand them on as one (decision D13). The first frame of
//! an answer is never held back.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use tokio::time::Sleep;

use super::connect::{Endpoint, Stream};
use super::health::Health;
use super::{Answer, Body, Config, Failed, Failure, HostHeader, Request, Response, Upstream};
use crate::body::replay::{Extent, Replay};
use crate::clock;
use crate::units::Span;

/// At most this much is joined into one frame.
const JOIN: usize = 32 * 1024;

/// Limits every upstream connection keeps, from `[limits]`.
#[derive(Clone, Copy, Debug)]
pub struct Timers {
    pub connect: Span,
    pub head: Span,
    pub idle: Span,
    /// An unused connection older than this is not used again.
    pub pool_idle: Span,
    /// Unused connections kept.
    pub pool_size: usize,
}

/// One `[[upstream]]`.
pub struct Http {
    name: String,
    endpoint: Endpoint,
    host: Option<HeaderValue>,
    health: Option<Health>,
    shared: Arc<Shared>,
}

struct Shared {
    timers: Timers,
    unused: Mutex<VecDeque<(Instant, Link)>>,
}

/// A connection and the handle that sends requests on it.
struct Link {
    sender: SendRequest<Replay>,
    connection: Pin<Box<Connection<TokioIo<Stream>, Replay>>>,
    /// The connection has finished; nothing more will come.
    dead: bool,
}

impl Link {
    /// Lets the connection do what it can now.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.dead && self.connection.as_mut().poll(cx).is_ready() {
            self.dead = true;
        }
    }

    /// Whether another request may be sent on it.
    fn usable(&self) -> bool {
        !self.dead && self.sender.is_ready() && !self.sender.is_closed()
    }
}

impl Shared {
    /// The youngest usable connection. Old ones are dropped: a server may be about to close them.
    fn take(&self) -> Option<(Instant, Link)> {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = unused
            .pop_back()
            .filter(|(since, _)| clock::now().duration_since(*since) < self.timers.pool_idle.0);
        if fresh.is_none() {
            unused.clear();
        }
        fresh
    }

    fn give(&self, link: Link) {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() >= self.timers.pool_size {
            unused.pop_front();
        }
        unused.push_back((clock::now(), link));
    }
}

impl Http {
    pub fn new(config: &Config, timers: Timers, health: Health) -> Result<Self, String> {
        let endpoint = Endpoint::parse(&config.url, config.ca_file.as_deref())?;
        let host = match config.host {
            HostHeader::Pass => None,
            HostHeader::Rewrite => {
                Some(HeaderValue::try_from(endpoint.authority()).map_err(|e| e.to_string())?)
            }
        };
        Ok(Self { host, health: Some(health), ..Self::at(&config.name, endpoint, timers) })
    }

    /// An upstream without configuration of its own.
    pub fn at(name: &str, endpoint: Endpoint, timers: Timers) -> Self {
        let shared = Arc::new(Shared { timers, unused: Mutex::default() });
        Self { name: name.to_owned(), endpoint, host: None, health: None, shared }
    }

    /// An unused connection that is still open, or a new one; the flag tells which.
    async fn link(&self) -> Result<(Link, bool), Failure> {
        while let Some((_, mut link)) = self.shared.take() {
            // A connection the server closed meanwhile shows itself on this poll.
            std::future::poll_fn(|cx| {
                let _: () = link.drive(cx);
                Poll::Ready(())
            })
            .await;
            if link.usable() {
                return Ok((link, true));
            }
        }
        let refused = |error: &dyn std::fmt::Display| Failure::Refused(error.to_string());
        let stream =
            self.endpoint.open(self.shared.timers.connect.0).await.map_err(|error| refused(&error))?;
        let (sender, connection) = Builder::new()
            .preserve_header_case(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| refused(&error))?;
        Ok((Link { sender, connection: Box::pin(connection), dead: false }, false))
    }

    async fn send(&self, mut request: Request) -> Result<Response, Failed> {
        self.address(&mut request);
        loop {
            let (mut link, reused) = match self.link().await {
                Ok(found) => found,
                Err(cause) => return Err(Failed { cause, unsent: Some(Box::new(request)) }),
            };
            let copy = request.body().copy();
            let head = self.shared.timers.head;
            let sent = match tokio::time::timeout(head.0, exchange(&mut link, request)).await {
                Ok(sent) => sent,
                Err(_) => return Err(Failed { cause: Failure::HeadTimeout(head), unsent: None }),
            };
            match sent {
                Ok(answer) => {
                    return Ok(answer
                        .map(|inner| Body::Http(Box::new(Driven::new(inner, link, self.shared.clone())))));
                }
                // Never sent: the pooled connection died under us before the first byte. Nobody has seen the request.
                Err((_, Some(unsent))) if reused => request = unsent,
                Err((error, unsent)) => {
                    let cause = match copy.extent() {
                        Extent::Broken => Failure::ClientBody(error.to_string()),
                        _ => Failure::Cut(deepest(&error)),
                    };
                    return Err(Failed { cause, unsent: unsent.map(Box::new) });
                }
            }
        }
    }

    /// Turns the request's target into the form an origin server expects.
    fn address(&self, request: &mut Request) {
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = hyper::Uri::from(path);
        }
        *request.version_mut() = hyper::Version::HTTP_11;
        if let Some(host) = &self.host {
            request.headers_mut().insert(HOST, host.clone());
        } else if !request.headers().contains_key(HOST) {
            // HTTP/2 carries the host in its pseudo-header, HTTP/1.0 may carry none.
            let value = authority.unwrap_or_else(|| self.endpoint.authority());
            if let Ok(value) = HeaderValue::try_from(value) {
                request.headers_mut().insert(HOST, value);
            }
        }
    }
}

impl Upstream for Http {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, request: Request) -> Answer<'_> {
        Box::pin(async {
            let answer = self.send(request).await;
            if let Some(health) = &self.health {
                health.note(answer.as_ref().err().map(|failed| &failed.cause), &self.endpoint.authority());
            }
            answer
        })
    }
}

/// The innermost cause: hyper's outer message says only that something failed.
fn deepest(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => deepest(source),
        None => error.to_string(),
    }
}

/// Sends `request` on `link` and drives the connection until the head of the answer is here.
async fn exchange(
    link: &mut Link,
    request: Request,
) -> Result<hyper::Response<Incoming>, (hyper::Error, Option<Request>)> {
    let mut answer = Box::pin(link.sender.try_send_request(request));
    let (connection, dead) = (&mut link.connection, &mut link.dead);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(answer);
        }
        if !*dead && connection.as_mut().poll(cx).is_ready() {
            *dead = true;
        }
        answer.as_mut().poll(cx)
    })
    .await
    .map_err(|mut error| {
        let unsent = error.take_message();
        (error.into_error(), unsent)
    })
}

/// An answer's body that drives its connection and gives it back to the pool when the answer has ended cleanly.
/// Dropped earlier, it closes the connection: that is how a cancelled client cancels the upstream.
pub struct Driven {
    inner: Incoming,
    link: Option<Link>,
    shared: Arc<Shared>,
    ended: bool,
    begun: bool,
    /// Data went out since hyper last had a chance to flush.
    unflushed: bool,
    /// Held back while data that arrived before it goes out first.
    next: Option<Result<Frame<Bytes>, Failure>>,
    edges: Vec<u32>,
    latest: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Driven {
    fn new(inner: Incoming, link: Link, shared: Arc<Shared>) -> Self {
        let mut driven = Self {
            inner,
            link: Some(link),
            shared,
            ended: false,
            begun: false,
            unflushed: false,
            next: None,
            edges: Vec::new(),
            latest: clock::now(),
            timer: None,
        };
        // An answer without a body ends here; nobody would poll it.
        if driven.inner.is_end_stream() {
            driven.ended = true;
        }
        driven
    }

    pub fn edges(&self) -> &[u32] {
        if self.edges.len() > 1 { &self.edges } else { &[] }
    }

    /// The answer has ended cleanly: let the connection settle, then keep it for the next request.
    fn finish(&mut self, cx: &mut Context<'_>) {
        self.ended = true;
        if let Some(mut link) = self.link.take() {
            link.drive(cx);
            if link.usable() {
                self.shared.give(link);
            }
        }
    }

    /// Everything that has arrived, joined up to [`JOIN`] bytes.
    fn gather(&mut self, cx: &mut Context<'_>) -> Gathered {
        let mut gathered = Gathered::default();
        let mut driven = false;
        self.edges.clear();
        while gathered.length < JOIN {
            match Pin::new(&mut self.inner).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    driven = false;
                    match frame.into_data() {
                        Ok(data) => {
                            self.edges.push(data.len() as u32);
                            gathered.push(data);
                            // With a known length the last byte is the end: nobody may ask again.
                            if self.inner.is_end_stream() {
                                self.finish(cx);
                                break;
                            }
                            if !self.begun {
                                break;
                            }
                        }
                        Err(trailers) => {
                            self.next = Some(Ok(trailers));
                            break;
                        }
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.ended = true;
                    self.link = None;
                    self.next = Some(Err(Failure::Cut(deepest(&error))));
                    break;
                }
                Poll::Ready(None) => {
                    self.finish(cx);
                    break;
                }
                Poll::Pending => match &mut self.link {
                    Some(link) if !driven && !link.dead => {
                        driven = true;
                        link.drive(cx);
                    }
                    _ => break,
                },
            }
        }
        gathered
    }

    /// Nothing is here: wait, but not for ever.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let idle = self.shared.timers.idle;
        let due = tokio::time::Instant::from_std(self.latest + idle.0);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        while timer.as_mut().poll(cx).is_ready() {
            // The timer is set once and moved only when it fires: frames come far more often than it does.
            if clock::now().duration_since(self.latest) >= idle.0 {
                self.ended = true;
                self.link = None;
                return Poll::Ready(Some(Err(Failure::IdleTimeout(idle))));
            }
            timer.as_mut().reset(due);
        }
        Poll::Pending
    }
}

#[derive(Default)]
struct Gathered {
    one: Option<Bytes>,
    joined: BytesMut,
    length: usize,
}

impl Gathered {
    fn push(&mut self, data: Bytes) {
        self.length += data.len();
        if !self.joined.is_empty() {
            self.joined.extend_from_slice(&data);
        } else if let Some(one) = self.one.take() {
            self.joined.reserve((one.len() + data.len()).max(JOIN / 4));
            self.joined.extend_from_slice(&one);
            self.joined.extend_from_slice(&data);
        } else {
            self.one = Some(data);
        }
    }

    fn frame(self) -> Option<Frame<Bytes>> {
        let bytes = self.one.unwrap_or_else(|| self.joined.freeze());
        (!bytes.is_empty()).then(|| Frame::data(bytes))
    }
}

impl http_body::Body for Driven {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = self.get_mut();
        if this.next.is_none()
            && !this.ended
            && let Some(frame) = this.gather(cx).frame()
        {
            this.begun = true;
            this.unflushed = true;
            this.latest = clock::now();
            return Poll::Ready(Some(Ok(frame)));
        }
        match this.next.take() {
            // hyper's server drops what it has not yet flushed when a body fails. Giving it one turn to flush lets the
            // client have every byte that came before the failure.
            Some(failure @ Err(_)) if std::mem::take(&mut this.unflushed) => {
                this.next = Some(failure);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(next) => {
                this.edges.clear();
                Poll::Ready(Some(next))
            }
            None if this.ended => Poll::Ready(None),
            None => {
                this.unflushed = false;
                this.wait(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.next.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // An answer without a body (HEAD, 204, 304) is never polled, and so ends here.
        if self.ended && self.next.is_none() {
            self.finish(&mut Context::from_waker(Waker::noop()));
        }
    }
}
