//! The journal: an append-only log of exchanges, and the truth that every index is derived from.
//!
//! A journal is a directory. Each UTC day, its epoch, has a directory `epoch-YYYY-MM-DD` in it, and that one holds
//! segments, numbered upwards over all days. A segment is a header (written twice) and a run of frames. A frame is a
//! head with checksums and a zstd payload, encrypted where that is asked for; the payload is a run of typed,
//! numbered records in Protocol Buffers encoding. A commit writes one frame or more and then calls `fdatasync`: what
//! it has reported is durable.
//!
//! ```text
//! dir/lock                      held by the one writer
//! dir/replica                   its name
//! dir/epoch-2025-12-02/000002.seg        written to
//!                      000001.meta       sealed: what happened,
//!                      000001.content    what was said,
//!                      000001.stream     and streams as they came
//!                      000001.idx        what is in these
//! ```
//!
//! Bodies are cut into [`piece`]s and each piece is written once in an epoch; an exchange refers to its pieces by their
//! numbers ([`pack`]), which stay the same when a segment is [`seal`]ed or rewritten. No epoch refers to another, so
//! forgetting is an unlink ([`retention`]).
//!
//! Damage is met by these rules. Bytes at the end of the newest segment that are no whole frame are a torn write:
//! the writer cuts them off when it opens. Anywhere else the reader searches for the next frame, goes on there, and
//! counts what it skipped; sealing keeps those bytes beside. Kinds of frames and records that a reader does not know
//! are skipped. The bytes are described for re-implementers in `docs/journal-format.md`.

mod active;
pub mod ballast;
pub mod cipher;
pub mod erase;
pub mod events;
mod exchange;
pub mod facts;
mod footer;
pub mod frame;
pub mod fs;
pub mod keys;
mod lsn;
mod options;
pub mod pack;
pub mod piece;
mod reader;
pub mod recipient;
pub mod record;
pub mod retention;
mod scan;
pub mod seal;
pub mod segment;
mod store;
pub mod token;
pub mod verify;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

pub use keys::Keychain;
pub use lsn::Lsn;
pub use options::{Options, Sync};
pub use pack::Keep;
pub use reader::{Damage, Reader};
pub use record::{Capture, End, Exchange, Flag, Gap, Header, Level, Link, Origin, Phase, Record};
pub use writer::Journal;

/// What may go wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {action} {path}: {source}", path = path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("no recordings at {path}: there is no such directory; check [record] dir", path = .0.display())]
    Missing(PathBuf),
    #[error("{path} is in use by another process that records there; stop it or give this one its own [record] dir", path = .0.display())]
    Locked(PathBuf),
    #[error("a record of {bytes} bytes is over the limit of {limit}; record bodies of that size truncated")]
    TooLarge { bytes: usize, limit: usize },
    #[error("{bytes} bytes wait for the disk, the limit is {limit}; drop the record and count it")]
    Full { bytes: usize, limit: usize },
    #[error("no readable record {0}; run `serin journal verify`")]
    NoRecord(Lsn),
    #[error("{segment} is encrypted and its key is not here: {remedy}", segment = .segment.display())]
    KeyMissing { segment: PathBuf, remedy: String },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }
}
