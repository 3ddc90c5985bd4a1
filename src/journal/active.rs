//! The segment that is written to: frames are put behind the last one, and taken back where that fails.

use std::path::PathBuf;

use super::frame::{Codec, Packer, RECORDS, Raw};
use super::fs::Blob;
use super::segment::SegmentHeader;
use super::{Error, Result};

/// zstd's level that is fast enough to write at once; sealing compresses anew.
pub const LEVEL: i32 = -4;

/// A segment that is written to.
pub struct OpenSegment {
    pub blob: Box<dyn Blob>,
    pub path: PathBuf,
    pub number: u64,
    pub header: SegmentHeader,
    pub codec: Codec,
    pub len: u64,
    pub sequence: u32,
    /// Whether a sync has failed: what the page cache says of this file is no longer what the disk holds.
    pub poisoned: bool,
}

impl OpenSegment {
    /// Writes a frame behind the last one.
    pub fn write(&mut self, raw: &Raw, packer: &mut Packer) -> Result<()> {
        let io = |source| Error::io("write to", &self.path, source);
        let bytes = self.codec.encode(RECORDS, self.sequence, raw, packer).map_err(io)?;
        // Also where writing fails: no other frame may have this number.
        self.sequence = self.sequence.wrapping_add(1);
        self.blob.write_all_at(&bytes, self.len).map_err(io)?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    pub fn sync(&mut self) -> Result<()> {
        let synced = self.blob.sync();
        self.poisoned |= synced.is_err();
        synced.map_err(|source| Error::io("sync", &self.path, source))
    }

    /// Cuts the file back to what is known to be durable. Returns whether it can still be written to.
    pub fn take_back(&mut self, durable: u64) -> bool {
        self.len = durable;
        let cut = self.blob.set_len(durable).is_ok();
        cut && !self.poisoned
    }
}
