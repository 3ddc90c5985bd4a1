//! The turns of a conversation go to the upstream that has their beginning in its cache, unless that is out or overrun; and
//! what upstreams say of themselves is heard.

use std::io::Write;
use std::net::SocketAddr;

use serde_json::json;

use crate::support::upstream::{Received, Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, nowhere};

/// One that answers with its name.
fn named(name: &'static str) -> Upstream {
    Upstream::canned(whole("200 OK", "text/plain", name.as_bytes()))
}

fn before(upstreams: &[(&str, SocketAddr)], extra: &str) -> Serin {
    let sections: String = upstreams
        .iter()
        .map(|(name, address)| format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{address}\"\n"))
        .collect();
    Serin::start(&format!("{sections}{extra}\n[fallback]\nfor = []\n"))
}

fn chat(turns: &[&str]) -> Vec<u8> {
    let messages: Vec<_> = turns.iter().map(|turn| json!({"role": "user", "content": turn})).collect();
    json!({"model": "m", "messages": messages}).to_string().into_bytes()
}

#[test]
fn a_session_header_decides() {
    let (one, two) = (named("one"), named("two"));
    let serin = before(&[("one", one.address), ("two", two.address)], "");
    let mut seen = std::collections::HashSet::new();
    for session in 0..12 {
        let ask = |turn: usize| {
            let header = format!("X-Session-Id: s{session}\r\n");
            wire::send(
                serin.traffic(),
                &post("/v1/chat/completions", &header, format!("{{\"n\":{turn}}}").as_bytes()),
            )
            .text()
        };
        let first = ask(0);
        assert!((1..6).all(|turn| ask(turn) == first), "session {session}");
        seen.insert(first);
    }
    assert_eq!(seen.len(), 2, "different sessions are spread");
    assert_eq!(serin.metric("serin_balance_affinity_total{result=\"kept\"}"), Some(60.0));
    assert_eq!(serin.metric("serin_balance_affinity_entries"), Some(12.0));
}

#[test]
fn without_one_the_beginning_of_the_body_does() {
    let (one, two) = (named("one"), named("two"));
    let serin = before(&[("one", one.address), ("two", two.address)], "");
    for conversation in 0..10 {
        let opening = format!("conversation {conversation} {}", "words and more words ".repeat(40));
        let mut turns = vec![opening.as_str()];
        let first = wire::send(serin.traffic(), &post("/v1/chat/completions", "", &chat(&turns))).text();
        for _ in 0..5 {
            turns.extend(["an answer that is repeated", "and the next question ".repeat(30).leak()]);
            let again = wire::send(serin.traffic(), &post("/v1/chat/completions", "", &chat(&turns))).text();
            assert_eq!(again, first, "conversation {conversation}");
        }
    }
    // The body passes whole although its beginning was looked at.
    let body = chat(&["x".repeat(300_000).as_str()]);
    wire::send(serin.traffic(), &post("/v1/chat/completions", "", &body));
    let received: Vec<Received> = [one.received(), two.received()].concat();
    assert!(received.iter().any(|request| request.body == body));
}

#[test]
fn an_answer_that_is_gone_on_from_leads_to_who_gave_it() {
    let responses = |name: &'static str| {
        Upstream::start(move |request, out| {
            let id = format!("resp_{name}_{}", request.body.len());
            let streamed = String::from_utf8_lossy(&request.body).contains("\"stream\":true");
            let answer = json!({"id": id, "object": "response", "served": name});
            if !streamed {
                return out
                    .write_all(&whole("200 OK", "application/json", answer.to_string().as_bytes()))
                    .is_ok();
            }
            let event = json!({"type": "response.created", "response": answer});
            let event = format!("event: response.created\ndata: {event}\n\n");
            out.write_all(
                &[chunked("text/event-stream"), chunk(event.as_bytes()), b"0\r\n\r\n".to_vec()].concat(),
            )
            .is_ok()
        })
    };
    let (one, two) = (responses("one"), responses("two"));
    let serin = before(&[("one", one.address), ("two", two.address)], "");
    let ask = |body: serde_json::Value| {
        let text =
            wire::send(serin.traffic(), &post("/v1/responses", "", body.to_string().as_bytes())).text();
        let from = |name: &str| text.contains(&format!("resp_{name}_"));
        let id = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        (if from("one") { "one" } else { "two" }, id)
    };
    for turn in 0..10 {
        let (first, id) = ask(json!({"input": "x".repeat(turn), "stream": turn % 2 == 0}));
        let (second, id) = ask(json!({"previous_response_id": id, "input": "y".repeat(turn)}));
        let (third, _) = ask(json!({"input": "z", "previous_response_id": id}));
        assert_eq!((second, third), (first, first), "turn {turn}");
    }
}

#[test]
fn one_that_is_out_is_left_and_one_that_asks_for_less_is_spared() {
    let busy = Upstream::canned(
        b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 30\r\nContent-Length: 4\r\n\r\nslow".to_vec(),
    );
    let free = named("free");
    let members = [("busy", busy.address), ("free", free.address), ("out", nowhere())];
    let serin = before(&members, "[breaker]\nfailures = 1\nopen = \"10m\"\n");
    let throttled = "serin_upstream_throttled_total{upstream=\"busy\"}";
    let open = |name: &str| {
        serin.metric(&format!("serin_upstream_breaker_state{{state=\"open\",upstream=\"{name}\"}}"))
    };
    let mut passed = 0;
    let mut asked = 0;
    while serin.metric(throttled) == Some(0.0) || open("out") == Some(0.0) {
        asked += 1;
        assert!(asked < 1_000, "it is asked again and again");
        let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}"));
        if answer.status == 429 {
            // The client hears it as it was said.
            assert_eq!((answer.header("retry-after"), answer.text().as_str()), (Some("30"), "slow"));
            passed += 1;
        }
    }
    assert_eq!(passed, 1);
    for _ in 0..40 {
        assert_eq!(wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}")).text(), "free");
    }
    assert_eq!((serin.metric(throttled), open("busy"), open("out")), (Some(1.0), Some(0.0), Some(1.0)));
}

