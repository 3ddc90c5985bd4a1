//! A request body that streams on its way while a bounded copy is kept. Past the cap only the copy is lost: the live
//! body goes on untouched, but it can no longer be recorded whole or answered by a fallback.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::BoxError;
use super::budget::Lease;

/// How much of a body the copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The body has not ended yet.
    Open,
    /// The body has ended and the copy is all of it.
    Whole,
    /// Something is missing: the cap was reached or no copy was wanted.
    Truncated,
    /// The sender broke off.
    Broken,
}

/// The copy, shared by the body that fills it and whoever reads it later.
#[derive(Clone, Debug)]
pub struct Copied(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    parts: Vec<Bytes>,
    length: u64,
    extent: Extent,
    lease: Option<Lease>,
}

/// A request body on its way up.
#[derive(Debug)]
pub struct Replay {
    source: Source,
    copy: Copied,
}

#[derive(Debug)]
enum Source {
    Live(Incoming),
    Held(Option<Bytes>),
}

impl Copied {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    pub fn extent(&self) -> Extent {
        self.lock().extent
    }

    /// Bytes that went by, copied or not.
    pub fn length(&self) -> u64 {
        self.lock().length
    }

    /// All copied bytes in one piece, however much that is.
    pub fn bytes(&self) -> Bytes {
        let state = self.lock();
        match state.parts.as_slice() {
            [] => Bytes::new(),
            [one] => one.clone(),
            many => {
                let mut joined = BytesMut::with_capacity(many.iter().map(Bytes::len).sum());
                many.iter().for_each(|part| joined.extend_from_slice(part));
                joined.freeze()
            }
        }
    }

    /// The lease on the copy's bytes, to be held for as long as they are.
    pub fn take_lease(&self) -> Option<Lease> {
        self.lock().lease.take()
    }
}

impl State {
    fn push(&mut self, part: &Bytes) {
        self.length += part.len() as u64;
        if self.extent != Extent::Open {
            return;
        }
        if self.lease.as_mut().is_some_and(|lease| lease.grow(part.len() as u64)) {
            self.parts.push(part.clone());
        } else {
            self.extent = Extent::Truncated;
        }
    }

    fn close(&mut self, extent: Extent) {
        if self.extent == Extent::Open {
            self.extent = extent;
        }
    }
}

impl Replay {
    /// Wraps a live body; `lease` bounds the copy, `None` wants none.
    pub fn live(body: Incoming, lease: Option<Lease>) -> Self {
        let extent = if body.is_end_stream() { Extent::Whole } else { Extent::Open };
        Self { source: Source::Live(body), copy: Copied::new(extent, Vec::new(), lease) }
    }

    /// A body that is already all here.
    pub fn held(bytes: Bytes) -> Self {
        let copy = Copied::new(Extent::Whole, vec![bytes.clone()], None);
        copy.lock().length = bytes.len() as u64;
        Self { source: Source::Held(Some(bytes)), copy }
    }

    pub fn copy(&self) -> Copied {
        self.copy.clone()
    }
}

impl Copied {
    fn new(extent: Extent, parts: Vec<Bytes>, lease: Option<Lease>) -> Self {
        Self(Arc::new(Mutex::new(State { parts, length: 0, extent, lease })))
    }
}

impl Body for Replay {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let body = match &mut this.source {
            Source::Held(bytes) => {
                return Poll::Ready(bytes.take().filter(|b| !b.is_empty()).map(|b| Ok(Frame::data(b))));
            }
            Source::Live(body) => body,
        };
        match ready!(Pin::new(&mut *body).poll_frame(cx)) {
            Some(Ok(frame)) => {
                let mut state = this.copy.lock();
                if let Some(part) = frame.data_ref() {
                    state.push(part);
                }
                // With a known length hyper stops asking after the last byte: this is the only sight of the end.
                if body.is_end_stream() {
                    state.close(Extent::Whole);
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                this.copy.lock().close(Extent::Broken);
                Poll::Ready(Some(Err(error.into())))
            }
            None => {
                this.copy.lock().close(Extent::Whole);
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Live(body) => body.is_end_stream(),
            Source::Held(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Live(body) => body.size_hint(),
            Source::Held(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::budget::Budget;

    #[test]
    fn past_the_cap_only_the_copy_is_lost() {
        let budget = Budget::new(10);
        let copy = Copied::new(Extent::Open, Vec::new(), Some(budget.lease(10)));
        copy.lock().push(&Bytes::from_static(b"12345678"));
        copy.lock().push(&Bytes::from_static(b"9abcdef"));
        copy.lock().close(Extent::Whole);
        assert_eq!((copy.extent(), copy.length()), (Extent::Truncated, 15));
        assert_eq!(copy.bytes(), "12345678");
    }
}
