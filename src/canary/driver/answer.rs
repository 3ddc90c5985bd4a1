//! Reading chat completion answers, whole or as server-sent events. The bytes are from outside.

use serde_json::Value;

use crate::fidelity::judge::{Answer, Delivery, Failure};

use super::door::Reply;

/// The most of a refusal's body that is kept, in bytes.
const MAX_REFUSAL: usize = 4_096;
/// The most tool calls of one answer that are taken.
const MAX_TOOL_CALLS: usize = 16;

/// A tool call of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

/// An answer taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parsed {
    pub delivery: Delivery,
    pub tool_calls: Vec<ToolCall>,
    /// 0 if not reported.
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
}

/// What has been gathered from the choices so far.
#[derive(Debug, Default)]
struct Draft {
    answer: Answer,
    calls: Vec<ToolCall>,
    prompt_tokens: u32,
    cached_tokens: u32,
    has_choice: bool,
    is_done: bool,
}

impl Parsed {
    /// A delivery that holds no answer.
    pub fn without_answer(delivery: Delivery) -> Self {
        Self { delivery, tool_calls: Vec::new(), prompt_tokens: 0, cached_tokens: 0 }
    }
}

/// Takes a reply apart. Never fails: what cannot be read is a delivery of its own.
pub fn parse(reply: &Reply) -> Parsed {
    if !(200..=299).contains(&reply.status) {
        let body = String::from_utf8_lossy(&reply.body[..reply.body.len().min(MAX_REFUSAL)]).into_owned();
        return Parsed::without_answer(Delivery::Refused { status: reply.status, body });
    }
    if reply.broken == Some(Failure::Oversized) {
        return Parsed::without_answer(Delivery::Failed(Failure::Oversized));
    }
    if reply.is_event_stream { events(reply) } else { whole(reply) }
}

/// The ids in a list of models; `None` for anything but such a list.
pub fn model_ids(body: &[u8]) -> Option<Vec<String>> {
    let list: Value = serde_json::from_slice(body).ok()?;
    let ids = list.get("data")?.as_array()?.iter().filter_map(|model| model.get("id")?.as_str());
    Some(ids.take(1_000).map(str::to_owned).collect())
}

fn whole(reply: &Reply) -> Parsed {
    if let Some(failure) = reply.broken {
        let delivery = match failure {
            Failure::TimeoutInAnswer => Delivery::Failed(failure),
            _ => Delivery::Interrupted(Answer::default()),
        };
        return Parsed::without_answer(delivery);
    }
    let mut draft = Draft::default();
    match serde_json::from_slice::<Value>(&reply.body) {
        Ok(value) if draft.take(&value, "message") && draft.has_choice => draft.finish(Delivery::Answered),
        _ => Parsed::without_answer(Delivery::Malformed),
    }
}

fn events(reply: &Reply) -> Parsed {
    let text = String::from_utf8_lossy(&reply.body);
    let mut draft = Draft::default();
    for data in event_data(&text) {
        if data.trim() == "[DONE]" {
            draft.is_done = true;
            break;
        }
        let readable = serde_json::from_str::<Value>(&data).is_ok_and(|value| draft.take(&value, "delta"));
        if !readable {
            // The last event of a stream that broke off may be half there.
            let kind = if reply.broken.is_some() { Delivery::Interrupted } else { |_| Delivery::Malformed };
            return draft.finish(kind);
        }
    }
    let ended = draft.is_done || draft.answer.finish_reason.is_some();
    match reply.broken {
        _ if !draft.has_choice && reply.broken.is_none() && draft.is_done => {
            draft.finish(|_| Delivery::Malformed)
        }
        None if ended => draft.finish(Delivery::Answered),
        Some(Failure::TimeoutInAnswer) => draft.finish(|_| Delivery::Failed(Failure::TimeoutInAnswer)),
        _ => draft.finish(Delivery::Interrupted),
    }
}

