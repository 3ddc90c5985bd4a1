//! Promise: a turn whose commit has returned is there after the process is killed, and a reader beside a live writer
//! sees only whole records.

#[path = "support/exchanges.rs"]
mod exchanges;

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use exchanges::{SECOND, assistant, streamed, user};
use serde_json::json;
use serin::conversation::{Conversations, Filter, Wish, rebuild};
use serin::journal::{Options, Reader};

/// Names the directory in which the writing child records.
const DIR: &str = "SERIN_TEST_WRITER_DIR";
const ROUND: &str = "SERIN_TEST_WRITER_ROUND";

/// The child's part: records until it is killed, and says which turns are durable. As a test of its own it does nothing.
#[test]
fn writer() {
    let (Ok(dir), Ok(round)) = (std::env::var(DIR), std::env::var(ROUND)) else { return };
    let options = Options { segment_bytes: 40_000, ..Options::default() };
    let mut conversations = Conversations::open_with(Path::new(&dir), options).expect("opens");
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
            // Straight to the descriptor: the harness would keep it back.
            writeln!(std::io::stderr(), "durable {number}").expect("the parent reads");
        }
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
