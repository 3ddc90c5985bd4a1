//! Promise: the index can be lost, and what is rebuilt from the journal equals it.

#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/stitching.rs"]
mod stitching;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use exchanges::{SECOND, assistant, chat, failed, streamed, user, with_session};
use serde_json::json;
use serin::conversation::index::Index;
use serin::conversation::reading::is_turn;
use serin::conversation::render::{Look, show};
use serin::conversation::{Conversations, Error, Filter, Wish, rebuild};
use serin::journal::frame::MAGIC;
use serin::journal::{Exchange, Gap, Journal, Keep, Link, Options, Reader, Record};
use stitching::Links;

fn talk() -> Vec<Exchange> {
    let one = json!([{"role": "system", "content": "be brief"}, user("my name is Ada")]);
    let two = json!([{"role": "system", "content": "be brief"}, user("my name is Ada"), assistant("Hello Ada."), user("who am I?")]);
    let mut models = chat("0-models", 0, &json!([]), "");
    models.method = "GET".into();
    models.target = "/v1/models".into();
    vec![
        models,
        streamed("1-one", SECOND, &one, "Hello Ada."),
        with_session(chat("2-other", 2 * SECOND, &one, "Hello Ada."), "session-id", "s"),
        failed("3-two", 9 * SECOND, &two),
        streamed("4-two-again", 12 * SECOND, &two, "Ada."),
        streamed("5-two-more", 90 * SECOND, &two, "You are Ada."),
    ]
}

fn record(dir: &Path, exchanges: &[Exchange]) {
    let mut conversations = Conversations::open(dir).expect("opens");
    for exchange in exchanges {
        conversations.record(exchange.clone(), Wish::ALL).expect("takes it");
        conversations.commit().expect("commits");
    }
    assert_eq!(conversations.index_faults(), 0);
}

/// A dump without the watermark.
fn turns(dump: &str) -> Vec<&str> {
    dump.lines().filter(|line| !line.starts_with("watermark")).collect()
}

fn live_dump(dir: &Path) -> String {
    Conversations::open(dir).expect("opens").dump().expect("dumps")
}

#[test]
fn a_rebuilt_index_equals_the_live_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    for exchange in talk() {
        conversations.record(exchange, Wish::ALL).expect("takes it");
    }
    conversations.commit().expect("commits");
    conversations
        .gap(Gap { from_unix_nanos: 1, to_unix_nanos: 2, reason: "queue_full".into(), count: 3 })
        .expect("takes it");
    conversations.commit().expect("commits");
    let live = conversations.dump().expect("dumps");
    assert!(live.contains("5-two-more") && live.contains("queue_full"), "{live}");
    assert_eq!(rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"), live);
    drop(conversations);
    let index = dir.path().join("index.sqlite");
    assert_eq!(std::fs::metadata(&index).expect("there is one").permissions().mode() & 0o777, 0o600);
    std::fs::remove_file(index).expect("removes");
    let lines =
        Conversations::read_only(dir.path()).expect("reads without").list(&Filter::default()).expect("lists");
    assert_eq!(lines.iter().map(|line| line.turns).sum::<u64>(), 5);
    assert_eq!(live_dump(dir.path()), live);
}

#[test]
fn conversations_go_on_after_every_restart() {
    let (whole, pieces) =
        (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory"));
    record(whole.path(), &talk());
    for exchange in talk() {
        record(pieces.path(), &[exchange]);
    }
    let lines = |dir| Conversations::read_only(dir).expect("opens").list(&Filter::default()).expect("lists");
    let found = lines(whole.path());
    assert_eq!(found, lines(pieces.path()));
    let brief: Vec<_> = found
        .iter()
        .map(|line| (line.id.as_str(), line.turns, line.branches, line.flags.as_slice()))
        .collect();
    assert_eq!(brief, [("1-one", 4, 1, ["error"].as_slice()), ("2-other", 1, 0, [].as_slice())]);
}

#[test]
fn a_damaged_or_foreign_index_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), &talk());
    let live = live_dump(dir.path());
    std::fs::write(
        dir.path().join("index.sqlite"),
        b"this is no database, and long enough to be looked at".repeat(99),
    )
    .expect("writes");
    let lines = Conversations::read_only(dir.path())
        .expect("reads around it")
        .list(&Filter::default())
        .expect("lists");
    assert_eq!(lines.len(), 2);
    assert_eq!(live_dump(dir.path()), live);
    for entry in std::fs::read_dir(dir.path()).expect("lists").map(|entry| entry.expect("an entry").path()) {
        if entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with("epoch-")) {
            std::fs::remove_dir_all(entry).expect("removes");
        }
    }
    assert_eq!(turns(&live_dump(dir.path())), [""; 0]);
}

