//! Promise: a turn whose commit has returned is there after the process is killed, and a reader beside a live writer
//! sees only whole records.

#[path = "support/exchanges.rs"]
mod exchanges;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use exchanges::{SECOND, assistant, streamed, user};
use serde_json::json;
use serin::conversation::{Conversations, Filter, Wish, rebuild};
use serin::journal::fs::Real;
use serin::journal::seal::{How, seal};
use serin::journal::verify::verify;
use serin::journal::{Keychain, Options, Reader, segment};

/// Names the directory in which the writing child records.
const DIR: &str = "SERIN_TEST_WRITER_DIR";
const ROUND: &str = "SERIN_TEST_WRITER_ROUND";

/// The child's part: records until it is killed, and says which turns are durable. As a test of its own it does nothing.
#[test]
fn writer() {
    let (Ok(dir), Ok(round)) = (std::env::var(DIR), std::env::var(ROUND)) else { return };
    let options = Options { segment_bytes: 40_000, ..Options::default() };
    let mut conversations = Conversations::open_with(Path::new(&dir), options).expect("opens");
    let writing = Arc::new(AtomicU64::new(0));
    std::thread::spawn({
        let (dir, writing) = (PathBuf::from(&dir), writing.clone());
        move || seal_forever(&dir, &writing)
    });
    let mut messages = vec![];
    for number in 0u64.. {
        let id = format!("{round}-{number:06}");
        messages.push(user(&format!("question {id}")));
        let answer = format!("answer {}", blake3::hash(id.as_bytes()));
        conversations
            .record(streamed(&id, number * SECOND, &json!(messages), &answer), Wish::ALL)
            .expect("takes it");
        messages.push(assistant(&answer));
        if number % 7 == 0 {
            messages.clear();
        }
        if number % 3 == 0 {
            conversations.commit().expect("commits");
            writing.store(conversations.writing(), Relaxed);
            // Straight to the descriptor, as the harness would keep it back, and at once, as a kill may come between.
            let line = format!("durable {number}\n");
            std::io::stderr().write_all(line.as_bytes()).expect("the parent reads");
        }
    }
}

/// Seals every segment that is no longer written to, until the process is killed.
fn seal_forever(dir: &Path, writing: &AtomicU64) {
    loop {
        let before = writing.load(Relaxed);
        for file in
            segment::list(dir).expect("lists").iter().filter(|file| file.is_open() && file.number < before)
        {
            seal(file, &Real, &Keychain::default(), How { level: 1, frame_bytes: 8192 }).expect("seals");
        }
        std::thread::yield_now();
    }
}

fn start_writer(dir: &Path, round: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    command.args(["--exact", "writer", "--nocapture"]).env(DIR, dir).env(ROUND, round.to_string());
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("starts")
}

#[test]
fn nothing_acknowledged_is_lost_when_the_writer_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = HashSet::new();
    for round in 0..12 {
        let mut child = start_writer(dir.path(), round);
        let mut lines = BufReader::new(child.stderr.take().expect("is piped")).lines();
        let mut take = |acknowledged: &mut HashSet<String>| {
            let line = lines.next()?.expect("is text");
            let last: u64 = line
                .strip_prefix("durable ")
                .unwrap_or_else(|| panic!("the writer says {line}"))
                .parse()
                .expect("a number");
            acknowledged.extend((0..=last).map(|number| format!("{round}-{number:06}")));
            Some(())
        };
        for _ in 0..5 + round {
            take(&mut acknowledged).expect("the writer goes on until it is killed");
        }
        let sessions = Conversations::read_only(dir.path()).expect("reads beside the writer");
        for line in sessions.list(&Filter { limit: 5, ..Filter::default() }).expect("lists") {
            assert!(sessions.show(&line.id).expect("shows").turns.iter().all(|turn| turn.response.parsed));
        }
        child.kill().expect("kills");
        child.wait().expect("is gone");
        while take(&mut acknowledged).is_some() {}
        let mut conversations = Conversations::open(dir.path()).expect("opens after the kill");
        conversations.commit().expect("commits");
        let dump = conversations.dump().expect("dumps");
        assert_eq!(rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"), dump, "round {round}");
        let lost: Vec<_> = acknowledged.iter().filter(|id| !dump.contains(id.as_str())).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?}");
    }
    let mut reader = Reader::open(dir.path()).expect("opens");
    assert!(reader.by_ref().all(|next| next.is_ok()));
    assert_eq!(reader.damage(), Default::default());
    assert!(acknowledged.len() > 200);
}

/// Kills at moments that differ by the scheduler's whim and by a number that follows from the round: while a segment is
/// opened, written, synced or sealed.
#[test]
fn two_hundred_kills_lose_nothing_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut acknowledged = HashSet::new();
    for round in 1000..1200u64 {
        let mut child = start_writer(dir.path(), round);
        let lines = BufReader::new(child.stderr.take().expect("is piped")).lines();
        let mut killed = false;
        for line in lines.map_while(Result::ok) {
            let Some(number) = line.strip_prefix("durable ") else { continue };
            let number: u64 = number.parse().expect("a number");
            acknowledged.extend((0..=number).map(|number| format!("{round}-{number:06}")));
            if !killed && number >= round * 7919 % 31 {
                child.kill().expect("kills");
                killed = true;
            }
        }
        child.wait().expect("is gone");
    }
    let mut conversations = Conversations::open(dir.path()).expect("opens after the last kill");
    conversations.commit().expect("commits");
    let dump = conversations.dump().expect("dumps");
    assert_eq!(rebuild(dir.path()).expect("rebuilds").dump().expect("dumps"), dump);
    let lost: Vec<_> = acknowledged.iter().filter(|id| !dump.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let proof = verify(dir.path(), &Arc::default()).expect("reads");
    assert!(proof.is_sound() && proof.exchanges >= acknowledged.len() as u64, "{proof:?}");
    assert!(acknowledged.len() > 1000, "{}", acknowledged.len());
}
