//! Nothing durable is lost by a kill, and what is on disk is read again at the next start.

use crate::support::program::Program;
use crate::support::upstream::{Upstream, whole};
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
