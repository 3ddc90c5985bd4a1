//! The request of `/v1/chat/completions`, seen without copying it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

/// A chat request. Messages and tools are the bytes of the body.
#[derive(Debug, Deserialize)]
pub struct ChatRequest<'a> {
    #[serde(borrow, default)]
    pub model: Cow<'a, str>,
    #[serde(borrow)]
    pub messages: Vec<&'a RawValue>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(borrow, default)]
    pub tools: Option<&'a RawValue>,
    #[serde(default)]
    pub n: Option<u32>,
}

/// One message of a request or a response.
#[derive(Debug, Deserialize)]
pub struct Message<'a> {
    #[serde(borrow, default)]
    pub role: Cow<'a, str>,
    /// A string, a list of parts, or null.
    #[serde(borrow, default)]
    pub content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub tool_calls: Option<Vec<MessageToolCall<'a>>>,
}

/// A tool call inside a message of the history.
#[derive(Debug, Deserialize)]
pub struct MessageToolCall<'a> {
    #[serde(borrow, default)]
    pub function: Option<CalledFunction<'a>>,
}

#[derive(Debug, Deserialize)]
pub struct CalledFunction<'a> {
    #[serde(borrow, default)]
    pub name: Cow<'a, str>,
    /// Usually a string that holds JSON; some clients send the object itself.
    #[serde(borrow, default)]
    pub arguments: Option<&'a RawValue>,
}

impl<'a> ChatRequest<'a> {
    /// Reads a request body. `None` where it is no JSON object with a list of messages, or has a field twice.
    pub fn parse(body: &'a [u8]) -> Option<ChatRequest<'a>> {
        serde_json::from_slice(body).ok()
    }

    pub fn is_streaming(&self) -> bool {
        self.stream.unwrap_or(false)
    }
}

impl<'a> Message<'a> {
    /// Reads one message. `None` where it has another shape than a message has.
    pub fn parse(raw: &'a RawValue) -> Option<Message<'a>> {
        serde_json::from_str(raw.get()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_the_bytes_of_the_body() {
        let body = br#" {"model":"m\u0041","messages":[ {"role":"user" , "content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]}],"stream":true,"x":1}"#;
        let request = ChatRequest::parse(body).expect("parses");
        assert_eq!(request.model, "mA");
        assert_eq!(request.messages[0].get(), r#"{"role":"user" , "content":"hi"}"#);
        assert!(request.is_streaming());
        let message = Message::parse(request.messages[1]).expect("parses");
        assert_eq!(message.content.map(RawValue::get), None);
        let mut calls = message.tool_calls.expect("calls");
        let function = calls[0].function.take().expect("function");
        assert_eq!((function.name.as_ref(), function.arguments.map(RawValue::get)), ("f", Some(r#""{}""#)));
    }

    #[test]
    fn other_bodies_are_refused() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"messages":3}"#,
            r#"{"messages":[],"messages":[]}"#,
            "\u{feff}{\"messages\":[]}",
        ] {
            assert!(ChatRequest::parse(body.as_bytes()).is_none(), "{body}");
        }
    }
}
