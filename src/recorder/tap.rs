//! The tap: one body wrapper in which everything that depends on the *end* of an exchange happens, exactly once.
//!
//! Limits that stop at the response head are meaningless for a stream that lives for minutes (decision D3). The
//! [`Exchange`] is made when a request arrives and travels into the response body; whatever happens to it, a clean end,
//! a broken upstream or a client that is gone (which shows itself only as a drop), ends in [`Exchange::finish`].

mod exchange;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

pub use self::exchange::{After, Ended, Exchange, OnEnd, Wanted, recorded};
use crate::body::{BoxError, Edges};
use crate::journal::record::End;

/// A response body on its way down.
pub struct Tap<B: Edges> {
    inner: B,
    /// None where the exchange goes on elsewhere.
    exchange: Option<Exchange>,
}

impl<B: Edges> Drop for Tap<B> {
    fn drop(&mut self) {
        let Self { inner, exchange } = self;
        if let Some(exchange) = exchange {
            exchange.let_go(|| inner.abandon());
        }
    }
}

impl<B: Edges> Tap<B> {
    /// `bodiless`: the answer has a body that is never sent, as to a HEAD request.
    pub fn new(mut inner: B, mut exchange: Exchange, bodiless: bool) -> Self
    where
        B: Body,
    {
        if exchange.is_watched() {
            inner.watch();
        }
        // Nobody polls a body that is empty from the start: this is its end.
        if bodiless || inner.is_end_stream() {
            exchange.finish(End::Complete);
        }
        Self { inner, exchange: Some(exchange) }
    }

    /// A body that ends no exchange.
    pub fn bare(inner: B) -> Self {
        Self { inner, exchange: None }
    }
}

/// Lets the tap read how a body's error ends an exchange.
pub trait Cause: std::error::Error + Send + Sync + 'static {
    fn end(&self) -> End;
}

impl<B> Body for Tap<B>
where
    B: Body<Data = Bytes> + Edges + Unpin,
    B::Error: Cause,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { inner, exchange } = &mut *self;
        let polled = std::task::ready!(Pin::new(&mut *inner).poll_frame(cx));
        let Some(exchange) = exchange else {
            return Poll::Ready(polled.map(|frame| frame.map_err(Into::into)));
        };
        match &polled {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    exchange.frame(data, inner.edges(), inner.size_hint().lower());
                } else if let Some(trailers) = frame.trailers_ref() {
                    exchange.trailers(trailers);
                }
                // With a known length nobody asks again after the last byte.
                if inner.is_end_stream() {
                    exchange.came(inner.received());
                    exchange.finish(End::Complete);
                }
            }
            Some(Err(cause)) => exchange.finish(cause.end()),
            None => {
                exchange.came(inner.received());
                exchange.finish(End::Complete);
            }
        }
        Poll::Ready(polled.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
