//! How an exchange ended is told truthfully, also where no body was sent: answers without a body, trailers, refusals.

use std::io::Write;

use crate::support::upstream::{Upstream, chunk, chunked, until_closed};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, value};

fn outcome(text: &str, upstream: &str, outcome: &str) -> f64 {
    value(text, &format!("serin_proxy_requests_total{{outcome=\"{outcome}\",upstream=\"{upstream}\"}}"))
        .unwrap_or(0.0)
}

#[test]
fn answers_without_a_body_are_complete() {
    let upstream = Upstream::start(|request, out| {
        let answer = match request.head.split(' ').next() {
            Some("HEAD") => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            Some("OPTIONS") => "HTTP/1.1 204 No Content\r\n\r\n",
            Some("GET") => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        };
        out.write_all(answer.as_bytes()).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    for (number, method) in ["HEAD", "OPTIONS", "GET", "POST", "HEAD", "PUT"].iter().enumerate() {
        client
            .write_all(format!("{method} /x HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n").as_bytes())
            .unwrap();
        wire::read_until(&mut client, b"\r\n\r\n");
        let done = (number + 1) as f64;
        serin.reaches("serin_proxy_requests_total{outcome=\"complete\",upstream=\"router\"}", done);
    }
    assert_eq!(outcome(&serin.metrics(), "router", "client_cancelled"), 0.0);
    // Their connection to the upstream was used again each time.
    assert_eq!(upstream.gone(), 0);
}

#[test]
fn trailers_pass_and_end_an_answer() {
    let upstream = Upstream::start(|_, out| {
        let answer = b"HTTP/1.1 200 OK\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n";
        out.write_all(&[answer.as_slice(), &chunk(b"body"), b"0\r\nX-Sum: 7\r\n\r\n"].concat()).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    for _ in 0..2 {
        let mut client = wire::connect(serin.traffic());
        client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nTE: trailers\r\nConnection: close\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        while wire::more(&mut client, &mut bytes) {}
        let text = String::from_utf8(bytes).unwrap().to_lowercase();
        assert!(text.ends_with("4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n"), "{text}");
    }
    serin.reaches("serin_proxy_requests_total{outcome=\"complete\",upstream=\"router\"}", 2.0);
    assert_eq!((outcome(&serin.metrics(), "router", "client_cancelled"), upstream.gone()), (0.0, 0));
}

#[test]
fn a_stand_in_never_counts_for_the_router() {
    let nowhere = crate::support::nowhere();
    let serin = Serin::start(&format!("[[upstream]]\nname = \"router\"\nurl = \"http://{nowhere}\"\n"));
    let asked = br#"{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"The tag is"}]}"#;
    assert_eq!(wire::send(serin.traffic(), &post("/v1/chat/completions", "", asked)).status, 200);
    serin.reaches("serin_proxy_requests_total{outcome=\"complete\",upstream=\"embedded\"}", 1.0);
    let text = serin.metrics();
    assert_eq!(outcome(&text, "router", "complete"), 0.0);
    assert_eq!(value(&text, "serin_proxy_request_seconds_count{upstream=\"router\"}"), Some(0.0));
}

#[test]
fn an_idle_connection_that_dies_costs_no_request() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&crate::support::upstream::whole("200 OK", "text/plain", b"ok"));
        // Closed as soon as it is unused, as servers do with idle connections.
        false
    });
    let serin = Serin::before(upstream.address, "[limits]\nhead = \"20s\"\n");
    for round in 1..=50 {
        let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok"), "round {round}");
        // The end of the connection is on its way to us before the next request is.
        eventually("the connection is closed", || (upstream.gone() == round).then_some(()));
    }
    assert_eq!(upstream.received().len(), 50, "each request was sent once");
}

