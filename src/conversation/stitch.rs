//! Finds where a turn belongs: a state machine over turns, without clock, disk or network.
//!
//! The rules, in order (their numbers and names are `projection/rules.toml`):
//! 1. A request whose body could not be read is a root.
//! 2. A request that names the answer before it (`previous_response_id`) follows that.
//! 3. A request that ends where an earlier one ended repeats it: `retry` where one of both failed, or where the same
//!    bytes came again soon after its end; `fan_out` where both went on at the same time; `regenerate` otherwise. Its
//!    parent is the turn it repeats. Without an assistant's messages in it (everyone says "hi") this needs the same
//!    session id, or the same bytes soon after a failure.
//! 4. The longest beginning of the request that ends in a recorded answer decides: `append` where nothing follows that
//!    answer yet, `branch` where something does. Its parent is the turn of that answer.
//!    A beginning that ends in a known request, before an answer that is not known as it is, counts where that answer could not
//!    be read or the session is the same.
//! 5. Where no beginning is known, the newest of its assistant's messages that is recognised by itself decides, by the id
//!    of a tool call or by its text and the message before it. From there on the chain goes on as if nothing before it
//!    were missing (a graft): `window` where the history was cut from the front, `resumed` where it was altered,
//!    `compaction` where a summary that the model has written stands in its place.
//! 6. Without an assistant's messages: `compaction` where a line of it begins an answer; `spawned` where it begins with an
//!    argument of a tool call, or its headers name the thread or session that began its own; a doubtful
//!    `compaction` where its session had many more messages a short time ago and the same system prompt and tools.
//! 7. Everything else is a `root`.
//!
//! Two turns with different session ids are never linked. Where several turns fit, the order is: same session and
//! thread, no session id on either side, same system prompt and tools, not continued yet, most recent. A link is
//! ambiguous where the first of these leave more than one conversation.

mod arrival;
mod kind;
mod memory;

use super::projection::{Key, RULES};
use super::reading::{Base, Prompt, Reading};
use crate::journal::{Exchange, Link};
use arrival::{Arrival, Choice, root};
pub use kind::Kind;
pub use memory::Footprint;
use memory::{Known, Memory};

/// The remembered turns, least recently used first out.
pub struct Stitcher {
    key: Key,
    memory: Memory,
}

/// Where a turn belongs.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    pub link: Link,
    /// Where its chain begins.
    pub base: Base,
}

impl Stitcher {
    /// A stitcher that remembers up to `limit` turns.
    pub fn new(key: Key, limit: usize) -> Stitcher {
        Stitcher { key, memory: Memory::new(limit) }
    }

    /// Decides where a turn belongs. Changes nothing; [`Stitcher::insert`] does.
    pub fn place(&self, exchange: &Exchange, reading: &Reading) -> Placed {
        let arrival = Arrival { exchange, reading };
        let base = Base { node: self.key.root(), groups: 0 };
        if !reading.readable {
            return Placed { link: root(&arrival, "unreadable"), base };
        }
        self.named(&arrival)
            .or_else(|| self.by_history(&arrival, base))
            .or_else(|| Some(Placed { link: self.by_content(&arrival)?, base }))
            .unwrap_or_else(|| {
                let why = if reading.has_history { "history_unknown" } else { "no_history" };
                Placed { link: root(&arrival, why), base }
            })
    }

    /// Remembers a turn under its link. A turn that is known already stays as it is.
    pub fn insert(&mut self, footprint: Footprint) {
        self.memory.insert(footprint);
    }

    /// Forgets a turn.
    pub fn forget(&mut self, turn: &str) {
        self.memory.forget(turn);
    }

    /// Whether a turn is remembered.
    pub fn knows(&self, turn: &str) -> bool {
        self.memory.get(turn).is_some()
    }

    /// How many turns are remembered.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rule 2.
    fn named(&self, arrival: &Arrival<'_>) -> Option<Placed> {
        let fitting = self.fitting(self.memory.responded(&arrival.reading.previous?), arrival);
        let choice = arrival.best(&fitting)?;
        let base = Base { node: *choice.known.footprint.answers.first()?, groups: 0 };
        Some(self.on_chain(arrival, base).unwrap_or_else(|| {
            let kind = arrival.follows(&choice);
            Placed { link: arrival.link(kind, &choice, "previous_response_id"), base }
        }))
    }

    /// Rules 3, 4 and 5.
    fn by_history(&self, arrival: &Arrival<'_>, base: Base) -> Option<Placed> {
        if let Some(link) = self.repeated(arrival, base) {
            return Some(Placed { link, base });
        }
        let chained = self.continued(arrival, base);
        // What is recognised behind the end of what is known as a whole is nearer.
        let known = chained.as_ref().map_or(base.groups, |(_, groups)| *groups);
        self.grafted(arrival, known)
            .or_else(|| Some(Placed { link: self.passed(arrival, base, known)?, base }))
            .or_else(|| Some(Placed { link: chained?.0, base }))
    }

