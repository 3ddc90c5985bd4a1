//! What the three APIs say, to the byte, and an upstream that speaks them.

use std::io::Write;
use std::net::TcpStream;

use serde_json::{Value, json};

use super::upstream::{Received, Upstream, chunk, chunked, until_closed, whole};

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Chat,
    Responses,
    Messages,
}

pub const APIS: [Api; 3] = [Api::Chat, Api::Responses, Api::Messages];

/// Arguments of two tool calls that stream at the same time, in pieces cut where a parser would not like it.
const CALLS: [(&str, &str, [&str; 4]); 2] = [
    ("call_a", "weather", ["{\"city\":", " \"Z\u{fc}", "rich \u{1f327}\",", "\"days\": 3}"]),
    ("call_b", "time", ["{\"zone\"", ":\"\\u0041", "sia/\u{6771}\u{4eac}\"", "}"]),
];

impl Api {
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/v1/chat/completions",
            Api::Responses => "/v1/responses",
            Api::Messages => "/v1/messages",
        }
    }

    fn of(request: &Received) -> Option<Api> {
        APIS.into_iter().find(|api| {
            request.head.contains(&format!("{} ", api.path()))
                || request.head.contains(&format!("{}?", api.path()))
        })
    }

    /// A request in this format.
    pub fn ask(self, model: &str, stream: bool) -> Vec<u8> {
        let mut body = json!({"model": model, "stream": stream});
        match self {
            Api::Responses => body["input"] = json!("hi"),
            _ => body["messages"] = json!([{"role": "user", "content": "hi"}]),
        }
        body.to_string().into_bytes()
    }

    /// An answer as events: words, or two tool calls whose arguments come interleaved.
    pub fn events(self, tools: bool) -> Vec<Vec<u8>> {
        let (named, events) = match (self, tools) {
            (Api::Chat, false) => (false, chat_words()),
            (Api::Chat, true) => (false, chat_calls()),
            (Api::Responses, _) => (true, responses(tools)),
            (Api::Messages, _) => (true, messages(tools)),
        };
        let mut bytes: Vec<Vec<u8>> = events.iter().map(|event| sse(named, event)).collect();
        if self == Api::Chat {
            bytes.push(b"data: [DONE]\n\n".to_vec());
        }
        bytes
    }

    /// The same answer in one piece.
    pub fn answer(self, tools: bool) -> Value {
        match self {
            Api::Chat if tools => {
                let calls: Vec<Value> = CALLS.iter().map(|(id, name, pieces)| json!({"id": id, "type": "function", "function": {"name": name, "arguments": pieces.concat()}})).collect();
                let message = json!({"role": "assistant", "content": null, "tool_calls": calls});
                json!({"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "usage": chat_usage(),
                       "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
            }
            Api::Chat => {
                let message = json!({"role": "assistant", "content": "hello", "reasoning_content": "hmx"});
                json!({"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "usage": chat_usage(),
                       "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
            }
            Api::Responses => response("completed", items(tools)),
            Api::Messages => {
                let content = if tools {
                    json!(CALLS.map(|(id, name, pieces)| json!({"type": "tool_use", "id": id, "name": name,
                        "input": serde_json::from_str::<Value>(&pieces.concat()).unwrap_or_default()})))
                } else {
                    json!([{"type": "text", "text": "hello"}])
                };
                message(content, json!(if tools { "tool_use" } else { "end_turn" }))
            }
        }
    }
}

fn sse(named: bool, event: &Value) -> Vec<u8> {
    let name = event["type"].as_str().filter(|_| named).map(|name| format!("event: {name}\n"));
    format!("{}data: {event}\n\n", name.unwrap_or_default()).into_bytes()
}

fn chat_usage() -> Value {
    json!({"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14, "prompt_tokens_details": {"cached_tokens": 4}})
}

fn chat_chunk(choices: Value) -> Value {
    json!({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices, "usage": null})
}

fn chat_delta(delta: Value, finish: Value) -> Value {
    chat_chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish}]))
}

fn usage_chunk() -> Value {
    let mut last = chat_chunk(json!([]));
    last["usage"] = chat_usage();
    last
}

fn chat_words() -> Vec<Value> {
    vec![
        chat_delta(json!({"role": "assistant", "content": ""}), Value::Null),
        // Reasoning and content in one chunk, and the other name some engines give to reasoning.
        chat_delta(json!({"reasoning_content": "hm", "content": "he"}), Value::Null),
        chat_delta(json!({"reasoning": "x", "content": "llo", "matched_stop": null}), Value::Null),
        chat_chunk(json!([])),
        chat_delta(json!({}), json!("stop")),
        usage_chunk(),
    ]
}

fn chat_calls() -> Vec<Value> {
    let mut events = vec![chat_delta(json!({"role": "assistant", "content": null}), Value::Null)];
    for (index, (id, name, _)) in CALLS.iter().enumerate() {
        let call = json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}});
        events.push(chat_delta(json!({"tool_calls": [call]}), Value::Null));
    }
    for piece in 0..4 {
        let both: Vec<Value> = CALLS
            .iter()
            .enumerate()
            .map(|(index, call)| json!({"index": index, "function": {"arguments": call.2[piece]}}))
            .collect();
        // Now each in a chunk of its own, now both in one.
        if piece % 2 == 0 {
            events
                .extend(both.into_iter().map(|call| chat_delta(json!({"tool_calls": [call]}), Value::Null)));
        } else {
            events.push(chat_delta(json!({"tool_calls": both}), Value::Null));
        }
    }
    events.push(chat_delta(json!({}), json!("tool_calls")));
    events.push(usage_chunk());
    events
}

