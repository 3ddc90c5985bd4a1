//! Promise: sealing, forgetting, encryption and faults of the disk lose nothing that a commit has reported, and what is
//! kept is what was sent.

#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/faulty.rs"]
mod faulty;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exchanges::{SECOND, START, chat, streamed};
use faulty::{Act, Faulty};
use serde_json::{Value, json};
use serin::journal::fs::Real;
use serin::journal::keys::keychain;
use serin::journal::retention::{Terms, forget};
use serin::journal::seal::{How, Outcome, Sidecar, seal};
use serin::journal::segment::{self, Class};
use serin::journal::verify::verify;
use serin::journal::{Exchange, Journal, Keep, Keychain, Link, Options, Reader, Record};

const HOW: How = How { level: 6, frame_bytes: 4096 };
const DAY: u64 = 86_400 * SECOND;

fn options() -> Options {
    Options { unix_nanos: || START, ..Options::default() }
}

/// A conversation of so many turns.
fn talk(turns: u64) -> Vec<Exchange> {
    let mut messages: Vec<Value> = Vec::new();
    let turn = |at: u64| {
        messages.push(json!({"role": "user", "content": format!("question {at} {}", "long ".repeat(200))}));
        let answer = format!("answer {at} with some words in it");
        let made = if at.is_multiple_of(2) { streamed } else { chat };
        let mut exchange = made(&format!("{at:04}"), at * SECOND, &json!(messages), &answer);
        exchange.response_body_len = exchange.response_body.len() as u64;
        exchange.edge_lengths = vec![exchange.response_body.len() as u32];
        exchange.edge_micros = vec![1000];
        exchange.answer = answer.clone().into();
        messages.push(json!({"role": "assistant", "content": answer}));
        exchange
    };
    (0..turns).map(turn).collect()
}

fn record(dir: &Path, options: Options, turns: &[Exchange]) {
    let mut journal = Journal::open(dir, options).expect("opens");
    for turn in turns {
        let link = Link { turn: turn.id.clone(), conversation: "0000".into(), ..Link::default() };
        journal.record(turn.clone(), Keep::ALL, Some(link)).expect("records");
        journal.commit().expect("commits");
    }
}

fn exchanges_with(dir: &Path, keys: &Arc<Keychain>) -> Vec<Exchange> {
    let reader = Reader::open_at(dir, Default::default(), keys.clone()).expect("opens");
    let only = |next: serin::journal::Result<(_, Record)>| match next.expect("reads").1 {
        Record::Exchange(exchange) => Some(exchange),
        _ => None,
    };
    reader.filter_map(only).collect()
}

fn exchanges_of(dir: &Path) -> Vec<Exchange> {
    exchanges_with(dir, &Arc::default())
}

fn seal_all(dir: &Path, keys: &Keychain) {
    for file in segment::list(dir).expect("lists").iter().filter(|file| file.is_open()) {
        assert_eq!(seal(file, &Real, keys, HOW).expect("seals"), Outcome::Sealed);
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let of = |folder: &Path| std::fs::read_dir(folder).expect("lists").map(|entry| entry.expect("an entry"));
    let epochs = of(dir).filter(|entry| entry.path().is_dir());
    let files = epochs.flat_map(|epoch| of(&epoch.path()).collect::<Vec<_>>());
    files.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_sealed_journal_reads_as_before_and_is_written_on() {
    let dir = tempfile::tempdir().expect("a directory");
    let turns = talk(24);
    let small = Options { segment_bytes: 4000, ..options() };
    record(dir.path(), small.clone(), &turns[..20]);
    let numbers: Vec<_> =
        Reader::open(dir.path()).expect("opens").bare().map(|next| next.expect("reads").0).collect();
    seal_all(dir.path(), &Keychain::default());
    assert!(names(dir.path()).iter().all(|name| !name.ends_with(".seg")), "{:?}", names(dir.path()));
    assert_eq!(exchanges_of(dir.path()), turns[..20]);
    record(dir.path(), small, &turns[20..]);
    assert_eq!(exchanges_of(dir.path()), turns);
    let reader = Reader::open(dir.path()).expect("opens");
    for (lsn, turn) in numbers.iter().step_by(2).zip(&turns) {
        assert_eq!(reader.read_at(*lsn).expect("keeps its number"), Record::Exchange(turn.clone()));
    }
    let proof = verify(dir.path(), &Arc::default()).expect("reads");
    assert!(proof.is_sound() && proof.proven_bodies == 48 && proof.segments > 3, "{proof:?}");
}

#[test]
fn a_sidecar_tells_what_a_segment_holds() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), options(), &talk(5));
    seal_all(dir.path(), &Keychain::default());
    let sidecar = std::fs::read(dir.path().join("epoch-2025-12-02/000001.idx")).expect("is there");
    let sidecar: Sidecar = serde_json::from_slice(&sidecar).expect("is JSON");
    assert_eq!((sidecar.segment, sidecar.exchanges, sidecar.gaps), (1, 5, 0));
    assert_eq!((sidecar.from_unix_nanos, sidecar.to_unix_nanos), (START, START + 5 * SECOND));
    assert_eq!(sidecar.conversations, BTreeSet::from(["0000".to_owned()]));
}

