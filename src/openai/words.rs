//! The words of a request, whatever its interface and however its messages are put together.

use serde_json::Value;
use serde_json::value::RawValue;

use super::request::{Ask, Message};

/// What a model is given to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// All texts, system prompt and tools included, one a line.
    pub text: String,
    /// Whether there are images, sounds or files as well, whose tokens are no words.
    pub has_media: bool,
    /// Whether it is a list of token ids: nobody can read that here.
    pub is_ids: bool,
}

/// Fields that say how and not what.
const FORM: [&str; 10] = [
    "role",
    "type",
    "id",
    "tool_call_id",
    "call_id",
    "signature",
    "encrypted_content",
    "cache_control",
    "status",
    "detail",
];
const MEDIA: [&str; 9] = [
    "image",
    "image_url",
    "input_image",
    "audio",
    "input_audio",
    "video_url",
    "file",
    "input_file",
    "document",
];

impl Words {
    pub fn of(ask: &Ask<'_>) -> Words {
        let mut words = Words::default();
        for raw in ask.system.iter().chain(&ask.messages).chain(&ask.prompt) {
            match serde_json::from_str(raw.get()) {
                Ok(Value::Array(items)) if items.iter().any(Value::is_number) => words.is_ids = true,
                Ok(value) => words.add(&value),
                // What is no value to us, such as a lone surrogate, is what it is written as.
                Err(_) => words.line(raw.get()),
            }
        }
        ask.tools.iter().for_each(|tools| words.line(tools.get()));
        words
    }

    /// What others than the model have said in it.
    pub fn asked(ask: &Ask<'_>) -> String {
        let others = |raw: &&&RawValue| Message::parse(raw).is_none_or(|message| message.role != "assistant");
        let mut words = Words::default();
        for raw in ask.messages.iter().filter(others).chain(&ask.prompt) {
            serde_json::from_str(raw.get()).ok().iter().for_each(|value| words.add(value));
        }
        words.text
    }

    fn line(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn add(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.line(text),
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(fields) => {
                let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
                if MEDIA.contains(&kind) {
                    self.has_media = true;
                    return;
                }
                let said = fields.iter().filter(|(name, _)| !FORM.contains(&name.as_str()));
                said.for_each(|(_, value)| self.add(value));
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Api;
    use super::*;
    use proptest::prelude::*;

    fn words(api: Api, body: &str) -> Words {
        Words::of(&Ask::parse(api, body.as_bytes()).expect("is a request"))
    }

    #[test]
    fn every_shape_of_a_message_has_its_words() {
        let chat = words(
            Api::Chat,
            r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":{"url":"data:x"}}]},
               {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}],"tools":[1]}"#,
        );
        let lines: Vec<&str> = chat.text.lines().collect();
        assert!(["s", "t", "{}", "f", "r", "[1]"].iter().all(|word| lines.contains(word)), "{lines:?}");
        let asked = Words::asked(
            &Ask::parse(
                Api::Chat,
                br#"{"messages":[{"role":"assistant","content":"a"},{"role":"user","content":"u"}]}"#,
            )
            .expect("parses"),
        );
        assert_eq!(asked, "u\n");
        assert!(chat.has_media && !chat.text.contains("data:x") && !chat.text.contains("user"));
        let one = |api, body| words(api, body).text;
        assert_eq!(one(Api::Responses, r#"{"instructions":"i","input":"hi"}"#), "i\nhi\n");
        assert_eq!(
            one(
                Api::Messages,
                r#"{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"u"}]}"#
            ),
            "s\nu\n"
        );
        assert_eq!(one(Api::Completions, r#"{"prompt":["a","b"]}"#), "a\nb\n");
        assert!(words(Api::Generate, r#"{"input_ids":[1,2]}"#).is_ids);
    }

    proptest! {
        #[test]
        fn anything_in_a_message_is_survived(text in ".{0,60}") {
            let body = format!(r#"{{"messages":[{text}]}}"#);
            if let Some(ask) = Ask::parse(Api::Chat, body.as_bytes()) {
                let _ = Words::of(&ask);
            }
        }
    }
}
