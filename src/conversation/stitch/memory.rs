//! The turns that are remembered, and by what they are found.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use super::super::hint::Lane;
use super::super::projection::Node;
use super::super::reading::is_failed;
use super::kind::Kind;
use crate::journal::facts::Facts;
use crate::journal::{Exchange, Link};

/// The most turns that are remembered under one node, such as the answer "Hello!" to "hi".
const MAX_PER_NODE: usize = 64;

/// The id of a turn.
pub type Turn = Arc<str>;
type Filed<T, N = Node> = HashMap<N, Vec<T>>;

/// What is remembered about a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub turn: Turn,
    pub conversation: String,
    pub parent: String,
    pub kind: Kind,
    pub head: Node,
    pub answers: Vec<Node>,
    pub anchors: Vec<Node>,
    pub openings: Vec<Node>,
    /// The first and the last message of the request.
    pub first: Option<Node>,
    pub last: Option<Node>,
    pub response: Option<Node>,
    /// Of prompts that are one text: the last whole block, and the bytes behind it.
    pub tails: Vec<(Node, u32)>,
    pub body_hash: Vec<u8>,
    pub session: Option<Node>,
    pub thread: Option<Node>,
    pub environment: Node,
    /// The environment without what changes from day to day.
    pub template: Node,
    /// Messages of the request.
    pub messages: u32,
    /// Whether the request had an assistant's messages in it.
    pub history: bool,
    pub started_unix_nanos: u64,
    pub ended_unix_nanos: u64,
    pub failed: bool,
    /// Unreadable requests all have the same head; they are never found by it.
    pub readable: bool,
}

pub struct Known {
    pub footprint: Footprint,
    pub continued: bool,
    age: u64,
}

/// The remembered turns, least recently used first out.
pub struct Memory {
    limit: usize,
    clock: u64,
    turns: HashMap<Turn, Known>,
    by_age: BTreeMap<u64, Turn>,
    by_head: Filed<Turn>,
    by_answer: Filed<Turn>,
    by_anchor: Filed<Turn>,
    by_opening: Filed<Turn>,
    by_response: Filed<Turn>,
    by_lane: Filed<Turn, Lane>,
    by_block: Filed<u32>,
}

impl Footprint {
    /// The footprint of a turn, by what was kept of it.
    pub fn of(exchange: &Exchange, facts: &Facts, link: &Link) -> Footprint {
        let blocks = nodes(&facts.blocks);
        Footprint {
            turn: exchange.id.as_str().into(),
            conversation: link.conversation.clone(),
            parent: link.parent.clone(),
            kind: Kind::of_name(&link.kind),
            head: node(&facts.head).unwrap_or_default(),
            answers: nodes(&facts.answers),
            anchors: nodes(&facts.anchors),
            openings: nodes(&facts.openings),
            first: node(&facts.first),
            last: node(&facts.last),
            response: node(&facts.response_id),
            tails: blocks.into_iter().zip(facts.tails.iter().copied()).collect(),
            body_hash: exchange.request_body_hash.to_vec(),
            session: node(&facts.session),
            thread: node(&facts.thread),
            environment: node(&facts.environment).unwrap_or_default(),
            template: node(&facts.template).unwrap_or_default(),
            messages: facts.messages,
            history: facts.is(Facts::HISTORY),
            started_unix_nanos: exchange.started_unix_nanos,
            ended_unix_nanos: exchange.ended_unix_nanos(),
            failed: is_failed(exchange),
            readable: facts.is(Facts::READABLE),
        }
    }

    fn lane(&self) -> Option<Lane> {
        Some(Lane { session: self.session?, thread: self.thread })
    }
}

/// One hash; `None` where there is none.
pub fn node(bytes: &[u8]) -> Option<Node> {
    bytes.first_chunk().copied()
}

fn nodes(bytes: &[u8]) -> Vec<Node> {
    bytes.as_chunks().0.to_vec()
}

impl Memory {
    pub fn new(limit: usize) -> Memory {
        Memory {
            limit: limit.max(1),
            clock: 0,
            turns: HashMap::new(),
            by_age: BTreeMap::new(),
            by_head: HashMap::new(),
            by_answer: HashMap::new(),
            by_anchor: HashMap::new(),
            by_opening: HashMap::new(),
            by_response: HashMap::new(),
            by_lane: HashMap::new(),
            by_block: HashMap::new(),
        }
    }

