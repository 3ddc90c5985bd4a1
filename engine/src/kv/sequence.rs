//! Everything a decoder remembers of one sequence.

use super::{IndexCache, KvCache, KvShape, PageTable};
use crate::error::Error;

/// The caches of one sequence: one page table for all layers, and each layer's rows.
///
/// Only the first `len` positions count; rows beyond them are left over from a truncation and are overwritten before
/// anything can read them.
#[derive(Debug, Clone)]
pub struct Sequence {
    pub table: PageTable,
    pub layers: Vec<LayerCache>,
    slots: Vec<i64>,
    len: usize,
}

/// The caches of one layer.
#[derive(Debug, Clone)]
pub struct LayerCache {
    pub kv: KvCache,
    pub index: Option<IndexCache>,
}

impl Sequence {
    /// An empty sequence for layers of the given shapes (and index key widths).
    pub fn new(table: PageTable, layers: impl Iterator<Item = (KvShape, Option<usize>)>) -> Sequence {
        let layers = layers
            .map(|(shape, index)| LayerCache { kv: KvCache::new(shape), index: index.map(IndexCache::new) })
            .collect();
        Sequence { table, layers, slots: Vec::new(), len: 0 }
    }

    /// Tokens remembered.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Slots of all reserved positions, in order.
    pub fn slots(&self) -> &[i64] {
        &self.slots
    }

    /// Makes room for `count` more tokens in every layer; they count only after [`Sequence::commit`].
    pub fn reserve(&mut self, count: usize) -> Result<(), Error> {
        let end = self.len + count;
        let rows = self.table.grow(end)?;
        for layer in &mut self.layers {
            layer.kv.grow(rows)?;
            if let Some(index) = &mut layer.index {
                index.grow(rows)?;
            }
        }
        self.slots.truncate(self.len);
        let positions = self.len as i32..end as i32;
        self.table.to_slots(positions, &mut self.slots)
    }

    /// Counts the reserved tokens as remembered.
    pub fn commit(&mut self) {
        self.len = self.slots.len();
    }

    /// Forgets everything from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.slots.truncate(self.len);
    }
}
