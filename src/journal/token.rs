//! Small random values that belong to a journal's directory.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::cipher::random;
use super::{Error, Result};
use crate::ids;

/// The name of a directory's writer. It tells the journals of several proxies apart, and an index from one that belongs
/// to another journal.
pub const REPLICA: &str = "replica";
/// The secret under which messages are hashed, where it is not made from a key that wraps.
pub const MATCH_KEY: &str = "match_key";

/// The value of that name, made at the first call.
///
/// # Errors
/// [`Error::Io`] where the file can be neither read nor made.
pub fn take<const N: usize>(dir: &Path, name: &str) -> Result<[u8; N]> {
    if let Some(value) = read(dir, name) {
        return Ok(value);
    }
    let (path, made) = (dir.join(name), random());
    let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| {
        file.write_all(format!("{}\n", ids::hex(&made)).as_bytes())?;
        file.sync_all()
    });
    written.map_err(|source| Error::io("write", &path, source))?;
    Ok(made)
}

/// The value, where there is one.
pub fn read<const N: usize>(dir: &Path, name: &str) -> Option<[u8; N]> {
    let text = fs::read_to_string(dir.join(name)).ok()?;
    ids::unhex(text.trim())?.try_into().ok()
}
