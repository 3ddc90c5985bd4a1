//! A fault in the recorder changes no byte and no status of traffic, and is counted.

use serde_json::json;

use crate::support::upstream::{Upstream, whole};
use crate::support::{Serin, value, wire};

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
fn a_journal_that_vanishes_is_counted_and_traffic_goes_on() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{\"ok\":1}"));
    let serin = Serin::before(upstream.address, "");
    let send = || wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", b"{}"));
    assert_eq!(send().status, 200);
    serin.reaches("serin_recorder_turns_total{outcome=\"full\",reason=\"\"}", 1.0);
    // /dev/full takes the place of nothing here: a directory that is gone fails the next segment or the next sync only
    // when it must be opened again, so what is asserted is the balance, not which column it falls into.
    std::fs::remove_dir_all(serin.dir.path().join("data")).unwrap();
    for _ in 0..5 {
        let answer = send();
        assert_eq!((answer.status, answer.text().as_str()), (200, "{\"ok\":1}"));
    }
    crate::support::eventually("six exchanges in the ledger", || {
        (turns(&serin.metrics()) == 6.0).then_some(())
    });
    assert_eq!(wire::get(serin.admin(), "/readyz").status, 200);
}

#[test]
fn switched_off_it_writes_nothing() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let serin = Serin::before(upstream.address, "[record]\nenabled = false\n");
    assert_eq!(wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", b"{}")).status, 200);
    serin.reaches("serin_recorder_turns_total{outcome=\"off\",reason=\"disabled\"}", 1.0);
    assert!(!serin.dir.path().join("data").exists());
}
