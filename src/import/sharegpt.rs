//! ShareGPT: conversations between a human and a model. Each answer in one becomes an exchange of its own, whose request
//! holds what was said before.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::draft::{self, Draft, Making, Reply};
use super::source::{values, why};
use super::{Bad, Format, Input, Outcome, Outcomes, Place};
use crate::ids;
use crate::openai::Api;

/// The most messages of a conversation, and the most bytes: each answer's request repeats all that was said before.
const MOST_MESSAGES: usize = 10_000;
const MOST_BYTES: usize = 64 << 20;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Item<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    model: Option<String>,
    conversations: Vec<Said>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with from and value")]
struct Said {
    #[serde(alias = "role")]
    from: String,
    #[serde(alias = "content")]
    value: String,
}

/// A message as a chat has it.
#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    messages: &'a [Message<'a>],
}

#[derive(Serialize)]
struct Completion<'a> {
    object: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    choices: [Choice<'a>; 1],
}

#[derive(Serialize)]
struct Choice<'a> {
    index: u32,
    message: &'a Message<'a>,
    finish_reason: &'static str,
}

/// A conversation that was found to be good.
struct Conversation {
    number: usize,
    name: String,
    session: String,
    model: Option<String>,
    said: Vec<(&'static str, String)>,
}

/// The answers of a file, conversation by conversation. A file is one list, or has a conversation on each line.
///
/// # Errors
/// Where it is neither.
pub fn read(input: &Input) -> Result<Outcomes, Bad> {
    let listed = input.bytes.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let items: Vec<(Place, Bytes)> = if listed {
        let broken = |error| {
            let says = format!("is no list of conversations: {error}; mend the JSON");
            input.bad(Place::Whole, says)
        };
        let raw: Vec<&RawValue> = serde_json::from_slice(&input.bytes).map_err(broken)?;
        let slice = |raw: &RawValue| input.bytes.slice_ref(raw.get().as_bytes());
        (1..).zip(raw).map(|(number, raw)| (Place::Entry(number), slice(raw))).collect()
    } else {
        values(&input.bytes)
    };
    let (input, mut making) = (input.clone(), Making::new(Format::ShareGpt));
    let conversations = items
        .into_iter()
        .map(move |(place, raw)| conversation(&input, place, &raw).map_err(|says| input.bad(place, says)));
    // One answer at a time: all requests of a long conversation together are many times its size.
    let turns = conversations.flat_map(|conversation| match conversation {
        Ok(conversation) => turns(conversation),
        Err(bad) => Box::new(std::iter::once(Err(bad))) as Box<dyn Iterator<Item = Result<Draft, Bad>>>,
    });
    Ok(Box::new(turns.map(move |draft| -> Outcome { Ok(making.exchange(draft?)) })))
}

fn conversation(input: &Input, place: Place, raw: &Bytes) -> Result<Conversation, String> {
    let item: Item<'_> = serde_json::from_slice(raw).map_err(|error| {
        format!("{}; an entry is an object with conversations, a list of from and value", why(&error))
    })?;
    if raw.len() > MOST_BYTES || item.conversations.len() > MOST_MESSAGES {
        return Err(format!(
            "the conversation has more than {MOST_MESSAGES} messages or {MOST_BYTES} bytes; leave it out"
        ));
    }
    let mut said = Vec::with_capacity(item.conversations.len());
    for (number, Said { from, value }) in (1..).zip(item.conversations) {
        let role = role(&from).ok_or_else(|| {
            format!("message {number} is from {from:?}; the speakers are system, human, gpt and tool")
        })?;
        said.push((role, value));
    }
    if !said.iter().skip(1).any(|(role, _)| *role == ASSISTANT) {
        return Err("no message from gpt answers anything; leave the conversation out".into());
    }
    let id = item.id.map(|id| serde_json::from_str(id.get()).unwrap_or_else(|_| id.get().to_owned()));
    // Without a name it is one by its place and its words.
    let session = id
        .clone()
        .filter(|id| !id.is_empty())
        .unwrap_or_else(|| format!("{}-{}", place.number(), ids::hex(&blake3::hash(raw).as_bytes()[..8])));
    let session = draft::session(input, &session);
    Ok(Conversation {
        number: place.number(),
        name: id.unwrap_or_default(),
        session,
        model: item.model,
        said,
    })
}

const ASSISTANT: &str = "assistant";

/// The role of a chat that a speaker has.
fn role(from: &str) -> Option<&'static str> {
    match from {
        "human" | "user" => Some("user"),
        "gpt" | "assistant" | "chatgpt" => Some(ASSISTANT),
        "system" => Some("system"),
        "tool" => Some("tool"),
        _ => None,
    }
}

fn turns(conversation: Conversation) -> Box<dyn Iterator<Item = Result<Draft, Bad>>> {
    let answers: Vec<usize> =
        (1..conversation.said.len()).filter(|place| conversation.said[*place].0 == ASSISTANT).collect();
    Box::new(answers.into_iter().map(move |place| Ok(turn(&conversation, place))))
}

