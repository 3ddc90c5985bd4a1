//! The admin side answers who may ask, on its own listener, and tells strangers nothing but a state.

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
