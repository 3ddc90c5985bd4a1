//! Seals a segment: its records go into one file for each class, in frames of full size, with a footer that proves them,
//! and beside them a sidecar that says what is in there.
//!
//! The sealed files count once the segment they were made from is gone; until then it does. So a crash at any moment
//! costs only the work.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::footer::Footer;
use super::frame::{Codec, Packer, RECORDS, Raw};
use super::fs::{Blob, Fs};
use super::keys::Keychain;
use super::record::Record;
use super::scan::Scan;
use super::segment::{Class, FRAMES_START, SegmentFile, SegmentHeader, VERSION};
use super::{Error, Lsn, Result};
use crate::ids;

/// How segments are sealed.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// zstd's level.
    pub level: i32,
    /// A frame is closed once it holds this many bytes before compression.
    pub frame_bytes: usize,
}

impl How {
    /// With frames as large as they are while they are written.
    pub fn of_level(level: i32) -> How {
        How { level, frame_bytes: 256 << 10 }
    }
}

/// What a sealed segment holds: the sidecar beside it, one JSON object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sidecar {
    pub segment: u64,
    pub first_lsn: u64,
    pub last_lsn: u64,
    /// When the first exchange began and the last one ended, in nanoseconds since 1970; 0 without one.
    pub from_unix_nanos: u64,
    pub to_unix_nanos: u64,
    pub exchanges: u64,
    pub gaps: u64,
    /// The ids of the conversations that have a turn here.
    pub conversations: BTreeSet<String>,
}

/// What sealing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Sealed,
    /// It is of version 1 or of a later one: it stays as it is.
    Left,
    /// It is encrypted with a key that is not at hand: it stays as it is.
    Locked,
}

/// One of the files in the making.
struct Part {
    class: Class,
    path: PathBuf,
    blob: Box<dyn Blob>,
    codec: Codec,
    packer: Packer,
    how: How,
    raw: Raw,
    len: u64,
    sequence: u32,
    hasher: blake3::Hasher,
    frames: Vec<(Lsn, u64)>,
    footer: Footer,
}

/// Seals a segment that is no longer written to.
///
/// # Errors
/// [`Error::Io`]; the segment is as it was then.
pub fn seal(file: &SegmentFile, fs: &dyn Fs, keys: &Keychain, how: How) -> Result<Outcome> {
    let path = file.path(Class::Mixed);
    let io = |source| Error::io("seal", &path, source);
    let mut scan = Scan::open(&path, file.number, keys).map_err(io)?;
    if scan.missing(&path).is_some() {
        return Ok(Outcome::Locked);
    }
    let Some(header) = scan.header.filter(|header| header.version > 1) else { return Ok(Outcome::Left) };
    let mut seal = Sealing { file, fs, header, keys, how, parts: Vec::new(), sidecar: Sidecar::default() };
    let (mut next, mut behind) = (header.first, FRAMES_START);
    while let Some(frame) = scan.next_frame().map_err(io)? {
        if frame.offset > behind {
            seal.quarantine(&path, behind, frame.offset).map_err(io)?;
        }
        behind = scan.offset();
        for (lsn, kind, payload) in scan.payloads(&frame).unwrap_or_default() {
            if lsn >= next {
                seal.take(lsn, kind, payload).map_err(io)?;
                next = lsn.after(1);
            }
        }
    }
    seal.finish(next).map_err(io)?;
    fs.remove(&path).and_then(|()| fs.sync_dir(&file.dir)).map_err(io)?;
    Ok(Outcome::Sealed)
}

/// Writes one class of a segment anew with only the records that `wanted` lets through, under the numbers they had.
///
/// # Errors
/// [`Error::Io`]; the file is as it was then. Where it cannot be read for want of a key, that is an error too.
pub fn rewrite(
    file: &SegmentFile,
    class: Class,
    fs: &dyn Fs,
    keys: &Keychain,
    how: How,
    wanted: &dyn Fn(Lsn, u16, &Bytes) -> bool,
) -> Result<()> {
    let path = file.path(class);
    let io = |source| Error::io("rewrite", &path, source);
    let mut scan = Scan::open(&path, file.number, keys).map_err(io)?;
    if let Some(missing) = scan.missing(&path) {
        return Err(missing);
    }
    let Some(header) = scan.header else { return Err(io(io::Error::other("it has no readable header"))) };
    let mut part = Part::begin(file, class, fs, &header, keys, how).map_err(io)?;
    while let Some(frame) = scan.next_frame().map_err(io)? {
        for (lsn, kind, payload) in scan.payloads(&frame).unwrap_or_default() {
            if wanted(lsn, kind, &payload) {
                part.push(lsn, kind, &payload).map_err(io)?;
            }
        }
    }
    part.end(fs).map_err(io)?;
    fs.sync_dir(&file.dir).map_err(io)
}

/// Writes a sealed segment's sidecar anew.
///
/// # Errors
/// [`Error::Io`].
pub fn describe(file: &SegmentFile, fs: &dyn Fs, keys: &Keychain) -> Result<()> {
    let Some(path) = file.holding(Class::Metadata) else { return Ok(()) };
    let io = |source| Error::io("describe", &path, source);
    let mut scan = Scan::open(&path, file.number, keys).map_err(io)?;
    let first = scan.header.map_or(Lsn::first_of(file.number), |header| header.first);
    let mut sidecar =
        Sidecar { segment: file.number, first_lsn: first.0, last_lsn: first.0, ..Sidecar::default() };
    while let Some(frame) = scan.next_frame().map_err(io)? {
        for (lsn, record) in scan.records(&frame).unwrap_or_default() {
            sidecar.last_lsn = lsn.0;
            sidecar.note(&record);
        }
    }
    sidecar.write(file, fs).and_then(|()| fs.sync_dir(&file.dir)).map_err(io)
}

