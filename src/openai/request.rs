//! The request of any of the interfaces, seen without copying it.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::Api;
use super::text::borrowed;

/// A request. Messages, tools and prompts are the bytes of the body.
#[derive(Debug)]
pub struct Ask<'a> {
    pub api: Api,
    pub model: Cow<'a, str>,
    pub stream: bool,
    /// The messages of a chat, or the items of `input`.
    pub messages: Vec<&'a RawValue>,
    /// What stands beside the messages: `system`, `instructions`.
    pub system: Option<&'a RawValue>,
    pub tools: Option<&'a RawValue>,
    /// Whether it offers tools in the old form, `functions`.
    pub has_functions: bool,
    /// A prompt that is no list of messages: text, or token ids.
    pub prompt: Option<&'a RawValue>,
    pub hints: Hints<'a>,
    /// Whether the client let it be stored by the server; `None` where it did not say.
    pub store: Option<bool>,
}

/// Fields that tell which conversation a request belongs to.
#[derive(Debug, Default)]
pub struct Hints<'a> {
    pub previous_response_id: Option<Cow<'a, str>>,
    pub conversation: Option<&'a RawValue>,
    pub prompt_cache_key: Option<Cow<'a, str>>,
    /// `metadata.user_id`, in which some clients put their session.
    pub metadata_user: Option<String>,
    pub user: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default)]
    model: Cow<'a, str>,
    #[serde(borrow, default)]
    messages: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    #[serde(borrow, default)]
    instructions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    system: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tools: Option<&'a RawValue>,
    #[serde(borrow, default)]
    functions: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input_ids: Option<&'a RawValue>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    previous_response_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    conversation: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    prompt_cache_key: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    user: Option<Cow<'a, str>>,
    #[serde(default)]
    store: Option<bool>,
}

/// One message of a request or a response, in any of the shapes that messages have.
#[derive(Debug, Deserialize)]
pub struct Message<'a> {
    /// Of an item of `input` that is no message: what it is.
    #[serde(rename = "type", borrow, default, deserialize_with = "borrowed")]
    pub kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub role: Cow<'a, str>,
    /// A string, a list of parts, or null.
    #[serde(borrow, default)]
    pub content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub tool_calls: Option<Vec<MessageToolCall<'a>>>,
    /// Of a tool's result: the call it answers.
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub tool_call_id: Option<Cow<'a, str>>,
    /// The old form of one tool call.
    #[serde(borrow, default)]
    pub function_call: Option<CalledFunction<'a>>,
    /// Of an item `function_call` or `function_call_output`.
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub call_id: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub output: Option<&'a RawValue>,
}

/// A tool call inside a message of the history.
#[derive(Debug, Deserialize)]
pub struct MessageToolCall<'a> {
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub id: Option<Cow<'a, str>>,
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

impl<'a> Ask<'a> {
    /// Reads a request body. `None` where it is no JSON object with what its interface asks for, or has a field twice.
    pub fn parse(api: Api, body: &'a [u8]) -> Option<Ask<'a>> {
        let wire: Wire<'a> = serde_json::from_slice(body).ok()?;
        let listed = |raw: &'a RawValue| serde_json::from_str::<Vec<&'a RawValue>>(raw.get()).ok();
        let (messages, prompt) = match api {
            Api::Chat | Api::Messages => (wire.messages?, None),
            Api::Responses => match wire.input.and_then(listed) {
                Some(items) => (items, None),
                // A text stands for one message of the user's.
                None => (Vec::new(), wire.input),
            },
            Api::Completions => (Vec::new(), Some(wire.prompt?)),
            Api::Generate => (Vec::new(), Some(wire.text.or(wire.input_ids)?)),
        };
        Some(Ask {
            api,
            model: wire.model,
            stream: wire.stream.unwrap_or(false),
            messages,
            system: wire.system.or(wire.instructions),
            tools: wire.tools,
            has_functions: wire.functions.is_some(),
            prompt,
            hints: Hints {
                previous_response_id: wire.previous_response_id,
                conversation: wire.conversation,
                prompt_cache_key: wire.prompt_cache_key,
                metadata_user: wire.metadata.and_then(metadata_user),
                user: wire.user,
            },
            store: wire.store,
        })
    }
}

fn metadata_user(metadata: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Metadata {
        user_id: Option<String>,
    }
    serde_json::from_str::<Metadata>(metadata.get()).ok()?.user_id
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
        let ask = Ask::parse(Api::Chat, body).expect("parses");
        assert_eq!(ask.model, "mA");
        assert_eq!(ask.messages[0].get(), r#"{"role":"user" , "content":"hi"}"#);
        assert!(ask.stream);
        let message = Message::parse(ask.messages[1]).expect("parses");
        assert_eq!(message.content.map(RawValue::get), None);
        let mut calls = message.tool_calls.expect("calls");
        let function = calls[0].function.take().expect("function");
        assert_eq!((function.name.as_ref(), function.arguments.map(RawValue::get)), ("f", Some(r#""{}""#)));
    }

    #[test]
    fn each_interface_has_its_own_field() {
        let count = |api, body: &str| {
            let ask = Ask::parse(api, body.as_bytes())?;
            Some((ask.messages.len(), ask.prompt.map(RawValue::get).map(str::to_owned)))
        };
        assert_eq!(count(Api::Responses, r#"{"input":"hi"}"#), Some((0, Some("\"hi\"".into()))));
        assert_eq!(count(Api::Responses, r#"{"input":[{"role":"user"}]}"#), Some((1, None)));
        assert_eq!(count(Api::Completions, r#"{"prompt":[1,2]}"#), Some((0, Some("[1,2]".into()))));
        assert_eq!(count(Api::Generate, r#"{"input_ids":[1]}"#), Some((0, Some("[1]".into()))));
        assert_eq!(count(Api::Messages, r#"{"system":"s","messages":[]}"#), Some((0, None)));
        assert_eq!((count(Api::Generate, "{}"), count(Api::Completions, r#"{"messages":[]}"#)), (None, None));
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
            assert!(Ask::parse(Api::Chat, body.as_bytes()).is_none(), "{body}");
        }
    }
}