    pub fn insert(&mut self, footprint: Footprint) {
        if self.turns.contains_key(&footprint.turn) {
            return;
        }
        self.touch(&footprint.parent);
        if footprint.kind.follows()
            && let Some(parent) = self.turns.get_mut(footprint.parent.as_str())
        {
            parent.continued = true;
        }
        let turn = footprint.turn.clone();
        if footprint.readable {
            self.each(&footprint, |filed, node| file(filed, node, turn.clone()));
            for (block, tail) in &footprint.tails {
                file(&mut self.by_block, *block, *tail);
            }
            if let Some(lane) = footprint.lane() {
                file(&mut self.by_lane, lane, turn.clone());
            }
        }
        self.clock += 1;
        self.by_age.insert(self.clock, turn.clone());
        self.turns.insert(turn, Known { age: self.clock, continued: false, footprint });
        while self.turns.len() > self.limit {
            let Some(oldest) = self.by_age.first_key_value().map(|(_, turn)| turn.clone()) else { return };
            self.forget(&oldest);
        }
    }

    pub fn forget(&mut self, turn: &str) {
        let Some(known) = self.turns.remove(turn) else { return };
        self.by_age.remove(&known.age);
        self.each(&known.footprint, |filed, node| unfile(filed, &node, |filed| filed.as_ref() == turn));
        for (block, tail) in &known.footprint.tails {
            unfile(&mut self.by_block, block, |filed| filed == tail);
        }
        if let Some(lane) = known.footprint.lane() {
            unfile(&mut self.by_lane, &lane, |filed| filed.as_ref() == turn);
        }
    }

    pub fn len(&self) -> usize {
        self.turns.len()
    }

    pub fn get(&self, turn: &str) -> Option<&Known> {
        self.turns.get(turn)
    }

    /// The turns whose request ends at a node.
    pub fn asked(&self, node: &Node) -> &[Turn] {
        self.by_head.get(node).map_or(&[], Vec::as_slice)
    }

    /// Those whose answer does.
    pub fn answered(&self, node: &Node) -> &[Turn] {
        self.by_answer.get(node).map_or(&[], Vec::as_slice)
    }

    /// Those whose answer is recognised by it.
    pub fn anchored(&self, anchor: &Node) -> &[Turn] {
        self.by_anchor.get(anchor).map_or(&[], Vec::as_slice)
    }

    /// Those that have called a tool with it.
    pub fn called(&self, opening: &Node) -> &[Turn] {
        self.by_opening.get(opening).map_or(&[], Vec::as_slice)
    }

    /// Those whose answer has that id.
    pub fn responded(&self, response: &Node) -> &[Turn] {
        self.by_response.get(response).map_or(&[], Vec::as_slice)
    }

    /// The latest turns of a session's thread, the last one last.
    pub fn of_lane(&self, lane: &Lane) -> &[Turn] {
        self.by_lane.get(lane).map_or(&[], Vec::as_slice)
    }

    /// How many bytes behind a block a prompt or an answer has ended.
    pub fn tails(&self, block: &Node) -> &[u32] {
        self.by_block.get(block).map_or(&[], Vec::as_slice)
    }

    /// Calls `act` with each index and node that a turn is filed under.
    fn each(&mut self, footprint: &Footprint, act: impl Fn(&mut Filed<Turn>, Node)) {
        act(&mut self.by_head, footprint.head);
        footprint.answers.iter().for_each(|node| act(&mut self.by_answer, *node));
        footprint.anchors.iter().for_each(|node| act(&mut self.by_anchor, *node));
        footprint.openings.iter().for_each(|node| act(&mut self.by_opening, *node));
        footprint.response.iter().for_each(|node| act(&mut self.by_response, *node));
    }

    fn touch(&mut self, turn: &str) {
        if let Some(known) = self.turns.get_mut(turn) {
            self.clock += 1;
            let name = self.by_age.remove(&known.age);
            known.age = self.clock;
            self.by_age.extend(name.map(|name| (self.clock, name)));
        }
    }
}

fn file<T, N: Eq + Hash>(filed: &mut Filed<T, N>, node: N, value: T) {
    let values = filed.entry(node).or_default();
    if values.len() == MAX_PER_NODE {
        values.remove(0);
    }
    values.push(value);
}

/// Takes out one value.
fn unfile<T, N: Eq + Hash>(filed: &mut Filed<T, N>, node: &N, is: impl Fn(&T) -> bool) {
    if let Some(values) = filed.get_mut(node) {
        if let Some(at) = values.iter().position(is) {
            values.remove(at);
        }
        if values.is_empty() {
            filed.remove(node);
        }
    }
}