#[test]
fn a_reader_goes_on_while_segments_are_sealed_under_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let turns = talk(12);
    record(dir.path(), Options { segment_bytes: 3000, ..options() }, &turns);
    let mut reader = Reader::open(dir.path()).expect("opens");
    let mut seen = vec![reader.next().expect("one").expect("reads").1];
    seal_all(dir.path(), &Keychain::default());
    seen.extend(reader.by_ref().map(|next| next.expect("reads").1));
    let found: Vec<_> = seen.iter().filter(|record| matches!(record, Record::Exchange(_))).cloned().collect();
    assert_eq!(found, turns.into_iter().map(Record::Exchange).collect::<Vec<_>>());
    assert!(!reader.damage().is_loss());
}

#[test]
fn sealing_that_fails_at_any_step_changes_nothing() {
    let turns = talk(6);
    for step in 0..12 {
        let dir = tempfile::tempdir().expect("a directory");
        record(dir.path(), options(), &turns);
        let faulty = Faulty::default();
        faulty.plan(|plan| {
            plan.writes = (0..step).map(|_| Act::Work).chain([Act::Fail(ErrorKind::StorageFull)]).collect();
        });
        let file = &segment::list(dir.path()).expect("lists")[0];
        let failed = seal(file, &faulty, &Keychain::default(), HOW).is_err();
        assert_eq!(exchanges_of(dir.path()), turns, "step {step}");
        assert_eq!(failed, names(dir.path()).contains("000001.seg"), "step {step}");
        if failed {
            seal_all(dir.path(), &Keychain::default());
            assert_eq!(exchanges_of(dir.path()), turns, "step {step}, again");
        }
    }
}

/// Changes a bit of the first segment; returns its bytes.
fn damage(dir: &Path, at: usize) -> Vec<u8> {
    let path = dir.join("epoch-2025-12-02/000001.seg");
    let mut bytes = std::fs::read(&path).expect("reads");
    bytes[at] ^= 1;
    std::fs::write(&path, &bytes).expect("writes");
    bytes
}

#[test]
fn damage_is_quarantined_and_the_rest_is_sealed() {
    let dir = tempfile::tempdir().expect("a directory");
    let turns = talk(3);
    record(dir.path(), options(), &turns);
    let bytes = damage(dir.path(), 300);
    seal_all(dir.path(), &Keychain::default());
    let kept = names(dir.path()).into_iter().find(|name| name.contains("damaged-at-256")).expect("is kept");
    let kept = std::fs::read(dir.path().join("epoch-2025-12-02").join(kept)).expect("reads");
    assert_eq!(kept, bytes[256..256 + kept.len()]);
    let left = exchanges_of(dir.path());
    assert_eq!(left.len(), 2);
    assert_eq!(left[0].response_body, turns[1].response_body);
    assert!(left[0].request_body.is_empty(), "its first message was in the damaged frame");
    assert!(!verify(dir.path(), &Arc::default()).expect("reads").is_sound());
}

