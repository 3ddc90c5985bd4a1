//! The end of a sealed file: where its frames begin, and a hash that proves all of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use prost::Message;

use super::frame::{FOOTER, Raw};
use super::{Lsn, frame};

/// Bytes behind the footer's frame: where it begins, and a mark.
pub const TRAILER: usize = 16;
const MARK: [u8; 8] = *b"SERINEND";
/// The kind of the one record in a footer's frame.
const KIND: u16 = 1;

/// What stands at the end of a sealed file.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Footer {
    /// For each frame, the number of its first record and its offset; each less the one before.
    #[prost(uint64, repeated, tag = "1")]
    pub first_steps: Vec<u64>,
    #[prost(uint64, repeated, tag = "2")]
    pub offset_steps: Vec<u64>,
    #[prost(uint64, tag = "3")]
    pub records: u64,
    /// The number of the last record.
    #[prost(uint64, tag = "4")]
    pub last: u64,
    /// BLAKE3, a Merkle tree, over all bytes before the footer's frame.
    #[prost(bytes = "bytes", tag = "5")]
    pub root: Bytes,
}

impl Footer {
    /// The frames, as [`super::scan::Scan::frames`] finds them.
    pub fn frames(&self) -> Vec<(Lsn, u64)> {
        let sum = |total: &mut u64, step: &u64| {
            *total = total.saturating_add(*step);
            Some(*total)
        };
        let firsts = self.first_steps.iter().scan(0, sum).map(Lsn);
        firsts.zip(self.offset_steps.iter().scan(0, sum)).collect()
    }

    pub fn set_frames(&mut self, frames: &[(Lsn, u64)]) {
        let steps = |values: Vec<u64>| {
            let before = std::iter::once(0).chain(values.clone());
            values.iter().zip(before).map(|(value, before)| value - before).collect()
        };
        self.first_steps = steps(frames.iter().map(|(first, _)| first.0).collect());
        self.offset_steps = steps(frames.iter().map(|(_, offset)| *offset).collect());
    }

    /// The footer as a frame and the trailer behind it. `offset`: where the frame will begin.
    ///
    /// # Errors
    /// As [`frame::Codec::encode`].
    pub fn encode(
        &self,
        codec: &frame::Codec,
        sequence: u32,
        offset: u64,
        packer: &mut frame::Packer,
    ) -> io::Result<Vec<u8>> {
        let mut raw = Raw::default();
        raw.push_payload(Lsn(self.last), KIND, &self.encode_to_vec());
        let mut bytes = codec.encode(FOOTER, sequence, &raw, packer)?;
        bytes.extend_from_slice(&offset.to_le_bytes());
        bytes.extend_from_slice(&MARK);
        Ok(bytes)
    }

    /// Reads the records of a footer's frame.
    pub fn decode(raw: Bytes) -> Option<Footer> {
        let records = frame::payloads(raw, Lsn(0))?;
        let (_, _, payload) = records.into_iter().find(|(_, kind, _)| *kind == KIND)?;
        Footer::decode_payload(payload)
    }

    fn decode_payload(payload: Bytes) -> Option<Footer> {
        let footer = <Footer as Message>::decode(payload).ok()?;
        (footer.first_steps.len() == footer.offset_steps.len()).then_some(footer)
    }
}

/// Where a file's footer begins; `None` where it has none.
pub fn at(file: &File, len: u64) -> io::Result<Option<u64>> {
    let Some(start) = len.checked_sub(TRAILER as u64) else { return Ok(None) };
    let mut trailer = [0; TRAILER];
    file.read_exact_at(&mut trailer, start)?;
    let (offset, mark) = trailer.split_at(8);
    let offset = u64::from_le_bytes(offset.try_into().unwrap_or_default());
    Ok((mark == MARK && offset < start).then_some(offset))
}