struct Sealing<'a> {
    file: &'a SegmentFile,
    fs: &'a dyn Fs,
    header: SegmentHeader,
    keys: &'a Keychain,
    how: How,
    parts: Vec<Part>,
    sidecar: Sidecar,
}

impl Sealing<'_> {
    fn take(&mut self, lsn: Lsn, kind: u16, payload: Bytes) -> io::Result<()> {
        let class = Record::class_of(kind);
        let at = match self.parts.iter().position(|part| part.class == class) {
            Some(at) => at,
            None => {
                self.parts.push(Part::begin(self.file, class, self.fs, &self.header, self.keys, self.how)?);
                self.parts.len() - 1
            }
        };
        self.parts[at].push(lsn, kind, &payload)?;
        if let Ok(record) = Record::decode(kind, payload) {
            self.sidecar.note(&record);
        }
        Ok(())
    }

    fn finish(self, next: Lsn) -> io::Result<()> {
        let sidecar = Sidecar {
            segment: self.file.number,
            first_lsn: self.header.first.0,
            last_lsn: next.0.saturating_sub(1),
            ..self.sidecar
        };
        for part in self.parts {
            part.end(self.fs)?;
        }
        sidecar.write(self.file, self.fs)?;
        self.fs.sync_dir(&self.file.dir)
    }

    /// What is damaged is kept beside, so that nothing recorded is thrown away.
    fn quarantine(&self, path: &Path, from: u64, to: u64) -> io::Result<()> {
        let mut bytes = vec![0; (to - from) as usize];
        File::open(path)?.read_exact_at(&mut bytes, from)?;
        whole_file(self.fs, &path_of(self.file, &format!("damaged-at-{from}")), &bytes)
    }
}

impl Sidecar {
    fn write(&self, file: &SegmentFile, fs: &dyn Fs) -> io::Result<()> {
        let json = serde_json::to_vec(self).map_err(io::Error::other)?;
        whole_file(fs, &path_of(file, "idx"), &json)
    }

    fn note(&mut self, record: &Record) {
        match record {
            Record::Exchange(exchange) => {
                let started = exchange.started_unix_nanos;
                self.from_unix_nanos = match self.exchanges {
                    0 => started,
                    _ => self.from_unix_nanos.min(started),
                };
                self.to_unix_nanos = self.to_unix_nanos.max(exchange.ended_unix_nanos());
                self.exchanges += 1;
            }
            Record::Link(link) => {
                self.conversations.insert(link.conversation.clone());
            }
            Record::Gap(_) => self.gaps += 1,
            _ => {}
        }
    }
}

impl Part {
    fn begin(
        file: &SegmentFile,
        class: Class,
        fs: &dyn Fs,
        header: &SegmentHeader,
        keys: &Keychain,
        how: How,
    ) -> io::Result<Part> {
        let header = SegmentHeader { version: VERSION, id: ids::entropy(), class, ..*header };
        let path = file.path(class);
        let key = if header.is_encrypted() { keys.find(&path, &header.key) } else { None };
        let blob = begin_file(fs, &path)?;
        let bytes = header.encode();
        blob.write_all_at(&bytes, 0)?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes);
        let codec = Codec::new(&header, key.as_ref());
        let len = bytes.len() as u64;
        let (raw, frames, footer) = (Raw::default(), Vec::new(), Footer::default());
        let packer = Packer::new(how.level)?;
        Ok(Part { class, path, blob, codec, packer, how, raw, len, sequence: 0, hasher, frames, footer })
    }

    fn push(&mut self, lsn: Lsn, kind: u16, payload: &[u8]) -> io::Result<()> {
        if !self.raw.bytes.is_empty() && self.raw.bytes.len() + payload.len() > self.how.frame_bytes {
            self.write_frame()?;
        }
        self.raw.push_payload(lsn, kind, payload);
        self.footer.records += 1;
        self.footer.last = lsn.0;
        Ok(())
    }

    fn write_frame(&mut self) -> io::Result<()> {
        let raw = std::mem::take(&mut self.raw);
        let bytes = self.codec.encode(RECORDS, self.sequence, &raw, &mut self.packer)?;
        self.frames.push((raw.first, self.len));
        self.hasher.update(&bytes);
        self.append(&bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.blob.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        self.sequence += 1;
        Ok(())
    }

    fn end(mut self, fs: &dyn Fs) -> io::Result<()> {
        if !self.raw.bytes.is_empty() {
            self.write_frame()?;
        }
        if self.class != Class::Mixed {
            self.footer.set_frames(&self.frames);
            self.footer.root = Bytes::copy_from_slice(self.hasher.finalize().as_bytes());
            let bytes = self.footer.encode(&self.codec, self.sequence, self.len, &mut self.packer)?;
            self.append(&bytes)?;
        }
        self.blob.sync()?;
        fs.rename(&making(&self.path), &self.path)
    }
}

fn path_of(file: &SegmentFile, extension: &str) -> PathBuf {
    file.dir.join(format!("{:06}.{extension}", file.number))
}

/// The name a file has while it is made.
fn making(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn begin_file(fs: &dyn Fs, path: &Path) -> io::Result<Box<dyn Blob>> {
    let making = making(path);
    match fs.remove(&making) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs.create(&making),
    }
}

/// Writes a file that is there whole or not at all.
pub fn whole_file(fs: &dyn Fs, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let blob = begin_file(fs, path)?;
    blob.write_all_at(bytes, 0)?;
    blob.sync()?;
    fs.rename(&making(path), path)
}