fn response(status: &str, output: Value) -> Value {
    json!({"id": "r1", "object": "response", "created_at": 1, "status": status, "model": "m", "output": output, "error": null,
           "incomplete_details": null, "instructions": null, "metadata": {}, "parallel_tool_calls": true, "temperature": 1.0,
           "tool_choice": "auto", "tools": [], "top_p": 1.0,
           "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 5,
                     "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 14}})
}

fn items(tools: bool) -> Value {
    if !tools {
        return json!([{"type": "message", "id": "i1", "role": "assistant", "status": "completed",
                       "content": [{"type": "output_text", "text": "hello", "annotations": []}]}]);
    }
    json!(
        CALLS
            .map(|(id, name, pieces)| json!({"type": "function_call", "id": id, "call_id": id, "name": name,
        "arguments": pieces.concat(), "status": "completed"}))
    )
}

fn responses(tools: bool) -> Vec<Value> {
    let mut events =
        vec![json!({"type": "response.created", "response": response("in_progress", json!([]))})];
    if tools {
        for (index, (id, name, _)) in CALLS.iter().enumerate() {
            let item = json!({"type": "function_call", "id": id, "call_id": id, "name": name, "arguments": "", "status": "in_progress"});
            events.push(json!({"type": "response.output_item.added", "output_index": index, "item": item}));
        }
        for piece in 0..4 {
            for (index, (id, _, pieces)) in CALLS.iter().enumerate() {
                events.push(json!({"type": "response.function_call_arguments.delta", "item_id": id, "output_index": index, "delta": pieces[piece]}));
            }
        }
        for (index, (id, _, pieces)) in CALLS.iter().enumerate() {
            events.push(json!({"type": "response.function_call_arguments.done", "item_id": id, "output_index": index, "arguments": pieces.concat()}));
            events.push(json!({"type": "response.output_item.done", "output_index": index, "item": items(true)[index]}));
        }
    } else {
        let item = json!({"type": "message", "id": "i1", "role": "assistant", "status": "in_progress", "content": []});
        events.push(json!({"type": "response.output_item.added", "output_index": 0, "item": item}));
        events.push(json!({"type": "response.content_part.added", "item_id": "i1", "output_index": 0, "content_index": 0,
                           "part": {"type": "output_text", "text": "", "annotations": []}}));
        for piece in ["he", "llo"] {
            events.push(json!({"type": "response.output_text.delta", "item_id": "i1", "output_index": 0, "content_index": 0, "delta": piece, "logprobs": []}));
        }
        events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": items(false)[0]}));
    }
    events.push(json!({"type": "response.completed", "response": response("completed", items(tools))}));
    (0..)
        .zip(&mut events)
        .for_each(|(number, event): (u32, &mut Value)| event["sequence_number"] = number.into());
    events
}

fn message(content: Value, why: Value) -> Value {
    json!({"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": why,
           "stop_sequence": null, "usage": {"input_tokens": 9, "output_tokens": 5, "cache_read_input_tokens": 4}})
}

fn messages(tools: bool) -> Vec<Value> {
    let mut events = vec![
        json!({"type": "message_start", "message": message(json!([]), Value::Null)}),
        json!({"type": "ping"}),
    ];
    if tools {
        for (index, (id, name, pieces)) in CALLS.iter().enumerate() {
            let block = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
            events.push(json!({"type": "content_block_start", "index": index, "content_block": block}));
            for piece in pieces {
                events.push(json!({"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta", "partial_json": piece}}));
            }
            events.push(json!({"type": "content_block_stop", "index": index}));
        }
    } else {
        events.push(
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        );
        for piece in ["he", "llo"] {
            events.push(json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}));
        }
        events.push(json!({"type": "content_block_stop", "index": 0}));
    }
    let why = if tools { "tool_use" } else { "end_turn" };
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": why, "stop_sequence": null}, "usage": {"output_tokens": 5}}));
    events.push(json!({"type": "message_stop"}));
    events
}

/// An upstream that answers all three, and does as the model's name says: `tools` answers with tool calls, `silent`
/// never answers, `endless` sends the first event and then waits, until the connection is closed.
pub fn upstream() -> Upstream {
    Upstream::start(|request, out| match (Api::of(request), serde_json::from_slice::<Value>(&request.body)) {
        (Some(api), Ok(asked)) => speak(api, &asked, out),
        _ => out
            .write_all(&whole("404 Not Found", "application/json", b"{\"error\":{\"message\":\"no\"}}"))
            .is_ok(),
    })
}

fn speak(api: Api, asked: &Value, out: &mut TcpStream) -> bool {
    let model = asked["model"].as_str().unwrap_or_default();
    if model == "silent" {
        until_closed(out);
        return false;
    }
    if asked["stream"] != true {
        let answer = api.answer(model == "tools").to_string();
        return out.write_all(&whole("200 OK", "application/json", answer.as_bytes())).is_ok();
    }
    let mut ok = out.write_all(&chunked("text/event-stream")).is_ok();
    for event in api.events(model == "tools") {
        ok &= out.write_all(&chunk(&event)).is_ok();
        if model == "endless" {
            until_closed(out);
            return false;
        }
    }
    ok && out.write_all(b"0\r\n\r\n").is_ok()
}
