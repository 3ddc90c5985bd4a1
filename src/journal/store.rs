//! Records by their number, wherever their segment has come to lie.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::footer::Footer;
use super::keys::Keychain;
use super::pack::{self, Found};
use super::record::Record;
use super::scan::{self, Scan};
use super::segment::{self, Class, SegmentFile, SegmentHeader};
use super::{Error, Exchange, Lsn, Result};

/// What is kept for the next question.
#[derive(Clone, Copy, Debug)]
pub struct Cache {
    /// The most bytes of decoded frames, but for one frame.
    pub bytes: usize,
    /// The most open files.
    pub files: usize,
}

/// Finds records. It looks at the directory again where a file is gone, as sealing and forgetting take files away.
pub struct Store {
    dir: PathBuf,
    keys: Arc<Keychain>,
    state: RefCell<State>,
    cache: Cache,
}

#[derive(Default)]
struct State {
    /// By number; and the least number of a record in each, once that was looked up.
    segments: Vec<(SegmentFile, Option<Option<Lsn>>)>,
    files: HashMap<(u64, Class), OpenFile>,
    frames: VecDeque<Frame>,
    cached: usize,
}

struct OpenFile {
    scan: Scan,
    frames: Vec<(Lsn, u64)>,
}

struct Frame {
    place: (u64, Class, u64),
    records: Vec<(Lsn, Record)>,
    bytes: usize,
}

impl Store {
    pub fn new(dir: &Path, keys: Arc<Keychain>, cache: Cache) -> Store {
        Store { dir: dir.to_owned(), keys, state: RefCell::default(), cache }
    }

    /// The record of that number. `None` where there is none, or none any more.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn get(&self, lsn: Lsn, class: Class) -> Result<Option<Record>> {
        let mut state = self.state.borrow_mut();
        if let Some(found) = state.find(lsn, class, &self.keys, self.cache)? {
            return Ok(Some(found));
        }
        // It may have been written, sealed or taken away since the directory was looked at.
        if !state.refresh(&self.dir, lsn)? {
            return Ok(None);
        }
        state.find(lsn, class, &self.keys, self.cache)
    }

    /// What is said of the segment that may have a record of that number, where its key is not here.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn locked(&self, lsn: Lsn) -> Result<Option<Error>> {
        let file = self.state.borrow_mut().segment_of(lsn)?;
        scan::locked(&file, &self.keys)
    }

    /// Gives an exchange its bodies back, and tells which of them were there.
    ///
    /// # Errors
    /// As [`Store::get`].
    pub fn fill(&self, exchange: &mut Exchange, lsn: Lsn) -> Result<Found> {
        pack::unpack(exchange, lsn, &mut |lsn, class| self.get(lsn, class))
    }
}

impl State {
    /// Looks at the directory; returns whether a record of that number may be found now.
    fn refresh(&mut self, dir: &Path, lsn: Lsn) -> Result<bool> {
        let found = segment::list(dir)?;
        let same = found.len() == self.segments.len()
            && found.iter().zip(&self.segments).all(|(new, (old, _))| new == old);
        if !same {
            self.segments = found.into_iter().map(|file| (file, None)).collect();
            self.files.clear();
            self.frames.clear();
            self.cached = 0;
            return Ok(true);
        }
        // The segment that is written to grows without looking different.
        let Some(segment) = self.segment_of(lsn)?.filter(SegmentFile::is_open) else { return Ok(false) };
        Ok(self.files.remove(&(segment.number, Class::Mixed)).is_some())
    }

