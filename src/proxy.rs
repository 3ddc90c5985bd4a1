//! The path of a request: identify, choose, forward, tap.

pub mod answer;
pub mod forward;
pub mod headers;
pub mod respond;
pub mod route;
pub mod settle;
pub mod upgrade;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Incoming;

use crate::fidelity::tag;
use crate::recorder::Recorder;
use crate::recorder::tap::Tap;
use crate::units::Span;
use crate::upstream::Body;
use crate::upstream::abort::Aborts;
use crate::upstream::embedded::Embedded;
use route::Routes;
use settle::Accounts;

/// What a proxied request is answered with.
pub type Response = hyper::Response<Tap<Body>>;

/// The service behind the public listener. Cheap to clone.
#[derive(Clone)]
pub struct Proxy(Arc<Parts>);

/// Everything the path needs, built once by the app.
pub struct Parts {
    pub routes: Routes,
    /// Answers when there is no upstream, or when it is down and the request is eligible.
    pub embedded: Option<Embedded>,
    pub recorder: Recorder,
    pub accounts: Accounts,
    pub tag_key: tag::Key,
    /// The most that is kept of one body, either way.
    pub body_copy: u64,
    /// Protocols that a connection may go on in.
    pub upgrades: Vec<String>,
    /// How long nothing may pass on such a connection.
    pub idle: Span,
    /// Where some upstream wants to be told of clients that left.
    pub aborts: Option<Aborts>,
}

impl Proxy {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl tower::Service<hyper::Request<Incoming>> for Proxy {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Permits are taken per request and shed with an answer: waiting here would hide the overload.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: hyper::Request<Incoming>) -> Self::Future {
        let parts = self.0.clone();
        Box::pin(async move { Ok(forward::forward(&parts, request).await) })
    }
}
