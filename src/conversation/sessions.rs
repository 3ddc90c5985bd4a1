//! The reading side of recorded conversations.

use std::path::Path;

use super::index::{Cursor, Filter, Found, Index, SessionRow};
use super::reading::Reading;
use super::source::Source;
use super::view::{Carried, Outline, Session, SessionLine, Turn, TurnLine};
use super::{CaughtUp, Error, INDEX_FILE, Result};
use crate::journal::{self, Capture, Damage, Exchange, Lsn, Options, Reader, Record};

/// A part of a list.
#[derive(Debug)]
pub struct Page {
    pub lines: Vec<SessionLine>,
    /// To be read by [`super::Asked`]; `None` at the end.
    pub cursor: Option<String>,
}

/// Recorded conversations, for reading.
pub struct Sessions {
    source: Source,
    index: Index,
    reader: Reader,
    damage: Damage,
    first_locked: Option<String>,
}

impl Sessions {
    pub(super) fn open(dir: &Path, options: Options) -> Result<Sessions> {
        let reader = Reader::open_at(dir, Lsn::default(), options.keys.clone())?.caching(options.cache());
        let source = Source::open(dir, options);
        let disk = Index::open_read_only(&dir.join(INDEX_FILE));
        if let Some(index) = disk.as_ref()
            && let Some(rest) = is_current(index, &source)?
            && let Some(index) = disk
        {
            let damage = Damage { locked_segments: rest.damage().locked_segments, ..Damage::default() };
            let first_locked = rest.first_locked().map(str::to_owned);
            return Ok(Sessions { source, index, reader, damage, first_locked });
        }
        let mut index = Index::in_memory()?;
        if let Some(disk) = disk
            && index.copy_from(&disk).is_err()
        {
            index = Index::in_memory()?;
        }
        let found = source.follow(&mut index, &mut source.stitcher())?;
        let CaughtUp { damage, first_locked, .. } = found;
        Ok(Sessions { source, index, reader, damage, first_locked })
    }

