//! With the router down the embedded engine answers, labelled; nothing else changes its meaning.

use std::net::{SocketAddr, TcpListener};

use serde_json::json;

use crate::support::upstream::{Upstream, whole};
use crate::support::{Serin, nowhere, wire};

fn before(address: SocketAddr, fallback: &str) -> Serin {
    Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{address}\"\n[fallback]\n{fallback}\n"
    ))
}

fn ask(serin: &Serin, extra: serde_json::Value) -> wire::Answer {
    let mut body = json!({"model": "any", "messages": [{"role": "user", "content": "The tag of box A1 is"}], "max_tokens": 4});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    wire::chat(serin.traffic(), &body)
}

#[test]
fn a_refused_chat_is_answered_and_says_by_whom() {
    let serin = before(nowhere(), "for = [\"*\"]");
    let answer = ask(&serin, json!({}));
    assert_eq!(
        (answer.status, answer.header("x-serin-served-by")),
        (200, Some("embedded")),
        "{}",
        answer.text()
    );
    assert_eq!(answer.json()["object"], "chat.completion");
    serin.reaches("serin_proxy_fallback_total{reason=\"refused\"}", 1.0);
    assert_eq!(serin.metric("serin_upstream_up{upstream=\"router\"}"), Some(0.0));
}

#[test]
fn what_is_not_eligible_gets_an_honest_502() {
    let serin = before(nowhere(), "for = [\"small-*\"]");
    let not_mapped = ask(&serin, json!({}));
    let not_supported = ask(&serin, json!({"model": "small-1", "n": 3}));
    let not_chat = wire::get(serin.traffic(), "/v1/models");
    for answer in [not_mapped, not_supported, not_chat] {
        assert_eq!(answer.status, 502, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "upstream_refused");
        assert_eq!(answer.header("x-serin-served-by"), None);
    }
    assert_eq!(ask(&serin, json!({"model": "small-1"})).status, 200);
}

#[test]
fn an_upstream_that_answers_is_never_replaced() {
    for status in ["500 Internal Server Error", "503 Service Unavailable", "400 Bad Request"] {
        let upstream = Upstream::canned(whole(status, "application/json", b"{\"mine\":1}"));
        let serin = before(upstream.address, "for = [\"*\"]");
        let answer = ask(&serin, json!({}));
        assert_eq!((answer.text().as_str(), answer.header("x-serin-served-by")), ("{\"mine\":1}", None));
    }
}

#[test]
fn traffic_returns_when_the_router_is_back() {
    // Bound and not listening: connections are refused, and nobody else can take the port.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let serin = before(address, "for = [\"*\"]");
    assert_eq!(ask(&serin, json!({})).header("x-serin-served-by"), Some("embedded"));
    socket.listen(16).unwrap();
    let back = TcpListener::from(socket);
    let router = std::thread::spawn(move || {
        let (mut stream, _) = back.accept().unwrap();
        let mut seen = Vec::new();
        while wire::find(&seen, b"max_tokens").is_none() && wire::more(&mut stream, &mut seen) {}
        std::io::Write::write_all(&mut stream, &whole("200 OK", "application/json", b"{\"router\":1}"))
            .unwrap();
    });
    let answer = ask(&serin, json!({}));
    assert_eq!((answer.text().as_str(), answer.header("x-serin-served-by")), ("{\"router\":1}", None));
    router.join().unwrap();
    serin.reaches("serin_upstream_up{upstream=\"router\"}", 1.0);
}