/// The exchange whose answer stands at a place that is not the first.
fn turn(conversation: &Conversation, place: usize) -> Draft {
    let said = conversation.said.iter().take(place + 1);
    let messages: Vec<Message<'_>> = said.map(|(role, content)| Message { role, content }).collect();
    let model = conversation.model.as_deref();
    let (request, response) = match messages.split_last() {
        Some((message, before)) => {
            let choice = Choice { index: 0, message, finish_reason: "stop" };
            let answer = Completion { object: "chat.completion", model, choices: [choice] };
            (serde_json::to_vec(&Request { model, messages: before }), serde_json::to_vec(&answer))
        }
        None => (Ok(Vec::new()), Ok(Vec::new())),
    };
    Draft {
        name: conversation.name.clone(),
        session: Some(conversation.session.clone()),
        started_unix_nanos: draft::time(conversation.number, place),
        method: "POST".into(),
        target: Api::Chat.path().into(),
        request_headers: vec![draft::json()],
        // Texts are always JSON.
        request_body: request.unwrap_or_default().into(),
        reply: Some(Reply::json(200, response.unwrap_or_default().into())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{input, outcomes};
    use super::*;

    const TWO: &str = r#"[
      {"id":"c1","model":"m","conversations":[{"from":"system","value":"s"},{"from":"human","value":"a"},
        {"from":"gpt","value":"b"},{"from":"tool","value":"t"},{"from":"gpt","value":"\u00e9"}]},
      {"conversations":[{"from":"gpt","value":"hello"},{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}]"#;

    #[test]
    fn each_answer_is_an_exchange_that_holds_the_history() {
        let found: Vec<_> =
            outcomes(read(&input("a.json", TWO))).into_iter().map(|one| one.expect("is good")).collect();
        let bodies: Vec<_> =
            found.iter().map(|one| String::from_utf8_lossy(&one.request_body).into_owned()).collect();
        assert_eq!(
            bodies,
            [
                r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"}]}"#,
                r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"tool","content":"t"}]}"#,
                r#"{"messages":[{"role":"assistant","content":"hello"},{"role":"user","content":"a"}]}"#,
            ],
            "what nobody asked for is history only"
        );
        let answer = r#"{"object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"é"},"finish_reason":"stop"}]}"#;
        assert_eq!(found[1].response_body.as_ref(), answer.as_bytes());
        let sessions: Vec<_> =
            found.iter().map(|one| one.request_header("x-session-id").expect("has one")).collect();
        assert_eq!(sessions[0], b"a/c1");
        assert!(sessions[0] == sessions[1] && sessions[2].starts_with(b"a/2-"), "{sessions:?}");
        assert!(found.is_sorted_by(|one, other| one.id < other.id), "{found:?}");
    }

    #[test]
    fn a_conversation_on_each_line_is_read_as_well() {
        let line =
            r#"{"id":7,"conversations":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}"#;
        let found = outcomes(read(&input("a.jsonl", &format!("{line}\n{{\n{line}"))));
        assert!(
            found[1].as_ref().is_err_and(|bad| bad.to_string().starts_with("a.jsonl, line 2: EOF")),
            "{found:?}"
        );
        let good = found[0].as_ref().expect("is good");
        assert_eq!(good.request_header("x-session-id"), Some(&b"a/7"[..]));
        let again = found[2].as_ref().expect("is good");
        assert_ne!(good.id, again.id, "the same twice in one file was there twice");
    }

    #[test]
    fn a_bad_conversation_is_one_error_that_says_how_to_mend_it() {
        let text = r#"[{"conversations":[{"from":"bing","value":"x"}]},{"conversations":[{"from":"human","value":"x"}]},
          {"conversations":[{"from":"human"}]},7,{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}]"#;
        let found = outcomes(read(&input("a.json", text)));
        let says: Vec<_> = found.iter().filter_map(|one| Some(one.as_ref().err()?.to_string())).collect();
        assert_eq!((found.len(), says.len()), (5, 4), "the last is good: {says:?}");
        assert_eq!(
            says[0],
            "a.json, entry 1: message 1 is from \"bing\"; the speakers are system, human, gpt and tool"
        );
        assert!(says[1].contains("entry 2: no message from gpt answers anything"), "{says:?}");
        assert!(says[2].contains("entry 3: missing field `value`"), "{says:?}");
        let long = format!(
            r#"[{{"conversations":[{}]}}]"#,
            vec![r#"{"from":"gpt","value":""}"#; MOST_MESSAGES + 1].join(",")
        );
        assert!(
            outcomes(read(&input("a.json", &long)))[0]
                .as_ref()
                .is_err_and(|bad| bad.says.contains("more than"))
        );
        assert!(read(&input("a.json", "[{]")).is_err_and_says("is no list of conversations"));
    }

    trait Says {
        fn is_err_and_says(&self, text: &str) -> bool;
    }

    impl Says for Result<Outcomes, Bad> {
        fn is_err_and_says(&self, text: &str) -> bool {
            self.as_ref().err().is_some_and(|bad| bad.says.contains(text))
        }
    }
}
