//! Sends a probe as an ordinary client would and has the answer judged.
//!
//! At most three exchanges per probe: a tool call is answered once with an empty result, and an
//! answer that was cut off is asked for once more with twice the room.

pub mod answer;
pub mod door;
pub mod pinned;

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request};
use serde_json::{Value, json};

use crate::fidelity::dye::Registry;
use crate::fidelity::judge::{Answer, Delivery, Failure, Judgement, Verdict, judge};
use crate::fidelity::tag;

use super::probe::Probe;
use answer::{Parsed, ToolCall};
use door::{Door, Reply};

/// The most room a cut-off answer is given, in tokens.
const MAX_ROOM: u32 = 8_192;

/// What sending one probe came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub judgement: Judgement,
    /// What the last exchange delivered, for the cause of an error.
    pub cause: Option<&'static str>,
    /// Who answered, as the front door says; `unknown` if it does not.
    pub upstream: String,
    /// The record of the last exchange, as the front door says.
    pub turn: Option<String>,
    /// As reported for the first exchange; 0 if not reported.
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// Set when the last exchange was refused with 429 or 503.
    pub pressure: Option<Pressure>,
    pub exchanges: u32,
}

/// The upstream asked for less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pressure {
    pub retry_after: Option<Duration>,
}

/// Sends probes through one front door.
#[derive(Debug)]
pub struct Driver {
    door: Door,
    tag_key: tag::Key,
}

/// What changes from one exchange of a probe to the next.
struct Turn {
    room: u32,
    further: Vec<Value>,
    retried: bool,
    hopped: bool,
}

impl Driver {
    /// A driver that goes through `door` and marks its requests under `tag_key`.
    pub fn new(door: Door, tag_key: tag::Key) -> Self {
        Self { door, tag_key }
    }

    /// Sends `probe` and judges what comes back.
    pub async fn run(
        &self,
        probe: &Probe,
        max_tokens: u32,
        api_key: Option<&str>,
        live: &Registry,
    ) -> Outcome {
        let mut turn = Turn { room: max_tokens, further: Vec::new(), retried: false, hopped: false };
        let mut outcome = Outcome::nothing();
        let mut stranger = None;
        loop {
            let body = probe.body(turn.room, &turn.further);
            let request = self.request(Method::POST, "/v1/chat/completions", &probe.id, api_key, body);
            let parsed = outcome.take(self.door.send(request).await);
            let mut found = judge(&parsed.delivery, &probe.expectation(), live);
            outcome.cause = cause(&parsed.delivery);
            // A mix-up in any exchange stays one, however the next exchange ends.
            stranger = stranger.or(found.stranger.take());
            if turn.goes_on(&found, &parsed) {
                continue;
            }
            outcome.judgement = concluded(found, stranger);
            return outcome;
        }
    }

    /// The ids of the models served, in the order given.
    ///
    /// # Errors
    /// The status of the answer where they cannot be read; 0 where there was no whole answer.
    pub async fn models(&self, probe_id: &str, api_key: Option<&str>) -> Result<Vec<String>, u16> {
        let request = self.request(Method::GET, "/v1/models", probe_id, api_key, Bytes::new());
        let reply = self.door.send(request).await.map_err(|_| 0u16)?;
        if reply.broken.is_some() {
            return Err(0);
        }
        if reply.status != 200 {
            return Err(reply.status);
        }
        answer::model_ids(&reply.body).ok_or(reply.status)
    }

