//! An HTTP/1.1 upstream whose connections are driven by the exchange that uses them.
//!
//! hyper's usual arrangement gives each client connection a task of its own, and every chunk then crosses a channel and
//! a wake-up. Here the pool holds (sender, connection) pairs; the request future and then the response body poll the
//! connection themselves, take every frame that has arrived, and hand them on as one (decision D13). The first frame of
//! an answer is never held back.

pub mod driven;
pub mod pool;
mod spare;

use std::sync::Arc;
use std::task::Poll;

use hyper::body::Incoming;
use hyper::client::conn::http1::Builder;
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;

use super::connect::{Endpoint, Mistake};
use super::health::Health;
use super::{Answer, Body, Config, Failed, Failure, HostHeader, Request, Response, Upstream};
use crate::body::replay::Extent;
use crate::units::Span;
use driven::Driven;
use pool::{Link, Pool};
use spare::Spare;

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
    pool: Arc<Pool>,
}

impl Http {
    pub fn new(config: &Config, timers: Timers, health: Health) -> Result<Self, Mistake> {
        let endpoint = Endpoint::parse(&config.url, config.ca_file.as_deref())?;
        let host = match config.host {
            HostHeader::Pass => None,
            HostHeader::Rewrite => Some(
                HeaderValue::try_from(endpoint.authority())
                    .map_err(|error| Mistake::Url(error.to_string()))?,
            ),
        };
        Ok(Self { host, health: Some(health), ..Self::at(&config.name, endpoint, timers) })
    }

    /// An upstream without configuration of its own.
    pub fn at(name: &str, endpoint: Endpoint, timers: Timers) -> Self {
        let pool = Arc::new(Pool::new(timers));
        Self { name: name.to_owned(), endpoint, host: None, health: None, pool }
    }

    /// An unused connection that is still open, or a new one; the flag tells which.
    async fn link(&self) -> Result<(Link, bool), Failure> {
        while let Some(mut link) = self.pool.take() {
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
        self.open().await
    }

    /// A new connection.
    async fn open(&self) -> Result<(Link, bool), Failure> {
        let refused = |error: &dyn std::fmt::Display| Failure::Refused(error.to_string());
        let stream = self.endpoint.open(self.pool.timers.connect.0).await.map_err(|error| refused(&error))?;
        let received = stream.received();
        let (sender, connection) = Builder::new()
            .preserve_header_case(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| refused(&error))?;
        Ok((Link::new(sender, connection, received), false))
    }

    async fn send(&self, mut request: Request) -> Result<Response, Failed> {
        self.address(&mut request);
        let mut again = false;
        loop {
            let (mut link, reused) = match if again { self.open().await } else { self.link().await } {
                Ok(found) => found,
                Err(cause) => return Err(Failed { cause, unsent: Some(Box::new(request)) }),
            };
            let copy = request.body().copy();
            let spare = reused.then(|| Spare::of(&request));
            let before = link.received();
            let head = self.pool.timers.head;
            let sent = match tokio::time::timeout(head.0, exchange(&mut link, request)).await {
                Ok(sent) => sent,
                Err(_) => return Err(Failed { cause: Failure::HeadTimeout(head), unsent: None }),
            };
            let (error, unsent) = match sent {
                Ok(answer) => return self.answered(answer, link),
                Err(broken) => broken,
            };
            let silent = link.received() == before;
            match (spare, unsent) {
                // Never sent: the pooled connection died under us before the first byte. Nobody has seen the request.
                (Some(_), Some(unsent)) => request = unsent,
                (Some(spare), None) if silent && copy.extent() == Extent::Whole => match spare.again() {
                    Some(repeated) => (request, again) = (repeated, true),
                    None => return Err(Failed { cause: Failure::Cut(deepest(&error)), unsent: None }),
                },
                (_, unsent) => {
                    let cause = match copy.extent() {
                        Extent::Broken => Failure::ClientBody(error.to_string()),
                        _ => Failure::Cut(deepest(&error)),
                    };
                    return Err(Failed { cause, unsent: unsent.map(Box::new) });
                }
            }
        }
    }

    fn answered(&self, answer: hyper::Response<Incoming>, link: Link) -> Result<Response, Failed> {
        if answer.status() == hyper::StatusCode::SWITCHING_PROTOCOLS {
            let cause = Failure::Cut("switched protocols although nobody asked it to".to_owned());
            return Err(Failed { cause, unsent: None });
        }
        Ok(answer.map(|inner| Body::Http(Box::new(Driven::new(inner, link, self.pool.clone())))))
    }

    /// Turns the request's target into the form an origin server expects.
    fn address(&self, request: &mut Request) {
        // A target that carries its authority, absolute or HTTP/2's, outranks a Host header (RFC 9112 section 3.2.2).
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        if let Some(path) = request.uri().path_and_query().cloned() {
            *request.uri_mut() = hyper::Uri::from(path);
        }
        *request.version_mut() = hyper::Version::HTTP_11;
        if let Some(host) = &self.host {
            request.headers_mut().insert(HOST, host.clone());
        } else if authority.is_some() || !request.headers().contains_key(HOST) {
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
    let mut answer = std::pin::pin!(link.sender.try_send_request(request));
    let connection = &mut link.connection;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(answer);
        }
        if connection.as_mut().is_some_and(|connection| connection.as_mut().poll(cx).is_ready()) {
            *connection = None;
        }
        answer.as_mut().poll(cx)
    })
    .await
    .map_err(|mut error| {
        let unsent = error.take_message();
        (error.into_error(), unsent)
    })
}
