//! Finding conversations by what is known of them.

use rusqlite::{OptionalExtension, params};

use super::super::Result;
use super::rows::{self, Filter, SessionRow};
use super::{Index, schema};
use crate::journal::Lsn;

/// What an id or the beginning of one stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    One(String),
    Nothing,
    /// How many, and the latest of them.
    Many(u64, Vec<String>),
}

/// The most ids that are offered in the place of one that is not clear.
const CANDIDATES: usize = 10;

impl Index {
    /// Conversations, the one with the latest activity first.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn list(&self, filter: &Filter) -> Result<Vec<SessionRow>> {
        let mut select = self.connection.prepare_cached(schema::LIST)?;
        let model = filter.model.as_deref();
        let (beginning, exact) = match model.map(|model| (model, model.strip_suffix('*'))) {
            Some((_, Some(beginning))) => (Some(beginning), None),
            Some((exact, None)) => (None, Some(exact)),
            None => (None, None),
        };
        let nanos = |moment: Option<u64>| moment.map(|nanos| nanos as i64);
        let after = filter.after.as_ref();
        let rows = select.query_map(
            params![
                exact,
                beginning,
                filter.upstream,
                nanos(filter.since_unix_nanos),
                nanos(filter.until_unix_nanos),
                filter.flags.0 as i64,
                nanos(after.map(|place| place.ended_unix_nanos)),
                after.map(|place| &place.id),
                filter.limit as i64
            ],
            rows::session,
        )?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    /// Finds a conversation by its id, by the beginning of its id, or by the id of one of its turns.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn find(&self, id: &str) -> Result<Found> {
        if let Some(found) = self.conversation_of(id)? {
            return Ok(Found::One(found));
        }
        let beginning = "SELECT count(*) FROM conversation
            WHERE id >= ?1 AND id <= ?1 || char(1114111) AND substr(id, 1, length(?1)) = ?1";
        let count: i64 = self.connection.query_row(beginning, [id], |row| row.get(0))?;
        let mut matching = self.beginning(id, CANDIDATES)?;
        Ok(match (count, matching.len()) {
            (1, 1) => matching.pop().map_or(Found::Nothing, Found::One),
            (0, _) => Found::Nothing,
            (count, _) => Found::Many(count as u64, matching),
        })
    }

    /// The conversation of a turn; `None` where there is no such turn.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn conversation_of(&self, turn: &str) -> Result<Option<String>> {
        let exact = "SELECT conversation FROM turn WHERE id = ?1";
        Ok(self.connection.query_row(exact, [turn], |row| row.get(0)).optional()?)
    }

    /// The number of a turn's record; `None` where there is no such turn.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn place_of(&self, turn: &str) -> Result<Option<Lsn>> {
        let select = "SELECT lsn FROM turn WHERE id = ?1";
        let found = self.connection.query_row(select, [turn], |row| row.get::<_, i64>(0)).optional()?;
        Ok(found.map(|lsn| Lsn(lsn as u64)))
    }

    /// Ids of conversations that look most like one that is not there: those that begin as it does for the longest.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn near(&self, id: &str) -> Result<Vec<String>> {
        let ends = id.char_indices().map(|(at, _)| at).take(64).collect::<Vec<_>>().into_iter().rev();
        for end in ends.filter(|end| *end > 0) {
            let matching = self.beginning(&id[..end], CANDIDATES)?;
            if !matching.is_empty() {
                return Ok(matching);
            }
        }
        let filter = Filter { limit: CANDIDATES, ..Filter::default() };
        Ok(self.list(&filter)?.into_iter().map(|row| row.id).collect())
    }

    fn beginning(&self, id: &str, limit: usize) -> Result<Vec<String>> {
        let mut select = self.connection.prepare_cached(schema::BEGINNING)?;
        let rows = select.query_map(params![id, limit as i64], |row| row.get(0))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }
}
