//! Reads a journal in the order in which it was written, while a writer may be adding to it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::erase::Erased;
use super::keys::Keychain;
use super::pack::Found;
use super::record::Record;
use super::scan::{Scan, ScannedFrame};
use super::segment::{self, Class, SegmentFile, SegmentHeader};
use super::store::{Cache, Store};
use super::{Error, Lsn, Options, Result, token};

/// What could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Bytes that are no frame, with readable frames after them or in a segment that is no longer written.
    pub skipped_bytes: u64,
    /// Stretches of such bytes.
    pub holes: u64,
    /// Segments without a readable header or of a later format version.
    pub unreadable_segments: u64,
    /// Segments whose key is not at hand.
    pub locked_segments: u64,
    /// Frames that pass their checksum but do not decode.
    pub undecodable_frames: u64,
    /// Bytes at the end of the newest segment that are no whole frame: a torn or an ongoing write.
    pub torn_bytes: u64,
}

impl Damage {
    /// Whether something that was written is lost. What only lacks its key is not, nor is an unfinished write at the end.
    pub fn is_loss(&self) -> bool {
        self.holes + self.unreadable_segments + self.undecodable_frames > 0
    }
}

/// An iterator over what happened: exchanges, links and gaps with their numbers. Exchanges have their bodies, as far as
/// those are still kept; see [`Reader::bare`]. Pieces of bodies are not shown by themselves.
pub struct Reader {
    dir: std::path::PathBuf,
    keys: Arc<Keychain>,
    store: Store,
    waiting: VecDeque<SegmentFile>,
    current: Option<Scan>,
    ready: VecDeque<(Lsn, Record)>,
    from: Lsn,
    whole: bool,
    erased: Erased,
    damage: Damage,
    first_locked: Option<String>,
}

impl Reader {
    /// Opens a journal at its beginning.
    ///
    /// # Errors
    /// [`Error::Missing`] where there is no such directory, [`Error::Io`] where it cannot be listed.
    pub fn open(dir: &Path) -> Result<Reader> {
        Self::open_at(dir, Lsn::default(), Arc::default())
    }