#[test]
fn labels_and_workers_are_counted_and_their_number_is_bounded() {
    let upstream = Upstream::start(|request, out| {
        let worker = request.headers("x-which").remove(0);
        let head = format!("HTTP/1.1 200 OK\r\nX-Worker: {worker}\r\nContent-Length: 0\r\n\r\n");
        out.write_all(head.as_bytes()).is_ok()
    });
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\nlabels = {{ role = \"prefill\" }}\n\
         [balance]\nworker_headers = [\"X-Worker\"]\nworkers = 2\n[fallback]\nfor = []\n",
        upstream.address
    ));
    for worker in ["a", "b", "a", "c", "d"] {
        let answer = wire::send(serin.traffic(), &post("/v1/x", &format!("X-Which: {worker}\r\n"), b"{}"));
        assert_eq!(answer.header("x-worker"), Some(worker));
    }
    let count = |worker: &str| {
        serin.metric(&format!(
            "serin_worker_requests_total{{outcome=\"complete\",upstream=\"router\",worker=\"{worker}\"}}"
        ))
    };
    eventually("all are counted", || (count("other") == Some(2.0)).then_some(()));
    assert_eq!((count("a"), count("b"), count("c")), (Some(2.0), Some(1.0), None));
    assert_eq!(
        serin.metric("serin_upstream_label_info{label=\"role\",upstream=\"router\",value=\"prefill\"}"),
        Some(1.0)
    );
}

#[test]
fn an_upstream_that_wants_to_is_told_of_clients_that_left() {
    let upstream = Upstream::start(|request, out| {
        if request.head.starts_with("POST /abort_request ") {
            return out.write_all(&whole("200 OK", "text/plain", b"")).is_ok();
        }
        if request.headers("x-begin").is_empty() {
            until_closed(out);
            return false;
        }
        let _ = out.write_all(
            &[chunked("text/event-stream"), chunk(b"data: {\"id\":\"from-answer\"}\n\n")].concat(),
        );
        until_closed(out);
        false
    });
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\nabort = \"/abort_request\"\n[fallback]\nfor = []\n",
        upstream.address
    ));
    let told = "serin_upstream_aborts_total{outcome=\"told\",upstream=\"router\"}";
    let cases = [
        ("X-Request-Id: from-header\r\n", &b"{}"[..], "from-header"),
        ("X-Request-Id: from-header\r\n", b"{\"rid\": \"from-body\"}", "from-body"),
        ("X-Begin: 1\r\n", b"{}", "from-answer"),
    ];
    for (nth, (headers, body, id)) in cases.into_iter().enumerate() {
        let mut client = wire::connect(serin.traffic());
        client.write_all(&post("/generate", headers, body)).unwrap();
        eventually("it arrives", || (upstream.received().len() == 2 * nth + 1).then_some(()));
        if headers.contains("Begin") {
            wire::read_until(&mut client, b"from-answer");
        }
        drop(client);
        serin.reaches(told, nth as f64 + 1.0);
        let request = upstream.received().remove(2 * nth + 1);
        assert_eq!(String::from_utf8_lossy(&request.body), json!({"rid": id}).to_string());
    }
    // Who had its answer has nothing to abort.
    let before = upstream.received().len();
    wire::send(serin.traffic(), &post("/abort_request", "", b"{}"));
    assert_eq!(upstream.received().len(), before + 1);
}

#[test]
fn a_port_that_is_closed_is_known_without_a_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{address}\"\nhealth = \"tcp\"\n\
         [breaker]\nhealth_every = \"20ms\"\n[fallback]\nfor = []\n",
    ));
    let healthy = "serin_upstream_healthy{upstream=\"router\"}";
    assert_eq!(serin.metric(healthy), Some(1.0));
    drop(listener);
    eventually("it is ill", || (serin.metric(healthy) == Some(0.0)).then_some(()));
    let _again = std::net::TcpListener::bind(address).unwrap();
    eventually("it is well", || (serin.metric(healthy) == Some(1.0)).then_some(()));
}

#[test]
fn who_sends_in_small_pieces_or_keeps_the_body_to_itself_is_served_too() {
    let (one, two) = (named("one"), named("two"));
    let serin = before(&[("one", one.address), ("two", two.address)], "[limits]\nidle = \"100ms\"\n");
    let opening = "what all have in common ".repeat(300);
    let mut first = None;
    for turn in 0..6 {
        let body = chat(&[&opening, "and mine alone", &"more ".repeat(turn)]);
        let request = post("/v1/chat/completions", "", &body);
        // Cut differently every time: what is looked at is the body, not the pieces it came in.
        let mut client = wire::connect(serin.traffic());
        for piece in request.chunks(700 + 900 * turn) {
            client.write_all(piece).unwrap();
        }
        let served = wire::read_answer(&mut client).text();
        assert_eq!(*first.get_or_insert_with(|| served.clone()), served, "turn {turn}");
    }
    // A client that sends the body only when it has the upstream's attention, or never, is bounded by the upstream's limits.
    let mut client = wire::connect(serin.traffic());
    client.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n").unwrap();
    eventually("it is sent on", || {
        let held =
            |name: &str| serin.metric(&format!("serin_upstream_in_flight{{upstream=\"{name}\"}}")).unwrap();
        (held("one") + held("two") > 0.0).then_some(())
    });
    client.write_all(b"after").unwrap();
    assert_eq!(wire::read_answer(&mut client).status, 200);
}
