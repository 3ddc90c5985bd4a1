//! The head of a segment file, and where segments lie.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Error, Result};

/// Bytes before the first frame: the header block, twice.
pub const FRAMES_START: u64 = 2 * BLOCK as u64;
/// The version of the format that this code writes and the newest it reads.
pub const VERSION: u16 = 1;

const MAGIC: [u8; 8] = *b"SERINSEG";
const BLOCK: usize = 128;
/// Bytes of a block that its checksum covers.
const SUMMED: usize = BLOCK - 4;

/// What stands at the beginning of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    pub version: u16,
    /// Random; also the seed of every checksum in this segment, so that bytes which a client sent (and which
    /// might imitate a frame) never pass for one.
    pub id: [u8; 16],
    /// The proxy replica that wrote it.
    pub replica: [u8; 16],
    /// Days since 1970-01-01 UTC.
    pub epoch: u32,
    pub created_unix_nanos: u64,
    /// Whose records these are; zero for a proxy that serves one tenant.
    pub tenant: [u8; 16],
    /// Names the key that frames are encrypted with; zero for none. This version writes and reads only that.
    pub key: [u8; 16],
}

/// A segment file on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFile {
    pub number: u64,
    pub path: PathBuf,
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
        block.resize(SUMMED, 0);
        block.extend_from_slice(&crc32c::crc32c(&block).to_le_bytes());
        block.extend_from_within(..BLOCK);
        block
    }

    /// The header from the first bytes of a file. Either of its two copies will do. `None`: no segment, or both
    /// copies are damaged.
    pub fn decode(bytes: &[u8]) -> Option<SegmentHeader> {
        bytes.chunks_exact(BLOCK).take(2).find_map(Self::decode_block)
    }

    /// Whether this code can read the frames behind this header.
    pub fn is_readable(&self) -> bool {
        self.version <= VERSION && self.key == [0; 16]
    }

    fn decode_block(block: &[u8]) -> Option<SegmentHeader> {
        let crc = u32::from_le_bytes(array(block, SUMMED)?);
        if block[..8] != MAGIC || crc32c::crc32c(&block[..SUMMED]) != crc {
            return None;
        }
        Some(SegmentHeader {
            version: u16::from_le_bytes(array(block, 8)?),
            id: array(block, 16)?,
            replica: array(block, 32)?,
            epoch: u32::from_le_bytes(array(block, 48)?),
            created_unix_nanos: u64::from_le_bytes(array(block, 52)?),
            tenant: array(block, 60)?,
            key: array(block, 76)?,
        })
    }
}

/// The epoch (day) that a moment belongs to.
pub fn epoch_of(unix_nanos: u64) -> u32 {
    (unix_nanos / 1_000_000_000 / 86_400) as u32
}

/// The path of a segment inside a journal directory.
pub fn path_of(dir: &Path, epoch: u32, number: u64) -> PathBuf {
    dir.join(format!("epoch-{}", date(epoch))).join(format!("{number:06}.seg"))
}

/// All segments of a journal directory in the order in which they were written.
pub fn list(dir: &Path) -> Result<Vec<SegmentFile>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(|source| Error::io("list", dir, source))? {
        let entry = entry.map_err(|source| Error::io("list", dir, source))?;
        if entry.file_name().to_string_lossy().starts_with("epoch-") && entry.path().is_dir() {
            list_epoch(&entry.path(), &mut found)?;
        }
    }
    found.sort_by(|left, right| left.number.cmp(&right.number).then_with(|| left.path.cmp(&right.path)));
    Ok(found)
}

/// The random id of the segment with that number, where it exists and has a readable header.
///
/// # Errors
/// [`Error::Io`] where the directory or the file cannot be read.
pub fn id_of(dir: &Path, number: u64) -> Result<Option<[u8; 16]>> {
    let Some(file) = list(dir)?.into_iter().find(|file| file.number == number) else { return Ok(None) };
    let mut head = Vec::new();
    let opened = fs::File::open(&file.path).map(|opened| opened.take(FRAMES_START));
    opened
        .and_then(|mut start| start.read_to_end(&mut head))
        .map_err(|source| Error::io("read", &file.path, source))?;
    Ok(SegmentHeader::decode(&head).map(|header| header.id))
}

fn list_epoch(dir: &Path, found: &mut Vec<SegmentFile>) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(|source| Error::io("list", dir, source))? {
        let path = entry.map_err(|source| Error::io("list", dir, source))?.path();
        let is_segment = path.extension().is_some_and(|extension| extension == "seg");
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        if let (true, Some(number)) = (is_segment, number) {
            found.push(SegmentFile { number, path });
        }
    }
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

pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> SegmentHeader {
        SegmentHeader {
            version: 1,
            id: [7; 16],
            replica: [9; 16],
            epoch: 20_424,
            created_unix_nanos: 42,
            tenant: [5; 16],
            key: [0; 16],
        }
    }

    #[test]
    fn either_copy_of_the_header_is_enough() {
        let bytes = header().encode();
        assert_eq!(bytes.len() as u64, FRAMES_START);
        for position in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[position / 8] ^= 1 << (position % 8);
            assert_eq!(SegmentHeader::decode(&damaged), Some(header()), "bit {position}");
        }
        let mut both = bytes.clone();
        both[20] ^= 1;
        both[20 + BLOCK] ^= 1;
        assert_eq!(SegmentHeader::decode(&both), None);
        assert_eq!(SegmentHeader::decode(&bytes[..BLOCK - 1]), None);
    }

    #[test]
    fn paths_carry_the_day() {
        let path = path_of(Path::new("/j"), epoch_of(1_764_633_600_000_000_000), 12);
        assert_eq!(path, Path::new("/j/epoch-2025-12-02/000012.seg"));
    }
}
