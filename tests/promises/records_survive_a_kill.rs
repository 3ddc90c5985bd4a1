//! Nothing durable is lost by a kill, and what is on disk is read again at the next start.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::support::program::Program;
use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::{eventually, program, value, wire};

#[test]
fn every_acknowledged_turn_is_there_after_kill_9() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{\"choices\":[]}"));
    let dir = tempfile::tempdir().unwrap();
    let mut durable = 0;
    for round in 0..5 {
        let mut serin = Program::before(upstream.address, dir.path());
        let mut seen = 0.0;
        for request in 0..20 {
            let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{round}.{request}\"}}]}}");
            wire::send(serin.traffic, &wire::post("/v1/chat/completions", "", body.as_bytes()));
        }
        // Some are durable by now, others are not: only the former are promised.
        eventually("something is durable", || {
            let text = String::from_utf8(wire::get(serin.admin, "/metrics").body).unwrap();
            seen = value(&text, "serin_recorder_turns_total{outcome=\"full\",reason=\"\"}").unwrap();
            (seen >= 1.0).then_some(())
        });
        serin.signal("KILL");
        serin.wait();
        durable += seen as usize;
        let listed = program::run(dir.path(), &["sessions", "list", "--json", "--limit", "1000"]);
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        let found = String::from_utf8(listed.stdout).unwrap().lines().count();
        assert!(found >= durable, "round {round}: {durable} were durable, {found} are there");
        durable = found;
    }
}

/// What `journal verify` says, with its exit code.
fn verify(dir: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let output = program::run(dir, &[&["journal", "verify"], more].concat());
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let inside = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    let epochs = inside(&dir.join("data")).filter(|path| path.is_dir() && !path.ends_with("canary"));
    epochs.flat_map(|epoch| inside(&epoch).collect::<Vec<_>>()).collect()
}

#[test]
fn what_was_recorded_is_proven_and_damage_is_a_finding() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{\"choices\":[]}"));
    let dir = tempfile::tempdir().unwrap();
    let (code, _, complaint) = verify(dir.path(), &["--dir", "nowhere"]);
    assert_eq!((code, complaint.contains("no recordings at nowhere")), (Some(66), true), "{complaint}");
    for kill in [false, true] {
        let mut serin = Program::before(upstream.address, dir.path());
        for number in 0..20 {
            let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{kill}.{number}\"}}]}}");
            wire::send(serin.traffic, &wire::post("/v1/chat/completions", "", body.as_bytes()));
        }
        let full = "serin_recorder_turns_total{outcome=\"full\",reason=\"\"}";
        eventually("all are durable", || serin.metric(full).filter(|count| *count >= 20.0));
        // While it writes, and after it was stopped or killed.
        assert_eq!(verify(dir.path(), &[]).0, Some(0));
        serin.signal(if kill { "KILL" } else { "TERM" });
        serin.wait();
    }
    let (code, said, _) = verify(dir.path(), &[]);
    assert!(code == Some(0) && said.contains(": sound\n") && said.contains("40 exchanges"), "{said}");
    let (_, said, _) = verify(dir.path(), &["--json"]);
    let proof: serde_json::Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let found = [&proof["exchanges"], &proof["proven_bodies"], &proof["partial_bodies"], &proof["faults"]];
    assert_eq!(found.map(|count| count.as_u64().unwrap()), [40, 80, 0, 0], "{proof}");

    // One bit in the first frame, which others follow: the same in the last would be an unfinished write.
    let segment = segments(dir.path()).into_iter().min().unwrap();
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[256 + 40] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let (code, said, complaint) = verify(dir.path(), &[]);
    assert!(code == Some(1) && said.contains(": DAMAGED\n") && said.contains("in 1 holes"), "{said}");
    assert!(complaint.starts_with("serin: damaged: ") && complaint.lines().count() == 1, "{complaint}");
}

#[test]
fn the_index_is_made_anew_and_lists_the_same() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{\"choices\":[]}"));
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::before(upstream.address, dir.path());
    for number in 0..10 {
        let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{number}\"}}]}}");
        wire::send(serin.traffic, &wire::post("/v1/chat/completions", "", body.as_bytes()));
    }
    let rebuild = || program::run(dir.path(), &["journal", "rebuild"]);
    // Beside the process that writes it, it is refused.
    let refused = rebuild();
    let complaint = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(74) && complaint.contains("in use by another process"),
        "{complaint}"
    );
    serin.signal("TERM");
    serin.wait();
    let list = || {
        let listed = program::run(dir.path(), &["sessions", "list", "--json"]);
        String::from_utf8(listed.stdout).unwrap()
    };
    let before = list();
    assert_eq!(before.lines().count(), 10);
    // One that is in the way, whole or not.
    std::fs::write(dir.path().join("data/index.sqlite"), b"no index at all").unwrap();
    let done = rebuild();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(String::from_utf8_lossy(&done.stdout).contains("made anew of 20 records"));
    assert_eq!(list(), before);
}

#[test]
fn an_answer_in_whose_middle_the_process_died_leaves_a_trace() {
    let upstream = Upstream::start(|_, out| {
        let begun = [chunked("text/event-stream"), chunk(b"data: {\"choices\":[]}\n\n")].concat();
        let _ = out.write_all(&begun);
        until_closed(out);
        false
    });
    let dir = tempfile::tempdir().unwrap();
    let extra = "[record]\nstart_after = \"10ms\"\n";
    let mut serin = Program::with(upstream.address, dir.path(), extra);
    let mut client = wire::connect(serin.traffic);
    client.write_all(&wire::post("/v1/chat/completions", "", b"{\"messages\":[],\"stream\":true}")).unwrap();
    wire::read_until(&mut client, b"choices");
    let starts = |dir: &Path| {
        let (_, said, _) = verify(dir, &["--json"]);
        let proof: serde_json::Value = serde_json::from_str(said.lines().next()?).ok()?;
        (proof["starts"] == 1).then_some(())
    };
    eventually("that it began is durable", || starts(dir.path()));
    assert_eq!(serin.metric("serin_recorder_starts_total{outcome=\"taken\"}"), Some(1.0));
    serin.signal("KILL");
    serin.wait();
    let mut serin = Program::start(program::command(dir.path()));
    let shown = eventually("it is listed", || {
        let listed = program::run(dir.path(), &["sessions", "list", "--json"]);
        let line: serde_json::Value =
            serde_json::from_str(String::from_utf8(listed.stdout).ok()?.lines().next()?).ok()?;
        let shown = program::run(dir.path(), &["sessions", "show", line["id"].as_str()?, "--json"]);
        String::from_utf8(shown.stdout).ok().filter(|text| text.contains("interrupted"))
    });
    assert!(shown.contains("\"router\""), "{shown}");
    serin.signal("TERM");
    serin.wait();
}
