//! The tables and statements of the index.

use std::fmt::Write;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::Value;

use super::super::Result;
use super::super::projection::RULES;

/// The version of the tables.
const VERSION: i64 = 5;
/// How long a reader waits for the writer.
pub const READER_PATIENCE: Duration = Duration::from_secs(5);
/// How long the writer waits. Nobody else should be writing, and commits must not stand still behind the index.
pub const WRITER_PATIENCE: Duration = Duration::from_millis(200);
pub const TABLES: [&str; 5] = ["conversation", "turn", "start", "gap", "watermark"];

const CREATE: &str = "
CREATE TABLE conversation (
  id TEXT PRIMARY KEY, model TEXT NOT NULL, upstream TEXT NOT NULL,
  started INTEGER NOT NULL, ended INTEGER NOT NULL,
  turns INTEGER NOT NULL, branches INTEGER NOT NULL, flags INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX conversation_ended ON conversation (ended);
CREATE TABLE turn (
  lsn INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
  conversation TEXT NOT NULL, parent TEXT NOT NULL, kind TEXT NOT NULL,
  confidence REAL NOT NULL, evidence TEXT NOT NULL, rules_version INTEGER NOT NULL,
  started INTEGER NOT NULL, first_byte INTEGER NOT NULL, ended INTEGER NOT NULL,
  status INTEGER NOT NULL, end TEXT NOT NULL, model TEXT NOT NULL, upstream TEXT NOT NULL, served_by TEXT NOT NULL,
  prompt_tokens INTEGER, cached_tokens INTEGER, output_tokens INTEGER, finish TEXT, flags INTEGER NOT NULL,
  body_hash BLOB NOT NULL, facts BLOB NOT NULL, session BLOB NOT NULL
);
CREATE INDEX turn_conversation ON turn (conversation, lsn);
CREATE INDEX turn_session ON turn (session) WHERE session != x'';
CREATE TABLE start (id TEXT PRIMARY KEY, lsn INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE gap (
  lsn INTEGER PRIMARY KEY,
  started INTEGER NOT NULL, ended INTEGER NOT NULL, reason TEXT NOT NULL, count INTEGER NOT NULL
);
CREATE TABLE watermark (
  one INTEGER PRIMARY KEY CHECK (one = 1), lsn INTEGER NOT NULL, replica BLOB NOT NULL
);
";

pub const CLEAR: &str =
    "DELETE FROM conversation; DELETE FROM turn; DELETE FROM start; DELETE FROM gap; DELETE FROM watermark;";

pub const INSERT_TURN: &str = "
INSERT INTO turn (id, conversation, parent, kind, confidence, evidence, rules_version, started, first_byte, ended,
  status, end, model, upstream, served_by, prompt_tokens, cached_tokens, output_tokens, finish, flags,
  lsn, body_hash, facts, session)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23,
  ?24)
ON CONFLICT (id) DO NOTHING";

pub const MOVE_TURN: &str = "UPDATE turn SET lsn = ?2 WHERE id = ?1";

pub const COUNT_TURN: &str = "
INSERT INTO conversation (id, model, upstream, started, ended, turns, branches, flags)
VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?7)
ON CONFLICT (id) DO UPDATE SET
  started = min(started, excluded.started), ended = max(ended, excluded.ended), turns = turns + 1,
  branches = branches + excluded.branches, flags = flags | excluded.flags,
  model = excluded.model, upstream = excluded.upstream";

pub const RECOUNT: &str = "
INSERT INTO conversation (id, model, upstream, started, ended, turns, branches, flags)
SELECT conversation, model, upstream, started, ended, 1, kind IN ('branch', 'regenerate', 'fan_out', 'spawned'), flags FROM turn WHERE conversation = ?1
  ORDER BY lsn
ON CONFLICT (id) DO UPDATE SET
  started = min(started, excluded.started), ended = max(ended, excluded.ended), turns = turns + 1,
  branches = branches + excluded.branches, flags = flags | excluded.flags,
  model = excluded.model, upstream = excluded.upstream";

pub const RELINK: &str = "
UPDATE turn SET conversation = ?2, parent = ?3, kind = ?4, confidence = ?5, evidence = ?6, rules_version = ?7
WHERE id = ?1";

pub const FLAG_TURN: &str = "UPDATE turn SET flags = flags | ?2 WHERE id = ?1";
pub const FLAG_CONVERSATION: &str = "
UPDATE conversation SET flags = flags | ?2 WHERE id = (SELECT conversation FROM turn WHERE id = ?1)";

pub const LINK: &str = "
SELECT id, conversation, parent, kind, confidence, evidence, rules_version FROM turn WHERE id = ?1";

