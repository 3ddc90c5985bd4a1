//! Exchanges for tests of the recording side.
#![allow(dead_code, reason = "each test file uses its own part")]

use bytes::Bytes;
use serde_json::{Value, json};
use serin::journal::{End, Exchange, Header, Phase};

/// A moment to count from: 2025-12-02T00:00:00Z.
pub const START: u64 = 1_764_633_600_000_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// A chat exchange with a whole JSON answer.
pub fn chat(id: &str, at: u64, messages: &Value, answer: &str) -> Exchange {
    let body = json!({"model": "m", "messages": messages, "temperature": 0.6}).to_string();
    let choice =
        json!({"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"});
    let reply =
        json!({"model": "m", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}});
    Exchange {
        id: id.into(),
        started_unix_nanos: START + at,
        method: "POST".into(),
        target: "/v1/chat/completions".into(),
        request_body_hash: hash(body.as_bytes()),
        request_body_len: body.len() as u64,
        request_body: body.into(),
        status: 200,
        response_headers: vec![Header { name: "content-type".into(), value: "application/json".into() }],
        response_body: reply.to_string().into(),
        response_body_hash: hash(reply.to_string().as_bytes()),
        end: End::Complete as i32,
        phase: Phase::Done as i32,
        upstream: "router".into(),
        served_by: "router".into(),
        first_byte_micros: 200_000,
        end_micros: 1_000_000,
        model: "m".into(),
        ..Exchange::default()
    }
}

/// The same answered as a stream of events, one for each word.
pub fn streamed(id: &str, at: u64, messages: &Value, answer: &str) -> Exchange {
    let mut body = String::new();
    for word in answer.split_inclusive(' ') {
        let chunk = json!({"choices": [{"index": 0, "delta": {"content": word}}]});
        body.push_str(&format!("data: {chunk}\n\n"));
    }
    body.push_str(
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    );
    let mut exchange = chat(id, at, messages, answer);
    exchange.response_headers[0].value = "text/event-stream".into();
    exchange.response_body_hash = hash(body.as_bytes());
    exchange.response_body = body.into();
    exchange
}

fn hash(body: &[u8]) -> Bytes {
    Bytes::copy_from_slice(blake3::hash(body).as_bytes())
}

/// The same, refused by the upstream.
pub fn failed(id: &str, at: u64, messages: &Value) -> Exchange {
    let mut exchange = chat(id, at, messages, "");
    exchange.status = 503;
    exchange.response_body = Bytes::from_static(br#"{"error":{"message":"overloaded"}}"#);
    exchange.response_body_hash = hash(&exchange.response_body);
    exchange
}

pub fn with_session(mut exchange: Exchange, name: &str, id: &str) -> Exchange {
    exchange.request_headers.push(Header { name: name.into(), value: id.to_owned().into() });
    exchange
}

pub fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

pub fn assistant(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}
