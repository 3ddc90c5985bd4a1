//! A turn that has no link yet, beside those that are remembered.

use std::collections::HashSet;

use super::super::projection::{Node, RULES};
use super::super::reading::{Reading, is_failed};
use super::kind::Kind;
use super::memory::Known;
use crate::journal::{Exchange, Link};

const SECOND: u64 = 1_000_000_000;

pub struct Arrival<'a> {
    pub exchange: &'a Exchange,
    pub reading: &'a Reading,
}

/// The turn to choose, and how many conversations fit as well.
pub struct Choice<'k> {
    pub known: &'k Known,
    conversations: usize,
}

impl<'k> Choice<'k> {
    /// Of one that is known by its name.
    pub fn only(known: &'k Known) -> Choice<'k> {
        Choice { known, conversations: 1 }
    }
}

impl Arrival<'_> {
    /// Whether a session may have lost its history on purpose.
    pub fn may_be_compacted(&self, known: &Known) -> bool {
        let before = &known.footprint;
        before.template == self.reading.template
            && before.messages >= RULES.collapse + self.reading.messages
            && self.is_within(known, RULES.compaction)
    }

    pub fn same_session(&self, known: &Known) -> bool {
        let (mine, other) = (&self.reading.hints, &known.footprint);
        mine.session.is_some() && mine.session == other.session && mine.thread == other.thread
    }

    pub fn other_session(&self, known: &Known) -> bool {
        let differ = |mine: Option<Node>, other: Option<Node>| matches!((mine, other), (Some(mine), Some(other)) if mine != other);
        differ(self.reading.hints.session, known.footprint.session)
    }

    fn same_bytes(&self, known: &Known) -> bool {
        !known.footprint.body_hash.is_empty() && self.exchange.request_body_hash == known.footprint.body_hash
    }

    fn since_end(&self, known: &Known) -> u64 {
        self.exchange.started_unix_nanos.saturating_sub(known.footprint.ended_unix_nanos)
    }

    pub fn is_within(&self, known: &Known, seconds: u64) -> bool {
        self.since_end(known) < seconds * SECOND
    }

    /// Whether both went on at the same time.
    fn overlaps(&self, known: &Known) -> bool {
        let other = &known.footprint;
        self.exchange.started_unix_nanos < other.ended_unix_nanos
            && other.started_unix_nanos < self.exchange.ended_unix_nanos()
    }

    /// Whether a request that anybody might send comes from the same client as a turn's: its session is the same and it is
    /// about the same, or it is the same once more soon after that failed.
    pub fn is_same_attempt(&self, known: &Known) -> bool {
        let again = known.footprint.failed && self.same_bytes(known) && self.is_within(known, RULES.failure);
        again || self.same_session(known) && known.footprint.template == self.reading.template
    }

    /// Whether an answer that is not known may be that of a turn. Requests that anybody might send do not tell.
    pub fn may_have_answered(&self, known: &Known) -> bool {
        let unread = known.footprint.answers.is_empty() && known.footprint.history;
        unread || self.same_session(known)
    }

    /// Whether the request begins as the turn's did.
    pub fn begins_as(&self, known: &Known) -> bool {
        self.reading.groups.first().map(|group| group.hash) == known.footprint.first
    }

    /// How it stands to a turn that asked for the same.
    pub fn repeats(&self, known: &Known) -> Kind {
        let overlap = self.overlaps(known);
        let again = self.same_bytes(known) && !overlap && self.is_within(known, RULES.retry);
        if known.footprint.failed || again || overlap && is_failed(self.exchange) {
            Kind::Retry
        } else if overlap {
            Kind::FanOut
        } else {
            Kind::Regenerate
        }
    }

    /// How it stands to a turn whose answer it goes on behind.
    pub fn follows(&self, choice: &Choice<'_>) -> Kind {
        if choice.known.continued { Kind::Branch } else { Kind::Append }
    }

    /// Whether a turn's request had as much in it as comes before its answer, which is that group.
    pub fn is_as_long(&self, known: &Known, answer: usize) -> bool {
        let before = answer.checked_sub(1).and_then(|before| self.reading.groups.get(before));
        self.begins_as(known) && before.is_some_and(|before| before.messages == known.footprint.messages)
    }

    /// Whether a group that looks like a turn's answer is that one: what was before it must be what the turn asked, where
    /// the request still has it.
    pub fn recognises(&self, known: &Known, group: usize) -> bool {
        let before = group.checked_sub(1).and_then(|before| self.reading.groups.get(before));
        before.is_none_or(|before| known.footprint.last == Some(before.hash))
    }

    /// The turn to choose. Turns are filed in order of arrival, so a later place is a more recent turn.
    pub fn best<'k>(&self, fitting: &[&'k Known]) -> Option<Choice<'k>> {
        let ranked = fitting.iter().enumerate();
        let best = ranked.max_by_key(|(place, known)| (self.rank(known), !known.continued, *place))?.1;
        let equals = fitting.iter().filter(|known| self.rank(known) == self.rank(best));
        let conversations: HashSet<&str> =
            equals.map(|known| known.footprint.conversation.as_str()).collect();
        Some(Choice { known: best, conversations: conversations.len() })
    }

    fn rank(&self, known: &Known) -> (u8, bool) {
        let (mine, other) = (self.reading.hints.session, known.footprint.session);
        let session = match self.same_session(known) {
            true => 2,
            false => u8::from(mine == other),
        };
        (session, self.reading.environment == known.footprint.environment)
    }

    pub fn link(&self, kind: Kind, choice: &Choice<'_>, how: &str) -> Link {
        let parent = &choice.known.footprint;
        let same = self.same_session(choice.known);
        let confidence = match (same, choice.conversations) {
            (true, _) => 1.0,
            (false, 1) => 0.95,
            (false, _) => 0.5,
        };
        let session = if same { "same" } else { "none" };
        Link {
            turn: self.exchange.id.clone(),
            conversation: parent.conversation.clone(),
            parent: parent.turn.to_string(),
            kind: kind.name().to_owned(),
            confidence,
            evidence: format!("{how} conversations={} session={session}", choice.conversations),
            rules_version: RULES.version,
        }
    }
}

pub fn root(arrival: &Arrival<'_>, evidence: &str) -> Link {
    Link {
        turn: arrival.exchange.id.clone(),
        conversation: arrival.exchange.id.clone(),
        parent: String::new(),
        kind: Kind::Root.name().to_owned(),
        confidence: 1.0,
        evidence: evidence.to_owned(),
        rules_version: RULES.version,
    }
}
