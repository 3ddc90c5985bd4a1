//! What happened, counted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts by name, and what should never have happened. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tally(Arc<Mutex<Counts>>);

#[derive(Clone, Default)]
pub struct Counts {
    pub seen: BTreeMap<&'static str, u64>,
    /// Each wrong thing once, as far as there is room.
    pub wrong: Vec<String>,
    pub wrongs: u64,
    pub bytes_verified: u64,
    pub bodies_verified: u64,
}

const KEPT: usize = 12;

impl Tally {
    fn with<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn saw(&self, what: &'static str) {
        self.with(|counts| *counts.seen.entry(what).or_default() += 1);
    }

    pub fn wrong(&self, what: String) {
        self.with(|counts| {
            counts.wrongs += 1;
            if counts.wrong.len() < KEPT {
                counts.wrong.push(what);
            }
        });
    }

    pub fn verified(&self, bytes: u64) {
        self.with(|counts| {
            counts.bodies_verified += 1;
            counts.bytes_verified += bytes;
        });
    }

    pub fn exchanges(&self) -> u64 {
        self.with(|counts| counts.seen.values().sum())
    }

    pub fn counts(&self) -> Counts {
        self.with(|counts| counts.clone())
    }
}
