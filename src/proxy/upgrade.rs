//! Requests that ask for another protocol, such as a WebSocket: both sides agree in HTTP, and then bytes pass both ways as they
//! are until one side ends. Close codes are among those bytes.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::http::request;
use hyper::upgrade::OnUpgrade;
use hyper::{HeaderMap, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::clock;
use crate::journal::record::End;
use crate::recorder::tap::Exchange;
use crate::server::switched::Place;
use crate::units::Span;
use crate::upstream::connect::Stream;
use crate::upstream::http::switched::Switched;

/// What one direction holds at most on its way through.
const BUFFER: usize = 16 * 1024;

/// A request's wish to speak something else, with what is needed to grant it.
pub struct Wish {
    protocol: HeaderValue,
    client: OnUpgrade,
    place: Place,
}

impl Wish {
    /// Takes the wish out of a request, if it is for one of the protocols that are `allowed`. HTTP itself never is: an
    /// upgrade to h2c would carry further requests past everything that looks at them.
    pub fn of(head: &mut request::Parts, allowed: &[String]) -> Option<Self> {
        let asked = head.headers.get(UPGRADE)?;
        let one = head.version == Version::HTTP_11 && head.headers.get_all(UPGRADE).iter().count() == 1;
        let name = asked.to_str().ok().filter(|_| one)?;
        let known = |protocol: &String| protocol.eq_ignore_ascii_case(name.trim());
        let protocol = allowed.iter().any(known).then(|| asked.clone())?;
        let client = head.extensions.remove::<OnUpgrade>()?;
        let place = head.extensions.remove::<Place>()?;
        Some(Self { protocol, client, place })
    }

    /// Says so in a head whose hop-by-hop fields have been removed: to the upstream it asks, to the client it agrees.
    pub fn say(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }

    /// Both sides agree: what follows on the client's connection passes to the upstream's, until `idle` has gone by without
    /// a byte either way.
    pub fn grant(self, far: Switched, exchange: Exchange, idle: Span) {
        let client = self.client;
        let rest = async move {
            let tunnel = Tunnel::new(far, exchange, idle);
            // Where the client left before it had the answer, the exchange ends as cancelled when it is dropped here.
            if let Ok(near) = client.await {
                tunnel.run(TokioIo::new(near)).await;
            }
        };
        self.place.put(Box::pin(rest));
    }
}

struct Tunnel {
    far: Stream,
    up: Flow,
    down: Flow,
    exchange: Exchange,
    idle: Span,
}

/// One direction.
struct Flow {
    buffer: Box<[u8]>,
    /// What is on its way.
    held: Range<usize>,
    /// The sender has said its last.
    ended: bool,
    /// And the receiver has been told.
    told: bool,
}

/// Whose connection failed.
enum Broke {
    Sender,
    Receiver,
}

impl Tunnel {
    fn new(far: Switched, exchange: Exchange, idle: Span) -> Self {
        Self { far: far.stream, up: Flow::new(&[]), down: Flow::new(&far.read), exchange, idle }
    }

    async fn run<S: AsyncRead + AsyncWrite + Unpin>(mut self, mut near: S) {
        let mut latest = clock::now();
        let mut timer = Box::pin(tokio::time::sleep(self.idle.0));
        let end = std::future::poll_fn(|cx| {
            let (mut sent, mut received) = (0, 0);
            let up = self.up.poll(&mut near, &mut self.far, cx, &mut sent);
            let down = self.down.poll(&mut self.far, &mut near, cx, &mut received);
            if sent + received > 0 {
                latest = clock::now();
                self.exchange.carried(sent, received);
            }
            match (up, down) {
                (Poll::Ready(Err(Broke::Sender)), _) | (_, Poll::Ready(Err(Broke::Receiver))) => {
                    Poll::Ready(End::ClientCancelled)
                }
                (Poll::Ready(Err(Broke::Receiver)), _) | (_, Poll::Ready(Err(Broke::Sender))) => {
                    Poll::Ready(End::UpstreamCut)
                }
                (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(End::Complete),
                _ => {
                    while timer.as_mut().poll(cx).is_ready() {
                        if latest.elapsed() >= self.idle.0 {
                            return Poll::Ready(End::TimeoutIdle);
                        }
                        timer.as_mut().reset(tokio::time::Instant::from_std(latest + self.idle.0));
                    }
                    Poll::Pending
                }
            }
        });
        let end = end.await;
        self.exchange.finish(end);
    }
}

impl Flow {
    /// `read`: what has been received before.
    fn new(read: &[u8]) -> Self {
        let mut buffer = vec![0; BUFFER.max(read.len())].into_boxed_slice();
        buffer[..read.len()].copy_from_slice(read);
        Self { buffer, held: 0..read.len(), ended: false, told: false }
    }

    /// Moves what can be moved now; ready when the sender has ended and the receiver knows. A closed sending side is passed
    /// on as one: the other direction goes on.
    fn poll<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
        &mut self,
        from: &mut R,
        to: &mut W,
        cx: &mut Context<'_>,
        moved: &mut u64,
    ) -> Poll<Result<(), Broke>> {
        let broke = |_| Broke::Receiver;
        loop {
            while !self.held.is_empty() {
                let written = Pin::new(&mut *to).poll_write(cx, &self.buffer[self.held.clone()]);
                match ready!(written).map_err(broke)? {
                    0 => return Poll::Ready(Err(Broke::Receiver)),
                    some => {
                        self.held.start += some;
                        *moved += some as u64;
                    }
                }
            }
            if self.ended {
                if !self.told {
                    ready!(Pin::new(&mut *to).poll_shutdown(cx)).map_err(broke)?;
                    self.told = true;
                }
                return Poll::Ready(Ok(()));
            }
            let mut room = ReadBuf::new(&mut self.buffer);
            match Pin::new(&mut *from).poll_read(cx, &mut room) {
                Poll::Ready(Ok(())) => {
                    self.held = 0..room.filled().len();
                    self.ended = self.held.is_empty();
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(Broke::Sender)),
                Poll::Pending => {
                    ready!(Pin::new(&mut *to).poll_flush(cx)).map_err(broke)?;
                    return Poll::Pending;
                }
            }
        }
    }
}
