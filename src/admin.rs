//! The admin side: metrics, health, a small API and a page, on a listener and a thread of its own.

mod access;
mod answer;
pub mod audit;
pub mod range;
mod recordings;
pub mod routes;
pub mod subjects;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::http::request;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use crate::metrics::Metrics;
use crate::proxy::settle::Accounts;
use crate::recorder::Recorder;
use crate::recorder::tenant::DEFAULT;
use crate::server::Peer;
use crate::server::heads::Ambiguous;
use crate::upstream::embedded::{Chat, Embedded};
pub use access::{Access, Reader, Scope};
use answer::{Answer, Body, HTML, JSON, Refusal, TEXT};
use audit::{Audit, Entry};
pub use recordings::Recordings;
use recordings::Side;
use routes::{Does, Found, Given, Route};

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
    pub desk: Desk,
    /// The hash of the configuration in force.
    pub config_hash: Box<dyn Fn() -> String + Send + Sync>,
    pub reload: Reload,
}

/// What was recorded, and who may see it.
pub struct Desk {
    pub access: Access,
    pub audit: Audit,
    pub recorder: Recorder,
    pub recordings: Recordings,
}

/// Reads the configuration again: yields the keys that changed, or the status and the reason of a refusal.
pub type Reload = Box<dyn Fn() -> Result<Vec<String>, (StatusCode, String)> + Send + Sync>;

/// A request, as far as it matters here.
struct Asked<'a> {
    headers: &'a HeaderMap,
    given: Given,
    reader: Option<&'a Reader>,
    peer: String,
}

impl Asked<'_> {
    fn entry<'a>(&'a self, action: &'a str, id: &'a str, outcome: &'a str) -> Entry<'a> {
        let who = self.reader.map_or("nobody", |reader| reader.name.as_str());
        Entry { who, peer: &self.peer, action, id, outcome }
    }
}

