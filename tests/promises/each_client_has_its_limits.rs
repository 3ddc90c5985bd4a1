//! One client cannot take everybody's place: what it may have in flight and how often it may ask is limited, for it alone.

use std::io::Write;
use std::net::TcpStream;

use crate::support::peer;
use crate::support::program;
use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, Answer, post};
use crate::support::{Serin, eventually};

const KEY: &str = "Authorization: Bearer sk-planted-one\r\n";

/// Streams to whoever asks for it and never ends; answers others at once.
fn upstream() -> Upstream {
    Upstream::start(|request, out| {
        if !request.body.starts_with(b"{\"stream\"") {
            return out.write_all(&whole("200 OK", "text/plain", b"ok")).is_ok();
        }
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        until_closed(out);
        false
    })
}

fn ask(serin: &Serin, path: &str, headers: &str) -> Answer {
    wire::send(serin.traffic(), &post(path, headers, b"{}"))
}

/// A stream that runs until the connection is dropped.
fn hang(serin: &Serin, headers: &str) -> TcpStream {
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", headers, b"{\"stream\": true}")).unwrap();
    wire::read_until(&mut client, b"data: 1");
    client
}

#[test]
fn one_that_has_as_many_in_flight_as_it_may_waits_and_others_do_not() {
    let up = upstream();
    let mut serin = Serin::before(up.address, "[limits]\nper_client = 2\ndrain = \"10ms\"\n");
    let running = [hang(&serin, KEY), hang(&serin, KEY)];
    let refused = ask(&serin, "/v1/chat/completions", KEY);
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    let error = refused.json()["error"].clone();
    assert_eq!((&error["type"], &error["code"]), (&"rate_limit_error".into(), &"rate_limit_exceeded".into()));
    assert_eq!(ask(&serin, "/v1/chat/completions", "x-api-key: another\r\n").status, 200);
    assert_eq!(
        ask(&serin, "/v1/chat/completions", "").status,
        200,
        "without a key the address is the client"
    );
    drop(running);
    eventually("its places are given back", || {
        (ask(&serin, "/v1/chat/completions", KEY).status == 200).then_some(())
    });
    assert!(serin.metric("serin_proxy_limited_total{by=\"in_flight\"}").unwrap() >= 1.0);
    assert!(
        serin.metric("serin_proxy_requests_total{outcome=\"proxy_refused\",upstream=\"none\"}").unwrap()
            >= 1.0
    );
    assert!(!serin.metrics().contains("planted"));
    serin.stop();
    let dir = serin.dir.path();
    let listed = program::run(dir, &["sessions", "list", "--json"]);
    assert!(String::from_utf8_lossy(&listed.stdout).lines().count() >= 6, "refusals are recorded too");
}

#[test]
fn one_that_asks_too_often_is_told_when_to_come_back_in_its_api_s_own_form() {
    let up = upstream();
    let limits = "[limits]\nper_client_rate = 0.01\nper_client_burst = 2\nclient_by = \"address\"\n";
    let serin = Serin::before(up.address, limits);
    assert_eq!(ask(&serin, "/v1/messages", KEY).status, 200);
    assert_eq!(ask(&serin, "/v1/messages", "x-api-key: another\r\n").status, 200);
    let refused = ask(&serin, "/v1/messages", "x-api-key: a-third\r\n");
    assert_eq!(refused.status, 429, "whatever its key, it is the same address");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((60..=100).contains(&wait), "one token in 100 s: {wait}");
    let body = refused.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&"error".into(), &"rate_limit_error".into()));
    assert_eq!(serin.metric("serin_proxy_limited_total{by=\"rate\"}"), Some(1.0));
    assert_eq!(serin.metric("serin_proxy_clients"), Some(1.0));
    // The new terms are those of the next request.
    serin.rewrite(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\n[fallback]\nfor = []\n",
        up.address
    ));
    let reloaded = wire::reload(serin.admin());
    assert_eq!(reloaded.status, 200, "{}", reloaded.text());
    assert_eq!(ask(&serin, "/v1/messages", KEY).status, 200);
}

#[test]
fn the_table_is_bounded_and_a_refusal_tells_the_upstream_nothing() {
    let up = upstream();
    let limits =
        "[limits]\nin_flight = 4\nper_client_table = 4\nper_client_rate = 0.01\nper_client_burst = 1\n";
    let serin = Serin::before(up.address, limits);
    for client in 0..20 {
        assert_eq!(ask(&serin, "/", &format!("x-api-key: {client}\r\n")).status, 200);
    }
    assert_eq!(serin.metric("serin_proxy_clients"), Some(4.0));
    assert_eq!(ask(&serin, "/", "x-api-key: 19\r\n").status, 429, "the last ones are remembered");
    assert_eq!(up.received().len(), 20);
}

#[test]
fn the_official_client_knows_it_for_what_it_is_and_comes_back() {
    let message = serde_json::json!({"role": "assistant", "content": "hello"});
    let answer = serde_json::json!({"id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let up = Upstream::canned(whole("200 OK", "application/json", answer.to_string().as_bytes()));
    let serin = Serin::before(up.address, "[limits]\nper_client_rate = 1\nper_client_burst = 2\n");
    let url = format!("http://{}/v1", serin.traffic());
    assert_eq!(peer::run_python(peer::OPENAI, "python/rate_limited.py", &[url]), "ok");
}
