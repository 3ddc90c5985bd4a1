//! An HTTP upstream. HTTP/1.1 connections are driven by the exchange that uses them; HTTP/2 connections carry many exchanges
//! and have a task of their own.
//!
//! hyper's usual arrangement gives every client connection a task, and every chunk then crosses a channel and a wake-up.
//! Here the pool holds (sender, connection) pairs; the request future and then the response body poll the connection
//! themselves, take every frame that has arrived, and hand them on as one (decision D13). The first frame of an answer is
//! never held back.

pub mod driven;
pub mod multiplex;
pub mod pool;
mod spare;
pub mod switched;
pub mod target;

use std::sync::Arc;
use std::task::Poll;

use hyper::header::{HeaderValue, UPGRADE};

use super::connect::outgoing::Outgoing;
use super::connect::{Endpoint, Mistake};
use super::health::Health;
use super::{Answer, Body, Config, Failed, Failure, HostHeader, Request, Response, Upstream};
use crate::body::replay::Extent;
use crate::tls::files::Files;
use crate::units::Span;
use driven::{Carrier, Driven};
use multiplex::{Multiplexed, Place};
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
    /// Exchanges at once on one HTTP/2 connection.
    pub h2_streams: usize,
    /// How often an HTTP/2 connection is asked whether its peer is still there, and how long the answer may take.
    pub h2_ping: Span,
}

/// One `[[upstream]]`.
pub struct Http {
    name: String,
    endpoint: Endpoint,
    host: Option<HeaderValue>,
    health: Option<Health>,
    pool: Arc<Pool>,
    multiplexed: Multiplexed,
}

/// What a request goes out on.
enum Way {
    Alone(Link),
    Shared(Place),
}

/// A request that went out and brought no answer.
struct Broken {
    error: hyper::Error,
    /// The request, if nothing of it was sent.
    unsent: Option<Request>,
    /// Why it may be sent once more.
    again: Option<Again>,
}

/// Why a request that was sent may be sent once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    /// The reused connection it went out on broke before a byte of an answer.
    Stale,
    /// The server said that it has not looked at it (RFC 9113 section 8.7).
    Unprocessed,
}

impl Http {
    /// `files` looks after what its section names.
    pub fn new(config: &Config, timers: Timers, health: Health, files: &Files) -> Result<Self, Mistake> {
        let section = format!("upstream {}", config.name);
        let endpoint = Endpoint::parse(&config.url, config.http, config.tls(), Some((files, &section)))?;
        let host = match config.host {
            HostHeader::Pass => None,
            HostHeader::Rewrite => Some(
                HeaderValue::try_from(endpoint.authority())
                    .map_err(|error| Mistake::Url(error.to_string()))?,
            ),
        };
        Ok(Self { host, health: Some(health), ..Self::at(&config.name, endpoint, timers) })
    }

    /// The same, with where its connections come from noted.
    pub fn noting(self, outgoing: Option<&Outgoing>) -> Self {
        match outgoing {
            Some(outgoing) => Self { endpoint: self.endpoint.noting(outgoing.clone()), ..self },
            None => self,
        }
    }

    /// An upstream without configuration of its own.
    pub fn at(name: &str, endpoint: Endpoint, timers: Timers) -> Self {
        let pool = Arc::new(Pool::new(timers));
        let multiplexed = Multiplexed::default();
        Self { name: name.to_owned(), endpoint, host: None, health: None, pool, multiplexed }
    }

    /// What the next request goes out on, and whether it was used before.
    async fn way(&self, fresh: bool) -> Result<(Way, bool), Failure> {
        if !fresh {
            if self.endpoint.may_speak_http2()
                && let Some(place) = self.multiplexed.take(&self.pool.timers)
            {
                return Ok((Way::Shared(place), true));
            }
            if let Some(link) = self.unused().await {
                return Ok((Way::Alone(link), true));
            }
        }
        // What is rare is kept out of the future that every request moves about.
        Ok((Box::pin(self.open()).await?, false))
    }

    /// An unused HTTP/1.1 connection that is still open.
    async fn unused(&self) -> Option<Link> {
        while let Some(mut link) = self.pool.take() {
            // A connection the server closed meanwhile shows itself on this poll.
            std::future::poll_fn(|cx| {
                let _: () = link.drive(cx);
                Poll::Ready(())
            })
            .await;
            if link.usable() {
                return Some(link);
            }
        }
        None
    }

    async fn open(&self) -> Result<Way, Failure> {
        let timers = &self.pool.timers;
        let stream = self.endpoint.open(timers.connect.0).await.map_err(refused)?;
        if stream.is_http2() {
            return Ok(Way::Shared(self.multiplexed.open(stream, timers).await.map_err(refused)?));
        }
        let received = stream.received();
        let (sender, connection) = pool::handshake(stream).await.map_err(refused)?;
        Ok(Way::Alone(Link::new(sender, connection, received)))
    }

