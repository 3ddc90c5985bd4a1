//! The head of a segment file, and where segments lie.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Error, Lsn, Result};

/// Bytes before the first frame: the header block, twice.
pub const FRAMES_START: u64 = 2 * BLOCK as u64;
/// The version of the format that this code writes and the newest it reads.
pub const VERSION: u16 = 2;

const MAGIC: [u8; 8] = *b"SERINSEG";
const BLOCK: usize = 128;
/// Bytes of a block that its checksum covers.
const SUMMED: usize = BLOCK - 4;

/// Which records a segment file holds. What is kept for different lengths of time lies in different files, so that
/// forgetting is an unlink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// All of them: a segment that is written to, or was not sealed yet.
    Mixed = 0,
    /// What happened: exchanges without their bodies, links, gaps.
    Metadata = 1,
    /// What was said: bodies and assembled answers.
    Content = 2,
    /// Streamed responses as they came, byte by byte, with their times.
    Stream = 3,
}

/// What stands at the beginning of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub version: u16,
    /// Random; also the seed of every checksum in this file, so that bytes which a client sent (and which
    /// might imitate a frame) never pass for one.
    pub id: [u8; 16],
    /// The proxy replica that wrote it.
    pub replica: [u8; 16],
    /// Days since 1970-01-01 UTC.
    pub epoch: u32,
    pub created_unix_nanos: u64,
    /// Whose records these are; zero for a proxy that serves one tenant.
    pub tenant: [u8; 16],
    /// Names the key that frames are encrypted with; zero for none.
    pub key: [u8; 16],
    /// No record in this file has a smaller number.
    pub first: Lsn,
    pub class: Class,
}

/// The files of one segment: the one that is written to, or those it was sealed into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    pub number: u64,
    /// The folder of its epoch.
    pub dir: PathBuf,
    /// Which files are there; where [`Class::Mixed`] is, it counts alone.
    pub classes: Vec<Class>,
}

impl Class {
    /// The classes that a segment is sealed into.
    pub const SEALED: [Class; 3] = [Class::Metadata, Class::Content, Class::Stream];

    /// The ending of a file's name.
    pub fn extension(self) -> &'static str {
        match self {
            Class::Mixed => "seg",
            Class::Metadata => "meta",
            Class::Content => "content",
            Class::Stream => "stream",
        }
    }

    fn of_extension(extension: &str) -> Option<Class> {
        [Class::Mixed].into_iter().chain(Self::SEALED).find(|class| class.extension() == extension)
    }

    fn of_number(number: u8) -> Option<Class> {
        [Class::Mixed].into_iter().chain(Self::SEALED).find(|class| *class as u8 == number)
    }
}

impl SegmentHeader {
    /// The bytes before the first frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(2 * BLOCK);
        block.extend_from_slice(&MAGIC);
        block.extend_from_slice(&self.version.to_le_bytes());
        block.extend_from_slice(&0u16.to_le_bytes());
        block.extend_from_slice(&(FRAMES_START as u32).to_le_bytes());
        block.extend_from_slice(&self.id);
        block.extend_from_slice(&self.replica);
        block.extend_from_slice(&self.epoch.to_le_bytes());
        block.extend_from_slice(&self.created_unix_nanos.to_le_bytes());
        block.extend_from_slice(&self.tenant);
        block.extend_from_slice(&self.key);
        if self.version > 1 {
            block.extend_from_slice(&self.first.0.to_le_bytes());
            block.push(self.class as u8);
        }
        block.resize(SUMMED, 0);
        block.extend_from_slice(&crc32c::crc32c(&block).to_le_bytes());
        block.extend_from_within(..BLOCK);
        block
    }

    /// The header from the first bytes of a file. Either of its two copies will do. `None`: no segment, both copies
    /// are damaged, or of a class that this version does not know. `number` is that of the segment: in version 1 the
    /// numbers of records follow from it.
    pub fn decode(bytes: &[u8], number: u64) -> Option<SegmentHeader> {
        bytes.chunks_exact(BLOCK).take(2).find_map(|block| Self::decode_block(block, number))
    }

    /// Reads the header of a file.
    pub(super) fn read(path: &Path, number: u64) -> std::io::Result<Option<SegmentHeader>> {
        let mut head = Vec::new();
        fs::File::open(path)?.take(FRAMES_START).read_to_end(&mut head)?;
        Ok(Self::decode(&head, number))
    }

    /// Whether this code knows the version of the frames behind this header.
    pub fn is_known(&self) -> bool {
        self.version <= VERSION
    }

    pub fn is_encrypted(&self) -> bool {
        self.key != [0; 16]
    }

    fn decode_block(block: &[u8], number: u64) -> Option<SegmentHeader> {
        let crc = u32::from_le_bytes(array(block, SUMMED)?);
        if block[..8] != MAGIC || crc32c::crc32c(&block[..SUMMED]) != crc {
            return None;
        }
        let version = u16::from_le_bytes(array(block, 8)?);
        let (first, class) = match version {
            1 => (Lsn::first_of(number), Class::Mixed),
            _ => (Lsn(u64::from_le_bytes(array(block, 92)?)), Class::of_number(block[100])?),
        };
        Some(SegmentHeader {
            version,
            id: array(block, 16)?,
            replica: array(block, 32)?,
            epoch: u32::from_le_bytes(array(block, 48)?),
            created_unix_nanos: u64::from_le_bytes(array(block, 52)?),
            tenant: array(block, 60)?,
            key: array(block, 76)?,
            first,
            class,
        })
    }
}

impl SegmentFile {
    /// Whether it is written to, or waits to be sealed.
    pub fn is_open(&self) -> bool {
        self.classes.first() == Some(&Class::Mixed)
    }