impl Admin {
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }

    fn answer(&self, head: &request::Parts) -> Answer {
        let path = head.uri.path();
        let reader = self.0.desk.access.reader(&head.headers);
        let found = routes::find(&head.method, path, head.uri.query());
        let peer = head.extensions.get::<Peer>().map(|Peer(peer)| *peer);
        let mut asked = Asked {
            headers: &head.headers,
            given: Given::default(),
            reader: reader.as_ref(),
            peer: peer.as_ref().map(SocketAddr::to_string).unwrap_or_default(),
        };
        let open = matches!(&found, Found::Here(route, _) if route.scope.is_none());
        if reader.is_none() && !open {
            self.0.desk.audit.refused(&asked.entry("unknown token", path, "refused"));
            let message = "a token is needed: Authorization: Bearer TOKEN";
            let remedy = "send one of [admin] token_file";
            let refusal = Refusal::new(StatusCode::UNAUTHORIZED, message, "Authorization", remedy);
            return Answer::from(refusal).with(WWW_AUTHENTICATE, "Bearer");
        }
        let route = match found {
            Found::Here(route, given) => {
                asked.given = given;
                route
            }
            Found::Otherwise(methods) => return otherwise(&methods.join(", ")),
            Found::Nowhere if head.method != Method::GET && head.method != Method::HEAD => {
                return otherwise("GET");
            }
            Found::Nowhere => {
                let message = format!("there is nothing at {path}");
                return Refusal::new(StatusCode::NOT_FOUND, message, "path", "/ lists what is here").into();
            }
        };
        match self.permitted(route, &asked).and_then(|()| self.act(route, &asked)) {
            Ok(answer) => answer,
            Err(refusal) => {
                let again = refusal.status == StatusCode::SERVICE_UNAVAILABLE;
                let answer = Answer::from(refusal);
                if again { answer.with(RETRY_AFTER, "1") } else { answer }
            }
        }
    }

    /// Refuses what the reader's scope does not include.
    fn permitted(&self, route: &Route, asked: &Asked<'_>) -> Result<(), Refusal> {
        let bodies = route.does == Does::Session && asked.given.is_set("bodies");
        let needed = if bodies { Some(Scope::Content) } else { route.scope };
        let (Some(needed), Some(reader)) = (needed, asked.reader) else { return Ok(()) };
        if reader.scope >= needed {
            return Ok(());
        }
        self.0.desk.audit.refused(&asked.entry(
            action(route.does),
            &what(route.does, &asked.given),
            "refused",
        ));
        let (name, scope) = (&reader.name, reader.scope.name());
        let message = format!("this needs the scope {}; the token {name:?} has {scope}", needed.name());
        let remedy = "give a token of [admin] token_file that scope, or send another token";
        Err(Refusal::new(StatusCode::FORBIDDEN, message, "Authorization", remedy))
    }

    fn act(&self, route: &Route, asked: &Asked<'_>) -> Result<Answer, Refusal> {
        let Parts { desk: Desk { recordings, .. }, metrics, .. } = &*self.0;
        let given = &asked.given;
        match route.does {
            Does::Page => Ok(Answer::new(HTML, PAGE)),
            Does::Metrics => {
                metrics.text().map(|text| Answer::new(TEXT, text)).map_err(|error| Refusal::inside(&error))
            }
            Does::Health => Ok(self.health(asked.reader.is_some())),
            Does::Ready => Ok(self.ready(asked.reader.is_some())),
            Does::Reload => self.reload(),
            Does::Live => Ok(self.live()),
            Does::OpenApi => Ok(Answer::new(JSON, OPENAPI)),
            Does::Sessions => recordings.list(given),
            Does::Session if given.is_set("bodies") => {
                self.content(route, asked, || recordings.session(given, true))
            }
            Does::Session => recordings.session(given, false),
            Does::Request => {
                self.content(route, asked, || recordings.body(given, Side::Request, asked.headers))
            }
            Does::Response => {
                self.content(route, asked, || recordings.body(given, Side::Response, asked.headers))
            }
            Does::Delete => self.delete(asked),
            Does::Erasure => subjects::erasure(&recordings.dir(given)?, given),
        }
    }

    /// Gives out what was said, once it is written down who gets it.
    fn content(
        &self,
        route: &Route,
        asked: &Asked<'_>,
        read: impl FnOnce() -> Result<Answer, Refusal>,
    ) -> Result<Answer, Refusal> {
        let read = read();
        let status = read.as_ref().map_or_else(|refusal| refusal.status, |answer| answer.status);
        let outcome = if status.is_success() { "given" } else { status.as_str() };
        self.note(&asked.entry(action(route.does), &what(route.does, &asked.given), outcome))?;
        read
    }

    fn delete(&self, asked: &Asked<'_>) -> Result<Answer, Refusal> {
        let subject = subjects::subject(&asked.given)?;
        let tenant = &self.0.desk.recordings.whose(&asked.given)?.name;
        let recorder = &self.0.desk.recorder;
        let recorder = recorder.named(tenant).unwrap_or_else(|| recorder.clone());
        // What is erased must not stand in this log either.
        let id = what(Does::Delete, &asked.given);
        self.note(&asked.entry(action(Does::Delete), &id, "begun"))?;
        let erased = subjects::erase(&recorder, &asked.given, subject);
        let (id, outcome) = match &erased {
            Ok(erasure) => {
                let what = format!("{} erasure/{}", erasure.subject, erasure.id);
                (of_tenant(what, &asked.given), "tombstoned")
            }
            Err(refusal) => (id, refusal.status.as_str()),
        };
        let noted = self.note(&asked.entry(action(Does::Delete), &id, outcome));
        let told = Answer::json(&subjects::told(&erased?)).status(StatusCode::ACCEPTED);
        noted.map(|()| told)
    }

    /// Writes down what is about to happen, or does not let it happen.
    fn note(&self, entry: &Entry<'_>) -> Result<(), Refusal> {
        self.0.desk.audit.write(entry).map_err(|error| {
            tracing::error!(%error, "the audit log cannot be written; what was recorded is not given out");
            let message =
                format!("this cannot be written into the audit log, and is not done without: {error}");
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Refusal::new(status, message, "[admin] audit_file", "make room, or mend the file's permissions")
        })
    }

    fn reload(&self) -> Result<Answer, Refusal> {
        match (self.0.reload)() {
            Ok(changed) => Ok(Answer::json(&json!({"config": (self.0.config_hash)(), "changed": changed}))),
            Err((status, message)) => {
                Err(Refusal::new(status, message, "configuration", "mend the file and reload again"))
            }
        }
    }

    /// Whether the process answers. Who is let in learns how the recorder does.
    fn health(&self, admitted: bool) -> Answer {
        match admitted {
            true => Answer::json(&json!({"status": "ok", "recorder": self.recorder()})),
            false => Answer::json(&json!({"status": "ok"})),
        }
    }

    /// Read from counters that its thread leaves behind: a recorder that hangs holds up nobody here.
    fn recorder(&self) -> Value {
        let (state, reason) = self.0.desk.recorder.state().told();
        json!({"state": state, "reason": reason, "ledger": self.0.desk.recorder.ledger().summary()})
    }

    /// Ready means: send traffic. Recorder, canaries and models do not enter into it (decision D2).
    /// Who shows no token where one is needed learns nothing more.
    fn ready(&self, admitted: bool) -> Answer {
        let draining = self.0.draining.load(Relaxed);
        let chat = self.0.embedded.as_ref().map(|engine| match engine.chat() {
            Chat::None => "none".to_owned(),
            Chat::Coming(how_far) => format!("coming: {how_far}"),
            Chat::Ready(name) => format!("ready: {name}"),
            Chat::Absent(why) => format!("absent: {why}"),
        });
        let body = match admitted {
            true => json!({
                "ready": !draining,
                "draining": draining,
                "chat_model": chat,
                "config": (self.0.config_hash)(),
                "recorder": self.recorder(),
            }),
            false => json!({"ready": !draining, "draining": draining}),
        };
        let status = if draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        Answer::json(&body).status(status)
    }

    /// What is in flight: ids, beginnings and paths, never content.
    fn live(&self) -> Answer {
        let live = self.0.accounts.live();
        let list: Vec<_> = live
            .iter()
            .map(|(id, begun, path)| json!({"id": id, "started_unix_nanos": begun, "path": path}))
            .collect();
        Answer::json(&json!({"live": list}))
    }
}

