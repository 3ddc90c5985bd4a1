//! The embedded engine as an upstream: the part of the OpenAI API it can honestly serve, and nothing pretended.

pub mod answer;
pub mod ask;
pub mod counts;

use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::{BodyExt, Limited};
use hyper::{Method, StatusCode};
use serde::{Deserialize, Serialize};
use serin_engine::{Engine, EngineConfig, Model, TopK};

use tokio::sync::Semaphore;

use super::{Answer, Body, Failed, Failure, Request, Response, Upstream};
use crate::body::replay::Replay;
use crate::metrics::Metrics;
use crate::units::{Size, Span};
pub use answer::Stream;
use ask::Ask;
use counts::Counts;

/// Its name as an upstream.
pub const NAME: &str = "embedded";

/// `[fallback]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The chat model: a name from `serin model list`, a path or a URL; empty for none but the reference model.
    pub model: String,
    /// Hexadecimal SHA-256 the model file must have; empty accepts any (named models carry their own).
    pub sha256: String,
    /// Models (as clients name them; a trailing `*` matches any ending) that the chat model may answer for.
    #[serde(rename = "for")]
    pub answers_for: Vec<String>,
    /// Keys each query may attend to in layers that select them: `"all"`, or a number to lose context on purpose.
    pub index_topk: Selection,
    pub threads: usize,
    /// Conversations whose state is kept for their next turn.
    pub slots: usize,
    /// Requests that may wait; one more is refused.
    pub queue: usize,
    /// The largest request body it reads, and how long that may take.
    pub max_request: Size,
    pub request_read: Span,
}

/// `index_topk` as it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection(pub TopK);

impl Default for Config {
    fn default() -> Self {
        Self {
            model: "smollm2-135m-instruct".into(),
            sha256: String::new(),
            answers_for: vec!["*".into()],
            index_topk: Selection(TopK::All),
            threads: 2,
            slots: 2,
            queue: 16,
            max_request: Size::mib(16),
            request_read: Span::seconds(60),
        }
    }
}

/// What became of the configured chat model.
#[derive(Clone, Debug, PartialEq)]
pub enum Chat {
    /// None is configured.
    None,
    /// On its way; the text says how far.
    Coming(String),
    /// The engine serves it under this name.
    Ready(String),
    /// It cannot be had; the reference model answers in its place.
    Absent(String),
}

/// The engine behind the `Upstream` seam. Cheap to clone.
#[derive(Clone)]
pub struct Embedded(Arc<Parts>, Arc<Config>);

struct Parts {
    engine: Engine,
    counts: Counts,
    /// Requests whose bodies are being read.
    reading: Semaphore,
    chat: Mutex<Chat>,
}

impl Embedded {
    /// Starts the engine with the reference model in it.
    pub fn start(config: Config, metrics: &Metrics) -> Result<Self, serin_engine::Error> {
        let engine = Engine::start(EngineConfig {
            threads: config.threads,
            slots: config.slots,
            queue: config.queue,
        })?;
        engine.add(Model::reference()?);
        let counts = Counts::new(metrics);
        let reading = Semaphore::new(config.slots + config.queue);
        let parts = Parts { engine, counts, reading, chat: Mutex::new(Chat::None) };
        Ok(Self(Arc::new(parts), Arc::new(config)))
    }

