//! Whether a prompt that goes on from another is at least as long as that one was.
//!
//! A request that has all of its parent's messages, in the same order and before its own, cannot come to fewer tokens: if it
//! does, something on the way to the model has dropped a part. Templates may drop old reasoning, so that is allowed for.

use serde_json::value::RawValue;

use super::finding::OK;
use super::{Check, Finding, Turn};
use crate::conversation::Kind;
use crate::conversation::projection::Node;
use crate::openai::{Ask, Words};
use crate::recent::Recent;

/// Tokens, and the share of the parent's prompt, by which a template may differ from turn to turn.
const TOLERANCE: u64 = 16;
const TOLERANCE_SHARE: u64 = 100;

/// What is remembered of a turn.
struct Known {
    /// How many groups its request has, and their hash.
    groups: usize,
    request: [u8; 32],
    answers: Vec<Node>,
    environment: Node,
    model: String,
    prompt: u64,
    /// Tokens of its answer but for its reasoning.
    visible: u64,
    /// Tokens of reasoning, its own and those of all turns before it.
    thought: u64,
    has_reasoning: bool,
}

/// The turns that others may go on from.
pub struct Turns(Recent<String, Known>);

/// What following a turn has shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Followed {
    pub finding: Option<Finding>,
    /// The client has sent the answer back without the reasoning it came with.
    pub dropped_reasoning: bool,
}

impl Turns {
    /// Remembers so many turns for those that follow.
    pub fn new(remembered: usize) -> Turns {
        Turns(Recent::new(remembered))
    }

    /// Compares a turn with the one it goes on from, and remembers it.
    pub fn follow(&mut self, turn: &Turn, words: &Words) -> Followed {
        let reading = &turn.reading;
        let usage = reading.answer.fold.usage.unwrap_or_default();
        let prompt = usage.prompt_tokens.filter(|_| !turn.seen.failed && !words.has_media);
        let (Some(prompt), false) = (prompt, reading.groups.is_empty()) else { return Followed::default() };
        let parent = self.0.get(&turn.place.parent).filter(|_| turn.place.kind == Kind::Append);
        let parent = parent.filter(|parent| parent.begins(turn));
        let followed = parent.map(|parent| parent.compare(turn, prompt)).unwrap_or_default();
        let known = Known::of(turn, prompt, parent.map_or(0, |parent| parent.thought));
        self.0.insert(turn.seen.id.clone(), known);
        followed
    }
}

impl Known {
    fn of(turn: &Turn, prompt: u64, thought_before: u64) -> Known {
        let reading = &turn.reading;
        let usage = reading.answer.fold.usage.unwrap_or_default();
        let reasoning =
            reading.answer.fold.choices.iter().map(|choice| choice.reasoning_content.len()).sum::<usize>();
        // Where it is not told, a token of reasoning has two bytes at the least.
        let thought = usage.reasoning_tokens.unwrap_or(0).max(reasoning as u64 / 2);
        let said = reading.said.iter().flat_map(|said| std::iter::once(said.hash).chain(said.with_beginning));
        Known {
            groups: reading.groups.len(),
            request: hash(turn, reading.groups.len()),
            answers: said.collect(),
            environment: reading.environment,
            model: reading.model.clone(),
            prompt,
            visible: usage.completion_tokens.unwrap_or(0).saturating_sub(thought),
            thought: thought_before + thought,
            has_reasoning: reasoning > 0,
        }
    }

    /// Whether a turn's request begins with all of this one's, for the same model, with the same system prompt and tools.
    fn begins(&self, turn: &Turn) -> bool {
        let reading = &turn.reading;
        reading.groups.len() > self.groups
            && reading.environment == self.environment
            && reading.model == self.model
            && hash(turn, self.groups) == self.request
    }

    fn compare(&self, turn: &Turn, prompt: u64) -> Followed {
        let answer = turn.reading.groups.get(self.groups).filter(|group| self.answers.contains(&group.hash));
        // A tool call may be written in fewer tokens than the model took for it.
        let carried = if answer.is_some() { self.visible / 2 } else { 0 };
        let slack = self.thought + TOLERANCE + self.prompt / TOLERANCE_SHARE;
        let least = (self.prompt + carried).saturating_sub(slack);
        let outcome = if prompt < least { "shrunk" } else { OK };
        let dropped_reasoning = self.has_reasoning && answer.is_some() && !has_reasoning(turn, self.groups);
        Followed { finding: Some(Check::Monotonicity.came_to(outcome)), dropped_reasoning }
    }
}

fn hash(turn: &Turn, groups: usize) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for group in turn.reading.groups.iter().take(groups) {
        hasher.update(&group.hash);
    }
    *hasher.finalize().as_bytes()
}

/// Whether the messages of a group have reasoning with them.
fn has_reasoning(turn: &Turn, group: usize) -> bool {
    let groups = &turn.reading.groups;
    let until = groups[group].messages as usize;
    let from = group.checked_sub(1).map_or(0, |before| groups[before].messages as usize);
    let marks = |raw: &&RawValue| ["\"reasoning", "\"thinking"].iter().any(|mark| raw.get().contains(mark));
    let look = |ask: &Ask<'_>| ask.messages.iter().take(until).skip(from).any(marks);
    turn.ask(look).unwrap_or(true)
}