    /// Opens a journal at a number that [`Reader::end`] or a commit has returned, with the keys for what is encrypted.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open_at(dir: &Path, from: Lsn, keys: Arc<Keychain>) -> Result<Reader> {
        if !dir.is_dir() {
            return Err(Error::Missing(dir.to_owned()));
        }
        let mut waiting = VecDeque::from(segment::list(dir)?);
        skip_to(&mut waiting, from)?;
        let (ready, damage) = (VecDeque::new(), Damage::default());
        let store = Store::new(dir, keys.clone(), Options::default().cache());
        let (erased, dir) = (Erased::of(dir)?, dir.to_owned());
        let (current, first_locked) = (None, None);
        Ok(Reader {
            dir,
            keys,
            store,
            waiting,
            current,
            ready,
            from,
            whole: true,
            erased,
            damage,
            first_locked,
        })
    }

    /// Keeps so much for the next question about an exchange.
    pub fn caching(mut self, cache: Cache) -> Reader {
        self.store = Store::new(&self.dir, self.keys.clone(), cache);
        self
    }

    /// Shows exchanges without their bodies, which is quick.
    pub fn bare(mut self) -> Reader {
        self.whole = false;
        self
    }

    /// The number behind the last record that was read.
    pub fn end(&self) -> Lsn {
        self.from
    }

    /// Names the journal's writer.
    pub fn replica(&self) -> Option<[u8; 16]> {
        token::read(&self.dir, token::REPLICA)
    }

    /// What was not readable so far; complete once the iterator has ended.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// What is said of the first segment whose key is not here.
    pub fn first_locked(&self) -> Option<&str> {
        self.first_locked.as_deref()
    }

    /// The exchange, link or gap of that number; an exchange with its bodies.
    ///
    /// # Errors
    /// [`Error::NoRecord`] where there is none, [`Error::KeyMissing`] where there may be one, [`Error::Io`] where a file cannot
    /// be read.
    pub fn read_at(&self, lsn: Lsn) -> Result<Record> {
        let found = self.store.get(lsn, Class::Metadata)?.filter(|record| !self.erased.holds(lsn, record));
        let Some(mut record) = found else {
            return Err(self.store.locked(lsn)?.unwrap_or(Error::NoRecord(lsn)));
        };
        if let Record::Exchange(exchange) = &mut record {
            self.store.fill(exchange, lsn)?;
        }
        Ok(record)
    }

    /// Gives an exchange that was read [`Reader::bare`] its bodies, and tells which of them were there.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn fill(&self, exchange: &mut super::Exchange, lsn: Lsn) -> Result<Found> {
        self.store.fill(exchange, lsn)
    }

    fn advance(&mut self) -> Result<Option<(Lsn, Record)>> {
        loop {
            if let Some((lsn, mut record)) = self.ready.pop_front() {
                self.from = lsn.after(1);
                if let Record::Exchange(exchange) = &mut record
                    && self.whole
                {
                    self.store.fill(exchange, lsn)?;
                }
                return Ok(Some((lsn, record)));
            }
            let Some(scan) = self.current.as_mut() else {
                if !self.open_next()? {
                    return Ok(None);
                }
                continue;
            };
            let io = |source| Error::io("read a segment in", &self.dir, source);
            match scan.next_frame().map_err(io)? {
                Some(frame) => self.unpack(&frame),
                None => self.leave(),
            }
        }
    }

    fn open_next(&mut self) -> Result<bool> {
        let Some(file) = self.waiting.pop_front() else { return Ok(false) };
        let Some(path) = file.holding(Class::Metadata) else { return Ok(true) };
        let mut scan = match Scan::open(&path, file.number, &self.keys) {
            Ok(scan) => scan,
            // It was sealed or forgotten since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return self.list_again(file.number);
            }
            Err(source) => return Err(Error::io("read", &path, source)),
        };
        if scan.header.is_none() {
            self.damage.unreadable_segments += u64::from(scan.len() > 0);
        } else if let Some(missing) = scan.missing(&path) {
            let frames = scan.frames().map_err(|source| Error::io("read", &path, source))?;
            // The numbers are not encrypted: whether all in it was read before is to be seen.
            if frames.is_none_or(|frames| frames.last().is_some_and(|(first, _)| *first >= self.from)) {
                self.damage.locked_segments += 1;
                self.first_locked.get_or_insert_with(|| missing.to_string());
            }
            return Ok(true);
        }
        let io = |source| Error::io("read", &path, source);
        if scan.header.is_some_and(|header| header.version > 1 && header.first < self.from) {
            let frames = scan.frames().map_err(io)?.unwrap_or_default();
            let after = frames.partition_point(|(first, _)| *first <= self.from);
            after
                .checked_sub(1)
                .and_then(|at| frames.get(at))
                .iter()
                .for_each(|(_, offset)| scan.seek(*offset));
        }
        self.current = Some(scan);
        Ok(true)
    }

    /// Takes up a segment that lies in other files now, or is gone.
    fn list_again(&mut self, number: u64) -> Result<bool> {
        let found = segment::list(&self.dir)?;
        self.waiting = found.into_iter().filter(|file| file.number >= number).collect();
        // A file that cannot be opened although it is listed would be tried for ever.
        if self.waiting.front().is_some_and(|file| file.number == number && file.is_open()) {
            self.waiting.pop_front();
            self.damage.unreadable_segments += 1;
        }
        Ok(true)
    }

    fn unpack(&mut self, frame: &ScannedFrame) {
        let Some(records) = self.current.as_mut().and_then(|scan| scan.records(frame)) else {
            self.damage.undecodable_frames += 1;
            return;
        };
        // After a failed sync the same records stand in two segments.
        let wanted = |(lsn, record): &(Lsn, Record)| {
            *lsn >= self.from
                && Record::class_of(record.kind()) == Class::Metadata
                && !self.erased.holds(*lsn, record)
        };
        self.ready.extend(records.into_iter().filter(wanted));
    }

    fn leave(&mut self) {
        let Some(scan) = self.current.take() else { return };
        self.damage.skipped_bytes += scan.skipped;
        self.damage.holes += scan.holes;
        let tail = scan.len().saturating_sub(scan.offset());
        if tail == 0 || scan.header.is_none() {
            return;
        }
        if self.waiting.is_empty() && scan.header.is_some_and(|header| header.class == Class::Mixed) {
            self.damage.torn_bytes = tail;
        } else {
            self.damage.skipped_bytes += tail;
            self.damage.holes += 1;
        }
    }
}

/// Drops the segments that end before a number.
fn skip_to(segments: &mut VecDeque<SegmentFile>, from: Lsn) -> Result<()> {
    while let Some(next) = segments.get(1) {
        let Some(path) = next.holding(Class::Metadata) else { return Ok(()) };
        let header = match SegmentHeader::read(&path, next.number) {
            Ok(header) => header,
            // It was sealed or forgotten since it was listed. Beginning too early costs time, and shows nothing twice.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(Error::io("read", &path, source)),
        };
        if header.is_none_or(|header| header.first > from) {
            return Ok(());
        }
        segments.pop_front();
    }
    Ok(())
}

impl Iterator for Reader {
    type Item = Result<(Lsn, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_was_sealed_meanwhile_is_no_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = [1, 2].map(|number| segment::path_of(dir.path(), 20_424, number));
        std::fs::create_dir_all(paths[0].parent().expect("has one")).expect("makes it");
        paths.iter().for_each(|path| std::fs::write(path, "no segment").expect("writes"));
        let mut listed = VecDeque::from(segment::list(dir.path()).expect("lists"));
        assert_eq!(listed.len(), 2);
        std::fs::remove_file(&paths[1]).expect("removes");
        skip_to(&mut listed, Lsn::first_of(2)).expect("begins with the first");
        assert_eq!(listed.len(), 2);
    }
}
