//! The rows of the index, to and from SQLite.

use bytes::Bytes;
use prost::Message;
use rusqlite::{Row, Statement, params};

use super::super::flags::Flags;
use super::super::stitch::{Footprint, Kind};
use crate::journal::facts::Facts;
use crate::journal::{End, Exchange, Link, Lsn};

/// A turn as the index holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct TurnRow {
    pub id: String,
    pub conversation: String,
    /// Empty for a root.
    pub parent: String,
    pub kind: Kind,
    pub confidence: f32,
    pub evidence: String,
    pub rules_version: u32,
    pub started_unix_nanos: u64,
    /// 0 where no byte of a response came.
    pub first_byte_micros: u64,
    pub ended_unix_nanos: u64,
    pub status: u32,
    pub end: String,
    pub model: String,
    pub upstream: String,
    pub served_by: String,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    pub finish: Option<String>,
    pub flags: Flags,
    pub body_hash: Vec<u8>,
    /// What else was read of it.
    pub facts: Facts,
}

/// A conversation as the index holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    pub id: String,
    /// Model and upstream of the turn that was recorded last.
    pub model: String,
    pub upstream: String,
    pub started_unix_nanos: u64,
    pub ended_unix_nanos: u64,
    pub turns: u64,
    /// Turns that fork off: branches and regenerations.
    pub branches: u64,
    pub flags: Flags,
}

/// Which conversations to list.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Some turn of them asked for this model; with a `*` at its end it is the beginning of a name.
    pub model: Option<String>,
    /// Some turn of them went there.
    pub upstream: Option<String>,
    /// All of these are set.
    pub flags: Flags,
    /// Those that come behind this place of a list.
    pub after: Option<Cursor>,
    /// Active at or after this moment.
    pub since_unix_nanos: Option<u64>,
    /// Begun before this moment.
    pub until_unix_nanos: Option<u64>,
    pub limit: usize,
}

/// Where a conversation stands in a list: by its latest activity, then by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub ended_unix_nanos: u64,
    pub id: String,
}

impl Default for Filter {
    fn default() -> Self {
        Filter {
            model: None,
            upstream: None,
            flags: Flags::default(),
            after: None,
            since_unix_nanos: None,
            until_unix_nanos: None,
            limit: 100,
        }
    }
}

impl TurnRow {
    /// The row of a turn that has its link.
    pub fn of(exchange: &Exchange, facts: &Facts, link: &Link) -> TurnRow {
        TurnRow {
            id: exchange.id.clone(),
            conversation: link.conversation.clone(),
            parent: link.parent.clone(),
            kind: Kind::of_name(&link.kind),
            confidence: link.confidence,
            evidence: link.evidence.clone(),
            rules_version: link.rules_version,
            started_unix_nanos: exchange.started_unix_nanos,
            first_byte_micros: exchange.first_byte_micros,
            ended_unix_nanos: exchange.ended_unix_nanos(),
            status: exchange.status,
            end: exchange.end().name().to_owned(),
            model: bounded(&exchange.model),
            upstream: bounded(&exchange.upstream),
            served_by: bounded(&exchange.served_by),
            prompt_tokens: facts.prompt_tokens,
            cached_tokens: facts.cached_tokens,
            output_tokens: facts.output_tokens,
            finish: facts.finish.clone(),
            flags: Flags::of(exchange, facts, link),
            body_hash: exchange.request_body_hash.to_vec(),
            facts: others(facts),
        }
    }

    /// What a stitcher remembers of this turn.
    pub fn footprint(self) -> Footprint {
        let exchange = Exchange {
            id: self.id,
            started_unix_nanos: self.started_unix_nanos,
            end_micros: (self.ended_unix_nanos - self.started_unix_nanos) / 1000,
            status: self.status,
            end: End::of_name(&self.end) as i32,
            request_body_hash: self.body_hash.into(),
            ..Exchange::default()
        };
        let link = Link {
            conversation: self.conversation,
            parent: self.parent,
            kind: self.kind.name().to_owned(),
            ..Link::default()
        };
        Footprint::of(&exchange, &self.facts, &link)
    }