#[test]
fn a_request_that_met_a_closing_connection_is_sent_once_more_and_no_other_is() {
    // The connection is closed with the second request in it: read, and not answered.
    let upstream = Upstream::start(|request, out| {
        if request.head.contains("/closing") {
            return false;
        }
        out.write_all(&crate::support::upstream::whole("200 OK", "text/plain", &request.body)).is_ok()
    });
    let serin = Serin::before(upstream.address, "[limits]\nthreads = 1\n");
    let warm = || assert_eq!(wire::get(serin.traffic(), "/warm").status, 200);
    // On a fresh connection a break is a break: the request may have been worked on.
    let fresh = wire::send(serin.traffic(), &post("/closing", "", b"fresh"));
    assert_eq!((fresh.status, fresh.json()["error"]["code"].as_str()), (502, Some("upstream_cut")));
    assert_eq!(upstream.received().len(), 1);
    // On a reused one it is sent again, once; this one closes again, and that is told.
    warm();
    let reused = wire::send(serin.traffic(), &post("/closing", "", b"reused"));
    assert_eq!(reused.status, 502);
    let bodies: Vec<_> = upstream.received().iter().skip(2).map(|request| request.body.clone()).collect();
    assert_eq!(bodies, [b"reused", b"reused"]);
}

#[test]
fn after_the_first_byte_of_an_answer_nothing_is_repeated() {
    let upstream = Upstream::start(|request, out| {
        let half = request.head.starts_with("POST /half");
        let answer: &[u8] =
            if half { b"HTTP/1.1 2" } else { b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n" };
        out.write_all(answer).is_ok() && !half
    });
    let serin = Serin::before(upstream.address, "[limits]\nthreads = 1\n");
    assert_eq!(wire::get(serin.traffic(), "/warm").status, 200);
    assert_eq!(wire::send(serin.traffic(), &post("/half", "", b"x")).status, 502);
    assert_eq!(upstream.received().len(), 2);
}

#[test]
fn a_stream_that_ends_in_an_error_is_recorded_as_one() {
    let upstream = Upstream::start(|_, out| {
        let events = [
            chunk(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"),
            chunk(b"data: {\"error\":{\"message\":\"x\"}}\n\n"),
        ];
        out.write_all(&[chunked("text/event-stream"), events.concat(), b"0\r\n\r\n".to_vec()].concat())
            .is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let asked = br#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    assert!(wire::send(serin.traffic(), &post("/v1/chat/completions", "", asked)).whole);
    serin.reaches("serin_recorder_stream_errors_total{upstream=\"router\"}", 1.0);
}

#[test]
fn what_we_refuse_is_recorded_with_the_status_we_gave() {
    let upstream = Upstream::start(|_, out| {
        until_closed(out);
        false
    });
    let routed = "[[route]]\npath_prefix = \"/v1/\"\nupstreams = [\"router\"]\n[limits]\nin_flight = 1\n";
    let mut serin = Serin::before(upstream.address, routed);
    assert_eq!(wire::get(serin.traffic(), "/elsewhere").status, 404);
    let mut held = wire::connect(serin.traffic());
    held.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    eventually("it is in flight", || (upstream.received().len() == 1).then_some(()));
    let shed = wire::get(serin.traffic(), "/v1/models");
    assert_eq!((shed.status, shed.header("retry-after")), (503, Some("1")));
    assert_eq!(shed.json()["error"]["code"], "overloaded");
    let off =
        wire::send(serin.traffic(), b"GET /v1/models HTTP/1.1\r\nHost: h\r\nx-serin-record: off\r\n\r\n");
    assert_eq!(off.status, 503);
    assert_eq!(serin.metric("serin_proxy_shed_total"), Some(2.0));
    assert_eq!(serin.metric("serin_recorder_turns_total{outcome=\"off\",reason=\"opt_out\"}"), Some(1.0));
    drop(held);
    serin.stop();
    let reader = serin::journal::Reader::open(&serin.dir.path().join("data")).unwrap();
    let mut statuses: Vec<u32> = reader
        .filter_map(|entry| match entry.unwrap().1 {
            serin::journal::Record::Exchange(exchange) => Some(exchange.status),
            _ => None,
        })
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [0, 404, 503]);
}
