//! A frame: the unit of compression, of checksums, of encryption and of atomicity. Records appended together appear
//! together.

use std::io::Read;

use bytes::{Buf, Bytes};
use prost::encoding::{decode_varint, encode_varint};

use super::Lsn;
use super::cipher::{Cipher, Key};
use super::record::Record;
use super::segment::{SegmentHeader, array};

/// The most bytes a frame may hold before compression. A head that claims more is damage.
pub const MAX_RAW: u32 = 256 << 20;
/// The most bytes one record may take.
pub const MAX_RECORD: usize = 192 << 20;
/// The most bytes that stand before a record's payload: its kind, its step and its length.
pub const RECORD_HEAD: usize = 3 + 10 + 5;
/// More than the metadata of any exchange takes beside its bodies.
pub const RAW_SLACK: usize = 64 << 10;
pub const MAGIC: [u8; 4] = [0xf5, b'S', b'R', b'N'];

pub const RECORDS: u8 = 1;
pub const FOOTER: u8 = 2;
const FLAG_ZSTD: u8 = 1;
const FLAG_SEALED: u8 = 2;
/// Bytes of a frame's head: in version 1, and since.
const HEAD_1: usize = 24;
pub const HEAD: usize = 32;
/// 2^23 bytes: more than the levels in use ever need, and the most a hostile file can make the decoder reserve.
const WINDOW_LOG_MAX: u32 = 23;

/// What frames of one file have in common.
pub struct Codec {
    segment: [u8; 16],
    version: u16,
    encrypted: bool,
    /// `None` for plain frames, and where the key is not at hand.
    cipher: Option<Cipher>,
}

/// Compresses payloads.
pub type Packer = zstd::bulk::Compressor<'static>;

/// The head of a frame whose own check has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    pub kind: u8,
    pub flags: u8,
    /// Counts frames within a segment, from 0.
    pub sequence: u32,
    pub raw_len: u32,
    pub stored_len: u32,
    /// The number of the first record; zero in version 1, where only counting tells.
    pub first: Lsn,
    crc: u32,
}

/// Records of one frame before compression.
#[derive(Clone, Default)]
pub struct Raw {
    pub bytes: Vec<u8>,
    pub first: Lsn,
    pub last: Lsn,
    pub records: u32,
}

impl Raw {
    /// Appends one record. Numbers must ascend.
    pub fn push(&mut self, lsn: Lsn, record: &Record) {
        self.push_encoded(lsn, record.kind(), record.payload_len(), |bytes| record.encode(bytes));
    }

    /// Appends one record whose payload is at hand.
    pub fn push_payload(&mut self, lsn: Lsn, kind: u16, payload: &[u8]) {
        self.push_encoded(lsn, kind, payload.len(), |bytes| bytes.extend_from_slice(payload));
    }

    fn push_encoded(&mut self, lsn: Lsn, kind: u16, len: usize, payload: impl FnOnce(&mut Vec<u8>)) {
        if self.records == 0 {
            (self.first, self.last) = (lsn, lsn);
        }
        encode_varint(kind.into(), &mut self.bytes);
        encode_varint(lsn.0 - self.last.0, &mut self.bytes);
        encode_varint(len as u64, &mut self.bytes);
        payload(&mut self.bytes);
        self.last = lsn;
        self.records += 1;
    }
}

impl FrameHead {
    /// Whether this version cannot know what the payload is.
    pub fn has_later_flags(&self) -> bool {
        self.flags & !(FLAG_ZSTD | FLAG_SEALED) != 0
    }
}

impl Codec {
    /// For the frames behind that header. `key`: of the key it names, where it names one.
    pub fn new(header: &SegmentHeader, key: Option<&Key>) -> Codec {
        let cipher = key.filter(|_| header.is_encrypted()).map(|key| Cipher::new(key, &header.id));
        Codec { segment: header.id, version: header.version, encrypted: header.is_encrypted(), cipher }
    }

    pub fn head_len(&self) -> usize {
        if self.version == 1 { HEAD_1 } else { HEAD }
    }

    /// Whether payloads can be read.
    pub fn is_readable(&self) -> bool {
        !self.encrypted || self.cipher.is_some()
    }

    /// Reads a head. `None` where no frame begins.
    pub fn head(&self, bytes: &[u8]) -> Option<FrameHead> {
        let head = bytes.get(..self.head_len())?;
        if head[..4] != MAGIC || u16::from_le_bytes(array(head, 6)?) != self.check(head) {
            return None;
        }
        let first = if self.version == 1 { 0 } else { u64::from_le_bytes(array(head, 24)?) };
        let decoded = FrameHead {
            kind: head[4],
            flags: head[5],
            sequence: u32::from_le_bytes(array(head, 8)?),
            raw_len: u32::from_le_bytes(array(head, 12)?),
            stored_len: u32::from_le_bytes(array(head, 16)?),
            first: Lsn(first),
            crc: u32::from_le_bytes(array(head, 20)?),
        };
        (decoded.raw_len <= MAX_RAW && decoded.stored_len <= MAX_RAW + MAX_RAW / 128).then_some(decoded)
    }