    fn find(&mut self, lsn: Lsn, class: Class, keys: &Keychain, cache: Cache) -> Result<Option<Record>> {
        let Some(segment) = self.segment_of(lsn)? else { return Ok(None) };
        let class = if segment.is_open() { Class::Mixed } else { class };
        let Some(path) = segment.holding(class) else { return Ok(None) };
        let key = (segment.number, class);
        if !self.files.contains_key(&key) {
            let Some(file) = gone(open(&path, segment.number, keys), &path)? else { return Ok(None) };
            if self.files.len() >= cache.files {
                self.files.clear();
            }
            self.files.insert(key, file);
        }
        let Some(file) = self.files.get_mut(&key) else { return Ok(None) };
        let after = file.frames.partition_point(|(first, _)| *first <= lsn);
        let Some((first, offset)) = after.checked_sub(1).and_then(|at| file.frames.get(at)).copied() else {
            return Ok(None);
        };
        let place = (segment.number, class, offset);
        if let Some(frame) = self.frames.iter().find(|frame| frame.place == place) {
            return Ok(pick(&frame.records, lsn));
        }
        let io = |source| Error::io("read", &path, source);
        let Some(frame) = file.scan.exact(offset).map_err(io)? else { return Ok(None) };
        let bytes = frame.head.raw_len as usize;
        let Some(records) = file.scan.decode(&frame, first) else { return Ok(None) };
        let found = pick(&records, lsn);
        self.remember(Frame { place, records, bytes }, cache.bytes);
        Ok(found)
    }

    /// The last segment that may have that number.
    fn segment_of(&mut self, lsn: Lsn) -> Result<Option<SegmentFile>> {
        let (mut low, mut high) = (0, self.segments.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.first_of(middle)? {
                Some(first) if first <= lsn => low = middle + 1,
                Some(_) => high = middle,
                // Without a readable header it has nothing to offer, and says nothing about its neighbours.
                None => {
                    self.segments.remove(middle);
                    high -= 1;
                }
            }
        }
        Ok(low.checked_sub(1).and_then(|at| self.segments.get(at)).map(|(file, _)| file.clone()))
    }

    fn first_of(&mut self, at: usize) -> Result<Option<Lsn>> {
        let (file, first) = &mut self.segments[at];
        if let Some(first) = first {
            return Ok(*first);
        }
        let mut found = None;
        for path in file.classes.iter().map(|class| file.path(*class)) {
            let header = gone(SegmentHeader::read(&path, file.number), &path)?.flatten();
            found = found.or(header.filter(SegmentHeader::is_known).map(|header| header.first));
        }
        *first = Some(found);
        Ok(found)
    }

    fn remember(&mut self, frame: Frame, most: usize) {
        self.cached += frame.bytes;
        self.frames.push_back(frame);
        while self.cached > most && self.frames.len() > 1 {
            self.cached -= self.frames.pop_front().map_or(0, |frame| frame.bytes);
        }
    }
}

fn pick(records: &[(Lsn, Record)], lsn: Lsn) -> Option<Record> {
    let at = records.binary_search_by_key(&lsn, |(lsn, _)| *lsn).ok()?;
    Some(records[at].1.clone())
}

fn open(path: &Path, number: u64, keys: &Keychain) -> std::io::Result<OpenFile> {
    let mut scan = Scan::open(path, number, keys)?;
    let frames = match scan.footer()? {
        Some(footer) => Footer::frames(&footer),
        None => match scan.frames()? {
            Some(frames) => frames,
            None => numbered(&mut scan)?,
        },
    };
    Ok(OpenFile { scan, frames })
}

/// A file of version 1 does not say the numbers of its records: they are counted. And behind damage only reading finds the
/// next frame.
fn numbered(scan: &mut Scan) -> std::io::Result<Vec<(Lsn, u64)>> {
    let mut frames = Vec::new();
    while let Some(frame) = scan.next_frame()? {
        let records = scan.records(&frame).unwrap_or_default();
        frames.extend(records.first().map(|(first, _)| (*first, frame.offset)));
    }
    Ok(frames)
}

/// What was read from a file; `None` where it is not there any more.
fn gone<T>(read: std::io::Result<T>, path: &Path) -> Result<Option<T>> {
    match read {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}
