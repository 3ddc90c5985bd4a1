//! The lossy projection of a message that decides whether two messages are the same turn of a conversation.
//!
//! Clients re-send history with small changes: blanks trimmed, text parts joined, reasoning dropped, reminder tags
//! added, default arguments removed. The projection drops what drifts and keeps what a person would call the message.
//! It is used for stitching only, never for storage, display or replay. Its output has a version; links say which
//! version made them, and a new version means new links.

mod arguments;
mod text;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::openai::{Choice, Message};

/// The version of the rules in this module.
pub const RULES_VERSION: u32 = 1;

/// A 128-bit keyed hash: of a message's projection, or of a chain of them.
pub type Node = [u8; 16];

/// The key under which one tenant's messages are hashed: equal messages of two tenants have unrelated hashes.
#[derive(Clone)]
pub struct Key([u8; 32]);

/// What a message of a request is to stitching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projected {
    /// A system or developer message: not part of the chain.
    System,
    Part {
        hash: Node,
        assistant: bool,
    },
    /// Not of the shape of a message: part of the chain by its bytes.
    Opaque(Node),
}

#[derive(Deserialize)]
struct ContentPart<'a> {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    text: Option<String>,
    #[serde(borrow, default)]
    image_url: Option<&'a RawValue>,
}

impl Key {
    /// The key of a tenant. The name `default` is for a proxy that serves one.
    pub fn of_tenant(tenant: &str) -> Key {
        Key(blake3::derive_key("serin 2025 conversation match key v1", tenant.as_bytes()))
    }

    /// The start of every chain.
    pub fn root(&self) -> Node {
        self.hash(b"root", &[])
    }

    /// The node behind `parent` over the message with this hash.
    pub fn chain(&self, parent: &Node, message: &Node) -> Node {
        self.hash(b"mn1", &[parent, message])
    }

    /// A hash of one value for one purpose; `label` keeps purposes apart.
    pub fn hash(&self, label: &[u8], parts: &[&[u8]]) -> Node {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in std::iter::once(&label).chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let mut node = [0; 16];
        node.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        node
    }

    /// Projects a message of a request.
    pub fn project(&self, raw: &RawValue) -> Projected {
        let Some(message) = Message::parse(raw) else {
            return Projected::Opaque(self.hash(b"opaque1", &[raw.get().as_bytes()]));
        };
        let role = message.role.as_ref();
        if matches!(role, "system" | "developer") {
            return Projected::System;
        }
        let assistant = role == "assistant";
        let content = content(message.content, !assistant);
        let calls: Vec<(String, String)> = message.tool_calls.iter().flatten().map(history_call).collect();
        Projected::Part { hash: self.message(role, &content, &calls), assistant }
    }

    /// Projects an assembled response, so that it equals the assistant message which the client will send back.
    pub fn project_choice(&self, choice: &Choice) -> Node {
        let content = text::normalise(&choice.content);
        let call =
            |call: &crate::openai::ToolCall| (call.name.clone(), arguments::canonical(&call.arguments));
        let calls: Vec<(String, String)> = choice.tool_calls.iter().map(call).collect();
        self.message("assistant", &content, &calls)
    }

    fn message(&self, role: &str, content: &str, calls: &[(String, String)]) -> Node {
        let mut parts = vec![role.as_bytes(), content.as_bytes()];
        for (name, arguments) in calls {
            parts.push(name.as_bytes());
            parts.push(arguments.as_bytes());
        }
        self.hash(b"match1", &parts)
    }
}

fn history_call(call: &crate::openai::chat::MessageToolCall<'_>) -> (String, String) {
    let Some(function) = &call.function else { return Default::default() };
    let raw = function.arguments.map_or("", RawValue::get);
    let arguments = match serde_json::from_str::<String>(raw) {
        Ok(text) => arguments::canonical(&text),
        Err(_) => arguments::canonical(raw),
    };
    (function.name.clone().into_owned(), arguments)
}

/// One text for a string, a list of parts, or nothing.
fn content(raw: Option<&RawValue>, strip_tags: bool) -> String {
    let raw = raw.map_or("", RawValue::get);
    let joined = if let Ok(text) = serde_json::from_str::<String>(raw) {
        text
    } else if let Ok(parts) = serde_json::from_str::<Vec<&RawValue>>(raw) {
        parts.into_iter().map(part).collect()
    } else {
        raw.to_owned()
    };
    match strip_tags {
        true => text::normalise(&text::without_harness_tags(&joined)),
        false => text::normalise(&joined),
    }
}

