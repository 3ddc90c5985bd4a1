//! A request body that streams on its way while a bounded copy is kept. Past the cap only the copy is lost: the live
//! body goes on untouched, but it can no longer be recorded whole or answered by a fallback.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::BoxError;
use super::budget::Lease;
use super::digest::Digest;
use super::kept::Kept;
use super::unread::Unread;

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
    kept: Option<Kept>,
    length: u64,
    extent: Extent,
    fate: Fate,
    /// Of those that are watched.
    ends: Option<Ends>,
}

/// A body at both ends of its way through here.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    came: Digest,
    went: Digest,
    /// All that came has gone on.
    over: bool,
}

/// What became of a body itself, whether or not a copy was kept until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// More of it may come.
    Open,
    /// The last byte has gone by.
    Whole,
    /// The sender broke off.
    Broken,
    /// It is longer than it may be, as its head says or as was seen when it was broken off.
    TooLong { most: u64, seen: u64 },
}

/// A request body on its way up.
#[derive(Debug)]
pub struct Replay {
    source: Source,
    /// The most bytes it may have.
    most: u64,
    /// What somebody has looked at before it goes on its way, as it was received.
    ahead: VecDeque<Option<Result<Frame<Bytes>, BoxError>>>,
    copy: Copied,
    watched: bool,
    unread: Option<Unread>,
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

    pub fn fate(&self) -> Fate {
        self.lock().fate
    }

    /// Bytes that went by, copied or not.
    pub fn length(&self) -> u64 {
        self.lock().length
    }

    /// Whether all of it has gone on as it came; `None` where it was not watched, or has not gone on to its end.
    pub fn went_as_it_came(&self) -> Option<bool> {
        let state = self.lock();
        let ends = state.ends.filter(|ends| ends.over && state.fate == Fate::Whole)?;
        Some(ends.came == ends.went)
    }

    /// Looks at the copy, however much it is.
    pub fn look<T>(&self, at: impl FnOnce(&[u8]) -> T) -> T {
        at(self.lock().kept.as_ref().map_or(&[], Kept::bytes))
    }

    /// The copy once more, however much it is.
    pub fn bytes(&self) -> Bytes {
        self.lock().kept.as_ref().map_or_else(Bytes::new, |kept| Bytes::copy_from_slice(kept.bytes()))
    }

    /// Takes the copy, however much it is, and the lease on its memory; empty if none was wanted.
    pub fn take(&self) -> (Bytes, Option<Lease>) {
        match self.lock().kept.take() {
            Some(kept) => {
                let (bytes, lease) = kept.into_parts();
                (bytes, Some(lease))
            }
            None => (Bytes::new(), None),
        }
    }
}

impl State {
    fn push(&mut self, part: &[u8], to_come: u64) {
        self.length += part.len() as u64;
        if let Some(ends) = &mut self.ends {
            ends.came.add(part);
        }
        let kept = self.kept.as_mut().is_some_and(|kept| kept.push(part, to_come));
        if self.extent == Extent::Open && !kept {
            self.extent = Extent::Truncated;
        }
    }

    fn close(&mut self, extent: Extent) {
        if self.fate == Fate::Open {
            self.fate = if extent == Extent::Whole { Fate::Whole } else { Fate::Broken };
        }
        if self.extent == Extent::Open {
            self.extent = extent;
        }
    }
}

impl Replay {
    /// Wraps a live body of at most `most` bytes; `lease` bounds the copy, `None` wants none.
    pub fn live(body: Incoming, lease: Option<Lease>, most: u64) -> Self {
        let extent = if body.is_end_stream() { Extent::Whole } else { Extent::Open };
        let announced = body.size_hint().lower();
        let copy = Copied::new(extent, lease);
        if announced > most {
            copy.lock().fate = Fate::TooLong { most, seen: announced };
        }
        Self { source: Source::Live(body), most, ahead: VecDeque::new(), copy, watched: false, unread: None }
    }

    /// A body that is already all here; nobody needs a copy.
    pub fn held(bytes: Bytes) -> Self {
        Self::repeated(bytes, Copied::new(Extent::Truncated, None))
    }

    /// A body that is sent a second time, with the copy that was taken the first time.
    pub fn repeated(bytes: Bytes, copy: Copied) -> Self {
        let source = Source::Held(Some(bytes));
        // What went on the first time counts no more.
        let watched =
            copy.lock().ends.as_mut().map(|ends| (ends.went, ends.over) = Default::default()).is_some();
        Self { source, most: u64::MAX, ahead: VecDeque::new(), copy, watched, unread: None }
    }

    /// The same; whether it goes on as it came is looked at.
    pub fn watched(mut self, watched: bool) -> Self {
        self.watched = watched;
        self.copy.lock().ends = watched.then(Ends::default);
        self
    }

    /// The same; what is left of it at its end goes there.
    pub fn leaving(mut self, unread: Option<Unread>) -> Self {
        self.unread = unread;
        self
    }

    /// The first bytes of the body, once `most` of them are here or it has ended; they go on their way later. Whoever stops
    /// waiting for this loses nothing.
    pub async fn begin(&mut self, most: usize) -> Bytes {
        while (self.ahead_len() as usize) < most && !self.source.is_end_stream() {
            let polled = std::future::poll_fn(|cx| self.poll_source(cx)).await;
            let more = matches!(polled, Some(Ok(_)));
            self.ahead.push_back(polled);
            if !more {
                break;
            }
        }
        self.begun(most)
    }