    /// Whether it makes a branch of its conversation.
    pub fn forks(&self) -> bool {
        self.kind.forks()
    }
}

/// What no other column holds, and what is looked for by whoever reads rows: the index is a twentieth of a journal's bytes.
fn others(facts: &Facts) -> Facts {
    Facts {
        boundaries: Bytes::new(),
        prompt_tokens: None,
        output_tokens: None,
        cached_tokens: None,
        reasoning_tokens: None,
        finish: None,
        model: String::new(),
        ..facts.clone()
    }
}

/// Text that came from outside, short enough for a table. The journal has all of it.
fn bounded(text: &str) -> String {
    const MAX: usize = 200;
    text.chars().take(MAX).collect()
}

pub fn session(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        id: row.get(0)?,
        model: row.get(1)?,
        upstream: row.get(2)?,
        started_unix_nanos: unsigned(row, 3)?,
        ended_unix_nanos: unsigned(row, 4)?,
        turns: unsigned(row, 5)?,
        branches: unsigned(row, 6)?,
        flags: Flags(unsigned(row, 7)?),
    })
}

pub fn turn(row: &Row<'_>) -> rusqlite::Result<(TurnRow, Lsn)> {
    let kind: String = row.get(3)?;
    let facts: Vec<u8> = row.get(22)?;
    let turn = TurnRow {
        id: row.get(0)?,
        conversation: row.get(1)?,
        parent: row.get(2)?,
        kind: Kind::of_name(&kind),
        confidence: row.get(4)?,
        evidence: row.get(5)?,
        rules_version: row.get(6)?,
        started_unix_nanos: unsigned(row, 7)?,
        first_byte_micros: unsigned(row, 8)?,
        ended_unix_nanos: unsigned(row, 9)?,
        status: row.get(10)?,
        end: row.get(11)?,
        model: row.get(12)?,
        upstream: row.get(13)?,
        served_by: row.get(14)?,
        prompt_tokens: row.get::<_, Option<i64>>(15)?.map(|tokens| tokens as u64),
        cached_tokens: row.get::<_, Option<i64>>(16)?.map(|tokens| tokens as u64),
        output_tokens: row.get::<_, Option<i64>>(17)?.map(|tokens| tokens as u64),
        finish: row.get(18)?,
        flags: Flags(unsigned(row, 19)?),
        body_hash: row.get(21)?,
        // What this build has not written itself, it reads again from the journal.
        facts: Facts::decode(facts.as_slice()).unwrap_or_default(),
    };
    Ok((turn, Lsn(unsigned(row, 20)?)))
}

/// Reads where a turn belongs, from the columns of [`super::schema::LINK`].
pub fn link(row: &Row<'_>) -> rusqlite::Result<Link> {
    Ok(Link {
        turn: row.get(0)?,
        conversation: row.get(1)?,
        parent: row.get(2)?,
        kind: row.get(3)?,
        confidence: row.get(4)?,
        evidence: row.get(5)?,
        rules_version: row.get(6)?,
    })
}

/// Runs the insertion of a turn; returns the number of rows it made.
pub fn bind_turn(insert: &mut Statement<'_>, row: &TurnRow, lsn: Lsn) -> rusqlite::Result<usize> {
    insert.execute(params![
        row.id,
        row.conversation,
        row.parent,
        row.kind.name(),
        row.confidence,
        row.evidence,
        row.rules_version,
        row.started_unix_nanos as i64,
        row.first_byte_micros as i64,
        row.ended_unix_nanos as i64,
        row.status,
        row.end,
        row.model,
        row.upstream,
        row.served_by,
        row.prompt_tokens.map(|tokens| tokens as i64),
        row.cached_tokens.map(|tokens| tokens as i64),
        row.output_tokens.map(|tokens| tokens as i64),
        row.finish,
        row.flags.0 as i64,
        lsn.0 as i64,
        row.body_hash,
        row.facts.encode_to_vec(),
        row.facts.session.to_vec(),
    ])
}

/// SQLite's integers are signed; nothing stored here reaches 2^63 before the year 2262.
fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(column)? as u64)
}