fn part(raw: &RawValue) -> String {
    let Ok(part) = serde_json::from_str::<ContentPart<'_>>(raw.get()) else { return raw.get().to_owned() };
    match (part.kind.as_deref(), part.text, part.image_url) {
        (Some("text" | "input_text" | "output_text") | None, Some(text), _) => text,
        (Some("thinking" | "reasoning" | "redacted_thinking"), ..) => String::new(),
        (_, _, Some(url)) => format!("\u{0}image {}\u{0}", blake3::hash(url.get().as_bytes()).to_hex()),
        _ => format!("\u{0}part {}\u{0}", blake3::hash(raw.get().as_bytes()).to_hex()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn project(json: &str) -> Projected {
        let raw: &RawValue = serde_json::from_str(json).expect("the test writes JSON");
        Key::of_tenant("default").project(raw)
    }

    #[track_caller]
    fn same(left: &str, right: &str) {
        assert_eq!(project(left), project(right));
    }

    #[test]
    fn harmless_drift_projects_alike() {
        same(
            r#"{"role":"user","content":"a b"}"#,
            r#"{"content":[{"type":"text","text":"a b"}],"role":"user"}"#,
        );
        same(
            r#"{"role":"user","content":"a\r\nb  \n\n\n\nc\n"}"#,
            r#"{"role":"user","content":"a\nb\n\nc"}"#,
        );
        same(
            r#"{"role":"assistant","content":null}"#,
            r#"{"role":"assistant","content":"","reasoning_content":"hm","refusal":null}"#,
        );
        same(
            r#"{"role":"user","content":"hi"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"<system-reminder>now</system-reminder>"},{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}"#,
        );
        same(
            r#"{"role":"assistant","tool_calls":[{"id":"x","index":0,"type":"function","function":{"name":"f","arguments":"{\"b\": 1.0, \"a\":[{}], \"all\":false}"}}]}"#,
            r#"{"role":"assistant","content":"","tool_calls":[{"id":"y","type":"function","function":{"name":"f","arguments":{"a":[{}],"b":1}}}]}"#,
        );
    }

    #[test]
    fn real_differences_stay() {
        let base = project(r#"{"role":"user","content":"a b"}"#);
        for other in [
            r#"{"role":"user","content":"a  b"}"#,
            r#"{"role":"user","content":"A b"}"#,
            r#"{"role":"tool","content":"a b"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"a b"},{"type":"image_url","image_url":{"url":"data:,x"}}]}"#,
            r#"{"role":"user","content":"<system-reminder>a b"}"#,
        ] {
            assert_ne!(base, project(other), "{other}");
        }
        assert_eq!(project(r#"{"role":"developer","content":"x"}"#), Projected::System);
        assert!(matches!(project("7"), Projected::Opaque(_)));
    }

    #[test]
    fn a_response_equals_its_copy_in_the_history() {
        let choice = Choice {
            content: " Sure.\n".into(),
            reasoning_content: "thinking".into(),
            tool_calls: vec![crate::openai::ToolCall {
                id: "c".into(),
                name: "f".into(),
                arguments: "{\"x\": 1}".into(),
            }],
            ..Choice::default()
        };
        let hash = Key::of_tenant("default").project_choice(&choice);
        let copy = r#"{"role":"assistant","content":"Sure.","tool_calls":[{"function":{"name":"f","arguments":"{\"x\":1,\"y\":null}"}}]}"#;
        assert_eq!(project(copy), Projected::Part { hash, assistant: true });
    }

    #[test]
    fn tenants_have_unrelated_hashes() {
        assert_ne!(Key::of_tenant("a").root(), Key::of_tenant("b").root());
    }

    proptest! {
        #[test]
        fn any_text_projects_alike_as_string_and_as_part(text in ".{0,80}") {
            let string = serde_json::json!({"role": "user", "content": text}).to_string();
            let parts = serde_json::json!({"content": [{"text": text, "type": "text"}], "role": "user"}).to_string();
            prop_assert_eq!(project(&string), project(&parts));
        }
    }
}
