//! Stitching without a journal.

use serin::conversation::projection::{Key, Memo};
use serin::conversation::reading::Reading;
use serin::conversation::stitch::{Footprint, Stitcher};
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
        Links { memo: Memo::new(10_000), stitcher: Stitcher::new(key.clone(), limit), key, limit }
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
