//! What is derived from a journal: its index, and where each turn belongs. All of it can be made anew.

use std::path::Path;

use super::catch_up::{self, CaughtUp};
use super::index::Index;
use super::projection::{Key, Memo};
use super::reading::{Reading, is_forgotten, is_turn};
use super::source::Source;
use super::stitch::{Footprint, Stitcher};
use super::{INDEX_FILE, Result};
use crate::journal::{self, Exchange, Link, Lsn, Options, Reader, Record};

/// What stitching again has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restitched {
    pub turns: u64,
    /// Turns whose bodies are gone: their links stay as they are.
    pub kept: u64,
    /// Turns that belong elsewhere than was recorded.
    pub changed: u64,
}

impl Source {
    /// A new index on disk in the place of the old, and a stitcher that knows what it knows.
    pub fn anew(&self) -> Result<(Index, Stitcher, CaughtUp)> {
        let mut index = Index::replace(&self.dir.join(INDEX_FILE))?;
        let mut stitcher = self.stitcher();
        let found = self.follow(&mut index, &mut stitcher)?;
        Ok((index, stitcher, found))
    }

    /// Brings an index up to the end of the journal, from its beginning if the index belongs to another journal.
    pub fn follow(&self, index: &mut Index, stitcher: &mut Stitcher) -> Result<CaughtUp> {
        let watermark = index.watermark()?;
        let mut reader = self.read_from(watermark.lsn)?;
        if reader.replica() != Some(watermark.replica) || journal::segment::limit(&self.dir)? < watermark.lsn
        {
            index.clear()?;
            reader = self.read_from(Lsn::default())?;
        }
        for footprint in index.footprints(self.options.turns)? {
            stitcher.insert(footprint);
        }
        catch_up::run(self, index, stitcher, &mut reader)
    }

    /// Finds anew where each turn belongs, in the order in which they were recorded, and calls `changed` with each link
    /// that is not as the index has it. Whoever takes all of them up finds nothing to change the next time.
    ///
    /// # Errors
    /// From the journal, the index and `changed`.
    pub fn restitch(
        &self,
        index: &Index,
        changed: &mut dyn FnMut(Link) -> Result<()>,
    ) -> Result<(Restitched, Stitcher)> {
        let (mut stitcher, mut memo) = (self.stitcher(), self.memo());
        let mut found = Restitched::default();
        for next in Reader::open_at(&self.dir, Lsn::default(), self.options.keys.clone())? {
            let (_, record) = next?;
            let Record::Exchange(exchange) = record else { continue };
            if !is_turn(&exchange) || stitcher.knows(&exchange.id) {
                continue;
            }
            let Some(old) = index.link(&exchange.id)? else { continue };
            found.turns += 1;
            let reading = Reading::of(&self.key, &mut memo, &exchange);
            let (facts, link) = match exchange.facts.clone().filter(|_| is_forgotten(&exchange)) {
                Some(facts) => {
                    found.kept += 1;
                    (facts, old)
                }
                None => {
                    let placed = stitcher.place(&exchange, &reading);
                    if placed.link != old {
                        found.changed += 1;
                        changed(placed.link.clone())?;
                    }
                    (reading.facts(&self.key, placed.base), placed.link)
                }
            };
            stitcher.insert(Footprint::of(&exchange, &facts, &link));
        }
        Ok((found, stitcher))
    }
}

/// Reads one exchange as a turn, without what is known of others; `None` for one that is none.
pub fn read(exchange: &Exchange) -> Option<Reading> {
    is_turn(exchange).then(|| Reading::of(&Key::of_tenant("default"), &mut Memo::new(1, 1), exchange))
}

/// Builds the index of a journal from nothing, in memory. It equals the live one.
///
/// # Errors
/// What the disk says.
pub fn rebuild(dir: &Path) -> Result<Index> {
    let mut index = Index::in_memory()?;
    let source = Source::open(dir, Options::default());
    source.follow(&mut index, &mut source.stitcher())?;
    Ok(index)
}