    /// Whether the payload is the one this head was written for.
    pub fn matches(&self, head: &FrameHead, bytes: &[u8], payload: &[u8]) -> bool {
        bytes.len() >= self.head_len()
            && payload.len() == head.stored_len as usize
            && self.sum(bytes, payload) == head.crc
    }

    /// The bytes of a payload that has passed its checksum. `None`: they are no payload after all, or one that cannot
    /// be read without a key that is missing, or has a flag that this version does not know.
    pub fn raw(&self, head: &FrameHead, bytes: &[u8], mut payload: Vec<u8>) -> Option<Bytes> {
        if head.has_later_flags() {
            return None;
        }
        if head.flags & FLAG_SEALED != 0 {
            self.cipher.as_ref()?.open(head.sequence, &self.bound(bytes), &mut payload)?;
        }
        match head.flags & FLAG_ZSTD {
            0 => Some(payload.into()),
            _ => inflate(&payload, head.raw_len as usize).map(Bytes::from),
        }
    }

    /// The records of a payload. `first`: the number of the first one.
    pub fn records(&self, first: Lsn, raw: Bytes) -> Option<Vec<(Lsn, Record)>> {
        let laid_out = if self.version == 1 { payloads_1 } else { payloads };
        let payloads = laid_out(raw, first)?.into_iter();
        payloads.map(|(lsn, kind, payload)| Some((lsn, Record::decode(kind, payload).ok()?))).collect()
    }

    /// Builds a whole frame. `packer` is used again and again: making one takes as long as a small frame.
    pub fn encode(
        &self,
        kind: u8,
        sequence: u32,
        raw: &Raw,
        packer: &mut Packer,
    ) -> std::io::Result<Vec<u8>> {
        let mut payload = packer.compress(&raw.bytes)?;
        let sealed = if self.cipher.is_some() { FLAG_SEALED } else { 0 };
        let stored = payload.len() + self.cipher.as_ref().map_or(0, |_| Cipher::TAG);
        let mut frame = Vec::with_capacity(HEAD + stored);
        frame.extend_from_slice(&MAGIC);
        frame.extend_from_slice(&[kind, FLAG_ZSTD | sealed, 0, 0]);
        frame.extend_from_slice(&sequence.to_le_bytes());
        frame.extend_from_slice(&(raw.bytes.len() as u32).to_le_bytes());
        frame.extend_from_slice(&(stored as u32).to_le_bytes());
        frame.extend_from_slice(&[0; 4]);
        frame.extend_from_slice(&raw.first.0.to_le_bytes());
        if let Some(cipher) = &self.cipher {
            cipher.seal(sequence, &self.bound(&frame), &mut payload)?;
        }
        let check = self.check(&frame);
        frame[6..8].copy_from_slice(&check.to_le_bytes());
        let crc = self.sum(&frame, &payload);
        frame[20..24].copy_from_slice(&crc.to_le_bytes());
        frame.extend_from_slice(&payload);
        Ok(frame)
    }

    /// A short check over the head alone, so that a search for frames in damaged bytes need not read the payload that
    /// each chance find claims to have.
    fn check(&self, head: &[u8]) -> u16 {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&self.segment), &head[..6]);
        let crc = crc32c::crc32c_append(crc, &head[8..20]);
        crc32c::crc32c_append(crc, &head[HEAD_1..self.head_len()]) as u16
    }

    fn sum(&self, head: &[u8], payload: &[u8]) -> u32 {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&self.segment), &head[..20]);
        let crc = crc32c::crc32c_append(crc, &head[HEAD_1..self.head_len()]);
        crc32c::crc32c_append(crc, payload)
    }

    /// What a sealed payload is bound to: its file, and all of the head but its sums.
    fn bound(&self, head: &[u8]) -> Vec<u8> {
        [self.segment.as_slice(), &head[..6], &head[8..20], &head[HEAD_1..self.head_len()]].concat()
    }
}

fn inflate(payload: &[u8], raw_len: usize) -> Option<Vec<u8>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(payload).ok()?;
    decoder.window_log_max(WINDOW_LOG_MAX).ok()?;
    let mut raw = Vec::new();
    decoder.take(raw_len as u64 + 1).read_to_end(&mut raw).ok()?;
    (raw.len() == raw_len).then_some(raw)
}

/// Records as they are laid out, undecoded: number, kind and payload.
pub fn payloads(mut raw: Bytes, first: Lsn) -> Option<Vec<(Lsn, u16, Bytes)>> {
    let mut records = Vec::new();
    let mut lsn = first;
    while raw.has_remaining() {
        let kind = u16::try_from(decode_varint(&mut raw).ok()?).ok()?;
        lsn = Lsn(lsn.0.checked_add(decode_varint(&mut raw).ok()?)?);
        let len = usize::try_from(decode_varint(&mut raw).ok()?).ok()?;
        if raw.len() < len {
            return None;
        }
        records.push((lsn, kind, raw.split_to(len)));
    }
    Some(records)
}

