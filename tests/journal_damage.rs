//! Promise: what a commit has reported is read back, whatever happens to the bytes behind it, and damage costs only
//! the frames it hits.

#[path = "support/exchanges.rs"]
mod exchanges;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use exchanges::{START, chat, user};
use proptest::prelude::*;
use serde_json::json;
use serin::journal::frame::MAGIC;
use serin::journal::segment::FRAMES_START;
use serin::journal::{
    Capture, Damage, End, Error, Exchange, Gap, Header, Journal, Keep, Level, Link, Lsn, Options, Origin,
    Phase, Reader, Record,
};

fn options() -> Options {
    Options { unix_nanos: || START, ..Options::default() }
}

fn note(number: u64) -> Record {
    Record::Gap(Gap {
        from_unix_nanos: number,
        to_unix_nanos: number * 3,
        reason: format!("reason {number}"),
        count: 1,
    })
}

/// A journal of `frames` frames with one record each; returns its segment file and where each frame begins.
fn journal(dir: &Path, frames: u64) -> (PathBuf, Vec<u64>) {
    let mut journal = Journal::open(dir, options()).expect("opens");
    let path = dir.join("epoch-2025-12-02/000001.seg");
    let mut starts = Vec::new();
    for number in 0..frames {
        starts.push(fs::metadata(&path).map_or(FRAMES_START, |found| found.len()));
        journal.append(&note(number)).expect("appends");
        journal.commit().expect("commits");
    }
    (path, starts)
}

fn read(dir: &Path) -> (Vec<Record>, Damage) {
    let mut reader = Reader::open(dir).expect("opens");
    let records = reader.by_ref().map(|next| next.expect("reads").1).collect();
    (records, reader.damage())
}

fn notes(numbers: impl IntoIterator<Item = u64>) -> Vec<Record> {
    numbers.into_iter().map(note).collect()
}

#[test]
fn records_come_back_in_order_and_by_number() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut records = records_of_every_kind();
    let mut writer = Journal::open(dir.path(), options()).expect("opens");
    let append = |record: &Record| match record {
        Record::Exchange(exchange) => writer.record(exchange.clone(), Keep::ALL, None).expect("records"),
        other => writer.append(other).expect("appends"),
    };
    records.push(Record::Exchange(chat("a", 0, &json!([user("hi")]), "hello")));
    let numbers: Vec<Lsn> = records.iter().map(append).collect();
    let end = writer.commit().expect("commits");
    assert_eq!(read(dir.path()), (records.clone(), Damage::default()));
    let reader = Reader::open(dir.path()).expect("opens");
    for (lsn, record) in numbers.iter().zip(&records) {
        assert_eq!(&reader.read_at(*lsn).expect("is there"), record);
    }
    for nowhere in [end, Lsn(1), end.after(1 << 40)] {
        assert!(matches!(reader.read_at(nowhere), Err(Error::NoRecord(_))), "{nowhere}");
    }
    let from = |lsn| {
        let reader = Reader::open_at(dir.path(), lsn, Default::default()).expect("opens");
        reader.map(|next| next.expect("reads").1).collect::<Vec<_>>()
    };
    assert_eq!(from(end), []);
    assert_eq!(from(numbers[2]), records[2..]);
    writer.append(&note(2)).expect("appends");
    writer.commit().expect("commits");
    assert_eq!(from(end), notes([2]));
    assert_eq!(reader.read_at(end).expect("a reader sees what is written later"), note(2));
}

#[test]
fn a_torn_tail_of_any_length_is_cut_and_writing_goes_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, _) = journal(dir.path(), 2);
    let last = fs::metadata(&path).expect("is there").len() as usize;
    // Longer than the frame that is written over it, and hard to compress.
    let noise: Vec<u8> = (0..8u8).flat_map(|part| *blake3::hash(&[part]).as_bytes()).collect();
    let mut writer = Journal::open(dir.path(), options()).expect("opens");
    writer.append(&Record::Unknown { kind: 99, payload: noise.into() }).expect("appends");
    writer.commit().expect("commits");
    drop(writer);
    let whole = fs::read(&path).expect("reads");
    for len in last..whole.len() {
        fs::write(&path, &whole[..len]).expect("writes");
        let (records, damage) = read(dir.path());
        assert_eq!(
            (records, damage.torn_bytes, damage.holes),
            (notes(0..2), (len - last) as u64, 0),
            "cut at {len}"
        );
        let mut writer = Journal::open(dir.path(), options()).expect("opens");
        assert_eq!(writer.torn_bytes(), (len - last) as u64);
        writer.append(&note(7)).expect("appends");
        writer.commit().expect("commits");
        drop(writer);
        assert_eq!(read(dir.path()), (notes([0, 1, 7]), Damage::default()), "cut at {len}");
        assert!(fs::metadata(&path).expect("is there").len() < last as u64 + 100);
    }
}

