//! A frame: the unit of compression, of checksums and of atomicity. Records appended together appear together.

use std::io::Read;

use bytes::Bytes;

use super::record::Record;
use super::segment::array;

/// Bytes of a frame's head.
pub const HEAD: usize = 24;
/// The most bytes a frame may hold before compression. A head that claims more is damage.
pub const MAX_RAW: u32 = 256 << 20;
/// The most bytes one record may take.
pub const MAX_RECORD: usize = 192 << 20;
/// Bytes before each record's payload: type (u16) and length (u32).
pub const RECORD_HEAD: usize = 6;
pub const MAGIC: [u8; 4] = [0xf5, b'S', b'R', b'N'];

const KIND_RECORDS: u8 = 1;
const FLAG_ZSTD: u8 = 1;
const LEVEL: i32 = 3;
/// 2^23 bytes: more than level 3 ever uses, and the most a hostile file can make the decoder reserve.
const WINDOW_LOG_MAX: u32 = 23;

/// The head of a frame whose own check has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    pub kind: u8,
    pub flags: u8,
    /// Counts frames within a segment, from 0.
    pub sequence: u32,
    pub raw_len: u32,
    pub stored_len: u32,
    crc: u32,
}

impl FrameHead {
    /// Reads a head. `None` where no frame begins.
    pub fn decode(segment: &[u8; 16], bytes: &[u8]) -> Option<FrameHead> {
        let head: [u8; HEAD] = array(bytes, 0)?;
        if head[..4] != MAGIC || u16::from_le_bytes(array(&head, 6)?) != check(segment, &head) {
            return None;
        }
        let decoded = FrameHead {
            kind: head[4],
            flags: head[5],
            sequence: u32::from_le_bytes(array(&head, 8)?),
            raw_len: u32::from_le_bytes(array(&head, 12)?),
            stored_len: u32::from_le_bytes(array(&head, 16)?),
            crc: u32::from_le_bytes(array(&head, 20)?),
        };
        (decoded.raw_len <= MAX_RAW && decoded.stored_len <= MAX_RAW + MAX_RAW / 128).then_some(decoded)
    }

    /// Whether the payload is the one this head was written for.
    pub fn matches(&self, segment: &[u8; 16], head: &[u8], payload: &[u8]) -> bool {
        head.len() >= HEAD
            && payload.len() == self.stored_len as usize
            && sum(segment, head, payload) == self.crc
    }

    /// The records of a payload that has passed its checksum. A frame of a kind or with a flag that this version
    /// does not know holds nothing for it. `None`: the bytes are no frame after all.
    pub fn records(&self, payload: &[u8]) -> Option<Vec<Record>> {
        if self.kind != KIND_RECORDS || self.flags & !FLAG_ZSTD != 0 {
            return Some(Vec::new());
        }
        let raw = match self.flags & FLAG_ZSTD {
            0 => payload.to_vec(),
            _ => inflate(payload, self.raw_len as usize)?,
        };
        split(Bytes::from(raw))
    }
}

/// Appends one record in the form in which frames hold it.
pub fn push_record(raw: &mut Vec<u8>, record: &Record) {
    let start = raw.len();
    raw.extend_from_slice(&record.kind().to_le_bytes());
    raw.extend_from_slice(&[0; 4]);
    record.encode(raw);
    let len = (raw.len() - start - RECORD_HEAD) as u32;
    raw[start + 2..start + RECORD_HEAD].copy_from_slice(&len.to_le_bytes());
}

/// Builds a whole frame around records laid out by [`push_record`].
pub fn encode(segment: &[u8; 16], sequence: u32, raw: &[u8]) -> std::io::Result<Vec<u8>> {
    let payload = zstd::bulk::compress(raw, LEVEL)?;
    let mut frame = Vec::with_capacity(HEAD + payload.len());
    frame.extend_from_slice(&MAGIC);
    frame.extend_from_slice(&[KIND_RECORDS, FLAG_ZSTD, 0, 0]);
    frame.extend_from_slice(&sequence.to_le_bytes());
    frame.extend_from_slice(&(raw.len() as u32).to_le_bytes());
    frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    let check = check(segment, &frame);
    frame[6..8].copy_from_slice(&check.to_le_bytes());
    let crc = sum(segment, &frame, &payload);
    frame[20..24].copy_from_slice(&crc.to_le_bytes());
    frame.extend_from_slice(&payload);
    Ok(frame)
}

