//! The SQLite index over the journal: derived, rebuildable, and never the only copy of anything.

mod look;
mod rows;
mod schema;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

pub use look::Found;
pub use rows::{Cursor, Filter, SessionRow, TurnRow};

use super::flags::Flags;
use super::hint;
use super::projection::Key;
use super::stitch::Footprint;
use super::subject::Subject;
use super::{Error, Result};
use crate::journal::{Gap, Link, Lsn};

/// An open index.
pub struct Index {
    connection: Connection,
}

/// How far into the journal an index goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// The number behind the last record that is entered.
    pub lsn: Lsn,
    /// The journal's writer: an index that belongs to another journal is noticed by it.
    pub replica: [u8; 16],
}

impl Index {
    /// Opens the index for writing. One that is damaged or of another version is emptied: it is derived.
    ///
    /// # Errors
    /// [`Error::Index`] where the file can be neither used nor replaced.
    pub fn open(path: &Path) -> Result<Index> {
        Self::try_open(path).or_else(|_| Self::replace(path))
    }

    /// Makes a new, empty index in the place of one that cannot be used.
    ///
    /// # Errors
    /// As [`Index::open`].
    pub fn replace(path: &Path) -> Result<Index> {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            // A file that is not there is as good as removed; one that stays makes the next step fail.
            let _ = std::fs::remove_file(name);
        }
        Self::try_open(path)
    }

    /// Opens the index for reading only. `None` where there is none, or none of this version.
    pub fn open_read_only(path: &Path) -> Option<Index> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).ok()?;
        connection.busy_timeout(schema::READER_PATIENCE).ok()?;
        (schema::version(&connection).ok()? == schema::current()).then_some(Index { connection })
    }

    /// An empty index in memory.
    ///
    /// # Errors
    /// [`Error::Index`] where SQLite cannot start.
    pub fn in_memory() -> Result<Index> {
        let connection = Connection::open_in_memory()?;
        schema::create(&connection)?;
        Ok(Index { connection })
    }

    fn try_open(path: &Path) -> Result<Index> {
        let private = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path);
        private.map_err(|source| crate::journal::Error::io("open", path, source))?;
        let connection = Connection::open(path)?;
        connection.busy_timeout(schema::WRITER_PATIENCE)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        match schema::version(&connection)? {
            0 => schema::create(&connection)?,
            known if known == schema::current() => {}
            other => return Err(Error::IndexVersion(other)),
        }
        Ok(Index { connection })
    }

    /// Runs changes in one transaction: all of them are kept, or none.
    ///
    /// # Errors
    /// Whatever `changes` returns, and [`Error::Index`].
    pub fn batch<T>(&mut self, changes: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let outcome = changes(self).and_then(|done| {
            self.connection.execute_batch("COMMIT")?;
            Ok(done)
        });
        if outcome.is_err() {
            // SQLite may have rolled back by itself; then there is nothing to do and this says so.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        outcome
    }

    /// Enters a turn. Entering it again only moves it to the newer position.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn apply(&self, row: &TurnRow, lsn: Lsn) -> Result<()> {
        if self.insert_turn(row, lsn)? {
            self.count_turn(row)?;
        } else {
            let mut moved = self.connection.prepare_cached(schema::MOVE_TURN)?;
            moved.execute(params![row.id, lsn.0 as i64])?;
        }
        self.end(&row.id)
    }

    /// Enters an exchange that has begun.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn start(&self, id: &str, lsn: Lsn) -> Result<()> {
        self.connection.prepare_cached(schema::INSERT_START)?.execute(params![id, lsn.0 as i64])?;
        Ok(())
    }

    /// An exchange has ended, whether it is a turn or not.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn end(&self, id: &str) -> Result<()> {
        self.connection.prepare_cached(schema::END_START)?.execute([id])?;
        Ok(())
    }

    /// Those that have begun and not ended, the oldest first, with their numbers.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn started(&self) -> Result<Vec<(String, Lsn)>> {
        let mut select = self.connection.prepare(schema::STARTED)?;
        let rows = select.query_map([], numbered)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Enters a gap in the recording.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn apply_gap(&self, gap: &Gap, lsn: Lsn) -> Result<()> {
        let mut insert = self.connection.prepare_cached(schema::INSERT_GAP)?;
        insert.execute(params![
            lsn.0 as i64,
            gap.from_unix_nanos as i64,
            gap.to_unix_nanos as i64,
            gap.reason,
            gap.count as i64,
        ])?;
        Ok(())
    }

    /// Sets flags of a turn and of its conversation. A turn that is not here stays so.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn flag(&self, turn: &str, flags: Flags) -> Result<()> {
        let bits = flags.0 as i64;
        self.connection.prepare_cached(schema::FLAG_TURN)?.execute(params![turn, bits])?;
        self.connection.prepare_cached(schema::FLAG_CONVERSATION)?.execute(params![turn, bits])?;
        Ok(())
    }

    /// Gives a known turn another link, as stitching again does.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn relink(&self, link: &Link) -> Result<()> {
        let find = "SELECT conversation FROM turn WHERE id = ?1";
        let old: Option<String> =
            self.connection.query_row(find, [&link.turn], |row| row.get(0)).optional()?;
        let Some(old) = old else { return Ok(()) };
        self.connection.prepare_cached(schema::RELINK)?.execute(params![
            link.turn,
            link.conversation,
            link.parent,
            link.kind,
            link.confidence,
            link.evidence,
            link.rules_version,
        ])?;
        self.recount(&old)?;
        self.recount(&link.conversation)
    }

    /// Where a turn belongs.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn link(&self, turn: &str) -> Result<Option<Link>> {
        let mut select = self.connection.prepare_cached(schema::LINK)?;
        Ok(select.query_row([turn], rows::link).optional()?)
    }

    /// Removes what has a smaller number, and counts the conversations anew that it was a part of.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn forget_before(&self, lsn: Lsn) -> Result<()> {
        let lsn = lsn.0 as i64;
        let mut select = self.connection.prepare("SELECT DISTINCT conversation FROM turn WHERE lsn < ?1")?;
        let conversations: Vec<String> =
            select.query_map([lsn], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
        self.connection.execute("DELETE FROM turn WHERE lsn < ?1", [lsn])?;
        self.connection.execute("DELETE FROM start WHERE lsn < ?1", [lsn])?;
        self.connection.execute("DELETE FROM gap WHERE lsn < ?1", [lsn])?;
        conversations.iter().try_for_each(|conversation| self.recount(conversation))
    }

    /// The turns that belong to a subject, with their numbers.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn turns_of(&self, key: &Key, subject: &Subject) -> Result<Vec<(String, Lsn)>> {
        let found = match subject {
            Subject::Conversation(id) => {
                let mut select = self.connection.prepare(schema::TURNS_OF_CONVERSATION)?;
                select.query_map([id], numbered)?.collect::<rusqlite::Result<_>>()?
            }
            Subject::Session(id) => {
                let mut select = self.connection.prepare(schema::TURNS_OF_SESSION)?;
                let session = hint::session_node(key, id.as_bytes());
                select.query_map([session], numbered)?.collect::<rusqlite::Result<_>>()?
            }
        };
        Ok(found)
    }

    /// Removes turns so that nothing of them is left in the file.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn erase(&mut self, turns: &[(String, Lsn)]) -> Result<()> {
        self.connection.pragma_update(None, "secure_delete", true)?;
        self.batch(|index| {
            let mut conversations = std::collections::BTreeSet::new();
            for (turn, _) in turns {
                let of = "DELETE FROM turn WHERE id = ?1 RETURNING conversation";
                let of: Option<String> =
                    index.connection.prepare_cached(of)?.query_row([turn], |row| row.get(0)).optional()?;
                conversations.extend(of);
            }
            conversations.iter().try_for_each(|conversation| index.recount(conversation))
        })?;
        self.connection.pragma_update(None, "secure_delete", false)?;
        // The log of changes still has the pages as they were. A reader in the middle of a look keeps it; the next
        // checkpoint takes it then.
        let truncate = "PRAGMA wal_checkpoint(TRUNCATE)";
        Ok(self.connection.query_row(truncate, [], |_| Ok(()))?)
    }

    fn recount(&self, conversation: &str) -> Result<()> {
        self.connection.prepare_cached("DELETE FROM conversation WHERE id = ?1")?.execute([conversation])?;
        self.connection.prepare_cached(schema::RECOUNT)?.execute([conversation])?;
        Ok(())
    }

    /// # Errors
    /// [`Error::Index`].
    pub fn watermark(&self) -> Result<Watermark> {
        let read = "SELECT lsn, replica FROM watermark";
        let found = self.connection.query_row(read, [], |row| {
            Ok(Watermark { lsn: Lsn(row.get::<_, i64>(0)? as u64), replica: row.get(1)? })
        });
        Ok(found.optional()?.unwrap_or_default())
    }

    /// # Errors
    /// [`Error::Index`].
    pub fn set_watermark(&self, watermark: &Watermark) -> Result<()> {
        let mut set = self.connection.prepare_cached(schema::SET_WATERMARK)?;
        set.execute(params![watermark.lsn.0 as i64, watermark.replica])?;
        Ok(())
    }

    /// Empties the index.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn clear(&self) -> Result<()> {
        Ok(self.connection.execute_batch(schema::CLEAR)?)
    }

    /// The turns of a conversation in the order in which they were recorded.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn turns(&self, conversation: &str) -> Result<Vec<(TurnRow, Lsn)>> {
        let mut select = self.connection.prepare_cached(schema::TURNS)?;
        let rows = select.query_map([conversation], rows::turn)?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// The latest turns, oldest first, for a stitcher to begin with.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn footprints(&self, limit: usize) -> Result<Vec<Footprint>> {
        let mut select = self.connection.prepare_cached(schema::LATEST_TURNS)?;
        let rows = select.query_map([limit as i64], |row| Ok(rows::turn(row)?.0.footprint()))?;
        let mut latest = rows.collect::<rusqlite::Result<Vec<_>>>()?;
        latest.reverse();
        Ok(latest)
    }

    /// Copies everything from another index, which may be one that cannot be written.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn copy_from(&mut self, other: &Index) -> Result<()> {
        self.batch(|index| {
            for table in schema::TABLES {
                schema::copy_table(&other.connection, &index.connection, table)?;
            }
            Ok(())
        })
    }

    /// Every row of every table as text: two indexes over the same journal are equal in it.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn dump(&self) -> Result<String> {
        let mut text = String::new();
        for table in schema::TABLES {
            schema::dump_table(&self.connection, table, &mut text)?;
        }
        Ok(text)
    }

    /// Whether the turn was new.
    fn insert_turn(&self, row: &TurnRow, lsn: Lsn) -> Result<bool> {
        let mut insert = self.connection.prepare_cached(schema::INSERT_TURN)?;
        Ok(rows::bind_turn(&mut insert, row, lsn)? == 1)
    }

    fn count_turn(&self, row: &TurnRow) -> Result<()> {
        self.connection.prepare_cached(schema::COUNT_TURN)?.execute(params![
            row.conversation,
            row.model,
            row.upstream,
            row.started_unix_nanos as i64,
            row.ended_unix_nanos as i64,
            row.forks(),
            row.flags.0 as i64,
        ])?;
        Ok(())
    }
}

/// An id and a number.
fn numbered(row: &rusqlite::Row<'_>) -> rusqlite::Result<(String, Lsn)> {
    Ok((row.get(0)?, Lsn(row.get::<_, i64>(1)? as u64)))
}