/// As [`payloads`], as version 1 laid them out: kind and length in six bytes, without numbers.
pub fn payloads_1(mut raw: Bytes, first: Lsn) -> Option<Vec<(Lsn, u16, Bytes)>> {
    const HEAD: usize = 6;
    let mut records = Vec::new();
    while !raw.is_empty() {
        let kind = u16::from_le_bytes(array(&raw, 0)?);
        let len = u32::from_le_bytes(array(&raw, 2)?) as usize;
        if raw.len() - HEAD < len {
            return None;
        }
        raw.advance(HEAD);
        records.push((first.after(records.len() as u64), kind, raw.split_to(len)));
    }
    Some(records)
}

#[cfg(test)]
mod tests {
    use super::super::record::Gap;
    use super::super::segment::{Class, VERSION};
    use super::*;
    use proptest::prelude::*;

    fn codec(id: u8, key: Option<&Key>) -> Codec {
        let header = SegmentHeader {
            version: VERSION,
            id: [id; 16],
            replica: [0; 16],
            epoch: 0,
            created_unix_nanos: 0,
            tenant: [0; 16],
            key: key.map_or([0; 16], Key::id),
            first: Lsn(9),
            class: Class::Mixed,
        };
        Codec::new(&header, key)
    }

    fn decode(codec: &Codec, bytes: &[u8]) -> Option<Vec<(Lsn, Record)>> {
        let head = codec.head(bytes)?;
        let payload = bytes.get(HEAD..HEAD + head.stored_len as usize)?;
        let raw =
            codec.matches(&head, bytes, payload).then(|| codec.raw(&head, bytes, payload.to_vec()))??;
        codec.records(head.first, raw)
    }

    fn sample() -> Vec<(Lsn, Record)> {
        let gap = Gap { from_unix_nanos: 1, to_unix_nanos: 9, reason: "queue_full".into(), count: 4 };
        let later = Record::Unknown { kind: 900, payload: Bytes::from_static(b"later") };
        vec![(Lsn(9), Record::Gap(gap)), (Lsn(12), later)]
    }

    fn frame(codec: &Codec, records: &[(Lsn, Record)]) -> Vec<u8> {
        let mut raw = Raw::default();
        records.iter().for_each(|(lsn, record)| raw.push(*lsn, record));
        codec
            .encode(RECORDS, 5, &raw, &mut Packer::new(3).expect("makes one"))
            .expect("zstd compresses any bytes")
    }

    #[test]
    fn every_bit_of_a_frame_is_guarded() {
        let key = Key::new([4; 16], [5; 32]);
        for codec in [codec(3, None), codec(3, Some(&key))] {
            let good = frame(&codec, &sample());
            assert_eq!(decode(&codec, &good), Some(sample()));
            for position in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[position / 8] ^= 1 << (position % 8);
                assert_eq!(decode(&codec, &bad), None, "bit {position}");
            }
        }
    }

    #[test]
    fn another_segments_frame_is_refused() {
        assert_eq!(codec(4, None).head(&frame(&codec(3, None), &sample())), None);
    }

    #[test]
    fn a_sealed_frame_shows_nothing_and_opens_with_its_key_only() {
        let (key, other) = (Key::new([4; 16], [5; 32]), Key::new([4; 16], [6; 32]));
        let sealed = frame(&codec(3, Some(&key)), &sample());
        assert!(!sealed.windows(5).any(|window| window == b"later"));
        assert_eq!(decode(&codec(3, Some(&other)), &sealed), None);
        let header_only = Codec { cipher: None, ..codec(3, Some(&key)) };
        assert!(!header_only.is_readable() && decode(&header_only, &sealed).is_none());
    }

    #[test]
    fn a_payload_longer_than_it_claims_is_refused() {
        let payload = zstd::bulk::compress(&vec![0u8; 1 << 20], 3).expect("compresses");
        assert_eq!(inflate(&payload, 1000), None);
        assert_eq!(inflate(&payload, 1 << 20).map(|raw| raw.len()), Some(1 << 20));
    }

    #[test]
    fn frames_with_an_unknown_flag_are_not_read() {
        let (codec, good) = (codec(3, None), frame(&codec(3, None), &sample()));
        let mut head = codec.head(&good).expect("a frame");
        head.flags = 5;
        assert_eq!(codec.raw(&head, &good, good[HEAD..].to_vec()), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&codec(3, None), &bytes).is_none());
            let _ = payloads(Bytes::from(bytes.clone()), Lsn(u64::MAX));
            let _ = payloads_1(Bytes::from(bytes.clone()), Lsn(u64::MAX));
            let _ = inflate(&bytes, 64);
        }

        #[test]
        fn round_trip(payloads in proptest::collection::vec((1u64..1 << 40, proptest::collection::vec(any::<u8>(), 0..300)), 0..6)) {
            let mut lsn = Lsn(0);
            let records: Vec<(Lsn, Record)> = payloads
                .into_iter()
                .map(|(step, payload)| {
                    lsn = lsn.after(step);
                    (lsn, Record::Unknown { kind: 500, payload: Bytes::from(payload) })
                })
                .collect();
            let codec = codec(3, None);
            prop_assert_eq!(decode(&codec, &frame(&codec, &records)), Some(records));
        }
    }
}