/// A short check over the head alone, so that a search for frames in damaged bytes need not read the payload that
/// each chance find claims to have.
fn check(segment: &[u8; 16], head: &[u8]) -> u16 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(segment), &head[..6]);
    crc32c::crc32c_append(crc, &head[8..20]) as u16
}

fn sum(segment: &[u8; 16], head: &[u8], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(segment), &head[..20]);
    crc32c::crc32c_append(crc, payload)
}

fn inflate(payload: &[u8], raw_len: usize) -> Option<Vec<u8>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(payload).ok()?;
    decoder.window_log_max(WINDOW_LOG_MAX).ok()?;
    let mut raw = Vec::new();
    decoder.take(raw_len as u64 + 1).read_to_end(&mut raw).ok()?;
    (raw.len() == raw_len).then_some(raw)
}

fn split(mut raw: Bytes) -> Option<Vec<Record>> {
    let mut records = Vec::new();
    while !raw.is_empty() {
        let kind = u16::from_le_bytes(array(&raw, 0)?);
        let len = u32::from_le_bytes(array(&raw, 2)?) as usize;
        if raw.len() - RECORD_HEAD < len {
            return None;
        }
        let _ = raw.split_to(RECORD_HEAD);
        records.push(Record::decode(kind, raw.split_to(len)).ok()?);
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::super::record::Gap;
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: [u8; 16] = [3; 16];

    fn decode(bytes: &[u8]) -> Option<Vec<Record>> {
        let head = FrameHead::decode(&SEGMENT, bytes)?;
        let payload = bytes.get(HEAD..HEAD + head.stored_len as usize)?;
        head.matches(&SEGMENT, bytes, payload).then(|| head.records(payload))?
    }

    fn sample() -> Vec<Record> {
        let gap = Gap { from_unix_nanos: 1, to_unix_nanos: 9, reason: "queue_full".into(), count: 4 };
        vec![Record::Gap(gap), Record::Unknown { kind: 900, payload: Bytes::from_static(b"later") }]
    }

    fn frame(records: &[Record]) -> Vec<u8> {
        let mut raw = Vec::new();
        records.iter().for_each(|record| push_record(&mut raw, record));
        encode(&SEGMENT, 5, &raw).expect("zstd compresses any bytes")
    }

    #[test]
    fn every_bit_of_a_frame_is_guarded() {
        let good = frame(&sample());
        assert_eq!(decode(&good), Some(sample()));
        for position in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[position / 8] ^= 1 << (position % 8);
            assert_eq!(decode(&bad), None, "bit {position}");
        }
    }

    #[test]
    fn another_segments_frame_is_refused() {
        let good = frame(&sample());
        assert_eq!(FrameHead::decode(&[4; 16], &good), None);
    }

    #[test]
    fn a_payload_longer_than_it_claims_is_refused() {
        let payload = zstd::bulk::compress(&vec![0u8; 1 << 20], 3).expect("compresses");
        assert_eq!(inflate(&payload, 1000), None);
        assert_eq!(inflate(&payload, 1 << 20).map(|raw| raw.len()), Some(1 << 20));
    }

    #[test]
    fn frames_of_an_unknown_kind_or_flag_hold_nothing() {
        let good = frame(&sample());
        let mut head = FrameHead::decode(&SEGMENT, &good).expect("a frame");
        head.kind = 77;
        assert_eq!(head.records(&good[HEAD..]), Some(Vec::new()));
        head.kind = KIND_RECORDS;
        head.flags = 3;
        assert_eq!(head.records(&good[HEAD..]), Some(Vec::new()));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&bytes).is_none());
            let _ = split(Bytes::from(bytes.clone()));
            let _ = inflate(&bytes, 64);
        }

        #[test]
        fn round_trip(payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..6)) {
            let records: Vec<Record> = payloads
                .into_iter()
                .map(|payload| Record::Unknown { kind: 500, payload: Bytes::from(payload) })
                .collect();
            prop_assert_eq!(decode(&frame(&records)), Some(records));
        }
    }
}
