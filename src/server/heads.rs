//! Sees request heads that hyper lets pass and that two servers could read in two ways: those with both a length and
//! chunks. hyper reads such a request by its chunks and hides the length, so the bytes themselves are watched on their
//! way from the socket. Nothing is changed or held back here; a doubtful head is noted, and whoever serves the request
//! refuses it.
//!
//! Where heads begin and end is told by the same automaton as hyper's; where it loses its way, hyper refuses too, and all
//! that would follow on the connection is in doubt. Bodies are skipped over, not looked at.

mod framing;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use hyper::HeaderMap;
use hyper::header::TRANSFER_ENCODING;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use framing::Framing;

/// In the extensions of a request that must be refused: both a length and chunks say where it ends.
#[derive(Clone, Copy, Debug)]
pub struct Ambiguous;

/// A connection whose requests' heads are watched.
pub struct Watched<S> {
    stream: S,
    framing: Framing,
    doubt: Doubt,
}

/// From which request of its connection on framing is in doubt.
#[derive(Clone)]
pub struct Doubt(Arc<AtomicU64>);

impl Doubt {
    /// Whether the request with this number, counted from 0, is one to refuse. Without a transfer coding there is nothing
    /// that could contradict its length.
    pub fn concerns(&self, number: u64, headers: &HeaderMap) -> bool {
        number >= self.0.load(Relaxed) && headers.contains_key(TRANSFER_ENCODING)
    }
}

impl<S> Watched<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, framing: Framing::default(), doubt: Doubt(Arc::new(AtomicU64::new(u64::MAX))) }
    }

    pub fn doubt(&self) -> Doubt {
        self.doubt.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, buf);
        if let Some(doubtful) = this.framing.see(&buf.filled()[before..]) {
            this.doubt.0.store(doubtful, Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