/// The data of each event: the `data` fields between blank lines, joined by newlines. An event
/// that no blank line closes is given too, since what it holds was sent.
fn event_data(text: &str) -> impl Iterator<Item = String> {
    let mut lines = text.trim_start_matches('\u{feff}').split('\n').map(|line| line.trim_end_matches('\r'));
    std::iter::from_fn(move || {
        let mut data: Option<String> = None;
        loop {
            let Some(line) = lines.next() else { return data };
            if line.is_empty() {
                if data.is_some() {
                    return data;
                }
            } else if let Some(field) = line.strip_prefix("data:") {
                let field = field.strip_prefix(' ').unwrap_or(field);
                match &mut data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(field);
                    }
                    None => data = Some(field.to_owned()),
                }
            }
        }
    })
}

impl Draft {
    /// Takes one completion or chunk; the parts are under `key`. False if it is none.
    fn take(&mut self, value: &Value, key: &str) -> bool {
        if !value.is_object() || value.get("error").is_some_and(|error| !error.is_null()) {
            return false;
        }
        self.take_usage(&value["usage"]);
        let choices = value["choices"].as_array().map_or(&[][..], Vec::as_slice);
        // Probes ask for one choice; others are not the answer to them.
        for choice in choices.iter().filter(|choice| choice["index"].as_u64().unwrap_or(0) == 0) {
            self.has_choice = true;
            self.take_parts(&choice[key]);
            if let Some(reason) = choice["finish_reason"].as_str() {
                self.answer.finish_reason = Some(reason.to_owned());
            }
        }
        true
    }

    fn take_usage(&mut self, usage: &Value) {
        let count = |value: &Value| value.as_u64().map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
        self.prompt_tokens = self.prompt_tokens.max(count(&usage["prompt_tokens"]));
        self.cached_tokens = self.cached_tokens.max(count(&usage["prompt_tokens_details"]["cached_tokens"]));
    }

    fn take_parts(&mut self, parts: &Value) {
        match &parts["content"] {
            Value::String(text) => self.answer.content.push_str(text),
            Value::Array(pieces) => {
                pieces
                    .iter()
                    .filter_map(|piece| piece["text"].as_str())
                    .for_each(|text| self.answer.content.push_str(text));
            }
            _ => {}
        }
        // Servers call it one or the other; some send both with the same text.
        let reasoning = ["reasoning_content", "reasoning"].iter().find_map(|name| parts[name].as_str());
        self.answer.reasoning.push_str(reasoning.unwrap_or_default());
        self.answer.refusal.push_str(parts["refusal"].as_str().unwrap_or_default());
        for (at, call) in parts["tool_calls"].as_array().into_iter().flatten().enumerate() {
            self.take_call(call, at);
        }
    }

    fn take_call(&mut self, call: &Value, at: usize) {
        let index = call["index"].as_u64().map_or(at, |index| usize::try_from(index).unwrap_or(usize::MAX));
        if index >= MAX_TOOL_CALLS {
            return;
        }
        if self.calls.len() <= index {
            self.calls.resize(index + 1, ToolCall::default());
        }
        let to = &mut self.calls[index];
        to.id.push_str(call["id"].as_str().unwrap_or_default());
        to.name.push_str(call["function"]["name"].as_str().unwrap_or_default());
        to.arguments.push_str(call["function"]["arguments"].as_str().unwrap_or_default());
    }

    fn finish(mut self, kind: impl FnOnce(Answer) -> Delivery) -> Parsed {
        let arguments: Vec<&str> = self.calls.iter().map(|call| call.arguments.as_str()).collect();
        self.answer.tool_arguments = arguments.join("\n");
        self.answer.has_tool_calls = !self.calls.is_empty();
        Parsed {
            delivery: kind(self.answer),
            tool_calls: self.calls,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
        }
    }
}

#[cfg(test)]
mod tests;