#[test]
fn what_lies_behind_a_damaged_head_is_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let turns = talk(3);
    record(dir.path(), options(), &turns);
    damage(dir.path(), 257);
    let left = exchanges_of(dir.path());
    let bodies = |turns: &[Exchange]| turns.iter().map(|turn| turn.response_body.clone()).collect::<Vec<_>>();
    assert_eq!(bodies(&left), bodies(&turns[1..]));
}

#[test]
fn a_changed_byte_in_a_sealed_file_is_found() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), options(), &talk(3));
    seal_all(dir.path(), &Keychain::default());
    let path = dir.path().join("epoch-2025-12-02/000001.stream");
    let mut bytes = std::fs::read(&path).expect("reads");
    // In the second copy of the header, which nobody reads while the first is sound.
    bytes[200] ^= 1;
    std::fs::write(&path, bytes).expect("writes");
    let proof = verify(dir.path(), &Arc::default()).expect("reads");
    assert_eq!((proof.faults, proof.first_faults[0].what), (1, "the file has another hash than was noted"));
}

#[test]
fn each_class_is_kept_for_its_own_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let turns = talk(4);
    record(dir.path(), options(), &turns);
    seal_all(dir.path(), &Keychain::default());
    let terms = Terms { stream: 2 * DAY, content: 7 * DAY, metadata: 90 * DAY, bytes: 0 };
    let at =
        |days: u64| forget(dir.path(), &Real, &terms, START + days * DAY + SECOND).expect("forgets").files;
    assert_eq!((at(0), at(2)), (0, 0));
    assert_eq!(at(3), 1, "streams");
    let left = exchanges_of(dir.path());
    assert!(left[0].response_body.is_empty() && left[0].answer == turns[0].answer);
    assert_eq!((&left[0].request_body, &left[1]), (&turns[0].request_body, &turns[1]));
    let proof = verify(dir.path(), &Arc::default()).expect("reads");
    assert_eq!((proof.expired_bodies, proof.is_sound()), (2, true));
    assert_eq!(at(8), 1, "content");
    let left = exchanges_of(dir.path());
    assert!(left.len() == 4 && left.iter().all(|turn| turn.request_body.is_empty()));
    assert!(verify(dir.path(), &Arc::default()).expect("reads").is_sound());
    assert_eq!(at(91), 1, "metadata");
    assert!(exchanges_of(dir.path()).is_empty() && !dir.path().join("epoch-2025-12-02").exists());
}

#[test]
fn the_bytes_of_all_are_capped_and_the_living_day_is_spared() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), options(), &talk(4));
    seal_all(dir.path(), &Keychain::default());
    let next_day = Options { unix_nanos: || START + DAY, ..Options::default() };
    record(dir.path(), next_day, &talk(4));
    let terms = Terms { stream: 90 * DAY, content: 90 * DAY, metadata: 90 * DAY, bytes: 1 };
    let forgotten = forget(dir.path(), &Real, &terms, START + DAY).expect("forgets");
    assert_eq!((forgotten.files, forgotten.metadata), (3, true));
    assert_eq!(exchanges_of(dir.path()), talk(4), "each day has all that it refers to");
}

#[test]
fn an_encrypted_journal_shows_nothing_without_its_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = Arc::new(Keychain::wrapping(&[7; 32]));
    let turns = talk(9);
    let secret = Options { keys: keys.clone(), segment_bytes: 4000, ..options() };
    record(dir.path(), secret.clone(), &turns[..5]);
    seal_all(dir.path(), &keys);
    record(dir.path(), secret, &turns[5..]);
    for path in segment::list(dir.path())
        .expect("lists")
        .iter()
        .flat_map(|file| file.classes.iter().map(|class| file.path(*class)).collect::<Vec<_>>())
    {
        let bytes = std::fs::read(&path).expect("reads");
        for word in [b"question".as_slice(), b"chat/completions", b"router"] {
            assert!(!bytes.windows(word.len()).any(|window| window == word), "{path:?}");
        }
    }
    assert!(exchanges_of(dir.path()).is_empty());
    let locked = verify(dir.path(), &Arc::default()).expect("reads");
    assert!(locked.damage.locked_segments > 1 && !locked.is_sound());
    // The keys lie beside, wrapped: another run finds them with the wrapping key alone.
    let later = Arc::new(Keychain::wrapping(&[7; 32]));
    assert_eq!(exchanges_with(dir.path(), &later), turns);
    assert!(verify(dir.path(), &later).expect("reads").is_sound());
}

