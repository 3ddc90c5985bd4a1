//! Finds where a turn belongs: a pure state machine over turns, without clock, disk or network.
//!
//! The rules, in order (the version is [`RULES_VERSION`]):
//! 1. A request whose body could not be read is a root.
//! 2. A request that ends where an earlier one ended repeats it: `retry` where the earlier attempt failed, or where
//!    the same bytes came again within five seconds of its end; `regenerate` otherwise. Its parent is the turn it
//!    repeats. Without assistant messages in it (everyone says "hi") this needs the same session id, or the same
//!    bytes soon after a failure.
//! 3. Otherwise the longest beginning of the request that ends in a recorded response decides: `append` where
//!    nothing follows that response yet, `branch` where something does. Its parent is the turn of that response.
//! 4. Everything else is a `root`.
//!
//! Two turns with different session ids are never linked. Where several turns fit, the order is: same session id,
//! no session id on either side, same system prompt and tools, not continued yet, most recent. A link is ambiguous
//! where the first three of these leave more than one conversation.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::projection::{Key, Node, RULES_VERSION};
use super::reading::{Reading, is_failed};
use crate::journal::{Exchange, Link};

/// Nanoseconds within which the same bytes are the same attempt.
const RETRY_WINDOW: u64 = 5_000_000_000;
/// Nanoseconds after a failure within which the same bytes, without any id, are a retry.
const FAILURE_WINDOW: u64 = 30_000_000_000;
/// The most turns that are remembered under one node, such as the answer "Hello!" to "hi".
const MAX_PER_NODE: usize = 64;

/// How a turn stands to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Root,
    Append,
    Branch,
    Retry,
    Regenerate,
}

/// What is remembered about a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub turn: String,
    pub conversation: String,
    pub parent: String,
    pub kind: Kind,
    pub head: Node,
    pub answers: Vec<Node>,
    pub body_hash: Vec<u8>,
    pub session: Option<Node>,
    pub environment: Node,
    pub ended_unix_nanos: u64,
    pub failed: bool,
    /// Unreadable requests all have the same head; they are never found by it.
    pub readable: bool,
}

/// The remembered turns, least recently used first out.
pub struct Stitcher {
    key: Key,
    limit: usize,
    clock: u64,
    turns: HashMap<String, Known>,
    by_age: BTreeMap<u64, String>,
    by_head: HashMap<Node, Vec<String>>,
    by_answer: HashMap<Node, Vec<String>>,
}

struct Known {
    footprint: Footprint,
    age: u64,
    continued: bool,
}

/// What is known of a turn before it has a link.
struct Arrival<'a> {
    exchange: &'a Exchange,
    reading: &'a Reading,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Root, Kind::Append, Kind::Branch, Kind::Retry, Kind::Regenerate];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Root => "root",
            Kind::Append => "append",
            Kind::Branch => "branch",
            Kind::Retry => "retry",
            Kind::Regenerate => "regenerate",
        }
    }

    /// The kind of that name; a kind of a later version counts as a root.
    pub fn of_name(name: &str) -> Kind {
        Self::ALL.into_iter().find(|kind| kind.name() == name).unwrap_or(Kind::Root)
    }
}

impl Footprint {
    /// The footprint of a turn that has its link.
    pub fn of(key: &Key, exchange: &Exchange, reading: &Reading, link: &Link) -> Footprint {
        Footprint {
            turn: exchange.id.clone(),
            conversation: link.conversation.clone(),
            parent: link.parent.clone(),
            kind: Kind::of_name(&link.kind),
            head: reading.head(key),
            answers: reading.answers.clone(),
            body_hash: exchange.request_body_hash.to_vec(),
            session: reading.session,
            environment: reading.environment,
            ended_unix_nanos: exchange.ended_unix_nanos(),
            failed: is_failed(exchange),
            readable: reading.readable,
        }
    }
}

impl Stitcher {
    /// A stitcher that remembers up to `limit` turns.
    pub fn new(key: Key, limit: usize) -> Stitcher {
        Stitcher {
            key,
            limit: limit.max(1),
            clock: 0,
            turns: HashMap::new(),
            by_age: BTreeMap::new(),
            by_head: HashMap::new(),
            by_answer: HashMap::new(),
        }
    }

    /// Decides where a turn belongs. Changes nothing; [`Stitcher::insert`] does.
    pub fn link(&self, exchange: &Exchange, reading: &Reading) -> Link {
        let arrival = Arrival { exchange, reading };
        if !reading.readable {
            return root(&arrival, "unreadable");
        }
        self.repeated(&arrival).or_else(|| self.continued(&arrival)).unwrap_or_else(|| {
            root(&arrival, if reading.has_history { "history_unknown" } else { "no_history" })
        })
    }

    /// Remembers a turn under its link. A turn that is known already stays as it is.
    pub fn insert(&mut self, footprint: Footprint) {
        if self.turns.contains_key(&footprint.turn) {
            return;
        }
        self.touch(&footprint.parent);
        if matches!(footprint.kind, Kind::Append | Kind::Branch)
            && let Some(parent) = self.turns.get_mut(&footprint.parent)
        {
            parent.continued = true;
        }
        if footprint.readable {
            file(&mut self.by_head, footprint.head, &footprint.turn);
            footprint.answers.iter().for_each(|node| file(&mut self.by_answer, *node, &footprint.turn));
        }
        self.clock += 1;
        self.by_age.insert(self.clock, footprint.turn.clone());
        self.turns.insert(footprint.turn.clone(), Known { age: self.clock, continued: false, footprint });
        while self.turns.len() > self.limit {
            self.forget_oldest();
        }
    }