    /// As much of that as is here.
    pub fn begun(&self, most: usize) -> Bytes {
        let mut parts = self.ahead.iter().filter_map(|polled| polled.as_ref()?.as_ref().ok()?.data_ref());
        let first = parts.next().cloned().unwrap_or_default();
        let Some(second) = parts.next().filter(|_| first.len() < most) else { return first };
        let mut joined = Vec::with_capacity(self.ahead_len() as usize);
        [&first, second].into_iter().chain(parts).for_each(|part| joined.extend_from_slice(part));
        joined.into()
    }

    pub fn fate(&self) -> Fate {
        self.copy.fate()
    }

    pub fn copy(&self) -> Copied {
        self.copy.clone()
    }
}

impl Copied {
    fn new(extent: Extent, lease: Option<Lease>) -> Self {
        let kept = lease.map(Kept::new);
        let fate = if extent == Extent::Whole { Fate::Whole } else { Fate::Open };
        Self(Arc::new(Mutex::new(State { kept, length: 0, extent, fate, ends: None })))
    }
}

impl Replay {
    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self;
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
                    state.push(part, body.size_hint().lower());
                    if state.length > this.most {
                        state.close(Extent::Broken);
                        state.fate = Fate::TooLong { most: this.most, seen: state.length };
                        return Poll::Ready(Some(Err("the body is longer than it may be".into())));
                    }
                }
                // With a known length hyper stops asking after the last byte, and after trailers always: this is the only
                // sight of the end.
                if frame.is_trailers() || body.is_end_stream() {
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

    /// Takes note of what goes on.
    fn note(&self, polled: Option<&Result<Frame<Bytes>, BoxError>>) {
        let over = polled.is_none() || self.is_end_stream();
        let mut state = self.copy.lock();
        let Some(ends) = &mut state.ends else { return };
        if let Some(Ok(frame)) = polled {
            frame.data_ref().into_iter().for_each(|data| ends.went.add(data));
        }
        ends.over |= over;
    }

    /// Bytes that were looked at and have not gone on their way.
    fn ahead_len(&self) -> u64 {
        let parts = self.ahead.iter().filter_map(|polled| polled.as_ref()?.as_ref().ok()?.data_ref());
        parts.map(|part| part.len() as u64).sum()
    }
}

impl Source {
    fn is_end_stream(&self) -> bool {
        match self {
            Self::Live(body) => body.is_end_stream(),
            Self::Held(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        let source = std::mem::replace(&mut self.source, Source::Held(None));
        if let (Source::Live(body), Some(unread)) = (source, self.unread.take())
            && !body.is_end_stream()
        {
            unread.leave(body);
        }
    }
}

impl Body for Replay {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = match self.ahead.pop_front() {
            Some(frame) => frame,
            None => ready!(self.poll_source(cx)),
        };
        if self.watched {
            self.note(polled.as_ref());
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.ahead.is_empty() && self.source.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = match &self.source {
            Source::Live(body) => body.size_hint(),
            Source::Held(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
        };
        let ahead = self.ahead_len();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + ahead);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + ahead);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::budget::Budget;

    #[test]
    fn past_the_cap_only_the_copy_is_lost() {
        let budget = Budget::new(10);
        let copy = Copied::new(Extent::Open, Some(budget.lease(10)));
        copy.lock().push(b"12345678", 0);
        copy.lock().push(b"9abcdef", 0);
        copy.lock().close(Extent::Whole);
        assert_eq!((copy.extent(), copy.length()), (Extent::Truncated, 15));
        assert_eq!(copy.take().0, "12345678");
    }

    #[test]
    fn what_goes_on_is_held_against_what_came() {
        let copy = Copied::new(Extent::Open, None);
        let mut body = Replay::repeated(Bytes::new(), copy.clone()).watched(true);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut pass = |came: &'static [u8], goes: &'static [u8]| {
            copy.lock().push(came, 0);
            body.ahead.push_back(Some(Ok(Frame::data(Bytes::from_static(goes)))));
            let _ = Pin::new(&mut body).poll_frame(&mut cx);
            copy.went_as_it_came()
        };
        assert_eq!(pass(b"one", b"one"), None, "its end has not come");
        copy.lock().close(Extent::Whole);
        assert_eq!(pass(b"two", b"two"), Some(true));
        assert_eq!(pass(b"three", b"thre"), Some(false));
        let mut again = Replay::repeated(Bytes::from_static(b"onetwothree"), copy.clone());
        let _ = Pin::new(&mut again).poll_frame(&mut cx);
        assert_eq!(copy.went_as_it_came(), Some(true), "a second try begins anew");
        assert_eq!(Copied::new(Extent::Whole, None).went_as_it_came(), None, "nobody watches");
    }

    #[test]
    fn a_sender_that_breaks_off_is_noticed_without_a_copy_too() {
        let copy = Copied::new(Extent::Open, None);
        copy.lock().push(b"1234", 4);
        copy.lock().close(Extent::Broken);
        assert_eq!((copy.extent(), copy.fate()), (Extent::Truncated, Fate::Broken));
    }
}
