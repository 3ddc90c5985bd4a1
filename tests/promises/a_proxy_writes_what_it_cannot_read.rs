//! With a recipient of `age`, what was recorded is read by whoever has the identity and by nobody else: not from the disk,
//! and not by the proxy that wrote it once it has ended.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::peer::succeed;
use crate::support::program::Program;
use crate::support::upstream::{Upstream, whole};
use crate::support::{base, eventually, program, wire};

const FULL: &str = "serin_recorder_turns_total{outcome=\"full\",reason=\"\"}";
const LOCKED: &str = "serin_recorder_locked_segments";
const MARKER: &str = "planted-marker-7Qz";

/// Answers with the number of messages it was sent.
fn counting() -> Upstream {
    Upstream::start(|request, out| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let text = format!("answer {}", asked["messages"].as_array().map_or(0, Vec::len));
        let message = json!({"role": "assistant", "content": text});
        let answer =
            json!({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
        out.write_all(&whole("200 OK", "application/json", answer.to_string().as_bytes())).is_ok()
    })
}

/// A folder with an identity in it, and what is to be said in the configuration to write for it.
struct Place {
    dir: tempfile::TempDir,
    recipient: String,
    upstream: Upstream,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        succeed(Command::new("age-keygen").current_dir(dir.path()).args(["-o", "identity"]));
        let recipient = succeed(Command::new("age-keygen").current_dir(dir.path()).args(["-y", "identity"]));
        let recipient = String::from_utf8(recipient.stdout).unwrap().trim().to_owned();
        Place { dir, recipient, upstream: counting() }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn writes(&self) -> String {
        format!("[record]\nrecipient = \"{}\"\n", self.recipient)
    }

    fn starts(&self, record: &str) -> Program {
        Program::with(self.upstream.address, self.path(), record)
    }

    /// Sets what the commands are told.
    fn configures(&self, record: &str) {
        std::fs::write(self.path().join("config.toml"), base(self.path(), record)).unwrap();
    }

    /// What a command says, with its exit code.
    fn serin(&self, arguments: &[&str]) -> (i32, String, String) {
        let output = program::run(self.path(), arguments);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// The journal's files, but for what is beside its segments.
    fn files(&self, ending: &str) -> Vec<PathBuf> {
        let inside =
            |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
        let all = inside(&self.path().join("data")).flat_map(|path| inside(&path).collect::<Vec<_>>());
        let mut found: Vec<_> =
            all.filter(|path| path.extension().is_some_and(|found| found == ending)).collect();
        found.sort();
        found
    }

    /// Opens every key as an operator does, and returns the setting that names them.
    fn opens(&self) -> String {
        let script = "umask 077; for f in data/*/*.age; do age -d -i identity \"$f\"; done > opened-keys";
        succeed(Command::new("sh").current_dir(self.path()).args(["-c", script]));
        format!("key_file = {:?}\n", self.path().join("opened-keys"))
    }

    fn lines(&self) -> Vec<Value> {
        let (code, out, said) = self.serin(&["sessions", "list", "--json"]);
        assert_eq!(code, 0, "{said}");
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Says something in a conversation, and waits until that is durable.
fn say(serin: &Program, messages: &mut Vec<Value>, text: &str) {
    let before = serin.metric(FULL).unwrap();
    messages.push(json!({"role": "user", "content": text}));
    let answer = wire::chat(serin.traffic, &json!({"model": "m", "messages": messages}));
    assert_eq!(answer.status, 200);
    messages.push(json!({"role": "assistant", "content": format!("answer {}", messages.len())}));
    eventually("it is durable", || serin.metric(FULL).filter(|count| *count > before));
}

/// A conversation that a run which was killed and one that was stopped have recorded.
fn recorded(place: &Place) {
    let mut messages = Vec::new();
    let mut serin = place.starts(&place.writes());
    say(&serin, &mut messages, &format!("one {MARKER}?"));
    say(&serin, &mut messages, "two?");
    // Beside it, a command has not the key; that is no reason to complain, as the index is complete.
    let (code, out, said) = place.serin(&["sessions", "list", "--json"]);
    assert_eq!((code, out.lines().count(), said.as_str()), (0, 1, ""));
    serin.signal("KILL");
    serin.wait();
    let mut serin = place.starts(&place.writes());
    say(&serin, &mut messages, "three?");
    eventually("it is seen", || serin.metric(LOCKED).filter(|segments| *segments == 1.0));
    serin.signal("TERM");
    let (code, said) = serin.wait();
    let said = serin.begun.clone() + &said;
    assert!(code == Some(0) && !said.contains("damaged"), "{said}");
    assert_eq!(said.matches("stay as they are").count(), 1, "{said}");
}

#[test]
fn the_disk_shows_nothing_and_the_identity_opens_all() {
    let place = Place::new();
    recorded(&place);
    // What was stopped is sealed, what was killed stays as it is; each run has a key of its own.
    assert_eq!((place.files("seg").len(), place.files("meta").len(), place.files("age").len()), (1, 1, 2));
    let opened = place.opens();
    let keys: Vec<String> = std::fs::read_to_string(place.path().join("opened-keys"))
        .unwrap()
        .lines()
        .map(|line| line.split(' ').nth(1).unwrap().to_owned())
        .collect();
    let mut needles: Vec<Vec<u8>> = vec![MARKER.into(), b"two?".into(), b"answer 3".into()];
    needles.extend(keys.iter().flat_map(|key| [key.clone().into(), serin::ids::unhex(key).unwrap()]));
    let mut stack = vec![place.path().join("data")];
    while let Some(path) = stack.pop() {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        if path.is_dir() {
            assert_eq!(mode, 0o700, "{path:?}");
            stack.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for needle in &needles {
            assert!(!bytes.windows(needle.len()).any(|window| window == needle), "{path:?}");
        }
        if ["age", "seg", "meta", "content"]
            .iter()
            .any(|ending| path.extension().is_some_and(|e| e == *ending))
        {
            assert_eq!(mode, 0o600, "{path:?}");
        }
    }
    // With the keys, beside the recipient or without, everything is there.
    for record in [format!("{}{opened}", place.writes()), format!("[record]\n{opened}")] {
        place.configures(&record);
        let listed = place.lines();
        assert_eq!((listed.len(), &listed[0]["turns"]), (1, &json!(3)), "it was stitched over the kill");
        let id = listed[0]["id"].as_str().unwrap();
        let (code, shown, said) = place.serin(&["sessions", "show", id, "--json"]);
        assert!(code == 0 && said.is_empty() && shown.contains(MARKER), "{said} {shown}");
        let session: Value = serde_json::from_str(&shown).unwrap();
        let answers: Vec<_> =
            session["turns"].as_array().unwrap().iter().map(|turn| &turn["response"]["content"]).collect();
        assert_eq!(answers, ["answer 1", "answer 3", "answer 5"]);
        let (code, said, _) = place.serin(&["journal", "verify"]);
        assert!(code == 0 && said.contains(": sound\n") && said.contains("3 exchanges"), "{said}");
        assert_eq!(place.serin(&["journal", "rebuild"]).0, 0);
        assert_eq!(place.lines(), listed);
    }
    // What was left is sealed by a process that is given its key.
    let serin = place.starts(&format!("{}{opened}", place.writes()));
    eventually("it is sealed", || place.files("seg").is_empty().then_some(()));
    assert_eq!((serin.metric(LOCKED), place.files("meta").len()), (Some(0.0), 2));
}

#[test]
fn without_the_identity_what_cannot_be_read_is_said_and_nothing_is_spoilt() {
    let place = Place::new();
    recorded(&place);
    place.configures(&place.writes());
    let listed = place.lines();
    let id = listed[0]["id"].as_str().unwrap();
    let (code, shown, said) = place.serin(&["sessions", "show", id]);
    assert!(code == 0 && !shown.contains("two?"), "{shown}");
    assert!(
        said.lines().count() == 1 && said.contains("3 of 3 turns") && said.contains("age -d -i"),
        "{said}"
    );
    assert!(said.contains(place.files("age")[0].parent().unwrap().to_str().unwrap()), "{said}");
    let (code, proof, said) = place.serin(&["journal", "verify"]);
    assert!(code == 66 && said.lines().count() == 1 && said.contains("age -d -i"), "{said}");
    assert!(
        proof.contains("sound as far as it could be read") && proof.contains("locked   2 seg"),
        "{proof}"
    );
    for command in ["rebuild", "restitch"] {
        let (code, _, said) = place.serin(&["journal", command]);
        assert!(code == 66 && said.lines().count() == 1 && said.contains("all that was recorded"), "{said}");
    }
    assert_eq!(place.lines(), listed);
    // A broken bit is found by its checksum all the same.
    let segment = &place.files("seg")[0];
    let mut bytes = std::fs::read(segment).unwrap();
    bytes[256 + 40] ^= 1;
    std::fs::write(segment, bytes).unwrap();
    let (code, proof, _) = place.serin(&["journal", "verify"]);
    assert!(code == 1 && proof.contains("DAMAGED") && proof.contains("in 1 holes"), "{proof}");
    // An index that is gone does not stop it: it begins with what can be read, and says what it lacks.
    for entry in std::fs::read_dir(place.path().join("data")).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.to_string_lossy().contains("index.sqlite") {
            std::fs::remove_file(entry).unwrap();
        }
    }
    let (code, _, said) = place.serin(&["sessions", "list"]);
    assert!(code == 0 && said.lines().count() == 1 && said.contains("2 segments"), "{said}");
    let mut serin = Program::start(program::command(&{
        place.configures(&format!(
            "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\n{}",
            place.upstream.address,
            place.writes()
        ));
        place.path().to_owned()
    }));
    assert!(serin.begun.contains("could not be read, and the index may lack"), "{}", serin.begun);
    say(&serin, &mut Vec::new(), "again?");
    serin.signal("TERM");
    assert_eq!(serin.wait().0, Some(0));
    assert_eq!(place.lines().len(), 1);
}

#[test]
fn erasing_waits_for_the_keys_it_needs_and_hides_at_once() {
    let place = Place::new();
    recorded(&place);
    let old = place.lines()[0]["id"].as_str().unwrap().to_owned();
    let mut serin = place.starts(&place.writes());
    say(&serin, &mut Vec::new(), "fresh?");
    let fresh = place.lines()[0]["id"].as_str().unwrap().to_owned();
    // The admin side shows what this run has recorded, and says what is missing of the others.
    let session = |id: &str| wire::get(serin.admin, &format!("/api/v1/sessions/{id}?bodies=true")).json();
    assert!(session(&fresh).to_string().contains("fresh?") && session(&fresh)["locked"].is_null());
    assert!(session(&old)["locked"].as_str().unwrap().contains("3 of 3 turns"));
    let body = wire::get(serin.admin, &format!("/api/v1/turns/{old}/request"));
    assert!(body.status == 409 && body.text().contains("age -d -i"), "{}", body.text());
    let erase = |serin: &Program, id: &str| {
        let request = format!("DELETE /api/v1/subjects/default/conv/{id} HTTP/1.1\r\nhost: a\r\n\r\n");
        let answer = wire::send(serin.admin, request.as_bytes());
        assert_eq!(answer.status, 202, "{}", answer.text());
        serde_json::from_slice::<Value>(&answer.body).unwrap()["id"].as_str().unwrap().to_owned()
    };
    let (old, fresh) = (erase(&serin, &old), erase(&serin, &fresh));
    assert!(place.lines().is_empty(), "neither is shown");
    let done = |serin: &Program, id: &str| {
        let text = wire::get(serin.admin, &format!("/api/v1/erasures/{id}")).text();
        serde_json::from_str::<Value>(&text).unwrap()["receipt"].is_object()
    };
    // What this run has written it can take away, on the day of others that it cannot read.
    eventually("the fresh one is gone", || done(&serin, &fresh).then_some(()));
    assert!(!done(&serin, &old));
    serin.signal("TERM");
    let (_, said) = serin.wait();
    let waits: Vec<&str> = said.lines().filter(|line| line.contains("not erased yet")).collect();
    assert!(waits.len() == 1 && waits[0].contains("age -d -i"), "once is enough: {said}");
    let serin = place.starts(&format!("{}{}", place.writes(), place.opens()));
    eventually("the old one is gone", || done(&serin, &old).then_some(()));
}