fn otherwise(methods: &str) -> Answer {
    let message = format!("only {methods} is answered here");
    let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, message, "method", "GET / lists what is here");
    Answer::from(refusal).with(ALLOW, methods)
}

/// What the audit log calls it.
fn action(does: Does) -> &'static str {
    match does {
        Does::Session => "read conversation",
        Does::Request => "read request",
        Does::Response => "read response",
        Does::Delete => "delete",
        Does::Reload => "reload",
        _ => "read",
    }
}

/// Whom or what it concerns, without a word of what was recorded.
fn what(does: Does, given: &Given) -> String {
    let what = match (does, given.path("kind")) {
        (Does::Delete, "conv") => format!("conversation/{}", given.path("value")),
        (Does::Delete, _) => "session".to_owned(),
        _ => given.path("id").to_owned(),
    };
    of_tenant(what, given)
}

/// The same, with whose it is before it where that is not the default tenant's.
fn of_tenant(what: String, given: &Given) -> String {
    match Recordings::tenant(given).as_str() {
        DEFAULT => what,
        tenant => format!("tenant/{tenant} {what}"),
    }
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
                let message = "Content-Length and Transfer-Encoding contradict each other";
                let refusal = Refusal::new(StatusCode::BAD_REQUEST, message, "head", "send one of them");
                return Ok(Answer::from(refusal).response());
            }
            // A reload reads files, of which one may lie on a disk that does not answer; metrics go on meanwhile.
            let answered = tokio::task::spawn_blocking(move || admin.answer(&head)).await;
            let died = |_| Refusal::inside(&"this could not be answered").into();
            Ok(answered.unwrap_or_else(died).response())
        })
    }
}

const PAGE: &str = include_str!("admin/index.html");
const OPENAPI: &str = include_str!("../docs/openapi.json");
