//! Walks the frames of one segment file and finds its way through damage.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;

use super::footer::{self, Footer};
use super::frame::{Codec, FOOTER, FrameHead, HEAD, MAGIC, RECORDS, payloads, payloads_1};
use super::keys::Keychain;
use super::record::Record;
use super::segment::{Class, FRAMES_START, SegmentFile, SegmentHeader};
use super::{Error, Lsn, Result};

/// A frame whose checksum has passed.
pub struct ScannedFrame {
    pub offset: u64,
    pub head: FrameHead,
    bytes: [u8; HEAD],
    payload: Vec<u8>,
}

/// A position in one segment file.
pub struct Scan {
    file: File,
    /// `None` where the file has no readable header or one of a later version: it yields no frames.
    pub header: Option<SegmentHeader>,
    codec: Option<Codec>,
    len: u64,
    offset: u64,
    /// Records of a file of version 1 that were passed; their numbers follow from it.
    passed: u64,
    /// Bytes passed over because they were no frame, with frames after them.
    pub skipped: u64,
    /// Stretches of such bytes.
    pub holes: u64,
}

impl Scan {
    pub fn open(path: &Path, number: u64, keys: &Keychain) -> io::Result<Scan> {
        let file = File::open(path)?;
        let mut len = file.metadata()?.len();
        let mut head = vec![0; FRAMES_START.min(len) as usize];
        file.read_exact_at(&mut head, 0)?;
        let header = SegmentHeader::decode(&head, number).filter(SegmentHeader::is_known);
        if header.is_some_and(|header| header.class != Class::Mixed) && footer::at(&file, len)?.is_some() {
            len -= footer::TRAILER as u64;
        }
        let key = header.filter(SegmentHeader::is_encrypted).and_then(|header| keys.find(path, &header.key));
        let codec = header.map(|header| Codec::new(&header, key.as_ref()));
        Ok(Scan { file, header, codec, len, offset: FRAMES_START, passed: 0, skipped: 0, holes: 0 })
    }

    /// Whether records can be read from its frames: for want of a key they may not be.
    pub fn is_readable(&self) -> bool {
        self.codec.as_ref().is_some_and(Codec::is_readable)
    }

    /// What is said where that is so; `path` is the file's.
    pub fn missing(&self, path: &Path) -> Option<Error> {
        let header = self.header.filter(|_| !self.is_readable())?;
        Some(Keychain::missing(path, &header.key))
    }

    /// Goes to a frame that is known to begin there.
    pub fn seek(&mut self, offset: u64) {
        self.offset = offset.max(FRAMES_START);
    }

    /// The length of the frames' part of the file when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The end of the last good frame so far: at the end of the scan, where a torn tail begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The frame that begins exactly there. `None` where none does.
    pub fn exact(&self, offset: u64) -> io::Result<Option<ScannedFrame>> {
        match &self.codec {
            Some(codec) if offset >= FRAMES_START => self.frame_at(codec, offset),
            _ => Ok(None),
        }
    }

    /// Where each frame begins, with the number of its first record, by their heads alone. `None` where that does not do:
    /// the heads are not all sound, or of version 1.
    pub fn frames(&self) -> io::Result<Option<Vec<(Lsn, u64)>>> {
        let Some(codec) = &self.codec else { return Ok(Some(Vec::new())) };
        let (mut found, mut offset) = (Vec::new(), FRAMES_START);
        while let Some((head, _)) = self.head_at(codec, offset)? {
            if head.kind == RECORDS {
                found.push((head.first, offset));
            }
            offset += (codec.head_len() + head.stored_len as usize) as u64;
        }
        let told = self.header.is_some_and(|header| header.version > 1);
        Ok((told && offset == self.len).then_some(found))
    }

    /// The next good frame, past any damage. `None` at the end or where only a torn tail is left.
    pub fn next_frame(&mut self) -> io::Result<Option<ScannedFrame>> {
        let Some(codec) = &self.codec else { return Ok(None) };
        let found = match self.frame_at(codec, self.offset)? {
            Some(frame) => Some(frame),
            None => self.search(codec)?,
        };
        let Some(frame) = found else { return Ok(None) };
        if frame.offset > self.offset {
            self.skipped += frame.offset - self.offset;
            self.holes += 1;
        }
        self.offset = frame.offset + (codec.head_len() + frame.payload.len()) as u64;
        Ok(Some(frame))
    }

    /// The records of the frame that came last, with their numbers; nothing for a frame of a kind or with a flag of a
    /// later version. `None`: it cannot be decoded.
    pub fn records(&mut self, frame: &ScannedFrame) -> Option<Vec<(Lsn, Record)>> {
        let header = self.header?;
        let first = if header.version == 1 { header.first.after(self.passed) } else { frame.head.first };
        let records = self.decode(frame, first)?;
        self.passed += records.len() as u64;
        Some(records)
    }