    /// Rules 3 and 4, from a base on.
    fn on_chain(&self, arrival: &Arrival<'_>, base: Base) -> Option<Placed> {
        let link = self.repeated(arrival, base).or_else(|| Some(self.continued(arrival, base)?.0))?;
        Some(Placed { link, base })
    }

    fn repeated(&self, arrival: &Arrival<'_>, base: Base) -> Option<Link> {
        let head = arrival.reading.head(&self.key, base);
        let mut fitting = self.fitting(self.memory.asked(&head), arrival);
        if base.node == self.key.root() && !self.has_history(arrival) {
            fitting.retain(|known| arrival.is_same_attempt(known));
        }
        let choice = arrival.best(&fitting)?;
        let kind = arrival.repeats(choice.known);
        Some(arrival.link(kind, &choice, &format!("depth={}", arrival.reading.groups.len())))
    }

    /// Whether a request shows that it is not the first of its conversation.
    fn has_history(&self, arrival: &Arrival<'_>) -> bool {
        let goes_on = |prompt: &Prompt| self.prompted(arrival, prompt).is_some();
        arrival.reading.has_history || arrival.reading.prompt.as_ref().is_some_and(goes_on)
    }

    /// With how many groups of the request are known.
    fn continued(&self, arrival: &Arrival<'_>, base: Base) -> Option<(Link, usize)> {
        if let Some(prompt) = &arrival.reading.prompt {
            return Some((self.prompted(arrival, prompt)?, 0));
        }
        let nodes = arrival.reading.nodes(&self.key, base);
        for (depth, node) in nodes.iter().enumerate().skip(1).rev() {
            let fitting = self.fitting(self.memory.answered(node), arrival);
            if let Some(choice) = arrival.best(&fitting) {
                let depth = base.groups + depth;
                let link = arrival.link(arrival.follows(&choice), &choice, &format!("depth={depth}"));
                return Some((link, depth));
            }
        }
        None
    }

    /// Behind a request that is known with an answer that is not: it could not be read, or the client has rewritten it.
    fn passed(&self, arrival: &Arrival<'_>, base: Base, from: usize) -> Option<Link> {
        let nodes = arrival.reading.nodes(&self.key, base);
        let groups = arrival.reading.groups.iter().enumerate().skip(from.max(base.groups + 1));
        for (at, _) in groups.rev().filter(|(_, group)| group.assistant) {
            let mut fitting = self.fitting(self.memory.asked(nodes.get(at - base.groups)?), arrival);
            fitting.retain(|known| arrival.may_have_answered(known));
            if let Some(choice) = arrival.best(&fitting) {
                let mut link =
                    arrival.link(arrival.follows(&choice), &choice, &format!("request depth={at}"));
                link.confidence = link.confidence.min(0.8);
                return Some(link);
            }
        }
        None
    }

    /// The longest beginning of a text that ends where an answer ended.
    fn prompted(&self, arrival: &Arrival<'_>, prompt: &Prompt) -> Option<Link> {
        for (blocks, node) in prompt.blocks().iter().enumerate().rev() {
            let tails = self.memory.tails(node).iter().rev();
            for end in tails.filter_map(|tail| prompt.node_at(&self.key, blocks, *tail)) {
                let fitting = self.fitting(self.memory.answered(&end), arrival);
                if let Some(choice) = arrival.best(&fitting) {
                    return Some(arrival.link(
                        arrival.follows(&choice),
                        &choice,
                        &format!("blocks={blocks}"),
                    ));
                }
            }
        }
        None
    }

    /// Rule 5, of what comes behind so many groups.
    fn grafted(&self, arrival: &Arrival<'_>, from: usize) -> Option<Placed> {
        let groups = arrival.reading.groups.iter().enumerate().skip(from);
        for (at, group) in groups.rev().filter(|(_, group)| group.assistant) {
            for anchor in &group.anchors {
                let mut fitting = self.fitting(self.memory.anchored(anchor), arrival);
                fitting.retain(|known| {
                    arrival.recognises(known, at) || self.summary_of(arrival, known).is_some()
                });
                let Some(choice) = arrival.best(&fitting) else { continue };
                let base = Base { node: *choice.known.footprint.answers.first()?, groups: at + 1 };
                return Some(self.graft(arrival, base, &choice));
            }
        }
        None
    }