    /// The same engine, asked under other terms: whom it answers for and what it reads. What it was started with stays.
    pub fn on_terms_of(&self, config: &Config) -> Self {
        Self(self.0.clone(), Arc::new(config.clone()))
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub fn chat(&self) -> Chat {
        self.0.chat.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_chat(&self, chat: Chat) {
        *self.0.chat.lock().unwrap_or_else(PoisonError::into_inner) = chat;
    }

    /// Answers in place of an upstream that is down; `None` if the engine may not or cannot.
    pub async fn stand_in(&self, request: Request) -> Option<Response> {
        // A client of the router must not see our own complaints about its request: only real answers count.
        self.respond(request).await.ok().filter(|response| response.status().is_success())
    }

    async fn respond(&self, request: Request) -> Result<Response, Failure> {
        let (head, body) = request.into_parts();
        let chat = match (&head.method, head.uri.path()) {
            (&Method::GET, "/v1/models") => return Ok(answer::models(&self.0.engine)),
            (&Method::POST, "/v1/chat/completions") => true,
            (&Method::POST, "/v1/completions") => false,
            (_, path) => return Ok(answer::error(StatusCode::NOT_FOUND, "not_found", &no_such(path))),
        };
        // As many requests are read at once as the engine could take: more would only fill memory to be refused.
        let Ok(_reading) = self.0.reading.try_acquire() else { return Ok(answer::busy()) };
        let ask = match self.read(body, chat).await? {
            Ok(ask) => ask,
            Err(complaint) => return Ok(complaint),
        };
        match self.model_for(&ask.model) {
            Ok(model) => {
                let index_topk = self.1.index_topk.0;
                Ok(answer::generate(&self.0.engine, ask, model, index_topk, &self.0.counts).await)
            }
            Err((status, code, message)) => Ok(answer::error(status, code, &message)),
        }
    }

    /// Collects and reads a request's body, within its limits of size and time.
    async fn read(&self, body: Replay, chat: bool) -> Result<Result<Ask, Response>, Failure> {
        let (size, patience) = (self.1.max_request, self.1.request_read);
        let copy = body.copy();
        let collecting = Limited::new(body, size.0 as usize).collect();
        let bytes = match tokio::time::timeout(patience.0, collecting).await {
            Ok(Ok(collected)) => collected.to_bytes(),
            Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
                let message =
                    format!("the request is larger than {size}; raise [fallback] max_request to allow it");
                return Ok(Err(answer::error(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &message)));
            }
            Ok(Err(error)) => return Err(Failure::of_request(copy.fate(), error.to_string())),
            Err(_) => {
                let message =
                    format!("the request was not all here within {patience} ([fallback] request_read)");
                return Ok(Err(answer::error(StatusCode::REQUEST_TIMEOUT, "request_timeout", &message)));
            }
        };
        // Megabytes of JSON take longer to read than other streams of this thread should wait.
        let parsed = tokio::task::spawn_blocking(move || Ask::parse(&bytes, chat)).await;
        let parsed = parsed.unwrap_or_else(|_| Err("the request could not be read".to_owned()));
        Ok(parsed.map_err(|message| answer::error(StatusCode::BAD_REQUEST, "invalid_request", &message)))
    }

    /// Which of the engine's models answers for `asked`.
    fn model_for(&self, asked: &str) -> Result<String, (StatusCode, &'static str, String)> {
        let models = self.0.engine.models();
        if let Some(exact) = models.iter().find(|model| model.name().eq_ignore_ascii_case(asked)) {
            return Ok(exact.name().to_owned());
        }
        if !self.1.answers_for.iter().any(|pattern| matches(pattern, asked)) {
            let message = format!("the model {asked:?} is not served here; GET /v1/models lists what is");
            return Err((StatusCode::NOT_FOUND, "model_not_found", message));
        }
        match self.chat() {
            Chat::Ready(name) => Ok(name),
            Chat::Coming(how_far) => {
                let message = format!("the chat model is being fetched ({how_far}); try again shortly");
                Err((StatusCode::SERVICE_UNAVAILABLE, "model_loading", message))
            }
            Chat::None | Chat::Absent(_) => Ok(serin_engine::REFERENCE.to_owned()),
        }
    }
}

fn no_such(path: &str) -> String {
    format!("the embedded engine serves /v1/models, /v1/chat/completions and /v1/completions, not {path}")
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

impl Upstream for Embedded {
    fn name(&self) -> &str {
        NAME
    }

    fn call(&self, request: Request) -> Answer<'_> {
        Box::pin(async { self.respond(request).await.map_err(|cause| Failed { cause, unsent: None }) })
    }
}

impl Serialize for Selection {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            TopK::All => to.serialize_str("all"),
            TopK::Limit(keys) => to.serialize_u64(keys.get() as u64),
        }
    }
}

impl<'de> Deserialize<'de> for Selection {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(std::num::NonZeroUsize),
            Text(String),
        }
        match Written::deserialize(from) {
            Ok(Written::Number(keys)) => Ok(Self(TopK::Limit(keys))),
            Ok(Written::Text(text)) if text == "all" => Ok(Self(TopK::All)),
            _ => Err(serde::de::Error::custom("index_topk is \"all\" or a number above 0")),
        }
    }
}
