//! The journal's bytes: frames, records, and a whole segment read back.

use std::cell::OnceCell;
use std::path::Path;

use bytes::Bytes;
use serin::journal::frame::{Codec, HEAD, MAX_RAW, Packer, RECORDS, Raw};
use serin::journal::segment::{self, Class, FRAMES_START, SegmentHeader};
use serin::journal::{Lsn, Reader, Record, events};

const SEGMENT: [u8; 16] = [3; 16];

/// Damage done to a journal that was sound: what comes out is part of what went in, and the rest is told.
pub fn journal(input: &[u8]) {
    frames(input);
    let Some((&count, input)) = input.split_first() else { return };
    let (written, mut bytes) = sound(usize::from(count % 5), input);
    let edits = input.chunks_exact(5).take(8);
    edits.for_each(|edit| damage(&mut bytes, edit));
    thread_local!(static DIR: OnceCell<tempfile::TempDir> = const { OnceCell::new() });
    DIR.with(|dir| {
        let dir = dir.get_or_init(|| tempfile::tempdir().expect("a folder")).path();
        read_back(dir, &bytes, &written);
    });
}

fn header() -> SegmentHeader {
    SegmentHeader {
        version: segment::VERSION,
        id: SEGMENT,
        replica: [0; 16],
        epoch: 20_424,
        created_unix_nanos: 1,
        tenant: [0; 16],
        key: [0; 16],
        first: Lsn::first_of(1),
        class: Class::Mixed,
    }
}

/// A segment of `count` frames, each with a record or two made of the input.
fn sound(count: usize, input: &[u8]) -> (Vec<Record>, Vec<u8>) {
    let (mut records, mut bytes) = (Vec::new(), header().encode());
    let mut packer = Packer::new(3).expect("makes one");
    for sequence in 0..count {
        let mut raw = Raw::default();
        for half in input.chunks(input.len() / 2 + 1) {
            let payload = [&[sequence as u8], half].concat();
            let record = Record::Unknown { kind: 900, payload: payload.into() };
            raw.push(header().first.after(records.len() as u64), &record);
            records.push(record);
        }
        bytes.extend(
            Codec::new(&header(), None)
                .encode(RECORDS, sequence as u32, &raw, &mut packer)
                .expect("compresses"),
        );
    }
    (records, bytes)
}

/// One edit: flips bits, cuts the end off, or puts other bytes in between.
fn damage(bytes: &mut Vec<u8>, edit: &[u8]) {
    let at = usize::from(u16::from_le_bytes([edit[1], edit[2]])) % (bytes.len() + 1);
    match edit[0] % 4 {
        0 => bytes.truncate(at.max(FRAMES_START as usize)),
        1 => drop(bytes.splice(at..at, edit[3..].iter().copied().cycle().take(usize::from(edit[3])))),
        2 => drop(bytes.drain(at..(at + usize::from(edit[3])).min(bytes.len()))),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= edit[3];
            }
        }
    }
}

fn read_back(dir: &Path, bytes: &[u8], written: &[Record]) {
    let path = segment::path_of(dir, 20_424, 1);
    std::fs::create_dir_all(path.parent().expect("has one")).expect("a folder");
    std::fs::write(&path, bytes).expect("a file");
    let mut reader = Reader::open(dir).expect("opens");
    let read: Vec<_> = reader.by_ref().map(|record| record.expect("reads")).collect();
    let mut left = written.iter();
    for (lsn, record) in &read {
        assert!(left.any(|one| one == record), "a record that nobody wrote, or out of order");
        // Behind damage it may not be found by number, but it is never another.
        assert!(reader.read_at(*lsn).map_or(true, |found| found == *record));
    }
    let damage = reader.damage();
    let found =
        damage.skipped_bytes + damage.torn_bytes + damage.unreadable_segments + damage.undecodable_frames;
    // Cut exactly between two frames, a file looks like one that nothing was added to.
    let told = found > 0 || whole_frames(bytes);
    assert!(read.len() == written.len() || told, "records are missing and nothing is said");
}

/// Whether a file ends where a frame does.
fn whole_frames(bytes: &[u8]) -> bool {
    let codec = Codec::new(&header(), None);
    let mut rest = &bytes[(FRAMES_START as usize).min(bytes.len())..];
    while let Some(head) = codec.head(rest) {
        let Some(after) = rest.get(HEAD + head.stored_len as usize..) else { return false };
        rest = after;
    }
    rest.is_empty()
}

/// Any bytes as a frame, as a record and as a header.
fn frames(input: &[u8]) {
    if let Some(header) = SegmentHeader::decode(input, 1) {
        assert_eq!(SegmentHeader::decode(&header.encode(), 1), Some(header));
    }
    if let Some(body) = events::decode(input) {
        assert_eq!(events::decode(&events::encode(&body)), Some(body));
    }
    let codec = Codec::new(&header(), None);
    let Some(head) = codec.head(input) else { return records(input) };
    assert!(head.raw_len <= MAX_RAW);
    let payload = &input[HEAD..];
    if codec.matches(&head, input, payload)
        && let Some(raw) = codec.raw(&head, input, payload.to_vec())
    {
        let _ = codec.records(head.first, raw);
    }
}

/// A record that is read is written as bytes that read as the same.
fn records(input: &[u8]) {
    let Some((kind, payload)) = input.split_first() else { return };
    let Ok(record) = Record::decode(u16::from(kind % 8), Bytes::copy_from_slice(payload)) else { return };
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    assert_eq!(bytes.len(), record.payload_len());
    // Compared as bytes: a confidence that is no number does not equal itself.
    let mut again = Vec::new();
    Record::decode(record.kind(), bytes.clone().into()).expect("its own bytes").encode(&mut again);
    assert_eq!(bytes, again);
}
