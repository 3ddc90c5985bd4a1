//! Conversations in the JSON form of `sessions list` and `sessions show`.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::index::{SessionRow, TurnRow};
use super::projection::Node;
use super::reading::Reading;
use super::stitch::Kind;
use crate::ids;
use crate::journal::Exchange;
use crate::openai::{ChatRequest, Choice, Usage};

/// One line of `sessions list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionLine {
    pub id: String,
    pub model: String,
    pub upstream: String,
    /// RFC 3339, UTC.
    pub started: String,
    pub ended: String,
    pub turns: u64,
    /// Turns that fork off the conversation: branches and regenerations. A straight conversation has none.
    pub branches: u64,
    pub flags: Vec<&'static str>,
}

/// `sessions show`.
#[derive(Debug, Serialize)]
pub struct Session {
    pub id: String,
    pub turns: Vec<Turn>,
}

#[derive(Debug, Serialize)]
pub struct Turn {
    pub id: String,
    pub parent: Option<String>,
    pub kind: &'static str,
    pub status: u32,
    pub end: String,
    pub started: String,
    pub model: String,
    pub upstream: String,
    pub served_by: String,
    /// `null` where the request was not kept whole or is no chat request.
    pub request: Option<Request>,
    pub response: Response,
    /// BLAKE3 of the request body as forwarded, hexadecimal.
    pub body_hash: String,
    pub flags: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct Request {
    pub stream: bool,
    /// How many messages of the request the conversation had already.
    pub carried: u32,
    /// The messages that are new in this turn, as sent, without the blanks between tokens.
    pub messages: Vec<Box<RawValue>>,
}

#[derive(Debug, Serialize)]
pub struct Response {
    /// Whether all of the response could be read.
    pub parsed: bool,
    /// The assembled message of the first choice.
    #[serde(flatten)]
    pub message: Choice,
    /// Further choices, where the request asked for several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alternatives: Vec<Choice>,
    pub usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Remembers, over the turns of one conversation, how many messages each has taken over.
#[derive(Default)]
pub(super) struct Carried {
    turns: HashMap<String, (Vec<Node>, u32)>,
}

impl Carried {
    /// How many messages of this turn's request its conversation had before it.
    pub fn before(&mut self, row: &TurnRow, reading: &Reading) -> u32 {
        let parent = self.turns.get(&row.parent);
        let messages = match (row.kind, parent) {
            (Kind::Append | Kind::Branch, Some((answers, _))) => {
                let step = reading.chain.iter().rev().find(|step| answers.contains(&step.node));
                step.map_or(0, |step| step.messages)
            }
            (Kind::Retry | Kind::Regenerate, Some((_, carried))) => *carried,
            _ => 0,
        };
        self.turns.insert(row.id.clone(), (row.answers.clone(), messages));
        messages
    }
}

impl From<SessionRow> for SessionLine {
    fn from(row: SessionRow) -> Self {
        SessionLine {
            id: row.id,
            model: row.model,
            upstream: row.upstream,
            started: moment(row.started_unix_nanos),
            ended: moment(row.ended_unix_nanos),
            turns: row.turns,
            branches: row.branches,
            flags: row.flags.names(),
        }
    }
}

impl Turn {
    pub(super) fn of(row: &TurnRow, exchange: &Exchange, reading: &Reading, carried: u32) -> Turn {
        Turn {
            id: row.id.clone(),
            parent: (!row.parent.is_empty()).then(|| row.parent.clone()),
            kind: row.kind.name(),
            status: row.status,
            end: row.end.clone(),
            started: moment(row.started_unix_nanos),
            model: row.model.clone(),
            upstream: row.upstream.clone(),
            served_by: row.served_by.clone(),
            request: request(exchange, reading, carried),
            response: response(reading),
            body_hash: ids::hex(&row.body_hash),
            flags: row.flags.names(),
        }
    }
}

fn request(exchange: &Exchange, reading: &Reading, carried: u32) -> Option<Request> {
    if !reading.readable {
        return None;
    }
    let request = ChatRequest::parse(&exchange.request_body)?;
    let new = request.messages.iter().skip(carried as usize);
    let messages =
        new.map(|raw| RawValue::from_string(compact(raw.get())).ok()).collect::<Option<Vec<_>>>()?;
    Some(Request { stream: request.is_streaming(), carried, messages })
}

fn response(reading: &Reading) -> Response {
    let fold = &reading.answer.fold;
    let mut choices = fold.choices.iter().cloned();
    Response {
        parsed: reading.answer.parsed,
        message: choices.next().unwrap_or_default(),
        alternatives: choices.collect(),
        usage: fold.usage,
        error: fold.error.clone(),
    }
}

/// Removes the blanks between JSON tokens, so that a value fits on a line. What is inside strings stays.
fn compact(json: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let keep = |character: &char| {
        let kept = in_string || !matches!(character, ' ' | '\t' | '\r' | '\n');
        if *character == '"' && !escaped {
            in_string = !in_string;
        }
        escaped = *character == '\\' && !escaped;
        kept
    };
    json.chars().filter(keep).collect()
}

/// A moment in RFC 3339, UTC, to the millisecond.
fn moment(unix_nanos: u64) -> String {
    let millis = i64::try_from(unix_nanos / 1_000_000).unwrap_or(i64::MAX);
    jiff::Timestamp::from_millisecond(millis).map_or_else(|_| String::new(), |moment| format!("{moment:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compacting_leaves_strings_alone() {
        assert_eq!(compact("{ \"a b\" :\n [1, \"\\\" \\\\\" ,\t2 ] }"), r#"{"a b":[1,"\" \\",2]}"#);
    }

    #[test]
    fn moments_are_utc_with_milliseconds() {
        assert_eq!(moment(1_764_633_600_123_456_789), "2025-12-02T00:00:00.123Z");
    }
}