#[test]
fn an_index_that_lags_is_read_around_and_catches_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let all = talk();
    record(dir.path(), &all[..3]);
    {
        // A writer without an index: exchanges without links, as far as the index goes.
        let mut journal = Journal::open(dir.path(), Options::default()).expect("opens");
        for exchange in &all[3..] {
            journal.record(exchange.clone(), Keep::ALL, None).expect("records");
        }
        journal.commit().expect("commits");
    }
    let sessions = Conversations::read_only(dir.path()).expect("opens");
    let shown = sessions.show("1-one").expect("shows").turns;
    let found: Vec<_> =
        shown.iter().map(|turn| (turn.line.kind, turn.line.parent.as_deref().unwrap_or_default())).collect();
    assert_eq!(found, [("root", ""), ("append", "1-one"), ("retry", "3-two"), ("regenerate", "4-two-again")]);
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    assert_eq!(conversations.opened().missing_links.len(), 3);
    conversations.commit().expect("commits");
    let live = conversations.dump().expect("dumps");
    assert_eq!(turns(&rebuild(dir.path()).expect("rebuilds").dump().expect("dumps")), turns(&live));
    drop(conversations);
    assert!(Conversations::open(dir.path()).expect("opens").opened().missing_links.is_empty());
}

#[test]
fn show_gives_new_messages_and_assembled_answers_while_a_writer_is_live() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    for exchange in talk() {
        conversations.record(exchange, Wish::ALL).expect("takes it");
    }
    conversations.commit().expect("commits");
    let sessions = Conversations::read_only(dir.path()).expect("opens");
    let shown = serde_json::to_value(sessions.show("1-").expect("shows")).expect("is JSON");
    let turns = shown["turns"].as_array().expect("turns");
    let brief: Vec<_> = turns
        .iter()
        .map(|turn| json!([turn["id"], turn["parent"], turn["kind"], turn["status"], turn["end"]]))
        .collect();
    assert_eq!(
        json!(brief),
        json!([
            ["1-one", null, "root", 200, "complete"],
            ["3-two", "1-one", "append", 503, "complete"],
            ["4-two-again", "3-two", "retry", 200, "complete"],
            ["5-two-more", "4-two-again", "regenerate", 200, "complete"],
        ])
    );
    assert_eq!(turns[0]["request"]["messages"].as_array().map(Vec::len), Some(2));
    assert_eq!(turns[2]["request"]["messages"], json!([user("who am I?")]));
    assert_eq!(
        (&turns[3]["response"]["content"], &turns[3]["response"]["finish_reason"]),
        (&json!("You are Ada."), &json!("stop"))
    );
    assert!(turns[1]["response"]["error"].as_str().is_some_and(|error| error.contains("overloaded")));
    assert_eq!(turns[0]["body_hash"].as_str().map(str::len), Some(64));
    let text =
        show(&sessions.show("4-two-again").expect("shows by a turn's id"), Look { width: 100, full: true });
    assert!(text.contains("● 4  regenerate · ") && text.contains("assistant  You are Ada."), "{text}");
}

#[test]
fn stitching_again_gives_the_recorded_links() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), &talk());
    let mut links = Links::new(100);
    let mut made = Vec::new();
    let mut recorded = Vec::new();
    for next in Reader::open(dir.path()).expect("opens") {
        match next.expect("reads").1 {
            Record::Exchange(exchange) if is_turn(&exchange) => {
                made.push(links.link(&exchange));
            }
            Record::Link(link) => recorded.push(link),
            _ => {}
        }
    }
    assert_eq!((made.len(), &made), (5, &recorded));
}

#[test]
fn a_later_link_replaces_an_earlier_one() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), &talk());
    let mut journal = Journal::open(dir.path(), Options::default()).expect("opens");
    let link = Link {
        turn: "2-other".into(),
        conversation: "1-one".into(),
        parent: "1-one".into(),
        kind: "branch".into(),
        ..Link::default()
    };
    journal.append(&Record::Link(link)).expect("appends");
    journal.commit().expect("commits");
    drop(journal);
    let lines = Conversations::read_only(dir.path()).expect("opens").list(&Filter::default()).expect("lists");
    assert_eq!(
        lines.iter().map(|line| (line.id.as_str(), line.turns, line.branches)).collect::<Vec<_>>(),
        [("1-one", 5, 2)]
    );
    assert_eq!(
        turns(&rebuild(dir.path()).expect("rebuilds").dump().expect("dumps")),
        turns(&live_dump(dir.path()))
    );
}

#[test]
fn a_lost_record_does_not_hide_its_conversation() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), &talk());
    let segment = std::fs::read_dir(dir.path()).expect("lists").map(|entry| entry.expect("an entry").path());
    let segment = segment.into_iter().find(|path| path.is_dir()).expect("an epoch").join("000001.seg");
    let mut bytes = std::fs::read(&segment).expect("reads");
    // The fourth exchange's frame: each was committed by itself.
    let starts = bytes.windows(MAGIC.len()).enumerate().filter(|(_, window)| *window == MAGIC);
    let start = starts.map(|(at, _)| at).nth(3).expect("is there");
    bytes[start + 50] ^= 1;
    std::fs::write(&segment, bytes).expect("writes");
    let shown = Conversations::read_only(dir.path()).expect("opens").show("1-one").expect("shows");
    assert_eq!(shown.turns.len(), 4);
    assert!(
        shown.turns[1].request.is_none()
            && !shown.turns[1].response.parsed
            && shown.turns[1].line.status == 503
    );
    assert_eq!(shown.turns[2].response.message.content, "Ada.");
}

