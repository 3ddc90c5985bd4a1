//! The one writer of a journal: collects records, and makes them durable together.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::active::{LEVEL, OpenSegment};
use super::cipher::Key;
use super::frame::{Codec, MAX_RECORD, Packer, RAW_SLACK, RECORD_HEAD, Raw};
use super::fs::{Blob, Fs};
use super::options::{Options, Sync};
use super::pack::{self, Keep, Known};
use super::record::{Exchange, Link, Record};
use super::scan::Scan;
use super::segment::{self, Class, SegmentHeader, VERSION};
use super::{Error, Lsn, Result, token};
use crate::ids;
use crate::openai::outline::Outline;

/// A journal open for writing. Dropping it loses what has not been committed.
pub struct Journal {
    dir: PathBuf,
    options: Options,
    replica: [u8; 16],
    segment: Option<OpenSegment>,
    newest: u64,
    next: Lsn,
    /// The epoch of what is pending, and of the pieces that are known.
    epoch: u32,
    key: Option<Key>,
    known: Known,
    packer: Packer,
    pending: Vec<Raw>,
    pending_bytes: usize,
    torn_bytes: u64,
    lock: File,
}

impl Journal {
    /// Opens a journal for writing, creates its directory where there is none, and cuts off a torn tail.
    ///
    /// # Errors
    /// [`Error::Locked`] while another writer has it, else [`Error::Io`].
    pub fn open(dir: &Path, options: Options) -> Result<Journal> {
        make_dir(&*options.fs, dir)?;
        let lock = take_lock(dir)?;
        let mut journal = Journal {
            dir: dir.to_owned(),
            replica: token::take(dir, token::REPLICA)?,
            segment: None,
            newest: 0,
            next: Lsn::default(),
            epoch: 0,
            key: None,
            known: Known::new(options.pieces),
            packer: Packer::new(LEVEL).map_err(|source| Error::io("compress for", dir, source))?,
            pending: Vec::new(),
            pending_bytes: 0,
            torn_bytes: 0,
            lock,
            options,
        };
        journal.reopen_newest()?;
        Ok(journal)
    }

    /// Whether somebody has removed or moved what we write to: records would go where nobody will find them.
    pub fn is_gone(&self) -> bool {
        let segment = self.segment.as_ref();
        !self.lock.is_at(&self.dir.join("lock")) || segment.is_some_and(|open| !open.blob.is_at(&open.path))
    }

    /// Adds a record to the next commit, and returns its number.
    ///
    /// # Errors
    /// [`Error::TooLarge`] and [`Error::Full`]; nothing was added then.
    pub fn append(&mut self, record: &Record) -> Result<Lsn> {
        self.make_room(record.payload_len())?;
        let lsn = self.next;
        self.push(std::slice::from_ref(record));
        Ok(lsn)
    }

