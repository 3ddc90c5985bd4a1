//! Brings an index up to the end of its journal.

use super::Result;
use super::flags::Flags;
use super::index::{Index, TurnRow, Watermark};
use super::projection::{Key, Memo, RULES};
use super::reading::{Reading, is_forgotten, is_turn};
use super::source::Source;
use super::stitch::{Footprint, Stitcher};
use crate::journal::{Damage, Exchange, Link, Lsn, Reader, Record};

/// Records read between two transactions.
const BATCH: usize = 1024;

/// What catching up has found.
#[derive(Clone, Debug, Default)]
pub struct CaughtUp {
    /// Links for turns that the journal holds without one; a writer appends them.
    pub missing_links: Vec<Link>,
    pub damage: Damage,
    /// What is said of the first segment whose key is not here.
    pub first_locked: Option<String>,
    pub records: u64,
    /// Exchanges that had begun, of which no end was recorded; a writer notes that.
    pub interrupted: u64,
}

/// Reads on from where the index stands.
///
/// # Errors
/// From the journal and from the index; the index then stands at the last finished batch.
pub fn run(
    source: &Source,
    index: &mut Index,
    stitcher: &mut Stitcher,
    reader: &mut Reader,
) -> Result<CaughtUp> {
    let mut pass =
        Pass { key: &source.key, stitcher, waiting: None, memo: source.memo(), found: CaughtUp::default() };
    let mut more = true;
    while more {
        more = index.batch(|index| pass.batch(index, reader))?;
    }
    pass.found.damage = reader.damage();
    pass.found.first_locked = reader.first_locked().map(str::to_owned);
    Ok(pass.found)
}

struct Pass<'a> {
    key: &'a Key,
    stitcher: &'a mut Stitcher,
    /// A turn whose link has not come yet.
    waiting: Option<(Exchange, Lsn)>,
    memo: Memo,
    found: CaughtUp,
}

impl Pass<'_> {
    /// Returns whether there may be more.
    fn batch(&mut self, index: &Index, reader: &mut Reader) -> Result<bool> {
        for _ in 0..BATCH {
            let Some(next) = reader.next() else { break };
            let (lsn, record) = next?;
            self.take(index, reader, lsn, record)?;
            self.found.records += 1;
        }
        let more = self.found.records > 0 && self.found.records.is_multiple_of(BATCH as u64);
        if !more {
            // A turn and its link are durable together, so none is coming any more.
            self.settle(index, reader, None)?;
        }
        let waiting = self.waiting.as_ref().map(|(_, lsn)| *lsn);
        mark(index, reader, waiting.unwrap_or(reader.end()))?;
        Ok(more)
    }

    fn take(&mut self, index: &Index, reader: &Reader, lsn: Lsn, record: Record) -> Result<()> {
        match record {
            Record::Exchange(exchange) => {
                self.settle(index, reader, None)?;
                match is_turn(&exchange) {
                    true => self.waiting = Some((exchange, lsn)),
                    false => index.end(&exchange.id)?,
                }
                Ok(())
            }
            Record::Start(exchange) => index.start(&exchange.id, lsn),
            Record::Link(link)
                if self.waiting.as_ref().is_some_and(|(exchange, _)| exchange.id == link.turn) =>
            {
                self.settle(index, reader, Some(link))
            }
            Record::Link(link) => index.relink(&link),
            Record::Gap(gap) => index.apply_gap(&gap, lsn),
            Record::Flag(flag) => {
                if self.waiting.as_ref().is_some_and(|(exchange, _)| exchange.id == flag.turn) {
                    self.settle(index, reader, None)?;
                }
                Flags::recorded(&flag.name).map_or(Ok(()), |flags| index.flag(&flag.turn, flags))
            }
            _ => Ok(()),
        }
    }

    /// Enters the waiting turn, under the recorded link or one made now.
    fn settle(&mut self, index: &Index, reader: &Reader, link: Option<Link>) -> Result<()> {
        let Some((mut exchange, lsn)) = self.waiting.take() else { return Ok(()) };
        let (facts, link) = match (exchange.facts.clone(), link) {
            (Some(facts), Some(link)) if facts.rules_version == RULES.version => (facts, link),
            (facts, link) => {
                reader.fill(&mut exchange, lsn)?;
                // What was read by other rules is read again, as long as it is there.
                let facts = facts.filter(|_| is_forgotten(&exchange));
                let reading = Reading::of(self.key, &mut self.memo, &exchange);
                let placed = self.stitcher.place(&exchange, &reading);
                if link.is_none() {
                    self.found.missing_links.push(placed.link.clone());
                }
                let read = reading.facts(self.key, placed.base);
                (facts.unwrap_or(read), link.unwrap_or(placed.link))
            }
        };
        index.apply(&TurnRow::of(&exchange, &facts, &link), lsn)?;
        self.stitcher.insert(Footprint::of(&exchange, &facts, &link));
        Ok(())
    }
}

fn mark(index: &Index, reader: &Reader, lsn: Lsn) -> Result<()> {
    index.set_watermark(&Watermark { lsn, replica: reader.replica().unwrap_or_default() })
}