#[test]
fn what_is_written_for_a_recipient_goes_with_its_day_and_damage_in_it_is_found_without_its_key() {
    let dir = tempfile::tempdir().expect("a directory");
    let recipient = "age1wtwn8lrhax50yhh94ymw4q6vl3q85rmnwy8g8aypp37sa4l55eeqjq63mq";
    let chain = || Arc::new(keychain(Path::new(""), recipient).expect("is a recipient"));
    let (writer, later) = (chain(), chain());
    let turns = talk(9);
    let secret = Options { keys: writer.clone(), segment_bytes: 4000, ..options() };
    record(dir.path(), secret, &turns);
    let files = segment::list(dir.path()).expect("lists");
    assert_eq!(seal(&files[0], &Real, &later, HOW).expect("reads"), Outcome::Locked);
    assert_eq!(seal(&files[0], &Real, &writer, HOW).expect("seals"), Outcome::Sealed);
    assert_eq!(exchanges_with(dir.path(), &writer), turns);
    assert!(exchanges_with(dir.path(), &later).is_empty());
    let blind = verify(dir.path(), &later).expect("reads");
    assert!(!blind.is_sound() && !blind.is_damaged() && blind.damage.locked_segments > 1, "{blind:?}");
    for path in [files[0].path(Class::Content), files[1].path(Class::Mixed)] {
        let good = std::fs::read(&path).expect("reads");
        let mut bad = good.clone();
        bad[256 + 40] ^= 1;
        std::fs::write(&path, &bad).expect("writes");
        assert!(verify(dir.path(), &later).expect("reads").is_damaged(), "{path:?}");
        std::fs::write(&path, &good).expect("writes");
    }
    let keys = || names(dir.path()).into_iter().filter(|name| name.ends_with(".age")).count();
    assert_eq!(keys(), 1);
    let terms = Terms { stream: 0, content: 0, metadata: 3 * DAY, bytes: 0 };
    forget(dir.path(), &Real, &terms, START + 2 * DAY).expect("forgets");
    assert_eq!(keys(), 1, "metadata is still there");
    let terms = Terms { metadata: 0, ..terms };
    forget(dir.path(), &Real, &terms, START + 2 * DAY).expect("forgets");
    assert_eq!(
        std::fs::read_dir(dir.path())
            .expect("lists")
            .filter(|entry| entry.as_ref().expect("an entry").path().is_dir())
            .count(),
        0
    );
}

#[test]
fn a_failed_sync_moves_what_waits_into_a_new_segment() {
    let dir = tempfile::tempdir().expect("a directory");
    let faulty = Faulty::default();
    let mut journal =
        Journal::open(dir.path(), Options { fs: Arc::new(faulty.clone()), ..options() }).expect("opens");
    let turns = talk(4);
    for turn in &turns[..2] {
        journal.record(turn.clone(), Keep::ALL, None).expect("records");
    }
    journal.commit().expect("commits");
    faulty.plan(|plan| plan.syncs = [Act::Fail(ErrorKind::Other)].into());
    journal.record(turns[2].clone(), Keep::ALL, None).expect("records");
    assert!(journal.commit().is_err());
    let synced = |faulty: &Faulty| faulty.0.lock().expect("the plan").synced;
    let before = synced(&faulty);
    journal.record(turns[3].clone(), Keep::ALL, None).expect("records");
    let end = journal.commit().expect("commits");
    assert!(synced(&faulty) > before && end.segment() == 1, "the records keep their numbers");
    assert_eq!(segment::list(dir.path()).expect("lists").len(), 2, "and lie in a new file");
    drop(journal);
    assert_eq!(exchanges_of(dir.path()), turns, "each once");
    seal_all(dir.path(), &Keychain::default());
    assert_eq!(exchanges_of(dir.path()), turns);
    let reader = Reader::open(dir.path()).expect("opens");
    let numbers: Vec<_> =
        Reader::open(dir.path()).expect("opens").map(|next| next.expect("reads").0).collect();
    assert!(numbers.iter().all(|lsn| reader.read_at(*lsn).is_ok()));
}

