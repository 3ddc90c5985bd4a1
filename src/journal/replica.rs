//! The name of a directory's writer.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{Error, Result};
use crate::ids;

const FILE: &str = "replica";

/// The name, made at the first call. It tells the journals of several proxies apart, and an index from one that belongs
/// to another journal.
///
/// # Errors
/// [`Error::Io`] where the file can be neither read nor made.
pub fn take(dir: &Path) -> Result<[u8; 16]> {
    if let Some(replica) = read(dir) {
        return Ok(replica);
    }
    let (path, made) = (dir.join(FILE), ids::entropy());
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| {
        file.write_all(format!("{}\n", ids::hex(&made)).as_bytes())?;
        file.sync_all()
    });
    written.map_err(|source| Error::io("write", &path, source))?;
    Ok(made)
}

/// The name, where there is one.
pub fn read(dir: &Path) -> Option<[u8; 16]> {
    let text = fs::read_to_string(dir.join(FILE)).ok()?;
    ids::unhex(text.trim())?.try_into().ok()
}
