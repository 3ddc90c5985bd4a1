//! Room that is set aside, so that on a full disk there is some left to write down what is lost.

use std::io;
use std::path::{Path, PathBuf};

use super::fs::Fs;

/// A file that holds nothing but its place.
#[derive(Debug)]
pub struct Ballast {
    path: PathBuf,
    bytes: u64,
    held: bool,
}

impl Ballast {
    /// For a journal in that folder; nothing is taken yet.
    pub fn new(dir: &Path, bytes: u64) -> Ballast {
        let path = dir.join("ballast");
        let held = std::fs::metadata(&path).is_ok_and(|found| found.len() >= bytes);
        Ballast { path, bytes, held }
    }

    /// Takes the room, where it is not taken.
    ///
    /// # Errors
    /// Where there is none.
    pub fn take(&mut self, fs: &dyn Fs) -> io::Result<()> {
        if self.held || self.bytes == 0 {
            return Ok(());
        }
        let blob = match fs.create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs.open(&self.path)?,
            made => made?,
        };
        if let Err(error) = blob.reserve(self.bytes) {
            drop(blob);
            let _ = fs.remove(&self.path);
            return Err(error);
        }
        self.held = true;
        Ok(())
    }

    /// Gives the room up. Returns whether there was any.
    pub fn release(&mut self, fs: &dyn Fs) -> bool {
        std::mem::take(&mut self.held) && fs.remove(&self.path).is_ok()
    }

    pub fn is_held(&self) -> bool {
        self.held
    }
}
