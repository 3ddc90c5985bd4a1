//! The one place that maps files into memory.

use std::fs::File;
use std::path::Path;

use crate::error::Error;

/// A read-only view of a whole file.
pub struct Map {
    bytes: memmap2::Mmap,
}

impl Map {
    /// Maps `path`. The file must not be truncated while the model is loaded; replace model files by renaming.
    pub fn open(path: &Path) -> Result<Map, Error> {
        let fail =
            |e: std::io::Error| Error::Read { path: path.display().to_string(), reason: e.to_string() };
        let file = File::open(path).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            return Err(Error::Read {
                path: path.display().to_string(),
                reason: "not a regular file".into(),
            });
        }
        // SAFETY: the map is private and read-only, and lives as long as this value. Another process that writes to
        // the file could change bytes under us: every reader treats them as plain numbers without invalid values
        // (text is copied and checked once), so a change can give wrong weights but not undefined behaviour of ours;
        // truncation ends the process with SIGBUS, which the documentation above warns of.
        let bytes = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
        Ok(Map { bytes })
    }

    /// The file's content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
