//! The one writer of a journal: collects records, and makes them durable together.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::frame::{self, MAX_RECORD, RECORD_HEAD};
use super::record::Record;
use super::scan::Scan;
use super::segment::{self, SegmentHeader, VERSION};
use super::{Error, Position, Result};
use crate::{clock, ids};

/// How a journal is written.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A segment of this many bytes or more is followed by a new one.
    pub segment_bytes: u64,
    /// A frame is closed once it holds this many bytes before compression.
    pub frame_bytes: usize,
    /// The most bytes that may wait for a commit.
    pub pending_bytes: usize,
    /// Names the proxy replica.
    pub replica: [u8; 16],
    /// Nanoseconds since 1970; decides the epoch.
    pub unix_nanos: fn() -> u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_bytes: 64 << 20,
            frame_bytes: 256 << 10,
            pending_bytes: 512 << 20,
            replica: [0; 16],
            unix_nanos: clock::unix_nanos,
        }
    }
}

/// A journal open for writing. Dropping it loses what has not been committed.
pub struct Journal {
    dir: PathBuf,
    options: Options,
    segment: Option<OpenSegment>,
    newest: u64,
    pending: Vec<PendingFrame>,
    pending_bytes: usize,
    positions: Vec<Position>,
    torn_bytes: u64,
    lock: File,
}

struct OpenSegment {
    file: File,
    path: PathBuf,
    number: u64,
    header: SegmentHeader,
    len: u64,
    sequence: u32,
    /// Whether a sync has failed: what the page cache says of this file is no longer what the disk holds.
    poisoned: bool,
}

#[derive(Default)]
struct PendingFrame {
    raw: Vec<u8>,
    records: u32,
}

impl Journal {
    /// Opens a journal for writing, creates its directory where there is none, and cuts off a torn tail.
    ///
    /// # Errors
    /// [`Error::Locked`] while another writer has it, else [`Error::Io`].
    pub fn open(dir: &Path, options: Options) -> Result<Journal> {
        make_dir(dir)?;
        let lock = take_lock(dir)?;
        let mut journal = Journal {
            dir: dir.to_owned(),
            options,
            segment: None,
            newest: 0,
            pending: Vec::new(),
            pending_bytes: 0,
            positions: Vec::new(),
            torn_bytes: 0,
            lock,
        };
        journal.reopen_newest()?;
        Ok(journal)
    }

    /// Whether somebody has removed or moved what we write to: records would go where nobody will find them.
    pub fn is_gone(&self) -> bool {
        let same = |path: &Path, file: &File| {
            let (there, ours) = (std::fs::metadata(path), file.metadata());
            there.is_ok_and(|there| {
                ours.is_ok_and(|ours| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
            })
        };
        let segment = self.segment.as_ref();
        !same(&self.dir.join("lock"), &self.lock) || segment.is_some_and(|open| !same(&open.path, &open.file))
    }

    /// Adds a record to the next commit.
    ///
    /// # Errors
    /// [`Error::TooLarge`] and [`Error::Full`]; nothing was added then.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        self.append_together(std::slice::from_ref(record))
    }

