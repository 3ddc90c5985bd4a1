//! How the index follows the journal, commit by commit.

use super::index::{TurnRow, Watermark};
use super::{Conversations, Flags, MAX_COMMITS_TO_WAIT, Result, catch_up};
use crate::journal::{Gap, Lsn};

/// What was appended since the last commit and goes into the index.
pub(super) enum Pending {
    Turn(Box<TurnRow>),
    Gap(Gap),
    /// An exchange has begun, and has ended that is no turn: their ids.
    Start(String),
    End(String),
    /// A turn's id, and what was found about it.
    Flag(String, Flags),
}

impl Conversations {
    /// An index that stays broken is tried ever more seldom: each try may take as long as SQLite waits for a lock.
    pub(super) fn note_index(&mut self, followed: bool) {
        self.index_behind = !followed;
        self.index_faults += u64::from(!followed);
        self.commits_to_wait = self.next_wait;
        self.next_wait = if followed { 0 } else { (self.next_wait * 2 + 1).min(MAX_COMMITS_TO_WAIT) };
    }

    pub(super) fn index_pending(&mut self, pending: &[(Lsn, Pending)], end: Lsn) -> Result<()> {
        let replica = self.journal.replica();
        self.index.batch(|index| {
            for (lsn, item) in pending {
                match item {
                    Pending::Turn(row) => index.apply(row, *lsn)?,
                    Pending::Gap(gap) => index.apply_gap(gap, *lsn)?,
                    Pending::Start(id) => index.start(id, *lsn)?,
                    Pending::End(id) => index.end(id)?,
                    Pending::Flag(turn, flags) => index.flag(turn, *flags)?,
                }
            }
            index.set_watermark(&Watermark { lsn: end, replica })
        })
    }

    pub(super) fn catch_up(&mut self) -> Result<()> {
        let from = self.index.watermark()?.lsn;
        let mut reader = self.source.read_from(from)?;
        catch_up::run(&self.source, &mut self.index, &mut self.stitcher, &mut reader)?;
        Ok(())
    }
}
