//! Paged caches: a table from logical pages to physical ones, key-value rows and index rows.
//!
//! Positions inside a sequence are *logical*. [`PageTable::to_slots`] is the only place that turns them into physical
//! rows ("slots"); writers and readers of the caches address rows by slot alone.

use crate::error::Error;

pub mod sequence;

/// Tokens per page where nothing else is asked for.
pub const PAGE: usize = 64;
/// Physical pages are dealt out of blocks of this many, in the order a seed gives within each block.
const DEAL: usize = 16;

/// Which physical page holds each logical page of one sequence.
#[derive(Debug, Clone)]
pub struct PageTable {
    page_size: usize,
    pages: Vec<u32>,
    /// `None` deals pages in order; tests permute them to prove that no reader assumes an order.
    shuffle: Option<u64>,
}

/// Where in the caches of a layer the rows of one head group lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    pub groups: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// Keys and values of one layer, f32, row = slot: keys `[slot][group][key_dim]`, values alike.
#[derive(Debug, Clone)]
pub struct KvCache {
    pub shape: KvShape,
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

/// Index keys of one layer, f32, `[slot][dim]` (one key head).
#[derive(Debug, Clone)]
pub struct IndexCache {
    pub dim: usize,
    pub keys: Vec<f32>,
}

impl PageTable {
    /// An empty table. `page_size` is at least 1; `shuffle` seeds the order in which physical pages are dealt.
    pub fn new(page_size: usize, shuffle: Option<u64>) -> PageTable {
        PageTable { page_size: page_size.max(1), pages: Vec::new(), shuffle }
    }

    /// Maps as many pages as `tokens` need and returns the number of physical rows the caches must then hold.
    pub fn grow(&mut self, tokens: usize) -> Result<usize, Error> {
        let pages = tokens.div_ceil(self.page_size);
        while self.pages.len() < pages {
            let page = u32::try_from(self.deal(self.pages.len()))
                .map_err(|_| Error::Unsupported("more than 2^32 pages in one sequence".into()))?;
            self.pages.push(page);
        }
        let rows = if self.shuffle.is_some() { pages.next_multiple_of(DEAL) } else { pages };
        Ok(rows * self.page_size)
    }

    /// Physical rows of logical positions, appended to `out`. -1 stays -1; a position without a page is an error.
    pub fn to_slots(&self, positions: impl Iterator<Item = i32>, out: &mut Vec<i64>) -> Result<(), Error> {
        for position in positions {
            let Ok(position) = usize::try_from(position) else {
                out.push(-1);
                continue;
            };
            let page = self.pages.get(position / self.page_size).ok_or_else(|| {
                Error::Internal(format!(
                    "position {position} lies past the {} mapped pages",
                    self.pages.len()
                ))
            })?;
            out.push((*page as usize * self.page_size + position % self.page_size) as i64);
        }
        Ok(())
    }

    fn deal(&self, logical: usize) -> usize {
        let Some(seed) = self.shuffle else { return logical };
        // An odd multiplier and any offset permute the residues modulo a power of two.
        let (odd, offset) = ((seed as usize) | 1, (seed >> 32) as usize);
        let within = (logical % DEAL).wrapping_mul(odd).wrapping_add(offset) % DEAL;
        logical / DEAL * DEAL + within
    }
}

impl KvCache {
    /// An empty cache.
    pub fn new(shape: KvShape) -> KvCache {
        KvCache { shape, keys: Vec::new(), values: Vec::new() }
    }

    /// Makes room for `rows` physical rows.
    pub fn grow(&mut self, rows: usize) -> Result<(), Error> {
        grow(&mut self.keys, rows, self.shape.groups * self.shape.key_dim)?;
        grow(&mut self.values, rows, self.shape.groups * self.shape.value_dim)
    }

    /// Writes `keys` `[T][group][key_dim]` and `values` alike to `slots` `[T]`; slot -1 skips its row.
    pub fn kv_append(&mut self, keys: &[f32], values: &[f32], slots: &[i64]) -> Result<(), Error> {
        scatter(&mut self.keys, keys, slots, self.shape.groups * self.shape.key_dim)?;
        scatter(&mut self.values, values, slots, self.shape.groups * self.shape.value_dim)
    }

    /// Number of physical rows.
    pub fn rows(&self) -> usize {
        self.keys.len() / (self.shape.groups * self.shape.key_dim)
    }
}

impl IndexCache {
    /// An empty cache of keys of `dim` elements.
    pub fn new(dim: usize) -> IndexCache {
        IndexCache { dim, keys: Vec::new() }
    }

    /// Makes room for `rows` physical rows.
    pub fn grow(&mut self, rows: usize) -> Result<(), Error> {
        grow(&mut self.keys, rows, self.dim)
    }

    /// Writes `keys` `[T][dim]` to `slots` `[T]`; slot -1 skips its row.
    pub fn index_append(&mut self, keys: &[f32], slots: &[i64]) -> Result<(), Error> {
        scatter(&mut self.keys, keys, slots, self.dim)
    }
}

fn grow(store: &mut Vec<f32>, rows: usize, width: usize) -> Result<(), Error> {
    let fail =
        || Error::Memory { what: "a key-value cache", bytes: rows.saturating_mul(width).saturating_mul(4) };
    let len = rows.checked_mul(width).ok_or_else(fail)?;
    if len > store.len() {
        store.try_reserve(len - store.len()).map_err(|_| fail())?;
        store.resize(len, 0.0);
    }
    Ok(())
}

fn scatter(store: &mut [f32], rows: &[f32], slots: &[i64], width: usize) -> Result<(), Error> {
    if rows.len() != slots.len() * width {
        return Err(Error::Internal(format!(
            "{} elements for {} rows of {width} each",
            rows.len(),
            slots.len()
        )));
    }
    for (row, &slot) in rows.chunks_exact(width).zip(slots) {
        if slot == -1 {
            continue;
        }
        let start = usize::try_from(slot).ok().and_then(|s| s.checked_mul(width));
        let place = start.and_then(|start| store.get_mut(start..start + width));
        let place = place.ok_or_else(|| Error::Internal(format!("slot {slot} lies outside the cache")))?;
        place.copy_from_slice(row);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_pages_never_share_a_row() {
        for seed in [1, 7, 0xdead_beef_1234_5677] {
            let mut table = PageTable::new(4, Some(seed));
            let rows = table.grow(150).unwrap();
            let mut slots = Vec::new();
            table.to_slots(0..150, &mut slots).unwrap();
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), 150);
            assert!(slots.iter().all(|&s| (s as usize) < rows));
        }
    }

    #[test]
    fn unmapped_positions_and_foreign_slots_are_refused() {
        let mut table = PageTable::new(64, None);
        table.grow(64).unwrap();
        let mut slots = Vec::new();
        table.to_slots([-1, 63].into_iter(), &mut slots).unwrap();
        assert_eq!(slots, [-1, 63]);
        assert!(table.to_slots([64].into_iter(), &mut slots).is_err());
        let mut cache = IndexCache::new(2);
        cache.grow(1).unwrap();
        assert!(cache.index_append(&[1.0, 2.0], &[1]).is_err());
        assert!(cache.index_append(&[1.0, 2.0], &[-2]).is_err());
        cache.index_append(&[1.0, 2.0], &[-1]).unwrap();
        assert_eq!(cache.keys, [0.0, 0.0]);
    }

    #[test]
    fn an_impossible_size_is_an_error_and_not_an_abort() {
        let mut cache = IndexCache::new(usize::MAX / 8);
        assert!(matches!(cache.grow(3), Err(Error::Memory { .. })));
    }
}
