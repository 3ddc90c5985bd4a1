//! What answers requests: an HTTP server behind us, or the engine inside us.

pub mod abort;
pub mod affinity;
mod aside;
pub mod balance;
pub mod breaker;
pub mod checkup;
pub mod connect;
pub mod download;
pub mod embedded;
pub mod fetch;
pub mod health;
pub mod http;
pub mod original;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use http_body_util::Full;
use serde::{Deserialize, Serialize};

use crate::body::Edges;
use crate::body::digest::Digest;
use crate::body::replay::{Fate, Replay};
use crate::journal::record::End;
use crate::recorder::tap::Cause;
use crate::units::{Size, Span};

pub type Request = hyper::Request<Replay>;
pub type Response = hyper::Response<Body>;
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<Response, Failed>> + Send + 'a>>;

/// One place that answers requests.
pub trait Upstream: Send + Sync {
    /// The name it carries in metrics, records and messages.
    fn name(&self) -> &str;
    /// Sends one request and waits for the head of its answer.
    fn call(&self, request: Request) -> Answer<'_>;
}

/// `[[upstream]]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub name: String,
    /// `http://HOST:PORT` or `https://HOST[:PORT]`.
    pub url: String,
    #[serde(default)]
    pub http: connect::Versions,
    #[serde(default)]
    pub host: HostHeader,
    /// A path that is asked for now and then to see whether the upstream is well, or `tcp` to connect only; empty for none.
    #[serde(default)]
    pub health: String,
    /// Its share of requests beside others of the same route.
    #[serde(default = "one")]
    pub weight: u32,
    /// What it is called beside its name, in records and metrics; for instance `role = "prefill"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// A path that ends a request (SGLang's `/abort_request`), told of clients that left; empty for none.
    #[serde(default)]
    pub abort: String,
    /// A PEM file of the authorities to trust instead of the system's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<std::path::PathBuf>,
    /// PEM files of the certificate to show where the upstream asks for one; both or neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<std::path::PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<std::path::PathBuf>,
}

impl Config {
    /// What it says about TLS.
    fn tls(&self) -> connect::tls::Wanted {
        let identity = self.cert_file.clone().zip(self.key_file.clone());
        connect::tls::Wanted { ca_file: self.ca_file.clone(), identity }
    }
}

impl Config {
    /// One with nothing but a name and an address.
    pub fn named(name: &str, url: &str) -> Self {
        Self {
            name: name.to_owned(),
            url: url.to_owned(),
            http: connect::Versions::Auto,
            host: HostHeader::Pass,
            health: String::new(),
            weight: one(),
            labels: BTreeMap::new(),
            abort: String::new(),
            ca_file: None,
            cert_file: None,
            key_file: None,
        }
    }
}

fn one() -> u32 {
    1
}

/// Which `Host` header the upstream sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HostHeader {
    /// The client's own.
    #[default]
    Pass,
    /// The upstream's authority, for servers that route by it.
    Rewrite,
}

/// What went wrong between us and an upstream.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("cannot be reached: {0}")]
    Refused(String),
    /// Its breaker is open: nothing was tried.
    #[error("has failed again and again and is left alone for a moment")]
    LeftAlone,
    #[error("did not answer within {0}")]
    HeadTimeout(Span),
    #[error("sent nothing for {0}")]
    IdleTimeout(Span),
    #[error("broke off: {0}")]
    Cut(String),
    /// The client's own body ended early: not the upstream's fault.
    #[error("the client broke off its request: {0}")]
    ClientBody(String),
    /// The client's body is longer than `[limits] body`.
    #[error("the request is larger than {0}; raise [limits] body to allow it")]
    TooLarge(Size),
}

impl Failure {
    /// Why a request failed on its way, where it may be the body's fault.
    pub fn of_request(fate: Fate, error: String) -> Self {
        match fate {
            Fate::TooLong { most, .. } => Self::TooLarge(Size(most)),
            Fate::Broken => Self::ClientBody(error),
            Fate::Open | Fate::Whole => Self::Cut(error),
        }
    }
}

/// A call that brought no answer. The request comes back if no byte of it was processed, so that another may try.
#[derive(Debug)]
pub struct Failed {
    pub cause: Failure,
    pub unsent: Option<Box<Request>>,
}

impl Cause for Failure {
    fn end(&self) -> End {
        match self {
            Self::Refused(_) | Self::LeftAlone => End::UpstreamRefused,
            Self::HeadTimeout(_) => End::TimeoutHead,
            Self::IdleTimeout(_) => End::TimeoutIdle,
            Self::Cut(_) => End::UpstreamCut,
            Self::ClientBody(_) => End::ClientCancelled,
            Self::TooLarge(_) => End::ProxyRefused,
        }
    }
}

/// The body of an answer, wherever it comes from.
pub enum Body {
    Http(Box<http::driven::Driven>),
    /// No body: what follows is another protocol.
    Switched(Box<http::switched::Switched>),
    Embedded(Box<embedded::Stream>),
    Whole(Full<Bytes>),
}

impl Body {
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Full::new(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        match self.get_mut() {
            Self::Http(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Self::Embedded(body) => Pin::new(body.as_mut()).poll_frame(cx),
            Self::Switched(_) => Poll::Ready(None),
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http(body) => body.is_end_stream(),
            Self::Embedded(body) => body.is_end_stream(),
            Self::Switched(_) => true,
            Self::Whole(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http(body) => body.size_hint(),
            Self::Embedded(body) => body.size_hint(),
            Self::Switched(_) => SizeHint::with_exact(0),
            Self::Whole(body) => body.size_hint(),
        }
    }
}

impl Edges for Body {
    fn abandon(&mut self) {
        *self = Self::whole("");
    }

    fn watch(&mut self) {
        if let Self::Http(body) = self {
            body.received = Some(Digest::default());
        }
    }

    fn received(&self) -> Option<Digest> {
        match self {
            Self::Http(body) => body.received,
            Self::Embedded(_) | Self::Switched(_) | Self::Whole(_) => None,
        }
    }

    fn edges(&self) -> &[u32] {
        match self {
            Self::Http(body) => body.edges(),
            Self::Embedded(_) | Self::Switched(_) | Self::Whole(_) => &[],
        }
    }
}
