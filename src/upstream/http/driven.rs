//! The body of an answer, which drives the connection it comes over if it has that to itself.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use super::deepest;
use super::multiplex::Place;
use super::pool::{Link, Pool};
use crate::body::digest::Digest;
use crate::clock;
use crate::units::Span;
use crate::upstream::Failure;

/// At most about this much is joined into one frame.
const JOIN: usize = 32 * 1024;
/// After this many bytes without a pause the thread's other exchanges have their turn.
const TURN: usize = 256 * 1024;

/// What an answer comes over.
pub enum Carrier {
    /// A connection of its own, for the pool when the answer has ended cleanly.
    Alone(Link, Arc<Pool>),
    /// One stream of a connection that others use too.
    Shared(Place),
    /// Given back, or broken.
    Gone,
}

/// An answer's body that drives its connection and gives it back when the answer has ended cleanly. Dropped earlier, it
/// closes the connection or resets its stream: that is how a cancelled client cancels the upstream.
pub struct Driven {
    inner: Incoming,
    carrier: Carrier,
    idle: Span,
    ended: bool,
    begun: bool,
    /// The head or data went out since hyper last had a chance to flush.
    unflushed: bool,
    /// Bytes handed on since others last had a turn.
    turn: usize,
    /// Held back while data that arrived before it goes out first.
    next: Option<Result<Frame<Bytes>, Failure>>,
    edges: Vec<u32>,
    /// Of all that has come, where somebody wants to know.
    pub received: Option<Digest>,
    latest: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Driven {
    /// `idle`: how long nothing may come.
    pub fn new(inner: Incoming, carrier: Carrier, idle: Span) -> Self {
        let mut driven = Self {
            inner,
            carrier,
            idle,
            ended: false,
            begun: false,
            // The head.
            unflushed: true,
            turn: 0,
            next: None,
            edges: Vec::new(),
            received: None,
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
        if let Carrier::Alone(mut link, pool) = std::mem::replace(&mut self.carrier, Carrier::Gone) {
            link.drive(cx);
            if link.usable() {
                pool.give(link);
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
                            if let Some(digest) = &mut self.received {
                                digest.add(&data);
                            }
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
                        // Nothing follows trailers, and nobody asks again after them.
                        Err(trailers) => {
                            self.next = Some(Ok(trailers));
                            self.finish(cx);
                            break;
                        }
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.ended = true;
                    self.carrier = Carrier::Gone;
                    self.next = Some(Err(Failure::Cut(deepest(&error))));
                    break;
                }
                // hyper takes a reset with NO_ERROR for an end (RFC 9113 section 8.1 allows it only after one).
                Poll::Ready(None)
                    if matches!(self.carrier, Carrier::Shared(_)) && !self.inner.is_end_stream() =>
                {
                    self.ended = true;
                    self.carrier = Carrier::Gone;
                    self.next = Some(Err(Failure::Cut("its stream was reset before it ended".to_owned())));
                    break;
                }
                Poll::Ready(None) => {
                    self.finish(cx);
                    break;
                }
                Poll::Pending => match &mut self.carrier {
                    Carrier::Alone(link, _) if !driven && link.is_open() => {
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
        let idle = self.idle;
        let due = tokio::time::Instant::from_std(self.latest + idle.0);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        while timer.as_mut().poll(cx).is_ready() {
            // The timer is set once and moved only when it fires: frames come far more often than it does.
            if clock::now().duration_since(self.latest) >= idle.0 {
                self.ended = true;
                self.carrier = Carrier::Gone;
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
        if this.turn >= TURN {
            (this.turn, this.unflushed) = (0, false);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if this.next.is_none()
            && !this.ended
            && let Some(frame) = this.gather(cx).frame()
        {
            this.begun = true;
            this.unflushed = true;
            this.turn += frame.data_ref().map_or(0, Bytes::len);
            this.latest = clock::now();
            return Poll::Ready(Some(Ok(frame)));
        }
        match this.next.take() {
            // hyper's server drops what it has not yet flushed when a body fails. One turn to flush gives the client what
            // came before the failure, unless it reads so slowly that its socket is full.
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
                (this.turn, this.unflushed) = (0, false);
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
