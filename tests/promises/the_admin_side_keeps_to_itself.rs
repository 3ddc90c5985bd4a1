//! The admin side answers who may ask, on its own listener, and tells strangers nothing but a state.

use std::io::Write;
use std::time::Duration;

use crate::support::Serin;
use crate::support::upstream::{Upstream, whole};
use crate::support::wire;

#[test]
fn with_a_token_only_its_holder_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "a-token-of-some-length\n").unwrap();
    let serin = Serin::start(&format!("[admin]\ntoken_file = {token:?}\n"));
    let ask = |path: &str, header: &str| {
        wire::send(serin.admin(), format!("GET {path} HTTP/1.1\r\nHost: h\r\n{header}\r\n").as_bytes())
    };
    for path in ["/", "/metrics", "/api/v1/live", "/nowhere"] {
        assert_eq!(ask(path, "").status, 401, "{path}");
        assert_eq!(ask(path, "Authorization: Bearer a-token-of-some-lengtH\r\n").status, 401, "{path}");
    }
    assert_eq!(ask("/metrics", "Authorization: Bearer a-token-of-some-length\r\n").status, 200);
    let ready = ask("/readyz", "");
    assert_eq!((ready.status, ready.json()), (200, serde_json::json!({"ready": true, "draining": false})));
    assert_eq!(ask("/healthz", "").status, 200);
}

#[test]
fn an_admin_side_that_takes_no_more_connections_changes_no_traffic() {
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"answered"));
    let serin = Serin::before(upstream.address, "");
    // As many as it takes, each with half a request; the next waits.
    let half = |_| {
        let mut stream = wire::connect(serin.admin());
        stream.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        stream
    };
    let held: Vec<_> = (0..64).map(half).collect();
    let mut next = wire::connect(serin.admin());
    next.write_all(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    next.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(wire::read_answer(&mut next).status, 0, "it is not full");
    for _ in 0..200 {
        assert_eq!(wire::get(serin.traffic(), "/x").text(), "answered");
    }
    drop(held);
    next.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(wire::read_answer(&mut next).status, 200);
    serin.reaches("serin_proxy_requests_total{outcome=\"complete\",upstream=\"router\"}", 200.0);
}

#[test]
fn traffic_and_admin_never_share_a_listener() {
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"the router's own"));
    let serin = Serin::before(upstream.address, "");
    for path in ["/metrics", "/healthz", "/readyz", "/api/v1/live"] {
        assert_eq!(wire::get(serin.traffic(), path).text(), "the router's own", "{path}");
    }
    let chat = wire::send(serin.admin(), &wire::post("/v1/chat/completions", "", b"{}"));
    assert_eq!(chat.status, 405);
    assert_eq!(wire::get(serin.admin(), "/nowhere").status, 404);
}