    fn request(
        &self,
        method: Method,
        path: &'static str,
        probe_id: &str,
        api_key: Option<&str>,
        body: Bytes,
    ) -> Request<Full<Bytes>> {
        let sends_body = method == Method::POST;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = hyper::Uri::from_static(path);
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::try_from(self.door.target().to_string()) {
            headers.insert(HOST, host);
        }
        if sends_body {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(Ok(value)) = api_key.map(|key| HeaderValue::try_from(format!("Bearer {key}"))) {
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(Ok(value)) = self.tag_key.seal(probe_id).map(HeaderValue::try_from) {
            headers.insert(tag::HEADER, value);
        }
        request
    }
}

impl Turn {
    /// Prepares another exchange if the verdict calls for one that was not had yet.
    fn goes_on(&mut self, found: &Judgement, parsed: &Parsed) -> bool {
        match found.base {
            Verdict::ToolDetour if !self.hopped => {
                self.hopped = true;
                self.further = nothing_found(&parsed.tool_calls);
                true
            }
            Verdict::Truncated if !self.retried && self.room < MAX_ROOM => {
                self.retried = true;
                self.room = self.room.saturating_mul(2).min(MAX_ROOM);
                true
            }
            _ => false,
        }
    }
}

impl Outcome {
    fn nothing() -> Self {
        let verdict = Verdict::Error;
        let judgement = Judgement { verdict, base: verdict, stranger: None, answer_missing: false };
        Self {
            judgement,
            cause: None,
            upstream: "unknown".to_owned(),
            turn: None,
            prompt_tokens: 0,
            cached_tokens: 0,
            pressure: None,
            exchanges: 0,
        }
    }

    fn take(&mut self, sent: Result<Reply, Failure>) -> Parsed {
        self.exchanges += 1;
        (self.pressure, self.turn) = (None, None);
        let reply = match sent {
            Ok(reply) => reply,
            Err(failure) => return Parsed::without_answer(Delivery::Failed(failure)),
        };
        if let Some(upstream) = &reply.upstream {
            self.upstream.clone_from(upstream);
        }
        self.turn.clone_from(&reply.turn);
        if matches!(reply.status, 429 | 503) {
            self.pressure = Some(Pressure { retry_after: reply.retry_after });
        }
        let parsed = answer::parse(&reply);
        if self.exchanges == 1 {
            (self.prompt_tokens, self.cached_tokens) = (parsed.prompt_tokens, parsed.cached_tokens);
        }
        parsed
    }
}

/// The last judgement of a probe: a tool call after the hop is a loss (sent back to the conversation,
/// the model still looks elsewhere), and crosstalk found on the way overrides.
fn concluded(found: Judgement, stranger: Option<String>) -> Judgement {
    let base = if found.base == Verdict::ToolDetour { Verdict::LostWrong } else { found.base };
    let verdict = if stranger.is_some() { Verdict::Crosstalk } else { base };
    Judgement { verdict, base, stranger, ..found }
}

/// The messages that answer tool calls with nothing, so that only the conversation is left.
fn nothing_found(calls: &[ToolCall]) -> Vec<Value> {
    let as_given: Vec<Value> = calls
        .iter()
        .map(|call| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        })
        .collect();
    let mut messages = vec![json!({"role": "assistant", "content": null, "tool_calls": as_given})];
    messages.extend(calls.iter().map(|call| {
        json!({"role": "tool", "tool_call_id": call.id, "content": "Nothing found. Answer from the conversation."})
    }));
    messages
}

/// A name for what kept an answer from coming, for the log.
fn cause(delivery: &Delivery) -> Option<&'static str> {
    match delivery {
        Delivery::Answered(Answer { .. }) => None,
        Delivery::Failed(Failure::Connect) => Some("connect"),
        Delivery::Failed(Failure::TimeoutBeforeAnswer) => Some("timeout before the answer"),
        Delivery::Failed(Failure::TimeoutInAnswer) => Some("timeout in the answer"),
        Delivery::Failed(Failure::Transport) => Some("transport"),
        Delivery::Failed(Failure::Oversized) => Some("answer too large"),
        Delivery::Refused { status: 429, .. } => Some("status 429"),
        Delivery::Refused { status: 400..=499, .. } => Some("status 4xx"),
        Delivery::Refused { .. } => Some("status 5xx or unexpected"),
        Delivery::Malformed => Some("malformed"),
        Delivery::Interrupted(_) => Some("interrupted"),
    }
}

#[cfg(test)]
mod tests;