    /// Conversations, the one with the latest activity first. Bodies are not read.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn list(&self, filter: &Filter) -> Result<Vec<SessionLine>> {
        Ok(self.index.list(filter)?.into_iter().map(SessionLine::from).collect())
    }

    /// As [`Sessions::open`], where somebody records and keeps the index: it is taken as it is, and may be a commit behind.
    pub(super) fn open_live(dir: &Path, options: Options) -> Result<Sessions> {
        let reader = Reader::open_at(dir, Lsn::default(), options.keys.clone())?.caching(options.cache());
        match Index::open_read_only(&dir.join(INDEX_FILE)) {
            Some(index) if reader.replica() == Some(index.watermark()?.replica) => {
                let (source, damage) = (Source::open(dir, options), Damage::default());
                Ok(Sessions { source, index, reader, damage, first_locked: None })
            }
            _ => Self::open(dir, options),
        }
    }

    /// As [`Sessions::list`], with the place where the next list goes on if there is more.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn page(&self, filter: &Filter) -> Result<Page> {
        let more = Filter { limit: filter.limit.saturating_add(1), ..filter.clone() };
        let mut rows = self.index.list(&more)?;
        let last = filter.limit.checked_sub(1).filter(|_| rows.len() > filter.limit);
        let place = |row: &SessionRow| Cursor { ended_unix_nanos: row.ended_unix_nanos, id: row.id.clone() };
        let cursor = last.and_then(|last| rows.get(last)).map(|row| place(row).text());
        rows.truncate(filter.limit);
        Ok(Page { lines: rows.into_iter().map(SessionLine::from).collect(), cursor })
    }

    /// One conversation with its messages, by its id, an unambiguous beginning of it, or the id of one of its turns.
    ///
    /// # Errors
    /// [`Error::Unknown`], [`Error::Near`], [`Error::Ambiguous`], and what the disk says.
    pub fn show(&self, id: &str) -> Result<Session> {
        let id = self.find(id)?;
        let (mut carried, mut memo) = (Carried::default(), self.source.memo());
        let (mut turns, mut locked, mut why) = (Vec::new(), 0, None);
        for (row, lsn) in self.index.turns(&id)? {
            let exchange = match self.exchange(lsn) {
                Err(Error::Journal(error @ journal::Error::KeyMissing { .. })) => {
                    locked += 1;
                    why.get_or_insert(error);
                    lost()
                }
                read => read?,
            };
            let reading = Reading::of(&self.source.key, &mut memo, &exchange);
            let inherited = carried.before(&self.source.key, &row, &reading);
            turns.push(Turn::of(&row, &exchange, &reading, &inherited));
        }
        let count = turns.len();
        let locked =
            why.map(|why| format!("{locked} of {count} turns are without what was said in them: {why}"));
        Ok(Session { id, turns, locked })
    }

    /// One turn of a conversation, with what the conversation had before it left out: by its id, the beginning of that, or
    /// its place among the turns, counted from 1.
    ///
    /// # Errors
    /// As [`Sessions::show`], and [`Error::UnknownTurn`].
    pub fn show_turn(&self, id: &str, turn: &str) -> Result<Session> {
        let mut session = self.show(id)?;
        let place = turn.parse::<usize>().ok().filter(|place| (1..=session.turns.len()).contains(place));
        let named = || session.turns.iter().position(|other| other.line.id == turn);
        let beginning = || {
            let mut matching = (0..).zip(&session.turns).filter(|(_, other)| other.line.id.starts_with(turn));
            let first = matching.next().map(|(at, _)| at).filter(|_| !turn.is_empty());
            first.filter(|_| matching.next().is_none())
        };
        let found = place.map(|place| place - 1).or_else(named).or_else(beginning);
        let Some(at) = found else {
            let count = session.turns.len();
            return Err(Error::UnknownTurn { turn: turn.to_owned(), conversation: session.id, count });
        };
        session.turns = vec![session.turns.swap_remove(at)];
        Ok(session)
    }

    /// One conversation without its messages: no body is read. Found as by [`Sessions::show`].
    ///
    /// # Errors
    /// As [`Sessions::show`].
    pub fn outline(&self, id: &str) -> Result<Outline> {
        let id = self.find(id)?;
        let turns = self.index.turns(&id)?.iter().map(|(row, _)| TurnLine::from(row)).collect();
        Ok(Outline { id, turns })
    }

    /// The exchange behind a turn, with its bodies as far as they are kept.
    ///
    /// # Errors
    /// [`Error::Unknown`], and what the disk says.
    pub fn exchange_of(&self, turn: &str) -> Result<Exchange> {
        match self.index.place_of(turn)? {
            Some(lsn) => self.exchange(lsn),
            None => Err(Error::Unknown(turn.to_owned())),
        }
    }

    /// Damage met while reading the journal, where it had to be read.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// What is said of the first segment whose key is not here, of those that had to be read.
    pub fn first_locked(&self) -> Option<&str> {
        self.first_locked.as_deref()
    }

    /// The exchange of a number; an empty one where the journal no longer holds it, so that one lost record does not
    /// hide the rest of its conversation.
    fn exchange(&self, lsn: Lsn) -> Result<Exchange> {
        match self.reader.read_at(lsn) {
            Ok(Record::Exchange(exchange)) => Ok(exchange),
            Ok(_) | Err(journal::Error::NoRecord(_)) => Ok(lost()),
            Err(error) => Err(error.into()),
        }
    }

    fn find(&self, id: &str) -> Result<String> {
        match self.index.find(id)? {
            Found::One(found) if !id.is_empty() => Ok(found),
            Found::Many(count, some) if !id.is_empty() => {
                Err(Error::Ambiguous { prefix: id.to_owned(), count, some })
            }
            _ => match self.index.near(id)? {
                near if near.is_empty() => Err(Error::Unknown(id.to_owned())),
                near => Err(Error::Near { id: id.to_owned(), near }),
            },
        }
    }
}

/// What stands for an exchange that cannot be read.
fn lost() -> Exchange {
    let mut lost = Exchange::default();
    lost.set_request_capture(Capture::None);
    lost.set_response_capture(Capture::None);
    lost
}

/// Whether an index stands at the end of its journal, as far as that can be read; and what has found that out.
fn is_current(index: &Index, source: &Source) -> Result<Option<Reader>> {
    let watermark = index.watermark()?;
    let mut reader = source.read_from(watermark.lsn)?;
    let current = reader.replica() == Some(watermark.replica) && reader.next().is_none();
    Ok(current.then_some(reader))
}
