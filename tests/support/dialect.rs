//! The same conversation in each of the interfaces.
#![allow(dead_code, reason = "each test file uses its own part")]

use bytes::Bytes;
use serde_json::{Value, json};
use serin::journal::{End, Exchange, Header, Phase};
use serin::openai::Api;

use crate::exchanges::{SECOND, START};

/// One thing that was said.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    System(String),
    User(String),
    Assistant(Answer),
    /// A tool's result: the call's id, and its text.
    Result(String, String),
}

/// What a model has said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub text: String,
    pub reasoning: String,
    /// Tool calls: id, name and arguments as JSON.
    pub calls: Vec<(String, String, String)>,
}

pub fn user(text: impl Into<String>) -> Said {
    Said::User(text.into())
}

pub fn assistant(text: impl Into<String>) -> Said {
    Said::Assistant(words(text))
}

pub fn words(text: impl Into<String>) -> Answer {
    Answer { text: text.into(), ..Answer::default() }
}

pub fn calling(calls: &[(&str, &str, &str)]) -> Answer {
    let calls = calls.iter().map(|(id, name, arguments)| ((*id).into(), (*name).into(), (*arguments).into()));
    Answer { calls: calls.collect(), ..Answer::default() }
}

/// Whether an interface has messages, and not one text only.
pub fn has_messages(api: Api) -> bool {
    matches!(api, Api::Chat | Api::Responses | Api::Messages)
}

/// A request's body.
pub fn ask(api: Api, history: &[Said], stream: bool) -> Value {
    match api {
        Api::Chat => json!({"model": "m", "messages": chat(history), "stream": stream}),
        Api::Responses => json!({"model": "m", "input": items(history), "stream": stream}),
        Api::Messages => {
            let (system, messages) = blocks(history);
            json!({"model": "m", "max_tokens": 100, "system": system, "messages": messages, "stream": stream})
        }
        Api::Completions => json!({"model": "m", "prompt": text(history), "stream": stream}),
        Api::Generate => json!({"text": text(history), "stream": stream}),
    }
}

fn chat(history: &[Said]) -> Vec<Value> {
    let message = |said: &Said| match said {
        Said::System(text) => json!({"role": "system", "content": text}),
        Said::User(text) => json!({"role": "user", "content": text}),
        Said::Result(id, text) => json!({"role": "tool", "tool_call_id": id, "content": text}),
        Said::Assistant(answer) => {
            let mut message = json!({"role": "assistant", "content": answer.text});
            if !answer.reasoning.is_empty() {
                message["reasoning_content"] = json!(answer.reasoning);
            }
            if !answer.calls.is_empty() {
                message["tool_calls"] = chat_calls(answer);
            }
            message
        }
    };
    history.iter().map(message).collect()
}

fn chat_calls(answer: &Answer) -> Value {
    let call = |(index, (id, name, arguments)): (usize, &(String, String, String))| json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    answer.calls.iter().enumerate().map(call).collect()
}

fn items(history: &[Said]) -> Vec<Value> {
    let mut items = Vec::new();
    for said in history {
        match said {
            Said::System(text) => items.push(json!({"role": "developer", "content": text})),
            Said::User(text) => {
                items.push(json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}));
            }
            Said::Result(id, text) => {
                items.push(json!({"type": "function_call_output", "call_id": id, "output": text}));
            }
            Said::Assistant(answer) => items.extend(output(answer)),
        }
    }
    items
}

