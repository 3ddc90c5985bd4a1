//! Messages as plain text, with who speaks.

use std::fmt::Write;

use serde_json::Value;

use super::plain;
use crate::conversation::view::{Request, Response};
use crate::openai::Choice;

/// Something that was said.
pub struct Speech {
    pub role: String,
    /// Harmless for a terminal.
    pub content: String,
}

impl Speech {
    fn new(role: &str, content: &str) -> Speech {
        Speech { role: role.to_owned(), content: plain(content.trim()) }
    }

    /// A word of ours.
    pub fn note(text: &str) -> Speech {
        Speech { role: String::new(), content: format!("({text})") }
    }
}

/// What is new in a request.
pub fn of_request(request: &Request) -> Vec<Speech> {
    let mut said = Vec::new();
    let value = |raw: &str| serde_json::from_str(raw).unwrap_or(Value::Null);
    said.extend(request.system.as_ref().map(|raw| Speech::new("system", &content(&value(raw.get())))));
    said.extend(request.prompt.as_ref().map(|raw| Speech::new("prompt", &content(&value(raw.get())))));
    said.extend(request.messages.iter().map(|raw| message(&value(raw.get()))));
    said
}

/// What came back.
pub fn of_response(response: &Response) -> Vec<Speech> {
    let mut said = choice("assistant", &response.message);
    for (alternative, at) in response.alternatives.iter().zip(2..) {
        said.extend(choice(&format!("answer {at}"), alternative));
    }
    said.extend(response.error.as_ref().map(|error| Speech::new("error", error)));
    if !response.parsed {
        said.push(Speech::note("the response could not be read in full"));
    }
    said
}

fn choice(role: &str, choice: &Choice) -> Vec<Speech> {
    let mut said = Vec::new();
    if !choice.reasoning_content.is_empty() {
        said.push(Speech::new("reasoning", &choice.reasoning_content));
    }
    let mut text = choice.content.clone();
    for call in &choice.tool_calls {
        let _ = write!(text, "\n[calls {}({})]", call.name, call.arguments);
    }
    if !choice.is_empty() {
        said.push(Speech::new(role, &text));
    }
    said
}

fn message(message: &Value) -> Speech {
    let kind = message["type"].as_str().unwrap_or("?");
    let role = message["role"].as_str().unwrap_or(kind);
    let mut text = match kind {
        "function_call" => call(&message["name"], &message["arguments"]),
        "function_call_output" => content(&message["output"]),
        _ => content(&message["content"]),
    };
    for called in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &called["function"];
        text.push('\n');
        text.push_str(&call(&function["name"], &function["arguments"]));
    }
    Speech::new(role, &text)
}

fn call(name: &Value, arguments: &Value) -> String {
    let arguments = arguments.as_str().map_or_else(|| arguments.to_string(), str::to_owned);
    format!("[calls {}({arguments})]", name.as_str().unwrap_or("?"))
}

fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        Value::Array(parts) => parts.iter().map(part).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    }
}

fn part(part: &Value) -> String {
    let kind = part["type"].as_str().unwrap_or("part");
    match (part["text"].as_str().or_else(|| part.as_str()), kind) {
        (Some(words), _) => words.to_owned(),
        (None, "tool_use") => call(&part["name"], &part["input"]),
        (None, "tool_result") => content(&part["content"]),
        (None, kind) => format!("[{kind}]"),
    }
}