    async fn send(&self, mut request: Request) -> Result<Response, Failed> {
        target::origin_form(&mut request, self.host.as_ref(), &self.endpoint);
        if request.headers().contains_key(UPGRADE) {
            return Box::pin(self.switch(request)).await;
        }
        let mut fresh = false;
        loop {
            let (way, reused) = match self.way(fresh).await {
                Ok(found) => found,
                Err(cause) => return Err(Failed { cause, unsent: Some(Box::new(request)) }),
            };
            let shared = matches!(way, Way::Shared(_));
            let copy = request.body().copy();
            let spare = (!fresh && (reused || shared)).then(|| Spare::of(&request));
            let head = self.pool.timers.head;
            let Ok(sent) = tokio::time::timeout(head.0, self.exchange(way, reused, request)).await else {
                return Err(Failed { cause: Failure::HeadTimeout(head), unsent: None });
            };
            let broken = match sent {
                Ok(answer) => return self.answered(answer),
                Err(broken) => broken,
            };
            match (spare, broken.unsent, broken.again) {
                // Never sent: the connection died under us before the first byte. Nobody has seen the request.
                (Some(_), Some(unsent), _) => {
                    (request, fresh) = (unsent, !reused);
                    // HTTP/2 has taken the host out of the headers.
                    target::origin_form(&mut request, self.host.as_ref(), &self.endpoint);
                }
                (Some(spare), None, Some(why)) if copy.extent() == Extent::Whole => match spare.again() {
                    Some(repeated) => {
                        (request, fresh) = (repeated, true);
                        self.note_repeated(why);
                    }
                    None => return Err(Failed { cause: Failure::Cut(deepest(&broken.error)), unsent: None }),
                },
                (_, unsent, _) => {
                    let cause = Failure::of_request(copy.fate(), deepest(&broken.error));
                    return Err(Failed { cause, unsent: unsent.map(Box::new) });
                }
            }
        }
    }

    async fn exchange(
        &self,
        way: Way,
        reused: bool,
        mut request: Request,
    ) -> Result<hyper::Response<Driven>, Broken> {
        let idle = self.pool.timers.idle;
        match way {
            Way::Alone(mut link) => {
                let before = link.received();
                match link.exchange(request).await {
                    Ok(answer) => {
                        let carrier = Carrier::Alone(link, self.pool.clone());
                        Ok(answer.map(|inner| Driven::new(inner, carrier, idle)))
                    }
                    Err((error, unsent)) => {
                        let silent = reused && link.received() == before;
                        Err(Broken { error, unsent, again: silent.then_some(Again::Stale) })
                    }
                }
            }
            Way::Shared(place) => {
                target::absolute_form(&mut request, &self.endpoint);
                match place.exchange(request).await {
                    Ok(answer) => Ok(answer.map(|inner| Driven::new(inner, Carrier::Shared(place), idle))),
                    Err((error, unsent)) => {
                        let again = unprocessed(&error).then_some(Again::Unprocessed);
                        Err(Broken { error, unsent, again })
                    }
                }
            }
        }
    }

    fn answered(&self, answer: hyper::Response<Driven>) -> Result<Response, Failed> {
        if answer.status() == hyper::StatusCode::SWITCHING_PROTOCOLS {
            let cause = Failure::Cut("switched protocols although nobody asked it to".to_owned());
            return Err(Failed { cause, unsent: None });
        }
        Ok(answer.map(|inner| Body::Http(Box::new(inner))))
    }

    /// Sends a request that asks for another protocol, on a connection of its own.
    async fn switch(&self, request: Request) -> Result<Response, Failed> {
        let Timers { connect, head, idle, .. } = self.pool.timers;
        let stream = match self.endpoint.open_http1(connect.0).await {
            Ok(stream) => stream,
            Err(error) => return Err(Failed { cause: refused(error), unsent: Some(Box::new(request)) }),
        };
        let copy = request.body().copy();
        let asked = request.headers().get(UPGRADE).cloned();
        match tokio::time::timeout(head.0, switched::ask(stream, request)).await {
            Err(_) => Err(Failed { cause: Failure::HeadTimeout(head), unsent: None }),
            Ok(Err(error)) => {
                Err(Failed { cause: Failure::of_request(copy.fate(), deepest(&error)), unsent: None })
            }
            Ok(Ok(switched::Answer::Yes(answer)))
                if !same_protocol(asked.as_ref(), answer.headers().get(UPGRADE)) =>
            {
                let cause = Failure::Cut("switched to another protocol than it was asked for".to_owned());
                Err(Failed { cause, unsent: None })
            }
            Ok(Ok(switched::Answer::Yes(answer))) => Ok(answer.map(|far| Body::Switched(Box::new(far)))),
            Ok(Ok(switched::Answer::No(answer, link))) => {
                let carrier = Carrier::Alone(link, self.pool.clone());
                Ok(answer.map(|inner| Body::Http(Box::new(Driven::new(inner, carrier, idle)))))
            }
        }
    }

    fn note_repeated(&self, why: Again) {
        if let Some(health) = &self.health {
            health.repeated(match why {
                Again::Stale => "stale",
                Again::Unprocessed => "unprocessed",
            });
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
                health.note(answer.as_ref().err().map(|failed| &failed.cause), || self.endpoint.authority());
            }
            answer
        })
    }
}

/// Whether a server switches to what it was asked for (RFC 9110, section 7.8).
fn same_protocol(asked: Option<&HeaderValue>, agreed: Option<&HeaderValue>) -> bool {
    let same = |(asked, agreed): (&HeaderValue, &HeaderValue)| {
        asked.as_bytes().trim_ascii().eq_ignore_ascii_case(agreed.as_bytes().trim_ascii())
    };
    asked.zip(agreed).is_some_and(same)
}

/// The innermost cause: hyper's outer message says only that something failed.
fn deepest(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => deepest(source),
        None => error.to_string(),
    }
}

fn refused(error: impl std::error::Error) -> Failure {
    Failure::Refused(error.to_string())
}

/// Whether a stream's failure says that its request was not worked on. A connection that breaks says nothing of the kind:
/// other streams may have been answered on it, and this one be half done.
fn unprocessed(error: &hyper::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if let Some(http2) = error.downcast_ref::<h2::Error>() {
            let refused = http2.is_reset() && http2.reason() == Some(h2::Reason::REFUSED_STREAM);
            return http2.is_remote() && (refused || http2.is_go_away());
        }
        source = error.source();
    }
    false
}
