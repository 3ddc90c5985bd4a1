//! Which upstream a conversation went to last, so that its next turn finds a warm cache there.
//!
//! A conversation is known by the session id its client sends, else by the beginning of its body: a turn repeats the turns
//! before it, so the longest beginning seen before leads to where they went. Only hashes are kept, in a table of bounded size.

pub mod keys;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prometheus::{IntCounterVec, IntGauge};
use serde::{Deserialize, Serialize};

use crate::metrics::Metrics;
use crate::units::{Size, Span};
use keys::Keys;

/// `[balance]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether the turns of a conversation go to one upstream.
    pub affinity: bool,
    /// Sessions and beginnings that are remembered; the longest unused are forgotten.
    pub affinity_entries: usize,
    /// How much of a body is looked at where its client sends no session id.
    pub affinity_prefix: Size,
    /// How many more exchanges than the least busy upstream it may have in flight and still be preferred.
    pub affinity_slack: u32,
    /// The longest that a `Retry-After` keeps an upstream from being preferred.
    pub retry_after_max: Span,
    /// Response headers that name the worker behind the router; the first is its label in metrics, all are recorded.
    pub worker_headers: Vec<String>,
    /// Workers of one upstream that get a label of their own; more are `other`.
    pub workers: usize,
    /// Cancels that may wait to be told to upstreams with an `abort` path.
    pub abort_queue: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            affinity: true,
            affinity_entries: 65_536,
            affinity_prefix: Size(16 * 1024),
            affinity_slack: 16,
            retry_after_max: Span::seconds(60),
            worker_headers: Vec::new(),
            workers: 64,
            abort_queue: 1_024,
        }
    }
}

/// Where conversations went. Two generations: when the young one is full it becomes the old one, and what is asked for in
/// the old one moves to the young. So the table never holds more than it may, and what is in use stays.
pub struct Table {
    shards: [Mutex<Generations>; SHARDS],
    /// Entries of one generation of one shard.
    room: usize,
    entries: IntGauge,
    chosen: IntCounterVec,
}

#[derive(Default)]
struct Generations {
    young: HashMap<u64, u64>,
    old: HashMap<u64, u64>,
}

const SHARDS: usize = 16;

/// What became of a conversation's preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// It went where it had gone.
    Kept,
    /// It went elsewhere, because that one is much busier than another, or out.
    Given,
    /// Nothing is known of it.
    New,
}

impl Preference {
    const ALL: [Self; 3] = [Self::Kept, Self::Given, Self::New];

    fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Given => "given_up",
            Self::New => "new",
        }
    }
}

impl Table {
    pub fn new(entries: usize, metrics: &Metrics) -> Self {
        let chosen = metrics.counters(
            "serin_balance_affinity_total",
            "Requests with a choice of upstreams, by whether they went where their conversation had gone.",
            &["result"],
        );
        for preference in Preference::ALL {
            chosen.with_label_values(&[preference.name()]);
        }
        let held = metrics.gauge(
            "serin_balance_affinity_entries",
            "Sessions and beginnings of bodies that are remembered.",
        );
        Self { shards: Default::default(), room: (entries / SHARDS / 2).max(1), entries: held, chosen }
    }

    /// The member the most telling of `keys` went to.
    pub fn find(&self, keys: &Keys) -> Option<u64> {
        keys.most_telling_first().find_map(|key| self.shard(key, |shard| shard.find(key, self.room)))
    }

    /// Remembers that they go to `member`.
    pub fn note(&self, keys: &Keys, member: u64) {
        for (at, key) in keys.most_telling_first().enumerate() {
            // A beginning that others share leads where it led: only the most telling one moves.
            self.shard(key, |shard| shard.put(key, member, at == 0, self.room));
        }
    }

    pub fn count(&self, preference: Preference) {
        self.chosen.with_label_values(&[preference.name()]).inc();
    }

    fn shard<T>(&self, key: u64, act: impl FnOnce(&mut Generations) -> T) -> T {
        let mut shard = self.shards[key as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner);
        let before = shard.len();
        let done = act(&mut shard);
        self.entries.add(shard.len() as i64 - before as i64);
        done
    }
}

impl Generations {
    fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    fn find(&mut self, key: u64, room: usize) -> Option<u64> {
        if let Some(member) = self.young.get(&key) {
            return Some(*member);
        }
        let member = self.old.remove(&key)?;
        self.insert(key, member, room);
        Some(member)
    }

    fn put(&mut self, key: u64, member: u64, moves: bool, room: usize) {
        if moves || self.find(key, room).is_none() {
            self.old.remove(&key);
            self.insert(key, member, room);
        }
    }

    fn insert(&mut self, key: u64, member: u64, room: usize) {
        if self.young.len() >= room && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(key: u64) -> Keys {
        Keys::one(key)
    }

    #[test]
    fn what_is_used_stays_and_the_table_is_bounded() {
        let table = Table::new(320, &Metrics::default());
        table.note(&keys(0), 7);
        for key in 1..10_000 {
            table.note(&keys(key), key);
            assert_eq!(table.find(&keys(0)), Some(7), "after {key} others");
        }
        assert!(table.entries.get() <= 320, "{}", table.entries.get());
        assert_eq!(table.find(&keys(1)), None);
        assert_eq!(table.find(&keys(9_999)), Some(9_999));
    }

    #[test]
    fn a_longer_beginning_tells_more_and_a_shared_one_does_not_move() {
        let table = Table::new(1_000, &Metrics::default());
        let body = |tail: &str| format!("{}{}", "system ".repeat(100), tail.repeat(200));
        let of = |tail: &str| Keys::of_body(body(tail).as_bytes(), 16 * 1024);
        table.note(&of("one "), 1);
        assert_eq!(table.find(&of("two ")), Some(1), "the shared beginning");
        table.note(&of("two "), 2);
        assert_eq!((table.find(&of("one ")), table.find(&of("two "))), (Some(1), Some(2)));
        assert_eq!(table.find(&of("three ")), Some(1));
    }
}
