//! Reads a journal in the order in which it was written, while a writer may be adding to it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::record::Record;
use super::scan::{Scan, ScannedFrame};
use super::segment::{self, SegmentFile};
use super::{Error, Position, Result};

/// What could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// Bytes that are no frame, with readable frames after them or in a segment that is no longer written.
    pub skipped_bytes: u64,
    /// Stretches of such bytes.
    pub holes: u64,
    /// Segments without a readable header, of a later format version, or encrypted.
    pub unreadable_segments: u64,
    /// Frames that pass their checksum but do not decode.
    pub undecodable_frames: u64,
    /// Bytes at the end of the newest segment that are no whole frame: a torn or an ongoing write.
    pub torn_bytes: u64,
}

impl Damage {
    /// Whether something that was written cannot be read. An unfinished write at the end is none.
    pub fn is_loss(&self) -> bool {
        self.holes + self.unreadable_segments + self.undecodable_frames > 0
    }
}

/// An iterator over records with their positions.
pub struct Reader {
    dir: PathBuf,
    waiting: VecDeque<SegmentFile>,
    current: Option<(u64, Scan)>,
    ready: VecDeque<(Position, Record)>,
    end: Position,
    damage: Damage,
}

impl Reader {
    /// Opens a journal at its beginning.
    ///
    /// # Errors
    /// [`Error::Missing`] where there is no such directory, [`Error::Io`] where it cannot be listed.
    pub fn open(dir: &Path) -> Result<Reader> {
        Self::open_at(dir, Position::default())
    }

    /// Opens a journal at a position that [`Reader::end`] or a commit has returned.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open_at(dir: &Path, from: Position) -> Result<Reader> {
        if !dir.is_dir() {
            return Err(Error::Missing(dir.to_owned()));
        }
        let segments = segment::list(dir)?;
        let waiting = segments.into_iter().filter(|file| file.number >= from.segment).collect();
        let (ready, damage) = (VecDeque::new(), Damage::default());
        Ok(Reader { dir: dir.to_owned(), waiting, current: None, ready, end: from, damage })
    }

    /// The position behind the last frame that was read.
    pub fn end(&self) -> Position {
        self.end
    }

    /// The random id of a segment; `None` where there is no such segment or its header is damaged.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn segment_id(&self, number: u64) -> Result<Option<[u8; 16]>> {
        segment::id_of(&self.dir, number)
    }

    /// What was not readable so far; complete once the iterator has ended.
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// The one record at a position.
    ///
    /// # Errors
    /// [`Error::NoRecord`] where there is none, [`Error::Io`] where the file cannot be read.
    pub fn read_at(&self, position: Position) -> Result<Record> {
        let missing = || Error::NoRecord(position);
        let files = segment::list(&self.dir)?;
        let file = files.into_iter().find(|file| file.number == position.segment).ok_or_else(missing)?;
        let io = |source| Error::io("read", &file.path, source);
        let scan = Scan::open(&file.path).map_err(io)?;
        let frame = scan.exact(position.offset).map_err(io)?.ok_or_else(missing)?;
        let records = frame.head.records(&frame.payload).ok_or_else(missing)?;
        records.into_iter().nth(position.index as usize).ok_or_else(missing)
    }

    fn advance(&mut self) -> Result<Option<(Position, Record)>> {
        loop {
            if let Some(next) = self.ready.pop_front() {
                return Ok(Some(next));
            }
            let Some((number, scan)) = self.current.as_mut() else {
                if !self.open_next()? {
                    return Ok(None);
                }
                continue;
            };
            let number = *number;
            let io = |source| Error::io("read a segment in", &self.dir, source);
            match scan.next_frame().map_err(io)? {
                Some(frame) => self.unpack(number, &frame),
                None => self.leave(),
            }
        }
    }

    fn open_next(&mut self) -> Result<bool> {
        let Some(file) = self.waiting.pop_front() else { return Ok(false) };
        let mut scan = Scan::open(&file.path).map_err(|source| Error::io("read", &file.path, source))?;
        if file.number == self.end.segment {
            scan.seek(self.end.offset);
        }
        if scan.header.is_none() && scan.len() > 0 {
            self.damage.unreadable_segments += 1;
        }
        self.current = Some((file.number, scan));
        Ok(true)
    }

    fn unpack(&mut self, number: u64, frame: &ScannedFrame) {
        let after = self.current.as_ref().map_or(0, |(_, scan)| scan.offset());
        self.end = Position { segment: number, offset: after, index: 0 };
        let Some(records) = frame.head.records(&frame.payload) else {
            self.damage.undecodable_frames += 1;
            return;
        };
        for (index, record) in (0u32..).zip(records) {
            self.ready.push_back((Position { segment: number, offset: frame.offset, index }, record));
        }
    }

    fn leave(&mut self) {
        let Some((_, scan)) = self.current.take() else { return };
        self.damage.skipped_bytes += scan.skipped;
        self.damage.holes += scan.holes;
        let tail = scan.len().saturating_sub(scan.offset());
        if tail == 0 || scan.header.is_none() {
            return;
        }
        if self.waiting.is_empty() {
            self.damage.torn_bytes = tail;
        } else {
            self.damage.skipped_bytes += tail;
            self.damage.holes += 1;
        }
    }
}

impl Iterator for Reader {
    type Item = Result<(Position, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}
