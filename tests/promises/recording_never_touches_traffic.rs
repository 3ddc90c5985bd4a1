//! A fault in the recorder changes no byte and no status of traffic, and is counted.

use serde_json::json;

use crate::support::program::Program;
use crate::support::upstream::{Upstream, whole};
use crate::support::{Serin, base, eventually, program, value, wire};

fn turns(exposition: &str) -> f64 {
    exposition
        .lines()
        .filter(|line| line.starts_with("serin_recorder_turns_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

#[test]
fn the_ledger_covers_every_exchange() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let serin = Serin::before(upstream.address, "");
    let body = json!({"model": "m", "messages": []}).to_string();
    for headers in ["", "x-serin-record: off\r\n", "x-serin-record: meta\r\n", "x-serin-record: nonsense\r\n"]
    {
        assert_eq!(
            wire::send(serin.traffic(), &wire::post("/v1/chat/completions", headers, body.as_bytes())).status,
            200
        );
    }
    let full = "serin_recorder_turns_total{outcome=\"full\",reason=\"\"}";
    let meta = "serin_recorder_turns_total{outcome=\"meta\",reason=\"asked\"}";
    serin.reaches(meta, 2.0);
    serin.reaches(full, 1.0);
    assert_eq!(serin.metric("serin_recorder_turns_total{outcome=\"off\",reason=\"opt_out\"}"), Some(1.0));
    let metrics = serin.metrics();
    let proxied =
        value(&metrics, "serin_proxy_requests_total{outcome=\"complete\",upstream=\"router\"}").unwrap();
    assert_eq!(turns(&metrics), proxied);
    // The header is ours and goes no further.
    assert!(upstream.received().iter().all(|request| request.headers("x-serin-record").is_empty()));
}

#[test]
fn a_body_past_the_memory_passes_and_loses_only_its_copy() {
    let big = vec![b'b'; 300_000];
    let upstream = Upstream::canned(whole("200 OK", "application/json", &big));
    let serin = Serin::before(upstream.address, "[limits]\nbody_copy = \"64KiB\"\n");
    let answer = wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", &big));
    assert!(answer.body == big && upstream.received()[0].body == big);
    serin.reaches("serin_recorder_turns_total{outcome=\"shape\",reason=\"budget\"}", 1.0);
}

#[test]
fn a_disk_that_is_full_costs_no_byte_of_traffic_and_is_made_good_later() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{\"ok\":1}"));
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::before(upstream.address, dir.path());
    let send = |number: usize| {
        let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"number {number}\"}}]}}");
        let answer = wire::send(serin.traffic, &wire::post("/v1/chat/completions", "", body.as_bytes()));
        assert_eq!((answer.status, answer.text().as_str()), (200, "{\"ok\":1}"));
    };
    let metrics = || String::from_utf8(wire::get(serin.admin, "/metrics").body).unwrap();
    let full = || value(&metrics(), "serin_recorder_turns_total{outcome=\"full\",reason=\"\"}").unwrap();
    send(0);
    eventually("the first is durable", || (full() == 1.0).then_some(()));
    serin.file_limit("1");
    (1..=5).for_each(send);
    assert_eq!(wire::get(serin.admin, "/readyz").status, 200);
    serin.says("recording fails");
    let metrics = || String::from_utf8(wire::get(serin.admin, "/metrics").body).unwrap();
    assert_eq!(turns(&metrics()), 1.0, "not counted before it is known what became of them");
    serin.file_limit("unlimited");
    eventually("all of them are durable", || (turns(&metrics()) == 6.0).then_some(()));
    serin.signal("TERM");
    assert_eq!(serin.wait().0, Some(0));
    let listed = program::run(dir.path(), &["sessions", "list", "--json"]);
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 6);
}

#[test]
fn what_can_never_be_written_is_counted_as_lost_at_the_end() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{\"ok\":1}"));
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::before(upstream.address, dir.path());
    serin.file_limit("1");
    assert_eq!(wire::send(serin.traffic, &wire::post("/v1/chat/completions", "", b"{}")).status, 200);
    serin.signal("TERM");
    let (code, said) = serin.wait();
    assert_eq!(code, Some(0));
    assert!(said.contains("records could not be written") && said.contains("lost=1"), "{said}");
}

#[test]
fn a_journal_that_is_removed_begins_anew() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let mut serin = Serin::before(upstream.address, "");
    let full = "serin_recorder_turns_total{outcome=\"full\",reason=\"\"}";
    let send = |number: usize| {
        let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{number}\"}}]}}");
        assert_eq!(
            wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", body.as_bytes())).status,
            200
        );
        serin.reaches(full, number as f64);
    };
    send(1);
    let data = serin.dir.path().join("data");
    std::fs::rename(&data, serin.dir.path().join("moved")).unwrap();
    send(2);
    let epoch = std::fs::read_dir(&data)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("epoch-")));
    std::fs::remove_dir_all(epoch.unwrap()).unwrap();
    send(3);
    serin.stop();
    std::fs::write(serin.dir.path().join("config.toml"), base(serin.dir.path(), "")).unwrap();
    let listed = program::run(serin.dir.path(), &["sessions", "list", "--json"]);
    assert_eq!(
        String::from_utf8(listed.stdout).unwrap().lines().count(),
        1,
        "the last one is in the new journal"
    );
}

#[test]
fn switched_off_it_writes_nothing() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let serin = Serin::before(upstream.address, "[record]\nenabled = false\n");
    assert_eq!(wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", b"{}")).status, 200);
    serin.reaches("serin_recorder_turns_total{outcome=\"off\",reason=\"disabled\"}", 1.0);
    assert!(!serin.dir.path().join("data").exists());
}