fn output(answer: &Answer) -> Vec<Value> {
    let mut items = Vec::new();
    if !answer.reasoning.is_empty() {
        items.push(json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": answer.reasoning}]}));
    }
    if !answer.text.is_empty() {
        items.push(json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": answer.text, "annotations": []}]}));
    }
    for (id, name, arguments) in &answer.calls {
        items.push(json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": name, "arguments": arguments}));
    }
    items
}

fn blocks(history: &[Said]) -> (String, Vec<Value>) {
    let mut system = String::new();
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for said in history {
        let (role, blocks) = match said {
            Said::System(text) => {
                system.push_str(text);
                continue;
            }
            Said::User(text) => ("user", vec![json!({"type": "text", "text": text})]),
            Said::Result(id, text) => {
                ("user", vec![json!({"type": "tool_result", "tool_use_id": id, "content": text})])
            }
            Said::Assistant(answer) => ("assistant", content(answer)),
        };
        // Results of several tools come in one message.
        match messages.last_mut().filter(|(last, _)| *last == role) {
            Some((_, before)) => before.extend(blocks),
            None => messages.push((role, blocks)),
        }
    }
    let messages = messages.into_iter().map(|(role, blocks)| json!({"role": role, "content": blocks}));
    (system, messages.collect())
}

fn content(answer: &Answer) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !answer.reasoning.is_empty() {
        blocks.push(json!({"type": "thinking", "thinking": answer.reasoning, "signature": "sig"}));
    }
    if !answer.text.is_empty() {
        blocks.push(json!({"type": "text", "text": answer.text}));
    }
    for (id, name, arguments) in &answer.calls {
        let input: Value = serde_json::from_str(arguments).expect("arguments are JSON");
        blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": input}));
    }
    blocks
}

fn text(history: &[Said]) -> String {
    let mut text = String::new();
    for said in history {
        match said {
            Said::System(words) => text.push_str(&format!("<system>{words}\n")),
            Said::User(words) => text.push_str(&format!("<user>{words}\n<assistant>")),
            Said::Assistant(answer) => text.push_str(&answer.text),
            Said::Result(_, words) => text.push_str(&format!("<tool>{words}\n<assistant>")),
        }
    }
    text
}

/// A whole answer's body.
pub fn whole(api: Api, answer: &Answer) -> Value {
    match api {
        Api::Chat => {
            let mut message = json!({"role": "assistant", "content": answer.text});
            if !answer.reasoning.is_empty() {
                message["reasoning_content"] = json!(answer.reasoning);
            }
            if !answer.calls.is_empty() {
                message["tool_calls"] = chat_calls(answer);
            }
            json!({"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        }
        Api::Responses => {
            json!({"id": "resp", "model": "m", "status": "completed", "output": output(answer)})
        }
        Api::Messages => {
            json!({"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": content(answer), "stop_reason": "end_turn"})
        }
        Api::Completions => {
            json!({"id": "c", "model": "m", "choices": [{"index": 0, "text": answer.text, "finish_reason": "stop"}]})
        }
        Api::Generate => {
            json!({"text": answer.text, "meta_info": {"id": "g", "finish_reason": {"type": "stop"}}})
        }
    }
}

/// A streamed answer's events; of a text each character by itself.
pub fn events(api: Api, answer: &Answer) -> Vec<String> {
    let data = |event: Value| format!("data: {event}\n\n");
    let named =
        |event: Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
    let letters = || answer.text.chars().map(String::from);
    let mut events: Vec<String> = Vec::new();
    match api {
        Api::Chat => {
            let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
            events.push(data(delta(json!({"role": "assistant", "reasoning_content": answer.reasoning}))));
            events.extend(letters().map(|letter| data(delta(json!({"content": letter})))));
            if !answer.calls.is_empty() {
                events.push(data(delta(json!({"tool_calls": chat_calls(answer)}))));
            }
            events.push("data: [DONE]\n\n".into());
        }
        Api::Completions => {
            events.extend(letters().map(|letter| data(json!({"choices": [{"index": 0, "text": letter}]}))));
            events.push("data: [DONE]\n\n".into());
        }
        Api::Generate => {
            // Each event has all of the text so far.
            let mut so_far = String::new();
            for letter in answer.text.chars() {
                so_far.push(letter);
                events.push(data(json!({"text": so_far, "meta_info": {"id": "g", "finish_reason": null}})));
            }
            events.push("data: [DONE]\n\n".into());
        }
        Api::Responses => {
            events.push(named(json!({"type": "response.created", "response": {"id": "resp", "model": "m"}})));
            events.extend(
                letters().map(|letter| named(json!({"type": "response.output_text.delta", "delta": letter}))),
            );
            events.push(named(json!({"type": "response.completed", "response": whole(api, answer)})));
        }
        Api::Messages => {
            events.push(named(
                json!({"type": "message_start", "message": {"id": "msg", "model": "m", "content": []}}),
            ));
            for (index, block) in content(answer).into_iter().enumerate() {
                let mut start = block.clone();
                match block["type"].as_str() {
                    Some("text") => start["text"] = json!(""),
                    Some("thinking") => start["thinking"] = json!(""),
                    _ => start["input"] = json!({}),
                }
                events.push(named(
                    json!({"type": "content_block_start", "index": index, "content_block": start}),
                ));
                let part =
                    |delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
                match block["type"].as_str() {
                    Some("text") => {
                        events.extend(
                            letters()
                                .map(|letter| named(part(json!({"type": "text_delta", "text": letter})))),
                        );
                    }
                    Some("thinking") => events
                        .push(named(part(json!({"type": "thinking_delta", "thinking": block["thinking"]})))),
                    _ => events.push(named(part(
                        json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}),
                    ))),
                }
            }
            events.push(named(json!({"type": "message_stop"})));
        }
    }
    events
}

/// An exchange that was answered; streamed where the request asks for it.
pub fn exchange(api: Api, id: &str, at: u64, ask: &Value, answer: &Answer) -> Exchange {
    let mut exchange = unanswered(api, id, at, ask.to_string().into_bytes());
    exchange.status = 200;
    let (media, body) = match ask["stream"] == true {
        true => ("text/event-stream", events(api, answer).concat()),
        false => ("application/json", whole(api, answer).to_string()),
    };
    reply(&mut exchange, media, body.into_bytes());
    exchange
}

/// An exchange whose answer has not come.
pub fn unanswered(api: Api, id: &str, at: u64, body: Vec<u8>) -> Exchange {
    Exchange {
        id: id.into(),
        started_unix_nanos: START + at,
        method: "POST".into(),
        target: api.path().into(),
        request_body_hash: hash(&body),
        request_body_len: body.len() as u64,
        request_body: body.into(),
        end: End::Complete as i32,
        phase: Phase::Done as i32,
        upstream: "router".into(),
        served_by: "router".into(),
        end_micros: SECOND / 1000,
        model: "m".into(),
        ..Exchange::default()
    }
}

pub fn reply(exchange: &mut Exchange, media: &'static str, body: Vec<u8>) {
    exchange.response_headers = vec![Header { name: "content-type".into(), value: media.into() }];
    exchange.response_body_hash = hash(&body);
    exchange.response_body_len = body.len() as u64;
    exchange.response_body = body.into();
}

pub fn hash(body: &[u8]) -> Bytes {
    Bytes::copy_from_slice(blake3::hash(body).as_bytes())
}

/// With a header more.
pub fn with(mut exchange: Exchange, name: &str, value: &str) -> Exchange {
    exchange.request_headers.push(Header { name: name.into(), value: value.to_owned().into() });
    exchange
}