    /// Adds an exchange to the next commit, its bodies as pieces of which each is written once in an epoch, and what goes
    /// with it: all of it appears together or not at all. Returns the exchange's number.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn record(&mut self, exchange: Exchange, keep: Keep, link: Option<Link>) -> Result<Lsn> {
        let outline = Outline::of(&exchange.request_body);
        self.record_along(&outline, exchange, keep, link)
    }

    /// As [`Journal::record`], where the outline of the request's body is known.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn record_along(
        &mut self,
        outline: &Outline,
        exchange: Exchange,
        keep: Keep,
        link: Option<Link>,
    ) -> Result<Lsn> {
        let bodies = [&exchange.request_body, &exchange.response_body, &exchange.answer];
        let edges = 10 * exchange.edge_lengths.len();
        self.make_room(bodies.iter().map(|body| body.len()).sum::<usize>() + edges + RAW_SLACK)?;
        let mut records = pack::pack(exchange, outline, keep, &mut self.known, self.next);
        let own = self.next.after(records.len() as u64 - 1);
        records.extend(link.map(Record::Link));
        self.push(&records);
        Ok(own)
    }

    /// Writes what was appended and waits until it is durable. Returns the number that the next record will have. With
    /// nothing appended it does nothing.
    ///
    /// # Errors
    /// [`Error::Io`]. The records are kept for the next commit; let some time pass before it. After a failed sync they
    /// go into a new segment, as a file whose sync has failed cannot be trusted again; they keep their numbers.
    pub fn commit(&mut self) -> Result<Lsn> {
        if !self.pending.is_empty() {
            self.write_pending()?;
            self.pending.clear();
            self.pending_bytes = 0;
        }
        Ok(self.next)
    }

    /// Bytes that wait for a commit.
    pub fn pending_bytes(&self) -> usize {
        self.pending_bytes
    }

    /// Bytes of a torn write that opening has cut off.
    pub fn torn_bytes(&self) -> u64 {
        self.torn_bytes
    }

    /// The number that the next record will have.
    pub fn next(&self) -> Lsn {
        self.next
    }

    /// Names the directory's writer; it stays the same from start to start.
    pub fn replica(&self) -> [u8; 16] {
        self.replica
    }

    /// The segment that is written to or will be next; those before it can be sealed.
    pub fn writing(&self) -> u64 {
        self.segment.as_ref().map_or(self.newest + 1, |open| open.number)
    }

    /// Forgets which pieces were written. Needed after some of them were erased.
    pub fn forget_pieces(&mut self) {
        self.known.clear();
    }

    /// Ends the segment that is written to; what comes next begins another.
    ///
    /// # Errors
    /// What the disk says; the segment goes on then.
    pub fn roll(&mut self) -> Result<()> {
        if let Some(open) = self.segment.as_ref().filter(|_| self.pending.is_empty()) {
            open.blob.sync().map_err(|source| Error::io("sync", &open.path, source))?;
            self.segment = None;
        }
        Ok(())
    }

    /// As [`Journal::roll`], where the segment is full, old or of another day.
    ///
    /// # Errors
    /// As [`Journal::roll`].
    pub fn roll_when_due(&mut self) -> Result<()> {
        let now = (self.options.unix_nanos)();
        let due = |open: &OpenSegment| {
            open.len >= self.options.segment_bytes
                || open.header.epoch != segment::epoch_of(now)
                || now.saturating_sub(open.header.created_unix_nanos) >= self.options.segment_nanos
        };
        if self.segment.as_ref().is_some_and(due) { self.roll() } else { Ok(()) }
    }

    /// Sees that a record of that size may be added, and begins a group where there is none.
    fn make_room(&mut self, bytes: usize) -> Result<()> {
        if bytes > MAX_RECORD {
            return Err(Error::TooLarge { bytes, limit: MAX_RECORD });
        }
        let wait = self.pending_bytes + bytes;
        if wait > self.options.pending_bytes {
            return Err(Error::Full { bytes: wait, limit: self.options.pending_bytes });
        }
        if self.pending.is_empty() {
            self.begin_group();
        }
        Ok(())
    }

    /// Decides into which segment the next commit goes: it determines the numbers of its records, and the epoch within
    /// which they may refer to each other.
    fn begin_group(&mut self) {
        if let Err(error) = self.roll_when_due() {
            tracing::error!(%error, "a segment could not be ended");
            self.segment = None;
        }
        let epoch = segment::epoch_of((self.options.unix_nanos)());
        if self.segment.is_none() {
            self.next = self.next.max(Lsn::first_of(self.newest + 1));
        }
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.known.clear();
            self.key = None;
        }
    }

    fn push(&mut self, records: &[Record]) {
        let bytes = records.iter().map(|record| record.payload_len() + RECORD_HEAD).sum::<usize>();
        if self.pending.last().is_none_or(|last| last.bytes.len() + bytes > self.options.frame_bytes) {
            self.pending.push(Raw::default());
        }
        let Some(last) = self.pending.last_mut() else { return };
        let before = last.bytes.len();
        for record in records {
            last.push(self.next, record);
            self.next = self.next.after(1);
        }
        self.pending_bytes += last.bytes.len() - before;
    }

    fn write_pending(&mut self) -> Result<()> {
        let mut open = match self.segment.take() {
            Some(open) => open,
            None => self.create_segment()?,
        };
        let durable = open.len;
        let written = self.pending.iter().try_for_each(|raw| open.write(raw, &mut self.packer));
        let outcome = written.and_then(|()| if self.options.sync == Sync::Os { Ok(()) } else { open.sync() });
        if outcome.is_ok() || open.take_back(durable) {
            self.segment = Some(open);
        }
        outcome
    }

    fn create_segment(&mut self) -> Result<OpenSegment> {
        let fs = &*self.options.fs;
        let number = self.newest + 1;
        let path = segment::path_of(&self.dir, self.epoch, number);
        let parent = segment::epoch_dir(&self.dir, self.epoch);
        make_dir(fs, &parent)?;
        if self.key.is_none() {
            self.key = self.options.keys.fresh(fs, &parent)?;
        }
        let header = SegmentHeader {
            version: VERSION,
            id: ids::entropy(),
            replica: self.replica,
            epoch: self.epoch,
            created_unix_nanos: (self.options.unix_nanos)(),
            tenant: self.options.tenant,
            key: self.key.as_ref().map_or([0; 16], Key::id),
            first: self.pending.first().map_or(self.next, |raw| raw.first),
            class: Class::Mixed,
        };
        let io = |source| Error::io("create", &path, source);
        let blob = fs.create(&path).map_err(io)?;
        let bytes = header.encode();
        let written = blob.write_all_at(&bytes, 0).map_err(io);
        let synced = written.and_then(|()| sync_dir(fs, &parent)).and_then(|()| sync_dir(fs, &self.dir));
        // A full disk must not fill with empty segments, nor may a name be tried again that is taken.
        if synced.is_ok() || fs.remove(&path).is_err() {
            self.newest = number;
        }
        synced?;
        let codec = Codec::new(&header, self.key.as_ref());
        let len = bytes.len() as u64;
        Ok(OpenSegment { blob, path, number, header, codec, len, sequence: 0, poisoned: false })
    }

    /// Goes on in the newest segment where that can be done, after cutting off a torn tail.
    fn reopen_newest(&mut self) -> Result<()> {
        let last = segment::list(&self.dir)?.pop();
        self.newest = last.as_ref().map_or(0, |last| last.number);
        self.next = Lsn::first_of(self.newest + 1);
        let Some(last) = last else { return Ok(()) };
        let Some(path) = last.holding(Class::Mixed).filter(|_| last.is_open()) else { return Ok(()) };
        let io = |source| Error::io("reopen", &path, source);
        let mut scan = Scan::open(&path, last.number, &self.options.keys).map_err(io)?;
        let Some(header) = scan.header else { return Ok(()) };
        let (mut sequence, mut next) = (0, header.first);
        while let Some(frame) = scan.next_frame().map_err(io)? {
            sequence = frame.head.sequence.wrapping_add(1);
            for (lsn, record) in scan.records(&frame).unwrap_or_default() {
                next = lsn.after(1);
                if let Record::Piece(piece) = record {
                    self.known.note(&piece, lsn);
                }
            }
        }
        let blob = self.options.fs.open(&path).map_err(io)?;
        let len = scan.offset();
        self.torn_bytes = scan.len().saturating_sub(len);
        if self.torn_bytes > 0 {
            blob.set_len(len).and_then(|()| blob.sync()).map_err(io)?;
        }
        // Going on behind a torn frame would encrypt twice under one nonce.
        if header.version == VERSION && !header.is_encrypted() && header.tenant == self.options.tenant {
            (self.epoch, self.next) = (header.epoch, next);
            let codec = Codec::new(&header, None);
            let number = last.number;
            self.segment =
                Some(OpenSegment { blob, path, number, header, codec, len, sequence, poisoned: false });
        }
        Ok(())
    }
}

fn make_dir(fs: &dyn Fs, dir: &Path) -> Result<()> {
    fs.make_dir(dir).map_err(|source| Error::io("create directory", dir, source))
}

fn sync_dir(fs: &dyn Fs, dir: &Path) -> Result<()> {
    fs.sync_dir(dir).map_err(|source| Error::io("sync directory", dir, source))
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
