//! Answers in the API's own form: whole, or as server-sent events.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::{Value, json};
use serin_engine::{Engine, Event, FinishReason, Generate, TopK};
use tokio::sync::mpsc;

use super::ask::Ask;
use super::counts::Counts;
use super::{Body, Failure, Response};
use crate::{clock, ids};

/// An error in the API's form.
pub fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let body =
        json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": code}});
    let mut response = whole(status, &body);
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

/// The engine has all it can take.
pub fn busy() -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "engine_busy", "the embedded engine is busy; try again shortly")
}

/// `GET /v1/models`
pub fn models(engine: &Engine) -> Response {
    let list: Vec<Value> = engine
        .models()
        .iter()
        .map(|model| {
            json!({"id": model.name(), "object": "model", "created": 0, "owned_by": "serin",
                   "max_model_len": model.context_length(), "description": model.description()})
        })
        .collect();
    whole(StatusCode::OK, &json!({"object": "list", "data": list}))
}

/// Runs the request on the engine.
pub async fn generate(
    engine: &Engine,
    ask: Ask,
    model: String,
    index_topk: TopK,
    counts: &Counts,
) -> Response {
    let form = Form::new(&ask, &model);
    let mut meter = counts.meter(&model);
    // One event per token and a few around them: with this capacity the engine never waits for a slow client.
    let (sender, mut events) = mpsc::channel(ask.max_tokens.min(1 << 20) + 8);
    let job = Generate {
        model,
        prompt: ask.prompt,
        max_tokens: ask.max_tokens,
        temperature: ask.temperature,
        top_p: ask.top_p,
        seed: ask.seed,
        stop: ask.stop,
        index_topk,
    };
    let sink = move |event: Event| {
        meter.note(&event);
        // Progress is only a chance to stop: a long prompt reports more often than the channel has room.
        let gone = match event {
            Event::Progress { .. } => sender.is_closed(),
            event => sender.try_send(event).is_err(),
        };
        if gone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    if let Err(refused) = engine.generate(job, Box::new(sink)) {
        return failed(&refused);
    }
    // The first event decides the status: after it, a stream can only be cut short.
    let usage = loop {
        match events.recv().await {
            Some(Event::Started { prompt_tokens, cached_tokens }) => {
                break Usage { prompt: prompt_tokens, cached: cached_tokens, completion: 0 };
            }
            Some(Event::Failed(cause)) => return failed(&cause),
            Some(Event::Text(_) | Event::Finished { .. } | Event::Progress { .. }) => {}
            None => return error(StatusCode::INTERNAL_SERVER_ERROR, "engine_stopped", "the engine stopped"),
        }
    };
    if form.stream { stream(form, usage, events) } else { collect(form, usage, events).await }
}

/// The engine's own errors, by whose fault they are.
fn failed(cause: &serin_engine::Error) -> Response {
    use serin_engine::Error;
    let (status, code) = match cause {
        Error::Busy { .. } => (StatusCode::SERVICE_UNAVAILABLE, "engine_busy"),
        Error::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "engine_stopped"),
        Error::TooLong { .. } => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
        Error::Internal(_) | Error::Memory { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "engine_failed"),
        _ => (StatusCode::BAD_REQUEST, "invalid_request"),
    };
    error(status, code, &cause.to_string())
}

