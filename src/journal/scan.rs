//! Walks the frames of one segment file and finds its way through damage.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::frame::{FrameHead, HEAD, MAGIC};
use super::segment::{FRAMES_START, SegmentHeader};

/// A frame whose checksum has passed.
pub struct ScannedFrame {
    pub offset: u64,
    pub head: FrameHead,
    pub payload: Vec<u8>,
}

/// A position in one segment file.
pub struct Scan {
    file: File,
    /// `None` where the file has no readable header or one of a later version or with a key: it yields no frames.
    pub header: Option<SegmentHeader>,
    len: u64,
    offset: u64,
    /// Bytes passed over because they were no frame, with frames after them.
    pub skipped: u64,
    /// Stretches of such bytes.
    pub holes: u64,
}

impl Scan {
    pub fn open(path: &Path) -> io::Result<Scan> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut head = vec![0; FRAMES_START.min(len) as usize];
        file.read_exact_at(&mut head, 0)?;
        let header = SegmentHeader::decode(&head).filter(SegmentHeader::is_readable);
        Ok(Scan { file, header, len, offset: FRAMES_START, skipped: 0, holes: 0 })
    }

    /// Goes to a frame that is known to begin there.
    pub fn seek(&mut self, offset: u64) {
        self.offset = offset.max(FRAMES_START);
    }

    /// The length of the file when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The end of the last good frame so far: at the end of the scan, where a torn tail begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The frame that begins exactly there. `None` where none does.
    pub fn exact(&self, offset: u64) -> io::Result<Option<ScannedFrame>> {
        match self.header {
            Some(header) if offset >= FRAMES_START => self.frame_at(&header.id, offset),
            _ => Ok(None),
        }
    }

    /// The next good frame, past any damage. `None` at the end or where only a torn tail is left.
    pub fn next_frame(&mut self) -> io::Result<Option<ScannedFrame>> {
        let Some(header) = self.header else { return Ok(None) };
        if let Some(frame) = self.frame_at(&header.id, self.offset)? {
            return Ok(Some(self.step(frame)));
        }
        let Some(frame) = self.search(&header.id)? else { return Ok(None) };
        self.skipped += frame.offset - self.offset;
        self.holes += 1;
        Ok(Some(self.step(frame)))
    }

    fn step(&mut self, frame: ScannedFrame) -> ScannedFrame {
        self.offset = frame.offset + (HEAD + frame.payload.len()) as u64;
        frame
    }

    fn frame_at(&self, segment: &[u8; 16], offset: u64) -> io::Result<Option<ScannedFrame>> {
        let left = self.len.saturating_sub(offset);
        if left < HEAD as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEAD];
        self.file.read_exact_at(&mut bytes, offset)?;
        let Some(head) = FrameHead::decode(segment, &bytes) else { return Ok(None) };
        if left - (HEAD as u64) < u64::from(head.stored_len) {
            return Ok(None);
        }
        let mut payload = vec![0; head.stored_len as usize];
        self.file.read_exact_at(&mut payload, offset + HEAD as u64)?;
        let good = head.matches(segment, &bytes, &payload);
        Ok(good.then_some(ScannedFrame { offset, head, payload }))
    }

    /// Looks for the next frame behind a bad one.
    fn search(&self, segment: &[u8; 16]) -> io::Result<Option<ScannedFrame>> {
        const WINDOW: usize = 64 << 10;
        let mut window = vec![0; WINDOW];
        let mut base = self.offset + 1;
        while base + (HEAD as u64) <= self.len {
            let size = WINDOW.min((self.len - base) as usize);
            self.file.read_exact_at(&mut window[..size], base)?;
            for at in magics(&window[..size]) {
                if let Some(frame) = self.frame_at(segment, base + at as u64)? {
                    return Ok(Some(frame));
                }
            }
            // The windows overlap by one byte less than the magic, which may lie across their border.
            base += (size - (MAGIC.len() - 1)) as u64;
        }
        Ok(None)
    }
}

fn magics(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC).map(|(at, _)| at)
}
