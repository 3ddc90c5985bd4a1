//! The journal: an append-only log of exchanges, and the truth that every index is derived from.
//!
//! A journal is a directory. Each UTC day has a directory `epoch-YYYY-MM-DD` in it, and that one holds segments
//! `NNNNNN.seg`, numbered upwards over all days. A segment is a header (written twice) and a run of frames. A frame
//! is a head with checksums and a zstd payload; the payload is a run of typed, length-prefixed records in Protocol
//! Buffers encoding. A commit writes one frame or more and then calls `fdatasync`: what it has reported is durable.
//!
//! ```text
//! dir/lock                      held by the one writer
//! dir/epoch-2025-12-02/000001.seg
//!   | header | header | frame | frame | ... |
//!                       frame = magic kind flags check sequence raw_len stored_len crc32c | zstd(records)
//!                                                                        records = kind len payload, ...
//! ```
//!
//! Damage is met by these rules. Bytes at the end of the newest segment that are no whole frame are a torn write:
//! the writer cuts them off when it opens. Anywhere else the reader searches for the next frame, goes on there, and
//! counts what it skipped. Kinds of frames and records that a reader does not know are skipped. The bytes are
//! described for re-implementers in `docs/journal-format.md`.

pub mod cipher;
pub mod events;
mod exchange;
mod footer;
pub mod frame;
pub mod fs;
pub mod keys;
mod lsn;
pub mod pack;
pub mod piece;
mod reader;
pub mod record;
mod replica;
mod scan;
pub mod seal;
pub mod segment;
mod store;
pub mod verify;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

pub use keys::Keychain;
pub use lsn::Lsn;
pub use pack::Keep;
pub use reader::{Damage, Reader};
pub use record::{Capture, End, Exchange, Gap, Header, Level, Link, Origin, Phase, Record};
pub use writer::{Journal, Options, Sync};

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
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        Error::Io { action, path: path.to_owned(), source }
    }
}