#[test]
fn a_flipped_bit_costs_one_frame() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, starts) = journal(dir.path(), 3);
    let whole = fs::read(&path).expect("reads");
    for position in starts[1] * 8..starts[2] * 8 {
        let mut bytes = whole.clone();
        bytes[position as usize / 8] ^= 1 << (position % 8);
        fs::write(&path, &bytes).expect("writes");
        let (records, damage) = read(dir.path());
        assert_eq!(records, notes([0, 2]), "bit {position}");
        assert_eq!((damage.holes, damage.skipped_bytes, damage.torn_bytes), (1, starts[2] - starts[1], 0));
        drop(Journal::open(dir.path(), options()).expect("opens"));
        assert_eq!(fs::read(&path).expect("reads"), bytes, "the writer leaves damage in the middle alone");
    }
    for position in 0..starts[0] * 8 {
        let mut bytes = whole.clone();
        bytes[position as usize / 8] ^= 1 << (position % 8);
        fs::write(&path, &bytes).expect("writes");
        assert_eq!(read(dir.path()), (notes(0..3), Damage::default()), "header bit {position}");
    }
}

#[test]
fn a_zeroed_page_and_a_lost_header_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, starts) = journal(dir.path(), 400);
    let whole = fs::read(&path).expect("reads");
    let mut bytes = whole.clone();
    bytes[4096..8192].fill(0);
    fs::write(&path, &bytes).expect("writes");
    let hit = |number: &u64| {
        let start = starts[*number as usize];
        let end = starts.get(*number as usize + 1).copied().unwrap_or(whole.len() as u64);
        start < 8192 && end > 4096
    };
    let (records, damage) = read(dir.path());
    assert_eq!(records, notes((0..400).filter(|number| !hit(number))));
    assert_eq!(damage.holes, 1);
    bytes = whole;
    bytes[..starts[0] as usize].fill(0);
    fs::write(&path, &bytes).expect("writes");
    let (records, damage) = read(dir.path());
    assert_eq!((records.len(), damage.unreadable_segments), (0, 1));
    let mut writer = Journal::open(dir.path(), options()).expect("opens");
    writer.append(&note(1)).expect("appends");
    assert_eq!(
        writer.commit().expect("commits").segment(),
        2,
        "a segment that cannot be read is never written to"
    );
}

#[test]
fn a_body_that_holds_a_frame_is_not_taken_for_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, starts) = journal(dir.path(), 2);
    let frame = fs::read(&path).expect("reads")[starts[0] as usize..starts[1] as usize].to_vec();
    let other = tempfile::tempdir().expect("a directory");
    let (path, starts) = journal(other.path(), 2);
    let mut bytes = fs::read(&path).expect("reads");
    bytes[starts[1] as usize] ^= 1;
    bytes.extend_from_slice(&frame);
    fs::write(&path, &bytes).expect("writes");
    assert_eq!(read(other.path()).0, notes([0]), "the frame of another segment passes none of the checks");
}

#[test]
fn segments_roll_by_size_and_by_day() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = Options { segment_bytes: 200, ..options() };
    let mut writer = Journal::open(dir.path(), small).expect("opens");
    for number in 0..4 {
        writer.append(&note(number)).expect("appends");
        writer.commit().expect("commits");
    }
    drop(writer);
    let next_day = Options { unix_nanos: || START + 86_400_000_000_000, ..Options::default() };
    let mut writer = Journal::open(dir.path(), next_day).expect("opens");
    writer.append(&note(4)).expect("appends");
    let end = writer.commit().expect("commits");
    assert!(end.segment() > 2, "{end}");
    assert!(dir.path().join(format!("epoch-2025-12-03/{:06}.seg", end.segment())).is_file());
    assert_eq!(read(dir.path()), (notes(0..5), Damage::default()));
}

#[test]
fn large_commits_are_cut_into_frames_and_limits_are_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let limits = Options { frame_bytes: 1000, pending_bytes: 20_000, ..options() };
    let mut writer = Journal::open(dir.path(), limits).expect("opens");
    let big = |fill| Record::Unknown { kind: 99, payload: bytes::Bytes::from(vec![fill; 3000]) };
    let records = [note(0), note(1), big(1), note(2), big(2)];
    for record in &records {
        writer.append(record).expect("appends");
    }
    writer.commit().expect("commits");
    let bytes = fs::read(dir.path().join("epoch-2025-12-02/000001.seg")).expect("reads");
    let frames = bytes.windows(MAGIC.len()).filter(|window| *window == MAGIC).count();
    assert_eq!(frames, 4, "two small records share a frame");
    assert_eq!(read(dir.path()).0, records);
    let mut taken = 0;
    let refusal = loop {
        match writer.append(&big(3)) {
            Ok(_) => taken += 1,
            Err(refusal) => break refusal,
        }
    };
    assert!(matches!(refusal, Error::Full { .. }) && taken == 6, "{taken} {refusal}");
    writer.commit().expect("commits");
    assert_eq!(read(dir.path()).0.len(), 5 + 6);
}

