//! What may go wrong with conversations.

use crate::journal;

/// What may go wrong with conversations.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error("the index of the recordings failed: {0}; it can be deleted, it is rebuilt from the journal")]
    Index(#[from] rusqlite::Error),
    #[error("the index of the recordings has version {0}, which this build does not know")]
    IndexVersion(i64),
    #[error("no conversation {0:?}; `serin sessions list` shows their ids")]
    Unknown(String),
    #[error("no conversation {id:?}; `serin sessions list` shows their ids, the nearest of which are {}", .near.join(", "))]
    Near { id: String, near: Vec<String> },
    #[error("{count} conversations have an id that begins with {prefix:?}; give more of it, as in {}", .some.join(", "))]
    Ambiguous { prefix: String, count: u64, some: Vec<String> },
    #[error("no turn {turn:?} in conversation {conversation:?}, which has {count}")]
    UnknownTurn { turn: String, conversation: String, count: usize },
}

impl Error {
    /// Whether there is no room on the disk.
    pub fn is_full(&self) -> bool {
        let kinds = [std::io::ErrorKind::StorageFull, std::io::ErrorKind::QuotaExceeded];
        matches!(self, Error::Journal(journal::Error::Io { source, .. }) if kinds.contains(&source.kind()))
    }
}