    pub fn path(&self, class: Class) -> PathBuf {
        self.dir.join(format!("{:06}.{}", self.number, class.extension()))
    }

    /// The file that holds records of that class, where it is there.
    pub fn holding(&self, class: Class) -> Option<PathBuf> {
        let class = if self.is_open() { Class::Mixed } else { class };
        self.classes.contains(&class).then(|| self.path(class))
    }
}

/// The epoch (day) that a moment belongs to.
pub fn epoch_of(unix_nanos: u64) -> u32 {
    (unix_nanos / 1_000_000_000 / 86_400) as u32
}

/// The folder of an epoch inside a journal directory.
pub fn epoch_dir(dir: &Path, epoch: u32) -> PathBuf {
    dir.join(format!("epoch-{}", date(epoch)))
}

/// The path of a segment that is written to.
pub fn path_of(dir: &Path, epoch: u32, number: u64) -> PathBuf {
    epoch_dir(dir, epoch).join(format!("{number:06}.seg"))
}

/// All segments of a journal directory in the order in which they were written.
pub fn list(dir: &Path) -> Result<Vec<SegmentFile>> {
    let mut found = Vec::new();
    for epoch in epochs(dir)? {
        list_epoch(&epoch, &mut found)?;
    }
    found.sort_by(|left, right| left.number.cmp(&right.number).then_with(|| left.dir.cmp(&right.dir)));
    Ok(found)
}

/// No record of a journal has this number or a greater one.
pub fn limit(dir: &Path) -> Result<Lsn> {
    Ok(Lsn::first_of(list(dir)?.last().map_or(0, |file| file.number) + 1))
}

/// No exchange of a journal is kept any more that has a smaller number.
pub fn first_kept(dir: &Path) -> Result<Lsn> {
    let files = list(dir)?;
    let kept = files.iter().find(|file| file.holding(Class::Metadata).is_some());
    Ok(kept.map_or(limit(dir)?, |file| Lsn::first_of(file.number)))
}

/// The folders of a journal's epochs, the oldest first.
pub fn epochs(dir: &Path) -> Result<Vec<PathBuf>> {
    let io = |source| Error::io("list", dir, source);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        if entry.file_name().to_string_lossy().starts_with("epoch-") && entry.path().is_dir() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn list_epoch(dir: &Path, found: &mut Vec<SegmentFile>) -> Result<()> {
    let io = |source| Error::io("list", dir, source);
    let mut numbers: BTreeMap<u64, Vec<Class>> = BTreeMap::new();
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        // It was forgotten since it was listed.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    for entry in entries {
        let path = entry.map_err(io)?.path();
        let text = |part: Option<&std::ffi::OsStr>| part.and_then(|part| part.to_str()).map(str::to_owned);
        let class = text(path.extension()).and_then(|extension| Class::of_extension(&extension));
        let number = text(path.file_stem()).and_then(|stem| stem.parse().ok());
        if let (Some(class), Some(number)) = (class, number) {
            numbers.entry(number).or_default().push(class);
        }
    }
    found.extend(numbers.into_iter().map(|(number, mut classes)| {
        classes.sort_unstable();
        if classes[0] == Class::Mixed {
            classes.truncate(1);
        }
        SegmentFile { number, dir: dir.to_owned(), classes }
    }));
    Ok(())
}

/// `YYYY-MM-DD` of a day number, by the proleptic Gregorian calendar.
fn date(epoch: u32) -> String {
    let seconds = i64::from(epoch) * 86_400;
    match jiff::Timestamp::from_second(seconds) {
        Ok(moment) => moment.to_string()[..10].to_owned(),
        Err(_) => format!("day-{epoch}"),
    }
}

/// The day number of a folder that [`epoch_dir`] has named.
pub fn epoch_named(dir: &Path) -> Option<u32> {
    let name = dir.file_name()?.to_str()?.strip_prefix("epoch-")?;
    let moment: jiff::Timestamp = format!("{name}T00:00:00Z").parse().ok()?;
    u32::try_from(moment.as_second() / 86_400).ok()
}

pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            version: VERSION,
            id: [7; 16],
            replica: [9; 16],
            epoch: 20_424,
            created_unix_nanos: 42,
            tenant: [5; 16],
            key: [3; 16],
            first: Lsn(77),
            class: Class::Content,
        }
    }

    #[test]
    fn either_copy_of_the_header_is_enough() {
        let bytes = header().encode();
        assert_eq!(bytes.len() as u64, FRAMES_START);
        for position in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[position / 8] ^= 1 << (position % 8);
            assert_eq!(SegmentHeader::decode(&damaged, 1), Some(header()), "bit {position}");
        }
        let mut both = bytes.clone();
        both[20] ^= 1;
        both[20 + BLOCK] ^= 1;
        assert_eq!(SegmentHeader::decode(&both, 1), None);
        assert_eq!(SegmentHeader::decode(&bytes[..BLOCK - 1], 1), None);
    }

    #[test]
    fn version_1_numbers_its_records_by_the_segment() {
        let old = SegmentHeader { version: 1, class: Class::Mixed, first: Lsn::first_of(3), ..header() };
        assert_eq!(SegmentHeader::decode(&old.encode(), 3), Some(old));
    }

    #[test]
    fn paths_carry_the_day() {
        let epoch = epoch_of(1_764_633_600_000_000_000);
        let path = path_of(Path::new("/j"), epoch, 12);
        assert_eq!(path, Path::new("/j/epoch-2025-12-02/000012.seg"));
        assert_eq!(epoch_named(path.parent().expect("has one")), Some(epoch));
        assert_eq!(epoch_named(Path::new("/j/epoch-x")), None);
    }
}