#[test]
fn torn_writes_and_full_disks_lose_nothing_that_waits() {
    let kinds = [ErrorKind::StorageFull, ErrorKind::Other, ErrorKind::QuotaExceeded];
    let faults: Vec<Act> =
        kinds.into_iter().map(Act::Fail).chain((0..400).step_by(23).map(Act::Tear)).collect();
    for fault in faults {
        let dir = tempfile::tempdir().expect("a directory");
        let faulty = Faulty::default();
        let options = Options { fs: Arc::new(faulty.clone()), ..options() };
        let mut journal = Journal::open(dir.path(), options).expect("opens");
        let turns = talk(3);
        for turn in &turns {
            faulty.plan(|plan| plan.writes = [fault, fault].into());
            journal.record(turn.clone(), Keep::ALL, None).expect("records");
            assert!(journal.commit().is_err() && journal.commit().is_err(), "{fault:?}");
            journal.commit().expect("commits");
        }
        drop(journal);
        assert_eq!(exchanges_of(dir.path()), turns, "{fault:?}");
        assert!(verify(dir.path(), &Arc::default()).expect("reads").is_sound(), "{fault:?}");
    }
}

#[test]
fn no_file_can_be_made_and_later_it_can() {
    let dir = tempfile::tempdir().expect("a directory");
    let faulty = Faulty::default();
    let mut journal =
        Journal::open(dir.path(), Options { fs: Arc::new(faulty.clone()), ..options() }).expect("opens");
    faulty.plan(|plan| plan.creates_then = Some(Act::Fail(ErrorKind::StorageFull)));
    let turns = talk(2);
    journal.record(turns[0].clone(), Keep::ALL, None).expect("records");
    assert!((0..5).all(|_| journal.commit().is_err()), "as with no free inode");
    faulty.plan(|plan| plan.creates_then = None);
    journal.record(turns[1].clone(), Keep::ALL, None).expect("records");
    journal.commit().expect("commits");
    assert_eq!(exchanges_of(dir.path()), turns);
    assert!(names(dir.path()).len() == 1, "no heap of empty segments");
}

#[test]
fn a_class_of_records_lies_in_its_own_file() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), options(), &talk(2));
    seal_all(dir.path(), &Keychain::default());
    let file = &segment::list(dir.path()).expect("lists")[0];
    assert_eq!(file.classes, Class::SEALED);
    std::fs::remove_file(file.path(Class::Metadata)).expect("removes");
    assert!(exchanges_of(dir.path()).is_empty());
}

/// What the golden journals of version 2 hold, and the key of the encrypted one.
const GOLDEN_TURNS: u64 = 24;
const GOLDEN_KEY: [u8; 32] = [7; 32];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/journal").join(name)
}

/// Written by the first release of version 2 from [`talk`], eight turns a segment: two sealed ones and an open one. They
/// must be readable for ever.
#[test]
fn the_golden_journals_of_version_2_are_read() {
    for (name, keys) in [("v2", Keychain::default()), ("v2-encrypted", Keychain::wrapping(&GOLDEN_KEY))] {
        let (dir, keys) = (golden(name), Arc::new(keys));
        assert_eq!(exchanges_with(&dir, &keys), talk(GOLDEN_TURNS), "{name}");
        let found = verify(&dir, &keys).expect("verifies");
        assert!(found.is_sound() && found.proven_bodies == 2 * GOLDEN_TURNS, "{name}: {found:?}");
        let open: Vec<bool> = segment::list(&dir).expect("lists").iter().map(|file| file.is_open()).collect();
        assert_eq!(open, [false, false, true], "{name}");
    }
}
