//! The reading side of recorded conversations.

use std::path::Path;

use super::index::{Filter, Found, Index};
use super::reading::Reading;
use super::source::Source;
use super::view::{Carried, Session, SessionLine, Turn};
use super::{Error, INDEX_FILE, Result};
use crate::journal::{self, Capture, Damage, Exchange, Lsn, Options, Reader, Record};

/// Recorded conversations, for reading.
pub struct Sessions {
    source: Source,
    index: Index,
    reader: Reader,
    damage: Damage,
}

impl Sessions {
    pub(super) fn open(dir: &Path, options: Options) -> Result<Sessions> {
        let reader = Reader::open_at(dir, Lsn::default(), options.keys.clone())?;
        let source = Source::open(dir, options);
        let disk = Index::open_read_only(&dir.join(INDEX_FILE));
        if let Some(index) = disk.as_ref()
            && is_current(index, &source)?
            && let Some(index) = disk
        {
            return Ok(Sessions { source, index, reader, damage: Damage::default() });
        }
        let mut index = Index::in_memory()?;
        if let Some(disk) = disk
            && index.copy_from(&disk).is_err()
        {
            index = Index::in_memory()?;
        }
        let found = source.follow(&mut index, &mut source.stitcher())?;
        Ok(Sessions { source, index, reader, damage: found.damage })
    }

    /// Conversations, the one with the latest activity first. Bodies are not read.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn list(&self, filter: &Filter) -> Result<Vec<SessionLine>> {
        Ok(self.index.list(filter)?.into_iter().map(SessionLine::from).collect())
    }

    /// One conversation with its messages, by its id, an unambiguous beginning of it, or the id of one of its turns.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Ambiguous`], and what the disk says.
    pub fn show(&self, id: &str) -> Result<Session> {
        let id = self.find(id)?;
        let (mut carried, mut memo) = (Carried::default(), self.source.memo());
        let mut turns = Vec::new();
        for (row, lsn) in self.index.turns(&id)? {
            let exchange = self.exchange(lsn)?;
            let reading = Reading::of(&self.source.key, &mut memo, &exchange);
            let inherited = carried.before(&self.source.key, &row, &reading);
            turns.push(Turn::of(&row, &exchange, &reading, &inherited));
        }
        Ok(Session { id, turns })
    }

    /// Damage met while reading the journal, where it had to be read.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// The exchange of a number; an empty one where the journal no longer holds it, so that one lost record does not
    /// hide the rest of its conversation.
    fn exchange(&self, lsn: Lsn) -> Result<Exchange> {
        match self.reader.read_at(lsn) {
            Ok(Record::Exchange(exchange)) => Ok(exchange),
            Ok(_) | Err(journal::Error::NoRecord(_)) => {
                let mut lost = Exchange::default();
                lost.set_request_capture(Capture::None);
                lost.set_response_capture(Capture::None);
                Ok(lost)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn find(&self, id: &str) -> Result<String> {
        match self.index.find(id)? {
            Found::One(found) if !id.is_empty() => Ok(found),
            Found::Many(count) if !id.is_empty() => Err(Error::Ambiguous { prefix: id.to_owned(), count }),
            _ => Err(Error::Unknown(id.to_owned())),
        }
    }
}

/// Whether an index stands at the end of its journal.
fn is_current(index: &Index, source: &Source) -> Result<bool> {
    let watermark = index.watermark()?;
    let mut reader = source.read_from(watermark.lsn)?;
    Ok(reader.replica() == Some(watermark.replica) && reader.next().is_none())
}
