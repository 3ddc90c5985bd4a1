//! The few things a journal's writer asks of a file system, so that a test can make each of them fail.

use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file system.
pub trait Fs: Debug + Send + Sync {
    /// Makes a folder and those above it, for its owner only.
    fn make_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes a file that must not be there yet, for its owner only.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Blob>>;
    /// Opens a file to go on in it.
    fn open(&self, path: &Path) -> io::Result<Box<dyn Blob>>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// What is free where that folder is.
    fn room(&self, path: &Path) -> io::Result<Room>;
}

/// A file that is written to.
pub trait Blob: Debug + Send {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes what was written durable.
    fn sync(&self) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Takes the room that a file of that length needs, so that writing it later cannot fail for want of room.
    fn reserve(&self, len: u64) -> io::Result<()>;
    /// Whether this is the file of that name.
    fn is_at(&self, path: &Path) -> bool;
}

/// What a file system has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub free_bytes: u64,
    pub total_bytes: u64,
    /// Files that can still be made; `u64::MAX` where the file system does not count them.
    pub free_files: u64,
}

/// The system's own.
#[derive(Debug)]
pub struct Real;

impl Fs for Real {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Blob>> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Box::new(file))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Blob>> {
        Ok(Box::new(OpenOptions::new().write(true).open(path)?))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn room(&self, path: &Path) -> io::Result<Room> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Room {
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            total_bytes: found.f_blocks.saturating_mul(found.f_frsize),
            free_files: if found.f_files == 0 { u64::MAX } else { found.f_favail },
        })
    }
}

impl Blob for File {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(self, rustix::fs::FallocateFlags::empty(), 0, len)?)
    }

    fn is_at(&self, path: &Path) -> bool {
        let same = |there: std::fs::Metadata, ours: std::fs::Metadata| {
            (there.dev(), there.ino()) == (ours.dev(), ours.ino())
        };
        std::fs::metadata(path).is_ok_and(|there| self.metadata().is_ok_and(|ours| same(there, ours)))
    }
}
