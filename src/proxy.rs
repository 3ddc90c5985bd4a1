//! The path of a request: identify, choose, forward, tap.

pub mod access;
pub mod answer;
pub mod clients;
pub mod forward;
pub mod headers;
pub mod respond;
pub mod route;
pub mod settle;
pub mod tenants;
pub mod upgrade;
pub mod witness;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use hyper::body::Incoming;

use crate::fidelity::tag;
use crate::recorder::Recorder;
use crate::recorder::tap::Tap;
use crate::units::Span;
use crate::upstream::Body;
use crate::upstream::abort::Aborts;
use crate::upstream::embedded::Embedded;
use crate::upstream::original::Originals;
use clients::{Clients, Terms};
use route::Routes;
use settle::Accounts;
use tenants::Tenants;
use witness::Observers;

/// What a proxied request is answered with.
pub type Response = hyper::Response<Tap<Body>>;

/// The service behind the public listener. Cheap to clone; clones share what [`Proxy::replace`] changes.
///
/// Each thread of the path has one of its own, so that the lock below and the count of what it holds are never passed
/// between processors.
#[derive(Clone)]
pub struct Proxy(Arc<RwLock<Arc<Parts>>>);

/// Everything the path needs, built by the app: once at start, and again for every new configuration.
#[derive(Clone)]
pub struct Parts {
    pub routes: Arc<Routes>,
    /// In transparent mode, where redirected connections were going.
    pub originals: Option<Arc<Originals>>,
    /// Answers when there is no upstream, or when it is down and the request is eligible.
    pub embedded: Option<Embedded>,
    /// The default tenant's.
    pub recorder: Recorder,
    pub tenants: Arc<Tenants>,
    pub accounts: Accounts,
    /// Every client has its own limits.
    pub clients: Clients,
    pub observers: Observers,
    pub tag_key: tag::Key,
    pub settings: Settings,
    /// Where some upstream wants to be told of clients that left.
    pub aborts: Option<Aborts>,
}

/// What the configuration says of the path itself.
#[derive(Clone)]
pub struct Settings {
    pub client_terms: Terms,
    /// The most that is kept of one body, either way.
    pub body_copy: u64,
    /// The most bytes a request's body may have.
    pub body: u64,
    /// Protocols that a connection may go on in.
    pub upgrades: Vec<String>,
    /// How long nothing may pass on such a connection.
    pub idle: Span,
    /// The share of exchanges whose bodies are compared where they come in and where they go out.
    pub digest_sample: f64,
    /// Whether streams are marked for an nginx in front of us.
    pub no_buffering: bool,
}

impl Proxy {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(parts))))
    }

    /// What a request that begins now is served with, to its end.
    fn current(&self) -> Arc<Parts> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Requests that begin from now on are served with these.
    pub fn replace(&self, parts: Parts) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(parts);
    }

    /// A copy of what is in force.
    pub fn parts(&self) -> Parts {
        (*self.current()).clone()
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
        let parts = self.current();
        Box::pin(forward::forward(parts, request))
    }
}
