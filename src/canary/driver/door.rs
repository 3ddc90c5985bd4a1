//! One exchange over one fresh HTTP/1.1 connection to the public listener, with TLS where the listener speaks it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::fidelity::judge::Failure;
use crate::fidelity::tag;
use crate::openai::sse;
use crate::tls::files::Live;

/// Bounds of one exchange.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub connect: Duration,
    /// From the request to the head of the answer; a long prompt is read in this time.
    pub head: Duration,
    /// Between two pieces of the answer.
    pub idle: Duration,
    /// The largest answer taken, in bytes.
    pub body: usize,
}

/// The way to the public listener.
#[derive(Clone)]
pub struct Door {
    target: SocketAddr,
    limits: Limits,
    tls: Option<Arc<Live<ClientConfig>>>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Door").field("target", &self.target).finish_non_exhaustive()
    }
}

/// An answer as it came.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub upstream: Option<String>,
    /// The record of this exchange.
    pub turn: Option<String>,
    pub retry_after: Option<Duration>,
    pub is_event_stream: bool,
    pub body: Bytes,
    /// Why the body ended early, if it did.
    pub broken: Option<Failure>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(300),
            idle: Duration::from_secs(120),
            body: 4 << 20,
        }
    }
}

impl Door {
    /// A way to `target` within `limits`.
    pub fn new(target: SocketAddr, limits: Limits) -> Self {
        Self { target, limits, tls: None }
    }

    /// The same with TLS, opened as `tls` says; `None` changes nothing.
    pub fn with_tls(self, tls: Option<Arc<Live<ClientConfig>>>) -> Self {
        Self { tls, ..self }
    }

    /// The address behind the door.
    pub fn target(&self) -> SocketAddr {
        self.target
    }

    /// Sends one request and reads the answer to its end.
    ///
    /// # Errors
    /// When no head of an answer came. A body that broke off is in [`Reply::broken`].
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Reply, Failure> {
        let connecting = timeout(self.limits.connect, TcpStream::connect(self.target)).await;
        let Ok(Ok(stream)) = connecting else { return Err(Failure::Connect) };
        // Without it the two halves of a small request may wait for each other; a failure costs
        // time only.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.exchange(stream, request).await };
        // An address and not a name: the listener shows the certificate it has for those who ask for none.
        let name = ServerName::IpAddress(self.target.ip().into());
        let shaking = TlsConnector::from(tls.get()).connect(name, stream);
        match timeout(self.limits.connect, shaking).await {
            Ok(Ok(stream)) => self.exchange(stream, request).await,
            _ => Err(Failure::Connect),
        }
    }

    async fn exchange<S>(&self, stream: S, request: Request<Full<Bytes>>) -> Result<Reply, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|_| Failure::Transport)?;
        let exchange = async {
            match timeout(self.limits.head, sender.send_request(request)).await {
                Ok(Ok(response)) => Ok(self.read(response).await),
                Ok(Err(_)) => Err(Failure::Transport),
                Err(_) => Err(Failure::TimeoutBeforeAnswer),
            }
        };
        tokio::pin!(exchange, connection);
        let mut connected = true;
        loop {
            // The connection is driven here and not in a task of its own: it ends with the probe.
            tokio::select! {
                reply = &mut exchange => return reply,
                _ = &mut connection, if connected => connected = false,
            }
        }
    }

    async fn read(&self, response: Response<Incoming>) -> Reply {
        let (head, mut body) = response.into_parts();
        let mut taken = BytesMut::new();
        let broken = loop {
            let frame = match timeout(self.limits.idle, body.frame()).await {
                Err(_) => break Some(Failure::TimeoutInAnswer),
                Ok(None) => break None,
                Ok(Some(Err(_))) => break Some(Failure::Transport),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(piece) = frame.into_data() else { continue };
            if taken.len() + piece.len() > self.limits.body {
                break Some(Failure::Oversized);
            }
            taken.extend_from_slice(&piece);
        };
        Reply {
            status: head.status.as_u16(),
            upstream: text(&head.headers, tag::UPSTREAM_HEADER).filter(|name| !name.is_empty()),
            turn: text(&head.headers, tag::TURN_HEADER),
            retry_after: text(&head.headers, RETRY_AFTER.as_str())
                .and_then(|seconds| seconds.trim().parse().ok())
                .map(Duration::from_secs),
            is_event_stream: sse::is_stream(head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes)),
            body: taken.freeze(),
            broken,
        }
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}
