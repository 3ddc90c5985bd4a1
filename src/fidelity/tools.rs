//! Whether a tool call is one that was offered, and whether one was announced and never made.

use std::collections::HashMap;

use serde_json::Value;

use super::schema;

/// What is wrong with an answer's tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The arguments are no JSON object.
    InvalidJson,
    /// Nobody has offered a tool of that name.
    UnknownName,
    /// The arguments do not fit the schema that was offered.
    Schema,
    /// The reasoning ends with the intention to call a tool; no call follows and nothing is said.
    Announced,
    /// A call stands in the text, in the marks by which a template writes one.
    InText,
}

impl Fault {
    pub const ALL: [Fault; 5] =
        [Fault::InvalidJson, Fault::UnknownName, Fault::Schema, Fault::Announced, Fault::InText];

    /// The value of labels.
    pub fn name(self) -> &'static str {
        match self {
            Fault::InvalidJson => "invalid_json",
            Fault::UnknownName => "unknown_name",
            Fault::Schema => "schema",
            Fault::Announced => "announced",
            Fault::InText => "in_text",
        }
    }
}

/// The tools that a request offers, by name, each with its schema where it has one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Offered(HashMap<String, Option<Value>>);

/// Marks of templates by which a call is written.
const MARKS: [&str; 5] = ["<tool_call>", "<function=", "[TOOL_CALLS]", "<|tool_call", "<\u{ff5c}tool"];
/// Characters of the reasoning's end in which a call is announced.
const TAIL: usize = 300;
const INTENT: [&str; 14] = [
    "let me",
    "let's",
    "i'll",
    "i will",
    "i need to",
    "i should",
    "now call",
    "going to",
    "calling",
    "我来",
    "调用",
    "ich rufe",
    "voy a",
    "je vais",
];

impl Offered {
    /// Reads `tools` of any of the interfaces.
    pub fn read(tools: &Value) -> Offered {
        let mut offered = Offered::default();
        for tool in tools.as_array().into_iter().flatten() {
            // Chat wraps a tool in its kind; the other interfaces do not.
            let kind = tool.get("type").and_then(Value::as_str).unwrap_or_default();
            let inner = tool.get(kind).filter(|inner| inner.is_object()).unwrap_or(tool);
            let name = inner.get("name").and_then(Value::as_str).unwrap_or(kind);
            let schema = inner.get("parameters").or_else(|| inner.get("input_schema"));
            offered.0.insert(name.to_owned(), schema.cloned());
        }
        offered
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is wrong with one call.
    pub fn judge(&self, name: &str, arguments: &str) -> Option<Fault> {
        let Some(schema) = self.0.get(name) else { return Some(Fault::UnknownName) };
        // Some servers write nothing where there are no arguments.
        let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
        let Ok(value @ Value::Object(_)) = serde_json::from_str::<Value>(arguments) else {
            return Some(Fault::InvalidJson);
        };
        let fits = schema.as_ref().is_none_or(|schema| schema::fits(schema, &value));
        (!fits).then_some(Fault::Schema)
    }

    /// What is wrong with an answer that calls nothing.
    pub fn missing(&self, content: &str, reasoning: &str) -> Option<Fault> {
        if MARKS.iter().any(|mark| content.contains(mark)) {
            return Some(Fault::InText);
        }
        let start = reasoning.char_indices().rev().nth(TAIL).map_or(0, |(at, _)| at);
        let tail = reasoning[start..].to_lowercase();
        let last = tail.trim_end_matches(['.', ':', '!', '\n', ' ', '。']).rsplit(['\n', '。']).next()?;
        let names = self.0.keys().any(|name| name.len() > 2 && last.contains(&name.to_lowercase()));
        let announces = content.trim().is_empty() && names && INTENT.iter().any(|words| last.contains(words));
        announces.then_some(Fault::Announced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn offered() -> Offered {
        let schema =
            json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]});
        Offered::read(&json!([
            {"type": "function", "function": {"name": "read_file", "parameters": schema}},
            {"type": "function", "name": "flat", "parameters": {"type": "object"}},
            {"name": "anthropic", "input_schema": schema},
            {"type": "web_search"},
            {"type": "custom", "custom": {"name": "free"}},
        ]))
    }

    #[test]
    fn calls_are_held_against_what_was_offered() {
        let offered = offered();
        for (name, arguments, expected) in [
            ("read_file", r#"{"path":"a"}"#, None),
            ("flat", "{}", None),
            ("flat", "", None),
            ("web_search", r#"{"q":1}"#, None),
            ("free", "{}", None),
            ("anthropic", r#"{"path":"a"}"#, None),
            ("anthropic", r#"{"file":"a"}"#, Some(Fault::Schema)),
            ("read_file", r#"{"path":3}"#, Some(Fault::Schema)),
            ("read_file", "", Some(Fault::Schema)),
            ("read_file", r#"{"path":"a""#, Some(Fault::InvalidJson)),
            ("read_file", r#"{"path":"a"}{"path":"b"}"#, Some(Fault::InvalidJson)),
            ("read_file", r#""path""#, Some(Fault::InvalidJson)),
            ("readfile", r#"{"path":"a"}"#, Some(Fault::UnknownName)),
        ] {
            assert_eq!(offered.judge(name, arguments), expected, "{name} {arguments}");
        }
        assert!(!offered.is_empty() && Offered::read(&json!({"a": 1})).is_empty());
    }

    #[test]
    fn a_call_that_was_announced_and_not_made_is_told() {
        let offered = offered();
        for (content, reasoning, expected) in [
            ("", "The user wants the file. Let me call read_file.", Some(Fault::Announced)),
            ("", "I will use `read_file` now:", Some(Fault::Announced)),
            ("<tool_call>{\"name\":\"read_file\"}", "", Some(Fault::InText)),
            ("Here is the file.", "Let me call read_file.", None),
            ("", "The result of read_file shows that all is well.", None),
            ("", "Let me think about it.", None),
            ("The mark is written as tool_call.", "", None),
        ] {
            assert_eq!(offered.missing(content, reasoning), expected, "{content} {reasoning}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_survived(content in ".*", reasoning in ".*", arguments in ".*") {
            let offered = offered();
            let _ = (offered.missing(&content, &reasoning), offered.judge("flat", &arguments));
        }
    }
}