    /// The records of any frame, where the number of its first is known.
    pub fn decode(&self, frame: &ScannedFrame, first: Lsn) -> Option<Vec<(Lsn, Record)>> {
        let codec = self.codec.as_ref()?;
        match self.raw(frame)? {
            Some(raw) => codec.records(first, raw),
            None => Some(Vec::new()),
        }
    }

    /// The records of the frame that came last, undecoded.
    pub fn payloads(&mut self, frame: &ScannedFrame) -> Option<Vec<(Lsn, u16, Bytes)>> {
        let header = self.header?;
        let Some(raw) = self.raw(frame)? else { return Some(Vec::new()) };
        if header.version > 1 {
            return payloads(raw, frame.head.first);
        }
        let found = payloads_1(raw, header.first.after(self.passed))?;
        self.passed += found.len() as u64;
        Some(found)
    }

    /// Whether a sealed file has the bytes that its footer was made for.
    pub fn is_whole(&self) -> io::Result<bool> {
        let Some(footer) = self.footer()? else { return Ok(false) };
        let Some(mut left) = footer::at(&self.file, self.file.metadata()?.len())? else { return Ok(false) };
        let (mut hasher, mut offset, mut window) = (blake3::Hasher::new(), 0, vec![0; 1 << 20]);
        while left > 0 {
            let size = left.min(window.len() as u64) as usize;
            self.file.read_exact_at(&mut window[..size], offset)?;
            hasher.update(&window[..size]);
            (offset, left) = (offset + size as u64, left - size as u64);
        }
        Ok(hasher.finalize().as_bytes() == &footer.root[..])
    }

    /// The bytes of a frame; none within for one that holds no records known to this version.
    fn raw(&self, frame: &ScannedFrame) -> Option<Option<Bytes>> {
        if frame.head.kind != RECORDS || frame.head.has_later_flags() {
            return Some(None);
        }
        self.codec.as_ref()?.raw(&frame.head, &frame.bytes, frame.payload.clone()).map(Some)
    }

    /// What a sealed file says of itself at its end; `None` for one that was not sealed or whose end is damaged.
    pub fn footer(&self) -> io::Result<Option<Footer>> {
        let Some(codec) = &self.codec else { return Ok(None) };
        let Some(offset) = footer::at(&self.file, self.file.metadata()?.len())? else { return Ok(None) };
        let Some(frame) = self.frame_at(codec, offset)? else { return Ok(None) };
        let raw = codec.raw(&frame.head, &frame.bytes, frame.payload);
        Ok(raw.filter(|_| frame.head.kind == FOOTER).and_then(Footer::decode))
    }

    fn head_at(&self, codec: &Codec, offset: u64) -> io::Result<Option<(FrameHead, [u8; HEAD])>> {
        let (size, left) = (codec.head_len(), self.len.saturating_sub(offset));
        if left < size as u64 {
            return Ok(None);
        }
        let mut bytes = [0; HEAD];
        self.file.read_exact_at(&mut bytes[..size], offset)?;
        let head = codec.head(&bytes).filter(|head| left - (size as u64) >= u64::from(head.stored_len));
        Ok(head.map(|head| (head, bytes)))
    }

    fn frame_at(&self, codec: &Codec, offset: u64) -> io::Result<Option<ScannedFrame>> {
        let Some((head, bytes)) = self.head_at(codec, offset)? else { return Ok(None) };
        let mut payload = vec![0; head.stored_len as usize];
        self.file.read_exact_at(&mut payload, offset + codec.head_len() as u64)?;
        let good = codec.matches(&head, &bytes, &payload);
        Ok(good.then_some(ScannedFrame { offset, head, bytes, payload }))
    }

    /// Looks for the next frame behind a bad one.
    fn search(&self, codec: &Codec) -> io::Result<Option<ScannedFrame>> {
        const WINDOW: usize = 64 << 10;
        let mut window = vec![0; WINDOW];
        let mut base = self.offset + 1;
        while base + (codec.head_len() as u64) <= self.len {
            let size = WINDOW.min((self.len - base) as usize);
            self.file.read_exact_at(&mut window[..size], base)?;
            for at in magics(&window[..size]) {
                if let Some(frame) = self.frame_at(codec, base + at as u64)? {
                    return Ok(Some(frame));
                }
            }
            // The windows overlap by one byte less than the magic, which may lie across their border.
            base += (size - (MAGIC.len() - 1)) as u64;
        }
        Ok(None)
    }
}

/// What is said of the first of these segments whose key is not here; `None` where all of them can be read.
///
/// # Errors
/// [`Error::Io`].
pub fn locked<'a>(
    files: impl IntoIterator<Item = &'a SegmentFile>,
    keys: &Keychain,
) -> Result<Option<Error>> {
    for file in files {
        let Some(path) = file.classes.first().map(|class| file.path(*class)) else { continue };
        match Scan::open(&path, file.number, keys) {
            Ok(scan) => {
                if let Some(missing) = scan.missing(&path) {
                    return Ok(Some(missing));
                }
            }
            // It was sealed or forgotten since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::io("read", &path, source)),
        }
    }
    Ok(None)
}

fn magics(bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC).map(|(at, _)| at)
}
