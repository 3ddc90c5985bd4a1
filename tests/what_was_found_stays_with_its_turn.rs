//! Promise: what was found about a turn is part of the record: it survives the index, stitching again and sealing, it is
//! shown, and it goes with its turn.

#[path = "support/exchanges.rs"]
mod exchanges;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use exchanges::{SECOND, START, assistant, chat, user};
use serde_json::json;
use serin::conversation::{Conversations, Filter, Flags, Subject, Wish, rebuild, render};
use serin::journal::erase;
use serin::journal::fs::Real;
use serin::journal::seal::{How, seal};
use serin::journal::segment;
use serin::journal::verify::verify;
use serin::journal::{Flag, Keychain, Options, Reader, Record};

const HOW: How = How { level: 3, frame_bytes: 3000 };

fn flag(turn: &str, name: &str) -> Flag {
    Flag { turn: turn.into(), name: name.into(), version: 3, unix_nanos: 7 }
}

/// Two turns of one conversation and one of another, the second of them flagged twice.
fn record(dir: &Path, options: Options) -> Conversations {
    let mut conversations = Conversations::open_with(dir, options).expect("opens");
    let one = json!([user("my name is Ada")]);
    let two = json!([user("my name is Ada"), assistant("Hello Ada."), user("who am I?")]);
    for exchange in [
        chat("1-one", SECOND, &one, "Hello Ada."),
        chat("2-two", 9 * SECOND, &two, "You have not told me."),
        chat("3-other", 20 * SECOND, &json!([user("hi")]), "Hi."),
    ] {
        conversations.record(exchange, Wish::ALL).expect("takes it");
    }
    conversations.commit().expect("commits");
    assert!(conversations.flag(flag("2-two", "denied_context")).expect("takes it"));
    assert!(conversations.flag(flag("2-two", "degenerate")).expect("takes it"));
    conversations.commit().expect("commits");
    conversations
}

fn flags(dir: &Path) -> Vec<Vec<&'static str>> {
    let lines = Conversations::read_only(dir).expect("opens").list(&Filter::default()).expect("lists");
    lines.into_iter().map(|line| line.flags).collect()
}

fn recorded(dir: &Path) -> Vec<Flag> {
    let only = |next: serin::journal::Result<(_, Record)>| match next.expect("reads").1 {
        Record::Flag(flag) => Some(flag),
        _ => None,
    };
    Reader::open(dir).expect("opens").filter_map(only).collect()
}

#[test]
fn flags_are_shown_rebuilt_and_kept_by_stitching_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = record(dir.path(), Options::default());
    let live = conversations.dump().expect("dumps");
    let wanted = [vec![], vec!["denied_context", "degenerate"]];
    assert_eq!(flags(dir.path()), wanted);
    assert_eq!(rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"), live);
    conversations.restitch().expect("stitches");
    conversations.reindex().expect("reindexes");
    assert_eq!(flags(dir.path()), wanted);
    let shown = Conversations::read_only(dir.path()).expect("opens").show("1-one").expect("shows");
    let look = render::Look { width: 100, full: false };
    let turns: Vec<_> = shown.turns.iter().map(|turn| turn.line.flags.clone()).collect();
    assert_eq!(turns, [vec![], vec!["denied_context", "degenerate"]]);
    let text = render::show(&shown, look);
    let mut lines = text.lines().filter(|line| line.contains("2-two"));
    assert!(lines.any(|line| line.ends_with(" · flags denied_context, degenerate")), "{text}");
    assert_eq!(recorded(dir.path())[0], flag("2-two", "denied_context"));
}

#[test]
fn what_is_of_no_turn_or_has_no_known_name_is_not_noted() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut conversations = record(dir.path(), Options::default());
    for (turn, name) in [("9-nobody", "degenerate"), ("1-one", "invented"), ("1-one", "error")] {
        assert!(!conversations.flag(flag(turn, name)).expect("is no fault"), "{turn} {name}");
    }
    assert_eq!(recorded(dir.path()).len(), 2);
}

#[test]
fn a_flag_of_a_later_version_is_kept_and_sets_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    drop(record(dir.path(), Options::default()));
    let mut journal = serin::journal::Journal::open(dir.path(), Options::default()).expect("opens");
    journal.append(&Record::Flag(flag("1-one", "of_next_year"))).expect("appends");
    journal.commit().expect("commits");
    drop(journal);
    assert_eq!(flags(dir.path()), [vec![], vec!["denied_context", "degenerate"]]);
    assert_eq!((recorded(dir.path()).len(), Flags::recorded("of_next_year")), (3, None));
    assert_eq!(verify(dir.path(), &Arc::default()).expect("verifies").flags, 3);
}

/// The day that the clock of the next test shows.
static DAY: AtomicU64 = AtomicU64::new(0);

fn seal_all(dir: &Path, before: u64) {
    for file in segment::list(dir).expect("lists") {
        if file.is_open() && file.number < before {
            seal(&file, &Real, &Keychain::default(), HOW).expect("seals");
        }
    }
}

#[test]
fn a_flag_of_the_next_day_goes_with_its_turn() {
    let dir = tempfile::tempdir().expect("a directory");
    let unix_nanos = || START + DAY.load(Relaxed) * 86_400 * SECOND;
    let mut conversations = record(dir.path(), Options { unix_nanos, ..Options::default() });
    DAY.store(1, Relaxed);
    conversations.roll_when_due().expect("rolls");
    for turn in ["1-one", "3-other"] {
        conversations.flag(flag(turn, "tool_invalid")).expect("takes it");
    }
    conversations.commit().expect("commits");
    seal_all(dir.path(), conversations.writing());
    let mut erasure = conversations.erase(&Subject::Conversation("1-one".into())).expect("is noted");
    assert_eq!(recorded(dir.path()), [flag("3-other", "tool_invalid")], "readers pass over the others");
    assert!(!conversations.flag(flag("1-one", "degenerate")).expect("is no fault"));
    seal_all(dir.path(), conversations.writing());
    let keys = Keychain::default();
    erase::carry_out(dir.path(), &Real, &keys, HOW, &mut erasure, 1).expect("erases");
    assert_eq!(recorded(dir.path()), [flag("3-other", "tool_invalid")]);
    assert_eq!(flags(dir.path()), [vec!["tool_invalid"]]);
    assert!(verify(dir.path(), &Arc::default()).expect("verifies").is_sound());
    let live = conversations.dump().expect("dumps");
    assert_eq!(rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"), live);
}
