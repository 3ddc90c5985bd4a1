//! AIPerf's payloads: the bodies of requests, in order. A file has the bodies of one session on its lines
//! (`raw_payload`), or lists sessions with their payloads (`inputs_json`).
//!
//! Nobody has recorded the answers. Where the next body of a session repeats a body and goes on with something the
//! assistant says, that is what was answered, and the record notes where it was taken from.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use super::draft::{self, Draft, Making, Reply};
use super::source::{values, why};
use super::{Bad, Format, Input, Outcome, Outcomes, Place};
use crate::openai::Api;

/// What the record says of an answer that was found in the request after it.
const TAKEN_FROM: &str = "next-request";

#[derive(Deserialize)]
struct Listed<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Session<'a> {
    #[serde(default)]
    session_id: Option<String>,
    #[serde(borrow)]
    payloads: Vec<&'a RawValue>,
}

/// What tells the interfaces apart, and what a chat was about.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Body<'a> {
    #[serde(borrow, default)]
    messages: Option<Vec<&'a RawValue>>,
    input: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
    text: Option<IgnoredAny>,
    input_ids: Option<IgnoredAny>,
    /// Anthropic's alone.
    system: Option<IgnoredAny>,
    anthropic_version: Option<IgnoredAny>,
    stop_sequences: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

/// One body, with the session it is of.
#[derive(Clone)]
struct Payload {
    place: Place,
    /// Its place among the payloads of an entry.
    turn: usize,
    /// What the format calls the session, and what the journal will.
    name: String,
    session: String,
    bytes: Bytes,
}

/// The bodies of a file, session by session.
///
/// # Errors
/// Where it says that it lists sessions and does not.
pub fn read(input: &Input) -> Result<Outcomes, Bad> {
    let (payloads, bad) = payloads(input)?;
    let (input, mut making) = (input.clone(), Making::new(Format::AiPerf));
    let exchanges = (0..payloads.len()).map(move |at| -> Outcome {
        let payload = &payloads[at];
        let next = payloads.get(at + 1).filter(|next| next.session == payload.session);
        let draft = draft_of(payload, next).map_err(|says| input.bad(payload.place, says))?;
        Ok(making.exchange(draft))
    });
    Ok(Box::new(bad.into_iter().map(Err).chain(exchanges)))
}

/// The bodies, and the sessions that are none.
fn payloads(input: &Input) -> Result<(Vec<Payload>, Vec<Bad>), Bad> {
    let (mut found, mut bad) = (Vec::new(), Vec::new());
    let Ok(listed) = serde_json::from_slice::<Listed<'_>>(&input.bytes) else {
        let name = input.stem.rsplit('/').next().unwrap_or_default();
        for (place, bytes) in values(&input.bytes) {
            found.push(Payload { place, turn: 0, name: name.to_owned(), session: input.stem.clone(), bytes });
        }
        return Ok((found, bad));
    };
    for (number, raw) in (1..).zip(listed.data) {
        let place = Place::Entry(number);
        match serde_json::from_str::<Session<'_>>(raw.get()) {
            Ok(Session { session_id, payloads }) => {
                let name = session_id.unwrap_or_else(|| number.to_string());
                let session = draft::session(input, &name);
                found.extend((0..).zip(payloads).map(|(turn, payload)| Payload {
                    place,
                    turn,
                    name: name.clone(),
                    session: session.clone(),
                    bytes: input.bytes.slice_ref(payload.get().as_bytes()),
                }));
            }
            Err(error) => {
                let says = format!(
                    "{}; a session is an object with session_id and payloads, a list of bodies",
                    why(&error)
                );
                bad.push(input.bad(place, says));
            }
        }
    }
    Ok((found, bad))
}

fn draft_of(payload: &Payload, next: Option<&Payload>) -> Result<Draft, String> {
    let body: Body<'_> = serde_json::from_slice(&payload.bytes)
        .map_err(|error| format!("{}; each body is one JSON object, on one line", why(&error)))?;
    let api = body
        .api()
        .ok_or("is no request body: none of messages, input, prompt, text and input_ids is in it")?;
    let after = next.and_then(|next| serde_json::from_slice::<Body<'_>>(&next.bytes).ok());
    let reply = after.and_then(|after| answer(api, &body, &after));
    Ok(Draft {
        name: payload.name.clone(),
        session: Some(payload.session.clone()),
        started_unix_nanos: draft::time(payload.place.number(), payload.turn),
        method: "POST".into(),
        target: api.path().into(),
        request_headers: vec![draft::json()],
        request_body: payload.bytes.clone(),
        reply: reply.map(|body| Reply { taken_from: Some(TAKEN_FROM), ..Reply::json(200, body.into()) }),
    })
}

impl Body<'_> {
    fn api(&self) -> Option<Api> {
        let anthropic = [&self.system, &self.anthropic_version, &self.stop_sequences];
        let kinds = [
            (self.messages.is_some() && anthropic.iter().any(|field| field.is_some()), Api::Messages),
            (self.messages.is_some(), Api::Chat),
            (self.input.is_some(), Api::Responses),
            (self.prompt.is_some(), Api::Completions),
            (self.text.is_some() || self.input_ids.is_some(), Api::Generate),
        ];
        kinds.into_iter().find_map(|(is, api)| is.then_some(api))
    }
}