/// What has begun has not ended before: a record that was written twice is read twice.
pub const INSERT_START: &str = "
INSERT INTO start (id, lsn) SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM turn WHERE id = ?1)
ON CONFLICT (id) DO UPDATE SET lsn = excluded.lsn";
pub const END_START: &str = "DELETE FROM start WHERE id = ?1";
pub const STARTED: &str = "SELECT id, lsn FROM start ORDER BY lsn";

pub const INSERT_GAP: &str = "
INSERT INTO gap (lsn, started, ended, reason, count) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO NOTHING";

pub const SET_WATERMARK: &str = "
INSERT INTO watermark (one, lsn, replica) VALUES (1, ?1, ?2)
ON CONFLICT (one) DO UPDATE SET lsn = excluded.lsn, replica = excluded.replica";

pub const LIST: &str = "
SELECT id, model, upstream, started, ended, turns, branches, flags FROM conversation
WHERE (?1 IS NULL OR EXISTS (SELECT 1 FROM turn WHERE conversation = conversation.id AND turn.model = ?1))
  AND (?2 IS NULL OR EXISTS (
    SELECT 1 FROM turn WHERE conversation = conversation.id AND substr(turn.model, 1, length(?2)) = ?2))
  AND (?3 IS NULL OR EXISTS (SELECT 1 FROM turn WHERE conversation = conversation.id AND turn.upstream = ?3))
  AND (?4 IS NULL OR ended >= ?4) AND (?5 IS NULL OR started < ?5)
  AND flags & ?6 = ?6
  AND (?7 IS NULL OR (ended, id) < (?7, ?8))
ORDER BY ended DESC, id DESC LIMIT ?9";

/// Conversations whose ids begin alike, the latest first. The range is what the primary key can answer; substr makes it
/// exact.
pub const BEGINNING: &str = "
SELECT id FROM conversation WHERE id >= ?1 AND id <= ?1 || char(1114111) AND substr(id, 1, length(?1)) = ?1
ORDER BY id DESC LIMIT ?2";

pub const TURNS_OF_CONVERSATION: &str = "SELECT id, lsn FROM turn WHERE conversation = ?1";
pub const TURNS_OF_SESSION: &str = "
SELECT id, lsn FROM turn WHERE conversation IN (SELECT conversation FROM turn WHERE session = ?1)";

/// The columns of a turn in the order in which [`super::rows::turn`] reads them.
macro_rules! select_turn {
    ($rest:literal) => {
        concat!(
            "SELECT id, conversation, parent, kind, confidence, evidence, rules_version, started, first_byte, ended, ",
            "status, end, model, upstream, served_by, prompt_tokens, cached_tokens, output_tokens, finish, flags, ",
            "lsn, body_hash, facts FROM turn ",
            $rest
        )
    };
}

pub const TURNS: &str = select_turn!("WHERE conversation = ?1 ORDER BY lsn");
pub const LATEST_TURNS: &str = select_turn!("ORDER BY lsn DESC LIMIT ?1");

/// The version of an index that this build makes: of its tables, and of the rules by which messages are hashed. The index is
/// derived: one of another version is made anew, not migrated.
pub fn current() -> i64 {
    VERSION * 10_000 + i64::from(RULES.version)
}

/// Makes the tables of an empty database.
pub fn create(connection: &Connection) -> Result<()> {
    let version = current();
    connection.execute_batch(&format!("BEGIN; {CREATE} PRAGMA user_version = {version}; COMMIT;"))?;
    Ok(())
}

/// The version of the tables; 0 for an empty database.
pub fn version(connection: &Connection) -> Result<i64> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}

/// Copies the rows of one table. `table` is one of [`TABLES`].
pub fn copy_table(from: &Connection, to: &Connection, table: &str) -> Result<()> {
    let mut select = from.prepare(&format!("SELECT * FROM {table}"))?;
    let columns = select.column_count();
    let places = vec!["?"; columns].join(", ");
    let mut insert = to.prepare(&format!("INSERT INTO {table} VALUES ({places})"))?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| row.get(column)).collect::<rusqlite::Result<Vec<Value>>>()?;
        insert.execute(rusqlite::params_from_iter(values))?;
    }
    Ok(())
}

/// Appends the rows of one table as text.
pub fn dump_table(connection: &Connection, table: &str, text: &mut String) -> Result<()> {
    let mut select = connection.prepare(&format!("SELECT * FROM {table} ORDER BY 1"))?;
    let columns = select.column_count();
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let values = (0..columns).map(|column| row.get(column)).collect::<rusqlite::Result<Vec<Value>>>()?;
        let _ = writeln!(text, "{table} {values:?}");
    }
    Ok(())
}
