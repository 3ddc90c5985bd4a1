//! The admin side: metrics, health, a small API and a page, on a listener and a thread of its own.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::MapErr;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::json;

use crate::body::BoxError;
use crate::metrics::Metrics;
use crate::proxy::settle::Accounts;
use crate::server::heads::Ambiguous;
use crate::upstream::embedded::{Chat, Embedded};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
/// As Prometheus itself names it.
const RELOAD: &str = "/-/reload";
const HTML: &str = "text/html; charset=utf-8";

/// The service behind the admin listener. Cheap to clone.
#[derive(Clone)]
pub struct Admin(Arc<Parts>);

/// What the admin side may see.
pub struct Parts {
    pub metrics: Arc<Metrics>,
    pub accounts: Accounts,
    pub embedded: Option<Embedded>,
    /// Set when the process begins to drain: no new traffic should be sent here.
    pub draining: Arc<AtomicBool>,
    pub access: Access,
    /// The hash of the configuration in force.
    pub config_hash: Box<dyn Fn() -> String + Send + Sync>,
    pub reload: Reload,
}

/// Reads the configuration again: yields the keys that changed, or the status and the reason of a refusal.
pub type Reload = Box<dyn Fn() -> Result<Vec<String>, (StatusCode, String)> + Send + Sync>;

/// Who may read the admin side.
#[derive(Clone, Default)]
pub struct Access(Option<blake3::Hash>);

impl Access {
    /// Reads the token's file; an empty path asks for no token. Only the token's hash is kept.
    pub fn read(file: &Path) -> Result<Self, String> {
        if file.as_os_str().is_empty() {
            return Ok(Self(None));
        }
        let at = |error: &dyn std::fmt::Display| format!("[admin] token_file {}: {error}", file.display());
        let text = std::fs::read_to_string(file).map_err(|error| at(&error))?;
        match text.trim() {
            token if token.len() >= 16 => Ok(Self(Some(blake3::hash(token.as_bytes())))),
            _ => Err(at(&"holds fewer than 16 characters; write a longer token into it")),
        }
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let Some(expected) = &self.0 else { return true };
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        // Hashes compare in constant time.
        bearer.is_some_and(|token| blake3::hash(token) == *expected)
    }
}

type Body = MapErr<Full<Bytes>, fn(Infallible) -> BoxError>;

impl Admin {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    fn answer(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> (StatusCode, &'static str, Vec<u8>) {
        // Probes of an orchestrator carry no token and learn nothing but a state.
        if !matches!(path, "/healthz" | "/readyz") && !self.0.access.admits(headers) {
            return (StatusCode::UNAUTHORIZED, JSON, error("a token is needed: Authorization: Bearer TOKEN"));
        }
        match (path, method) {
            (RELOAD, &Method::POST) => return self.reload(),
            (RELOAD, _) => {
                return (StatusCode::METHOD_NOT_ALLOWED, JSON, error("POST reads the configuration again"));
            }
            (_, &Method::GET | &Method::HEAD) => {}
            _ => return (StatusCode::METHOD_NOT_ALLOWED, JSON, error("only GET is answered here")),
        }
        match path {
            "/" => (StatusCode::OK, HTML, PAGE.into()),
            "/metrics" => match self.0.metrics.text() {
                Ok(text) => (StatusCode::OK, TEXT, text),
                Err(cause) => (StatusCode::INTERNAL_SERVER_ERROR, JSON, error(&cause.to_string())),
            },
            "/healthz" => (StatusCode::OK, JSON, json!({"status": "ok"}).to_string().into()),
            "/readyz" => self.ready(self.0.access.admits(headers)),
            "/api/v1/live" => (StatusCode::OK, JSON, self.live()),
            _ => (StatusCode::NOT_FOUND, JSON, error("no such page; / lists what is here")),
        }
    }

    fn reload(&self) -> (StatusCode, &'static str, Vec<u8>) {
        match (self.0.reload)() {
            Ok(changed) => {
                let body = json!({"config": (self.0.config_hash)(), "changed": changed});
                (StatusCode::OK, JSON, body.to_string().into())
            }
            Err((status, message)) => (status, JSON, error(&message)),
        }
    }

    /// Ready means: send traffic. Recorder, canaries and models do not enter into it (decision D2).
    /// Who shows no token where one is needed learns nothing more.
    fn ready(&self, admitted: bool) -> (StatusCode, &'static str, Vec<u8>) {
        let draining = self.0.draining.load(Relaxed);
        let chat = self.0.embedded.as_ref().map(|engine| match engine.chat() {
            Chat::None => "none".to_owned(),
            Chat::Coming(how_far) => format!("coming: {how_far}"),
            Chat::Ready(name) => format!("ready: {name}"),
            Chat::Absent(why) => format!("absent: {why}"),
        });
        let body = match admitted {
            true => {
                json!({"ready": !draining, "draining": draining, "chat_model": chat, "config": (self.0.config_hash)()})
            }
            false => json!({"ready": !draining, "draining": draining}),
        };
        let status = if draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        (status, JSON, body.to_string().into())
    }

    /// What is in flight: ids, beginnings and paths, never content.
    fn live(&self) -> Vec<u8> {
        let live = self.0.accounts.live();
        let list: Vec<_> = live
            .iter()
            .map(|(id, begun, path)| json!({"id": id, "started_unix_nanos": begun, "path": path}))
            .collect();
        json!({"live": list}).to_string().into()
    }
}

fn error(message: &str) -> Vec<u8> {
    json!({"error": {"message": message}}).to_string().into()
}

impl tower::Service<Request<Incoming>> for Admin {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let admin = self.clone();
        Box::pin(async move {
            let (head, _) = request.into_parts();
            if head.extensions.get::<Ambiguous>().is_some() {
                let message = "Content-Length and Transfer-Encoding contradict each other; send one of them";
                return Ok(respond((StatusCode::BAD_REQUEST, JSON, error(message))));
            }
            let answer = move || admin.answer(&head.method, head.uri.path(), &head.headers);
            // A reload reads files, of which one may lie on a disk that does not answer; metrics go on meanwhile.
            let answered = tokio::task::spawn_blocking(answer).await;
            Ok(respond(answered.unwrap_or_else(|_| {
                (StatusCode::INTERNAL_SERVER_ERROR, JSON, error("this could not be answered; see the log"))
            })))
        })
    }
}

fn respond((status, content_type, body): (StatusCode, &'static str, Vec<u8>)) -> Response<Body> {
    let never: fn(Infallible) -> BoxError = |never| match never {};
    let mut response = Response::new(Full::new(Bytes::from(body)).map_err(never));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(
        CONTENT_SECURITY_POLICY,
        HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
    );
    response
}

const PAGE: &str = include_str!("admin/index.html");