    fn graft(&self, arrival: &Arrival<'_>, base: Base, choice: &Choice<'_>) -> Placed {
        let link = match self.on_chain(arrival, base) {
            // What it repeats or follows further on is known; how it came there stays.
            Some(Placed { mut link, .. }) => {
                let parent =
                    self.memory.get(&link.parent).filter(|_| Kind::of_name(&link.kind) == Kind::Append);
                if let Some(parent) = parent.filter(|parent| !arrival.begins_as(parent)) {
                    self.altered(arrival, parent).name().clone_into(&mut link.kind);
                }
                link.evidence.push_str(" grafted");
                link.confidence = link.confidence.min(0.9);
                link
            }
            None => {
                let how = format!("anchor depth={}", base.groups);
                match self.altered(arrival, choice.known) {
                    _ if arrival.is_as_long(choice.known, base.groups - 1) => {
                        arrival.link(arrival.follows(choice), choice, &how)
                    }
                    // The summary is the last that was said before, whatever else was carried over.
                    Kind::Compaction => match self.summary_of(arrival, choice.known) {
                        Some(summary) => arrival.link(Kind::Compaction, &Choice::only(summary), &how),
                        None => arrival.link(Kind::Compaction, choice, &how),
                    },
                    _ if choice.known.continued => arrival.link(Kind::Branch, choice, &how),
                    altered => arrival.link(altered, choice, &how),
                }
            }
        };
        Placed { link, base }
    }

    /// How a history came to be another than the one that was recorded.
    fn altered(&self, arrival: &Arrival<'_>, known: &Known) -> Kind {
        if self.summary_of(arrival, known).is_some() {
            return Kind::Compaction;
        }
        let conversation = &known.footprint.conversation;
        let first = arrival.reading.groups.first().map(|group| self.key.chain(&self.key.root(), &group.hash));
        let begins = first.is_some_and(|node| {
            self.memory.asked(&node).iter().any(|turn| turn.as_ref() == conversation.as_str())
        });
        if begins { Kind::Resumed } else { Kind::Window }
    }

    /// The latest turn of a turn's conversation whose answer a request begins with, as a summary.
    fn summary_of(&self, arrival: &Arrival<'_>, known: &Known) -> Option<&Known> {
        let conversation = &known.footprint.conversation;
        let turns = arrival.reading.lines.iter().flat_map(|line| self.memory.anchored(line));
        let written = turns.filter_map(|turn| self.memory.get(turn));
        let own = written.filter(|other| other.footprint.conversation == *conversation);
        own.max_by_key(|other| other.footprint.ended_unix_nanos)
    }

    /// Rule 6.
    fn by_content(&self, arrival: &Arrival<'_>) -> Option<Link> {
        if arrival.reading.has_history {
            return None;
        }
        for line in &arrival.reading.lines {
            let fitting = self.fitting(self.memory.anchored(line), arrival);
            if let Some(choice) = arrival.best(&fitting) {
                return Some(arrival.link(Kind::Compaction, &choice, "summary"));
            }
        }
        self.begun_by_argument(arrival)
            .or_else(|| self.begun_by_header(arrival))
            .or_else(|| self.lost(arrival))
    }

    fn begun_by_header(&self, arrival: &Arrival<'_>) -> Option<Link> {
        let own = arrival.reading.hints.lane()?;
        let begins = self.memory.of_lane(&own).is_empty();
        let parent = arrival.reading.hints.parent.filter(|_| begins)?;
        let latest = self.memory.get(self.memory.of_lane(&parent).last()?)?;
        Some(arrival.link(Kind::Spawned, &Choice::only(latest), "header"))
    }

    fn begun_by_argument(&self, arrival: &Arrival<'_>) -> Option<Link> {
        let fitting = self.fitting(self.memory.called(&arrival.reading.opening?), arrival);
        let recent: Vec<&Known> =
            fitting.into_iter().filter(|known| arrival.is_within(known, RULES.compaction)).collect();
        Some(arrival.link(Kind::Spawned, &arrival.best(&recent)?, "argument"))
    }

    /// A session that goes on with far fewer messages than it had, under the same system prompt and with the same tools.
    fn lost(&self, arrival: &Arrival<'_>) -> Option<Link> {
        let latest = self.memory.of_lane(&arrival.reading.hints.lane()?).last()?;
        let latest = self.memory.get(latest).filter(|known| arrival.may_be_compacted(known))?;
        let mut link = arrival.link(Kind::Compaction, &Choice::only(latest), "session, fewer messages");
        link.confidence = 0.4;
        Some(link)
    }

    fn fitting(&self, turns: &[memory::Turn], arrival: &Arrival<'_>) -> Vec<&Known> {
        let known = turns.iter().filter_map(|turn| self.memory.get(turn));
        known.filter(|known| !arrival.other_session(known)).collect()
    }
}