#[test]
fn a_fault_of_the_index_costs_no_record_and_heals() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    let intruder = rusqlite::Connection::open(dir.path().join("index.sqlite")).expect("opens");
    intruder.execute_batch("BEGIN IMMEDIATE").expect("takes the write lock");
    for exchange in talk() {
        conversations.record(exchange, Wish::ALL).expect("takes it");
    }
    let end = conversations.commit().expect("commits all the same");
    assert_eq!(conversations.index_faults(), 1);
    assert_eq!(Reader::open(dir.path()).expect("opens").count(), 11);
    for faults in [2, 2, 3, 3, 3, 3, 4] {
        conversations.commit().expect("commits");
        assert_eq!(conversations.index_faults(), faults, "it is tried ever more seldom");
    }
    intruder.execute_batch("ROLLBACK").expect("lets go");
    for _ in 0..8 {
        assert_eq!(conversations.commit().expect("commits"), end);
    }
    assert_eq!(conversations.index_faults(), 4);
    assert_eq!(
        rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"),
        conversations.dump().expect("dumps")
    );
}

#[test]
fn ids_that_fit_nothing_or_too_much_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let turn = |id: &str, word: &str| chat(id, SECOND, &json!([user(word)]), "ok");
    record(dir.path(), &[turn("ab1", "x"), turn("ab2", "y")]);
    let sessions = Conversations::read_only(dir.path()).expect("opens");
    assert!(matches!(sessions.show("ab"), Err(Error::Ambiguous { count: 2, .. })));
    assert!(matches!(sessions.show("%"), Err(Error::Near { .. })));
    assert!(matches!(sessions.show(""), Err(Error::Near { .. })));
    assert!(sessions.show("ab2").is_ok());
    let few = Filter { limit: 1, ..Filter::default() };
    assert_eq!(sessions.list(&few).expect("lists").len(), 1);
    let none = Filter { model: Some("other".into()), ..Filter::default() };
    assert!(sessions.list(&none).expect("lists").is_empty());
    assert!(Conversations::read_only(&dir.path().join("nowhere")).is_err());
    assert!(Index::open_read_only(&dir.path().join("nowhere")).is_none());
}

#[test]
fn stitching_again_mends_links_and_then_changes_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), &talk());
    let sound = turns_of(&live_dump(dir.path()));
    // As rules of an earlier version might have had it: each turn by itself.
    let mut journal = Journal::open(dir.path(), Options::default()).expect("opens");
    for turn in ["3-two", "2-other", "5-two-more"] {
        let link =
            Link { turn: turn.into(), conversation: turn.into(), kind: "root".into(), ..Link::default() };
        journal.append(&Record::Link(link)).expect("appends");
    }
    journal.commit().expect("commits");
    drop(journal);
    assert_ne!(turns_of(&live_dump(dir.path())), sound);
    let mut conversations = Conversations::open(dir.path()).expect("opens");
    let found = conversations.restitch().expect("stitches");
    assert_eq!((found.turns, found.changed, found.kept), (5, 3, 0));
    assert_eq!(turns_of(&conversations.dump().expect("dumps")), sound);
    let again = conversations.restitch().expect("stitches");
    assert_eq!((again.turns, again.changed), (5, 0));
    assert_eq!(
        rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"),
        conversations.dump().expect("dumps")
    );
}

#[test]
fn what_other_rules_have_read_is_read_again() {
    let dir = tempfile::tempdir().expect("a directory");
    record(dir.path(), &talk());
    let sound = turns_of(&live_dump(dir.path()));
    let other = tempfile::tempdir().expect("a directory");
    std::fs::copy(dir.path().join("match_key"), other.path().join("match_key")).expect("copies");
    let mut journal = Journal::open(other.path(), Options::default()).expect("opens");
    for next in Reader::open(dir.path()).expect("opens") {
        match next.expect("reads").1 {
            Record::Exchange(mut exchange) => {
                if let Some(facts) = &mut exchange.facts {
                    (facts.rules_version, facts.head, facts.answers) =
                        (1, vec![1; 16].into(), vec![2; 16].into());
                }
                journal.record(exchange, Keep::ALL, None).expect("records");
            }
            Record::Link(link) => drop(journal.append(&Record::Link(link)).expect("appends")),
            _ => {}
        }
    }
    journal.commit().expect("commits");
    drop(journal);
    let mut conversations = Conversations::open(other.path()).expect("opens");
    assert_eq!(turns_of(&conversations.dump().expect("dumps")), sound);
    assert_eq!(conversations.restitch().expect("stitches").changed, 0);
}

/// The turns and conversations of a dump, but for the numbers of their records.
fn turns_of(dump: &str) -> Vec<String> {
    let lines = dump.lines().filter(|line| !line.starts_with("watermark"));
    lines
        .map(|line| {
            line.split_once("[Integer(")
                .and_then(|(_, rest)| rest.split_once(')'))
                .map_or(line, |(_, rest)| rest)
                .to_owned()
        })
        .collect()
}
