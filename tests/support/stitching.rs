//! Stitching without a journal.
#![allow(dead_code, reason = "each test file uses its own part")]

use serin::conversation::projection::{Key, Memo};
use serin::conversation::reading::{Base, Reading};
use serin::conversation::stitch::{Footprint, Stitcher};
use serin::journal::facts::Facts;
use serin::journal::{Exchange, Link};

/// Links exchanges as they come.
pub struct Links {
    key: Key,
    memo: Memo,
    stitcher: Stitcher,
    limit: usize,
}

impl Links {
    /// Remembers so many turns.
    pub fn new(limit: usize) -> Links {
        let key = Key::of_tenant("default");
        Links { memo: Memo::new(10_000, 10_000), stitcher: Stitcher::new(key.clone(), limit), key, limit }
    }

    /// What is kept of a turn that begins a conversation.
    pub fn read(&mut self, exchange: &Exchange) -> Facts {
        let root = Base { node: self.key.root(), groups: 0 };
        Reading::of(&self.key, &mut self.memo, exchange).facts(&self.key, root)
    }

    pub fn link(&mut self, exchange: &Exchange) -> Link {
        let reading = Reading::of(&self.key, &mut self.memo, exchange);
        let placed = self.stitcher.place(exchange, &reading);
        let facts = reading.facts(&self.key, placed.base);
        self.stitcher.insert(Footprint::of(exchange, &facts, &placed.link));
        assert!(self.stitcher.len() <= self.limit);
        placed.link
    }
}