    /// How many turns are remembered.
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn repeated(&self, arrival: &Arrival<'_>) -> Option<Link> {
        let head = arrival.reading.head(&self.key);
        let mut fitting = self.fitting(&self.by_head, &head, arrival);
        if !arrival.reading.has_history {
            fitting.retain(|known| arrival.same_session(known) || arrival.follows_failure(known));
        }
        let (best, fitting) = arrival.best(&fitting)?;
        let kind = if best.footprint.failed || arrival.is_same_attempt(best) {
            Kind::Retry
        } else {
            Kind::Regenerate
        };
        Some(arrival.link(kind, best, fitting, arrival.reading.chain.len()))
    }

    fn continued(&self, arrival: &Arrival<'_>) -> Option<Link> {
        for (depth, step) in arrival.reading.chain.iter().enumerate().rev() {
            let fitting = self.fitting(&self.by_answer, &step.node, arrival);
            if let Some((best, fitting)) = arrival.best(&fitting) {
                let kind = if best.continued { Kind::Branch } else { Kind::Append };
                return Some(arrival.link(kind, best, fitting, depth + 1));
            }
        }
        None
    }

    fn fitting(&self, index: &HashMap<Node, Vec<String>>, node: &Node, arrival: &Arrival<'_>) -> Vec<&Known> {
        let turns = index.get(node).map(Vec::as_slice).unwrap_or_default();
        let known = turns.iter().filter_map(|turn| self.turns.get(turn));
        known.filter(|known| !arrival.other_session(known)).collect()
    }

    fn touch(&mut self, turn: &str) {
        if let Some(known) = self.turns.get_mut(turn) {
            self.clock += 1;
            self.by_age.remove(&known.age);
            known.age = self.clock;
            self.by_age.insert(known.age, turn.to_owned());
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, turn)) = self.by_age.pop_first() {
            self.forget(&turn);
        }
    }

    /// Forgets a turn.
    pub fn forget(&mut self, turn: &str) {
        let Some(known) = self.turns.remove(turn) else { return };
        self.by_age.remove(&known.age);
        unfile(&mut self.by_head, &known.footprint.head, turn);
        known.footprint.answers.iter().for_each(|node| unfile(&mut self.by_answer, node, turn));
    }
}

impl Arrival<'_> {
    fn same_session(&self, known: &Known) -> bool {
        self.reading.session.is_some() && self.reading.session == known.footprint.session
    }

    fn other_session(&self, known: &Known) -> bool {
        matches!((self.reading.session, known.footprint.session), (Some(mine), Some(other)) if mine != other)
    }

    fn same_bytes(&self, known: &Known) -> bool {
        !known.footprint.body_hash.is_empty() && self.exchange.request_body_hash == known.footprint.body_hash
    }

    fn since_end(&self, known: &Known) -> u64 {
        self.exchange.started_unix_nanos.saturating_sub(known.footprint.ended_unix_nanos)
    }

    fn is_same_attempt(&self, known: &Known) -> bool {
        self.same_bytes(known) && self.since_end(known) < RETRY_WINDOW
    }

    fn follows_failure(&self, known: &Known) -> bool {
        known.footprint.failed && self.same_bytes(known) && self.since_end(known) < FAILURE_WINDOW
    }

    /// The turn to choose, and how many conversations fit as well by session, system prompt and tools. Turns are filed in order of
    /// arrival, so a later place is a more recent turn.
    fn best<'k>(&self, fitting: &[&'k Known]) -> Option<(&'k Known, usize)> {
        let ranked = fitting.iter().enumerate();
        let best = ranked.max_by_key(|(place, known)| (self.rank(known), !known.continued, *place))?.1;
        let equals = fitting.iter().filter(|known| self.rank(known) == self.rank(best));
        let conversations: HashSet<&str> =
            equals.map(|known| known.footprint.conversation.as_str()).collect();
        Some((best, conversations.len()))
    }

    fn rank(&self, known: &Known) -> (u8, bool) {
        let session = match (self.same_session(known), self.reading.session == known.footprint.session) {
            (true, _) => 2,
            (false, neither_has_one) => u8::from(neither_has_one),
        };
        (session, self.reading.environment == known.footprint.environment)
    }

    fn link(&self, kind: Kind, parent: &Known, fitting: usize, depth: usize) -> Link {
        let session = if self.same_session(parent) { "same" } else { "none" };
        let confidence = match (self.same_session(parent), fitting) {
            (true, _) => 1.0,
            (false, 1) => 0.95,
            (false, _) => 0.5,
        };
        Link {
            turn: self.exchange.id.clone(),
            conversation: parent.footprint.conversation.clone(),
            parent: parent.footprint.turn.clone(),
            kind: kind.name().to_owned(),
            confidence,
            evidence: format!("depth={depth} conversations={fitting} session={session}"),
            rules_version: RULES_VERSION,
        }
    }
}

fn root(arrival: &Arrival<'_>, evidence: &str) -> Link {
    Link {
        turn: arrival.exchange.id.clone(),
        conversation: arrival.exchange.id.clone(),
        parent: String::new(),
        kind: Kind::Root.name().to_owned(),
        confidence: 1.0,
        evidence: evidence.to_owned(),
        rules_version: RULES_VERSION,
    }
}

fn file(index: &mut HashMap<Node, Vec<String>>, node: Node, turn: &str) {
    let turns = index.entry(node).or_default();
    if turns.len() == MAX_PER_NODE {
        turns.remove(0);
    }
    turns.push(turn.to_owned());
}

fn unfile(index: &mut HashMap<Node, Vec<String>>, node: &Node, turn: &str) {
    if let Some(turns) = index.get_mut(node) {
        turns.retain(|filed| filed != turn);
        if turns.is_empty() {
            index.remove(node);
        }
    }
}
