//! Conversations in the JSON form of `sessions list` and `sessions show`.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::value::RawValue;

use super::index::{SessionRow, TurnRow};
use super::projection::{Key, Node};
use super::reading::{Base, Reading};
use crate::ids;
use crate::journal::Exchange;
use crate::openai::{Api, Ask, Choice, Usage, coding};

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
    /// Why turns are without what was said in them, where they are encrypted and their key is not here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locked: Option<String>,
}

/// A conversation without what was said in it.
#[derive(Debug, Serialize)]
pub struct Outline {
    pub id: String,
    pub turns: Vec<TurnLine>,
}

/// What is known of a turn without its bodies.
#[derive(Clone, Debug, Serialize)]
pub struct TurnLine {
    pub id: String,
    pub parent: Option<String>,
    pub kind: &'static str,
    pub status: u32,
    pub end: String,
    pub started: String,
    pub ended: String,
    /// From the beginning to the first byte of the response; `null` where none came.
    pub first_byte_micros: Option<u64>,
    pub micros: u64,
    pub model: String,
    pub upstream: String,
    pub served_by: String,
    pub tokens: Tokens,
    pub finish: Option<String>,
    /// BLAKE3 of the request body as forwarded, hexadecimal.
    pub body_hash: String,
    pub flags: Vec<&'static str>,
}

/// As the upstream has counted them; `null` where it has not.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Tokens {
    pub prompt: Option<u64>,
    pub cached: Option<u64>,
    pub output: Option<u64>,
}

#[derive(Debug, Serialize)]
pub struct Turn {
    #[serde(flatten)]
    pub line: TurnLine,
    /// `null` where the request was not kept whole or could not be read.
    pub request: Option<Request>,
    pub response: Response,
}

#[derive(Debug, Serialize)]
pub struct Request {
    pub stream: bool,
    /// How many messages of the request the conversation had already.
    pub carried: u32,
    /// The messages that are new in this turn, as sent, without the blanks between tokens.
    pub messages: Vec<Box<RawValue>>,
    /// `system` or `instructions`, where the turn before had another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<Box<RawValue>>,
    /// A prompt that is no list of messages, whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<Box<RawValue>>,
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

/// Remembers, over the turns of one conversation, what each has said and how many messages it has taken over.
#[derive(Default)]
pub(super) struct Carried {
    turns: HashMap<String, Shown>,
}

/// A turn that was shown.
struct Shown {
    /// The nodes behind its answers, and the answers by themselves.
    answers: Vec<Node>,
    said: Vec<Node>,
    environment: Node,
    carried: u32,
}

/// What a turn has in common with the one before.
pub(super) struct Inherited {
    /// How many messages of its request the conversation had already.
    pub carried: u32,
    /// Whether system prompt and tools are the same.
    pub environment: bool,
}

impl Carried {
    /// What this turn's request has in common with its parent.
    pub fn before(&mut self, key: &Key, row: &TurnRow, reading: &Reading) -> Inherited {
        let parent = self.turns.get(&row.parent);
        let carried = match parent {
            Some(parent) if row.kind.follows() => carried(key, reading, parent),
            Some(parent) if row.kind.repeats() => parent.carried,
            _ => 0,
        };
        let environment = parent.is_some_and(|parent| parent.environment == reading.environment);
        let said = reading.said.iter();
        let said = said.flat_map(|said| {
            [Some(said.hash), said.with_beginning].into_iter().flatten().chain(said.anchors.iter().copied())
        });
        let shown = Shown {
            answers: row.facts.answers.as_chunks().0.to_vec(),
            said: said.collect(),
            environment: reading.environment,
            carried,
        };
        self.turns.insert(row.id.clone(), shown);
        Inherited { carried, environment }
    }
}

/// How many messages of a request come no later than its parent's answer: found by the chain, or, where the history is
/// not as it was, by the answer itself.
fn carried(key: &Key, reading: &Reading, parent: &Shown) -> u32 {
    let nodes = reading.nodes(key, Base { node: key.root(), groups: 0 });
    let chained = reading.groups.iter().zip(&nodes[1..]).rev();
    let mut chained = chained.filter(|(_, node)| parent.answers.contains(node));
    let mut alone = reading.groups.iter().rev().filter(|group| {
        group.assistant
            && (parent.said.contains(&group.hash)
                || group.anchors.iter().any(|anchor| parent.said.contains(anchor)))
    });
    let found = chained.next().map(|(group, _)| group).or_else(|| alone.next());
    found.map_or(0, |group| group.messages)
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

impl From<&TurnRow> for TurnLine {
    fn from(row: &TurnRow) -> Self {
        TurnLine {
            id: row.id.clone(),
            parent: (!row.parent.is_empty()).then(|| row.parent.clone()),
            kind: row.kind.name(),
            status: row.status,
            end: row.end.clone(),
            started: moment(row.started_unix_nanos),
            ended: moment(row.ended_unix_nanos),
            first_byte_micros: (row.first_byte_micros > 0).then_some(row.first_byte_micros),
            micros: row.ended_unix_nanos.saturating_sub(row.started_unix_nanos) / 1000,
            model: row.model.clone(),
            upstream: row.upstream.clone(),
            served_by: row.served_by.clone(),
            tokens: Tokens {
                prompt: row.prompt_tokens,
                cached: row.cached_tokens,
                output: row.output_tokens,
            },
            finish: row.finish.clone(),
            body_hash: ids::hex(&row.body_hash),
            flags: row.flags.names(),
        }
    }
}

impl Turn {
    pub(super) fn of(row: &TurnRow, exchange: &Exchange, reading: &Reading, inherited: &Inherited) -> Turn {
        Turn {
            line: TurnLine::from(row),
            request: request(exchange, reading, inherited),
            response: response(reading),
        }
    }
}

fn request(exchange: &Exchange, reading: &Reading, inherited: &Inherited) -> Option<Request> {
    if !reading.readable {
        return None;
    }
    let body = coding::decode(exchange.request_header("content-encoding"), &exchange.request_body)?;
    let ask = Ask::parse(Api::of_path(exchange.path())?, &body)?;
    let shown = |raw: &RawValue| RawValue::from_string(compact(raw.get())).ok();
    let new = ask.messages.iter().skip(inherited.carried as usize);
    Some(Request {
        stream: ask.stream,
        carried: inherited.carried,
        messages: new.map(|raw| shown(raw)).collect::<Option<Vec<_>>>()?,
        system: ask.system.filter(|_| !inherited.environment).and_then(shown),
        prompt: ask.prompt.and_then(shown),
    })
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