/// What the assistant says in the next body where this one ends.
fn answer(api: Api, body: &Body<'_>, next: &Body<'_>) -> Option<Vec<u8>> {
    let (said, next) = (body.messages.as_ref()?, next.messages.as_ref()?);
    let raw = next.get(said.len())?;
    if !said.iter().zip(next).all(|(one, other)| same(one, other)) {
        return None;
    }
    let message: Message<'_> =
        serde_json::from_str(raw.get()).ok().filter(|one: &Message<'_>| one.role == "assistant")?;
    let answer = match api {
        Api::Messages => {
            let content: Value = serde_json::from_str(message.content?.get()).ok()?;
            let blocks = match content {
                Value::String(text) => serde_json::json!([{"type": "text", "text": text}]),
                blocks => blocks,
            };
            serde_json::json!({"type": "message", "role": "assistant", "content": blocks})
        }
        _ => {
            let mut message: Value = serde_json::from_str(raw.get()).ok()?;
            // A history may have its text in parts, an answer has it in one.
            if let Some(Value::Array(parts)) = message.get("content") {
                let text: String = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
                message["content"] = text.into();
            }
            serde_json::json!({"object": "chat.completion", "choices": [{"index": 0, "message": message}]})
        }
    };
    serde_json::to_vec(&answer).ok()
}

/// Whether two messages say the same, however they are written.
fn same(one: &RawValue, other: &RawValue) -> bool {
    let value = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).ok();
    one.get() == other.get() || value(one).is_some_and(|one| value(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{input, outcomes};
    use super::*;
    use crate::journal::Exchange;

    const LINES: &str = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}
{"model":"m","messages":[{"content":"a", "role":"user"},{"role":"assistant","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]},{"role":"user","content":"d"}]}
{"model":"m","messages":[{"role":"user","content":"else"},{"role":"assistant","content":"x"}]}
"#;

    fn good(name: &str, text: &str) -> Vec<Exchange> {
        outcomes(read(&input(name, text))).into_iter().map(|one| one.expect("is good")).collect()
    }

    #[test]
    fn the_answer_to_a_body_is_what_the_next_one_carries() {
        let found = good("dir/session_1.jsonl", LINES);
        assert_eq!(
            String::from_utf8_lossy(&found[0].response_body),
            r#"{"choices":[{"index":0,"message":{"content":"bc","role":"assistant"}}],"object":"chat.completion"}"#
        );
        assert!(
            found[0].labels.iter().any(|label| label.name == "answer-taken-from"),
            "{:?}",
            found[0].labels
        );
        let statuses: Vec<u32> = found.iter().map(|one| one.status).collect();
        assert_eq!(statuses, [200, 0, 0], "what nobody knows is not made up");
        assert!(
            found.iter().all(|one| one.request_header("x-session-id") == Some(b"session_1")),
            "{found:?}"
        );
        assert_eq!(found[1].request_body.as_ref(), LINES.lines().nth(1).expect("a line").as_bytes());
        assert!(found[0].id < found[1].id && found[1].id < found[2].id);
    }

    #[test]
    fn interfaces_are_told_apart_by_their_fields() {
        for (body, api) in [
            (r#"{"messages":[]}"#, Api::Chat),
            (r#"{"messages":[],"system":"s"}"#, Api::Messages),
            (r#"{"input":"x"}"#, Api::Responses),
            (r#"{"prompt":"x"}"#, Api::Completions),
            (r#"{"input_ids":[1]}"#, Api::Generate),
        ] {
            assert_eq!(good("a.jsonl", body)[0].target, api.path(), "{body}");
        }
    }

    #[test]
    fn anthropics_answers_are_blocks() {
        let text = r#"{"system":"s","messages":[{"role":"user","content":"a"}]}
{"system":"s","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}"#;
        let wanted = r#"{"content":[{"text":"b","type":"text"}],"role":"assistant","type":"message"}"#;
        assert_eq!(String::from_utf8_lossy(&good("a.jsonl", text)[0].response_body), wanted);
    }

    #[test]
    fn sessions_of_a_list_are_kept_apart_and_bad_ones_named() {
        let text = r#"{"data":[{"session_id":"s","payloads":[{"messages":[{"role":"user","content":"a"}]}]},{"payloads":7},
          {"payloads":[{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]},{"model":"m"},8]}]}"#;
        let found = outcomes(read(&input("inputs.json", text)));
        let says: Vec<_> = found.iter().filter_map(|one| Some(one.as_ref().err()?.to_string())).collect();
        assert!(says[0].starts_with("inputs.json, entry 2: invalid type: integer `7`"), "{says:?}");
        assert!(says[1].contains("entry 3: is no request body: none of messages"), "{says:?}");
        assert_eq!((says.len(), found.len()), (3, 5));
        let good: Vec<_> = found.iter().filter_map(|one| one.as_ref().ok()).collect();
        assert_eq!(good[0].status, 0, "another session's request answers nothing");
        let sessions: Vec<_> =
            good.iter().map(|one| one.request_header("x-session-id").expect("has one")).collect();
        assert_eq!(sessions, [&b"inputs/s"[..], b"inputs/3"]);
    }
}