fn whole(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::whole(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[derive(Clone, Copy)]
struct Usage {
    prompt: usize,
    cached: usize,
    completion: usize,
}

impl Usage {
    fn json(self) -> Value {
        json!({"prompt_tokens": self.prompt, "completion_tokens": self.completion,
               "total_tokens": self.prompt + self.completion,
               "prompt_tokens_details": {"cached_tokens": self.cached}})
    }
}

/// The constant part of every object of one answer.
struct Form {
    id: String,
    created: u64,
    model: String,
    chat: bool,
    stream: bool,
    include_usage: bool,
}

impl Form {
    fn new(ask: &Ask, model: &str) -> Self {
        let prefix = if ask.chat { "chatcmpl-" } else { "cmpl-" };
        Self {
            id: format!("{prefix}{}", ids::hex(&ids::entropy())),
            created: clock::unix_nanos() / 1_000_000_000,
            model: model.to_owned(),
            chat: ask.chat,
            stream: ask.stream,
            include_usage: ask.include_usage,
        }
    }

    fn object(&self, kind: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices})
    }

    fn whole(&self, text: &str, reason: &str, usage: Usage) -> Value {
        let (kind, choice) = match self.chat {
            true => (
                "chat.completion",
                json!([{"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": null, "finish_reason": reason}]),
            ),
            false => (
                "text_completion",
                json!([{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}]),
            ),
        };
        let mut object = self.object(kind, choice);
        object["usage"] = usage.json();
        object
    }

    fn piece(&self, delta: Value, reason: Option<&str>) -> Bytes {
        let (kind, choice) = match self.chat {
            true => (
                "chat.completion.chunk",
                json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]),
            ),
            false => {
                let text = delta["content"].as_str().unwrap_or_default();
                (
                    "text_completion",
                    json!([{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}]),
                )
            }
        };
        event(&self.object(kind, choice))
    }
}

fn event(object: &Value) -> Bytes {
    Bytes::from(format!("data: {object}\n\n"))
}

fn named(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

async fn collect(form: Form, mut usage: Usage, mut events: mpsc::Receiver<Event>) -> Response {
    let mut text = String::new();
    while let Some(next) = events.recv().await {
        match next {
            Event::Text(piece) => text.push_str(&piece),
            Event::Finished { reason, completion_tokens } => {
                usage.completion = completion_tokens;
                return whole(StatusCode::OK, &form.whole(&text, named(reason), usage));
            }
            Event::Failed(cause) => return failed(&cause),
            Event::Started { .. } | Event::Progress { .. } => {}
        }
    }
    error(StatusCode::INTERNAL_SERVER_ERROR, "engine_stopped", "the engine stopped")
}

fn stream(form: Form, usage: Usage, events: mpsc::Receiver<Event>) -> Response {
    let mut ready = VecDeque::new();
    if form.chat {
        ready.push_back(form.piece(json!({"role": "assistant", "content": ""}), None));
    }
    let mut response =
        Response::new(Body::Embedded(Box::new(Stream { form, usage, events, ready, done: false })));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// The engine's events as server-sent events, pulled by whoever reads the body. Dropped early, it closes the channel
/// and the engine stops at its next token.
pub struct Stream {
    form: Form,
    usage: Usage,
    events: mpsc::Receiver<Event>,
    ready: VecDeque<Bytes>,
    done: bool,
}

impl Stream {
    fn take(&mut self, next: Event) {
        match next {
            Event::Text(text) => self.ready.push_back(self.form.piece(json!({"content": text}), None)),
            Event::Finished { reason, completion_tokens } => {
                self.usage.completion = completion_tokens;
                self.ready.push_back(self.form.piece(json!({}), Some(named(reason))));
                if self.form.include_usage {
                    let kind = if self.form.chat { "chat.completion.chunk" } else { "text_completion" };
                    let mut last = self.form.object(kind, json!([]));
                    last["usage"] = self.usage.json();
                    self.ready.push_back(event(&last));
                }
                self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
                self.done = true;
            }
            Event::Started { .. } | Event::Progress { .. } | Event::Failed(_) => {}
        }
    }
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.done {
                return Poll::Ready(None);
            }
            match ready!(self.events.poll_recv(cx)) {
                Some(Event::Failed(cause)) => {
                    self.done = true;
                    return Poll::Ready(Some(Err(Failure::Cut(cause.to_string()))));
                }
                None => {
                    self.done = true;
                    return Poll::Ready(Some(Err(Failure::Cut("the engine stopped".to_owned()))));
                }
                Some(next) => self.take(next),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.done && self.ready.is_empty()
    }
}