#[test]
fn one_process_writes_and_files_are_private() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("made/private");
    let mut writer = Journal::open(&dir, options()).expect("opens");
    let refusal = Journal::open(&dir, options()).err().expect("refused");
    assert!(matches!(refusal, Error::Locked(_)), "{refusal}");
    writer.append(&note(1)).expect("appends");
    writer.commit().expect("commits");
    let mode = |path: &str| fs::metadata(dir.join(path)).expect("is there").permissions().mode() & 0o777;
    assert_eq!(
        (mode(""), mode("epoch-2025-12-02"), mode("epoch-2025-12-02/000001.seg")),
        (0o700, 0o700, 0o600)
    );
    drop(writer);
    assert!(Journal::open(&dir, options()).is_ok());
}

#[test]
fn a_commit_that_failed_is_made_good_by_the_next() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut writer = Journal::open(dir.path(), options()).expect("opens");
    fs::write(dir.path().join("epoch-2025-12-02"), b"in the way").expect("writes");
    writer.append(&note(1)).expect("appends");
    assert!(matches!(writer.commit(), Err(Error::Io { .. })));
    fs::remove_file(dir.path().join("epoch-2025-12-02")).expect("removes");
    writer.append(&note(2)).expect("appends");
    writer.commit().expect("commits");
    assert_eq!(read(dir.path()), (notes([1, 2]), Damage::default()));
}

/// A segment written by the first release of version 1, by `records_of_every_kind`. It must be readable for ever.
#[test]
fn the_golden_segment_of_version_1_is_read() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/journal/v1");
    assert_eq!(read(&dir), (records_of_every_kind(), Damage::default()));
}

fn records_of_every_kind() -> Vec<Record> {
    let header = |name: &str, value: &'static str| Header { name: name.into(), value: value.into() };
    let exchange = Exchange {
        id: "019b0000-0000-7000-8000-000000000001".into(),
        started_unix_nanos: START,
        origin: Origin::Canary as i32,
        method: "POST".into(),
        target: "/v1/chat/completions?key=masked".into(),
        request_headers: vec![header("Content-Type", "application/json"), header("x-odd", "caf\u{e9}")],
        request_body: bytes::Bytes::from_static(b"{\"messages\":[]}"),
        request_body_hash: bytes::Bytes::copy_from_slice(&[7; 32]),
        request_body_len: 15,
        request_capture: Capture::Truncated as i32,
        status: 200,
        response_headers: vec![header("content-type", "text/event-stream")],
        response_body: bytes::Bytes::from_static(b"data: [DONE]\n\n"),
        response_body_hash: bytes::Bytes::copy_from_slice(&[8; 32]),
        response_body_len: 14,
        response_capture: Capture::None as i32,
        edge_lengths: vec![4, 10],
        edge_micros: vec![250_000, 3],
        trailers: vec![header("grpc-status", "0")],
        end: End::TimeoutIdle as i32,
        phase: Phase::ResponseBody as i32,
        upstream: "router".into(),
        served_by: "embedded".into(),
        first_byte_micros: 250_000,
        end_micros: 250_003,
        labels: vec![header("zone", "a")],
        model: "m".into(),
        record_level: Level::Shape as i32,
        ..Exchange::default()
    };
    let link = Link {
        turn: exchange.id.clone(),
        conversation: "c".into(),
        parent: "p".into(),
        kind: "append".into(),
        confidence: 0.5,
        evidence: "depth=3".into(),
        rules_version: 1,
    };
    let later = Record::Unknown { kind: 4711, payload: bytes::Bytes::from_static(b"from the future") };
    vec![Record::Exchange(exchange), Record::Link(link), note(4), later]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_files_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), keep_header: bool) {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, starts) = journal(dir.path(), 1);
        if keep_header {
            let mut start = fs::read(&path).expect("reads")[..starts[0] as usize].to_vec();
            start.append(&mut bytes);
            bytes = start;
        }
        fs::write(&path, &bytes).expect("writes");
        prop_assert_eq!(read(dir.path()).0.len(), 0);
        let mut writer = Journal::open(dir.path(), options()).expect("opens");
        writer.append(&note(5)).expect("appends");
        writer.commit().expect("commits");
        prop_assert_eq!(read(dir.path()).0, notes([5]));
    }

    #[test]
    fn arbitrary_damage_yields_only_what_was_written(
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, _) = journal(dir.path(), 5);
        let mut bytes = fs::read(&path).expect("reads");
        for (place, value) in edits {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        fs::write(&path, &bytes).expect("writes");
        let written = notes(0..5);
        let found = read(dir.path()).0;
        prop_assert!(found.iter().all(|record| written.contains(record)));
    }
}
