//! Promise: an exchange that ran when the process died leaves a trace, once, and one that ended leaves no other than its
//! record.

#[path = "support/exchanges.rs"]
mod exchanges;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use exchanges::{SECOND, START, chat, user, with_session};
use serde_json::json;
use serin::conversation::{Conversations, Filter, Session, Subject, Wish, rebuild};
use serin::ids;
use serin::journal::fs::Real;
use serin::journal::seal::{How, seal};
use serin::journal::verify::verify;
use serin::journal::{Exchange, Journal, Keychain, Options, Reader, Record, erase, segment};

const HOW: How = How { level: 3, frame_bytes: 3000 };

fn whole(id: &str) -> Exchange {
    with_session(chat(id, SECOND, &json!([user("hi")]), "Hello."), "x-session-id", "ada-77")
}

/// What is known of it while it runs.
fn begun(id: &str) -> Exchange {
    let Exchange { id, started_unix_nanos, method, target, request_headers, upstream, .. } = whole(id);
    Exchange { id, started_unix_nanos, method, target, request_headers, upstream, ..Exchange::default() }
}

fn sessions(dir: &Path) -> Vec<Session> {
    let sessions = Conversations::read_only(dir).expect("opens");
    let lines = sessions.list(&Filter::default()).expect("lists");
    lines.iter().map(|line| sessions.show(&line.id).expect("shows")).collect()
}

fn starts(dir: &Path) -> usize {
    let records = Reader::open(dir).expect("opens").map(|next| next.expect("reads").1);
    records.filter(|record| matches!(record, Record::Start(_))).count()
}

#[test]
fn what_ran_when_the_process_died_is_recorded_as_interrupted_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    conversations.start(begun("1-ran")).expect("takes it");
    conversations.start(begun("2-ended")).expect("takes it");
    conversations.commit().expect("commits");
    conversations.record(whole("2-ended"), Wish::ALL).expect("takes it");
    conversations.commit().expect("commits");
    let live = conversations.dump().expect("dumps");
    assert!(live.contains("1-ran"), "{live}");
    assert_eq!(rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"), live);
    assert_eq!(sessions(dir.path()).len(), 1, "what runs is in no list");
    drop(conversations);
    for wanted in [1, 0, 0] {
        let mut conversations = Conversations::open(dir.path()).expect("opens");
        assert_eq!(conversations.opened().interrupted, wanted);
        conversations.commit().expect("commits");
        let live = conversations.dump().expect("dumps");
        assert_eq!(rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"), live);
    }
    let mut ends: Vec<(String, String)> = sessions(dir.path())
        .into_iter()
        .flat_map(|session| session.turns)
        .map(|turn| (turn.line.id.clone(), turn.line.end.clone()))
        .collect();
    ends.sort();
    let wanted = [("1-ran", "interrupted"), ("2-ended", "complete")];
    assert_eq!(ends, wanted.map(|(id, end)| (id.to_owned(), end.to_owned())));
    let proof = verify(dir.path(), &Arc::default()).expect("verifies");
    assert!(proof.is_sound() && (proof.starts, proof.exchanges) == (2, 2), "{proof:?}");
}

#[test]
fn it_stays_known_that_one_began_until_that_is_durable() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    conversations.start(begun("1-ran")).expect("takes it");
    conversations.commit().expect("commits");
    drop(conversations);
    for _ in 0..3 {
        // It dies again before its first commit.
        assert_eq!(Conversations::open(dir.path()).expect("opens").opened().interrupted, 1);
    }
    // And where the index is gone as well.
    std::fs::remove_file(dir.path().join("index.sqlite")).expect("removes");
    assert_eq!(Conversations::open(dir.path()).expect("opens").opened().interrupted, 1);
}

#[test]
fn what_is_no_turn_ends_as_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    let listed = |mut exchange: Exchange| {
        exchange.target = "/v1/files".into();
        exchange
    };
    conversations.start(listed(begun("1-files"))).expect("takes it");
    conversations.record(listed(whole("1-files")), Wish::ALL).expect("takes it");
    conversations.commit().expect("commits");
    let live = conversations.dump().expect("dumps");
    assert!(!live.contains("1-files"), "{live}");
    assert_eq!(rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"), live);
    drop(conversations);
    assert_eq!(Conversations::open(dir.path()).expect("opens").opened().interrupted, 0);
}

#[test]
fn a_journal_of_before_its_index_followed_says_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::open(dir.path(), Options::default()).expect("opens");
    for record in [
        Record::Start(begun("1-ran")),
        Record::Start(begun("2-ended")),
        Record::Exchange(whole("2-ended")),
        // Written again after a failed sync.
        Record::Start(begun("2-ended")),
    ] {
        journal.append(&record).expect("appends");
    }
    journal.commit().expect("commits");
    drop(journal);
    assert_eq!(Conversations::open(dir.path()).expect("opens").opened().interrupted, 1);
}

#[test]
fn what_is_erased_leaves_no_beginning_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    for id in ["1-one", "2-two"] {
        conversations.start(begun(id)).expect("takes it");
    }
    conversations.commit().expect("commits");
    conversations.record(whole("1-one"), Wish::ALL).expect("takes it");
    let other = chat("2-two", 9 * SECOND, &json!([user("other")]), "Yes.");
    conversations.record(other, Wish::ALL).expect("takes it");
    conversations.commit().expect("commits");
    let mut erasure = conversations.erase(&Subject::Session("ada-77".into())).expect("is noted");
    assert_eq!(starts(dir.path()), 1, "readers pass over it at once");
    for file in segment::list(dir.path()).expect("lists") {
        if file.is_open() && file.number < conversations.writing() {
            seal(&file, &Real, &Keychain::default(), HOW).expect("seals");
        }
    }
    erase::carry_out(dir.path(), &Real, &Keychain::default(), HOW, &mut erasure, 1).expect("erases");
    assert_eq!(starts(dir.path()), 1);
    assert_eq!(verify(dir.path(), &Arc::default()).expect("verifies").starts, 1);
}

/// The day that the clock of the next test shows.
static DAY: AtomicU64 = AtomicU64::new(0);

#[test]
fn the_beginning_of_an_earlier_day_goes_with_its_exchange() {
    let dir = tempfile::tempdir().expect("a directory");
    let unix_nanos = || START + DAY.load(Relaxed) * 86_400 * SECOND;
    let options = Options { unix_nanos, ..Options::default() };
    let mut conversations = Conversations::open_with(dir.path(), options).expect("opens");
    let id = ids::sortable(START + SECOND, [1; 10]);
    conversations.start(begun(&id)).expect("takes it");
    conversations.commit().expect("commits");
    DAY.store(1, Relaxed);
    conversations.record(whole(&id), Wish::ALL).expect("takes it");
    conversations.commit().expect("commits");
    assert_eq!(segment::epochs(dir.path()).expect("lists").len(), 2);
    let mut erasure = conversations.erase(&Subject::Session("ada-77".into())).expect("is noted");
    erase::carry_out(dir.path(), &Real, &Keychain::default(), HOW, &mut erasure, 1).expect("erases");
    let proof = verify(dir.path(), &Arc::default()).expect("verifies");
    assert_eq!((proof.starts, proof.exchanges), (0, 0));
}