    /// Adds records that must appear together or not at all.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_together(&mut self, records: &[Record]) -> Result<()> {
        let bytes = records.iter().map(|record| record.payload_len() + RECORD_HEAD).sum();
        if bytes > MAX_RECORD {
            return Err(Error::TooLarge { bytes, limit: MAX_RECORD });
        }
        if self.pending_bytes + bytes > self.options.pending_bytes {
            return Err(Error::Full { bytes: self.pending_bytes + bytes, limit: self.options.pending_bytes });
        }
        if self.pending.last().is_none_or(|last| last.raw.len() + bytes > self.options.frame_bytes) {
            self.pending.push(PendingFrame::default());
        }
        let Some(last) = self.pending.last_mut() else { return Ok(()) };
        for record in records {
            frame::push_record(&mut last.raw, record);
            last.records += 1;
        }
        self.pending_bytes += bytes;
        Ok(())
    }

    /// Writes what was appended and waits until it is durable. Returns the position behind it. With nothing
    /// appended it does nothing.
    ///
    /// # Errors
    /// [`Error::Io`]. The records are kept for the next commit; let some time pass before it. After a failed sync they
    /// go into a new segment, as a file whose sync has failed cannot be trusted again; a reader may then see a record
    /// twice.
    pub fn commit(&mut self) -> Result<Position> {
        self.positions.clear();
        if self.pending.is_empty() {
            return Ok(self.end());
        }
        if let Err(error) = self.write_pending() {
            self.positions.clear();
            return Err(error);
        }
        self.pending.clear();
        self.pending_bytes = 0;
        Ok(self.end())
    }

    /// Where the records of the last commit lie, in the order in which they were appended.
    pub fn positions(&self) -> &[Position] {
        &self.positions
    }

    /// Bytes that wait for a commit.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Bytes of a torn write that opening has cut off.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// The position behind the last durable frame.
    pub fn end(&self) -> Position {
        match &self.segment {
            Some(open) => Position { segment: open.number, offset: open.len, index: 0 },
            None => Position { segment: self.newest + 1, offset: 0, index: 0 },
        }
    }

    /// The random id of the segment that is being written; `None` before the first commit into it.
    pub fn segment_id(&self) -> Option<[u8; 16]> {
        self.segment.as_ref().map(|open| open.header.id)
    }

    fn write_pending(&mut self) -> Result<()> {
        let now = (self.options.unix_nanos)();
        let epoch = segment::epoch_of(now);
        let full = |open: &OpenSegment| open.len >= self.options.segment_bytes || open.header.epoch != epoch;
        if self.segment.as_ref().is_none_or(full) {
            self.segment = None;
            self.segment = Some(self.create_segment(epoch, now)?);
        }
        let Some(open) = self.segment.as_mut() else { return Ok(()) };
        let durable = open.len;
        let written = open.write(&self.pending, &mut self.positions);
        let outcome = written.and_then(|()| {
            open.file.sync_data().map_err(|source| {
                open.poisoned = true;
                Error::io("sync", &open.path, source)
            })
        });
        if outcome.is_err() && !open.take_back(durable) {
            self.segment = None;
        }
        outcome
    }

    fn create_segment(&mut self, epoch: u32, now: u64) -> Result<OpenSegment> {
        let number = self.newest + 1;
        let path = segment::path_of(&self.dir, epoch, number);
        let parent = path.parent().unwrap_or(&self.dir);
        make_dir(parent)?;
        let header = SegmentHeader {
            version: VERSION,
            id: ids::entropy(),
            replica: self.options.replica,
            epoch,
            created_unix_nanos: now,
            tenant: [0; 16],
            key: [0; 16],
        };
        let io = |source| Error::io("create", &path, source);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(io)?;
        let bytes = header.encode();
        let written = file.write_all(&bytes).map_err(io);
        let synced = written.and_then(|()| sync_dir(parent)).and_then(|()| sync_dir(&self.dir));
        // A full disk must not fill with empty segments, nor may a name be tried again that is taken.
        if synced.is_ok() || std::fs::remove_file(&path).is_err() {
            self.newest = number;
        }
        synced?;
        Ok(OpenSegment { file, path, number, header, len: bytes.len() as u64, sequence: 0, poisoned: false })
    }

    /// Goes on in the newest segment where that can be done, after cutting off a torn tail.
    fn reopen_newest(&mut self) -> Result<()> {
        let Some(last) = segment::list(&self.dir)?.pop() else { return Ok(()) };
        self.newest = last.number;
        let io = |source| Error::io("reopen", &last.path, source);
        let mut scan = Scan::open(&last.path).map_err(io)?;
        let mut sequence = 0;
        while let Some(frame) = scan.next_frame().map_err(io)? {
            sequence = frame.head.sequence.wrapping_add(1);
        }
        let Some(header) = scan.header else { return Ok(()) };
        let file = OpenOptions::new().write(true).open(&last.path).map_err(io)?;
        let len = scan.offset();
        self.torn_bytes = scan.len().saturating_sub(len);
        if self.torn_bytes > 0 {
            file.set_len(len).and_then(|()| file.sync_all()).map_err(io)?;
        }
        if header.version == VERSION {
            self.segment = Some(OpenSegment {
                file,
                path: last.path,
                number: last.number,
                header,
                len,
                sequence,
                poisoned: false,
            });
        }
        Ok(())
    }
}

impl OpenSegment {
    /// Writes frames behind the last one and notes where their records lie.
    fn write(&mut self, pending: &[PendingFrame], positions: &mut Vec<Position>) -> Result<()> {
        for frame in pending {
            let offset = self.len;
            let bytes = frame::encode(&self.header.id, self.sequence, &frame.raw);
            let written =
                bytes.and_then(|bytes| self.file.write_all_at(&bytes, offset).map(|()| bytes.len()));
            self.len += written.map_err(|source| Error::io("write to", &self.path, source))? as u64;
            self.sequence = self.sequence.wrapping_add(1);
            let at = |index| Position { segment: self.number, offset, index };
            positions.extend((0..frame.records).map(at));
        }
        Ok(())
    }

    /// Cuts the file back to what is known to be durable. Returns whether it can still be written to.
    fn take_back(&mut self, durable: u64) -> bool {
        self.len = durable;
        let cut = self.file.set_len(durable).is_ok();
        cut && !self.poisoned
    }
}

fn make_dir(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| Error::io("create directory", dir, source))
}

fn sync_dir(dir: &Path) -> Result<()> {
    let synced = File::open(dir).and_then(|opened| opened.sync_all());
    synced.map_err(|source| Error::io("sync directory", dir, source))
}

fn take_lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let io = |source| Error::io("open", &path, source);
    let file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Locked(dir.to_owned())),
        Err(TryLockError::Error(source)) => Err(Error::io("lock", &path, source)),
    }
}
