//! Every byte passes unchanged both ways.

use std::io::Write;

use crate::support::Serin;
use crate::support::upstream::{Upstream, chunk, chunked, whole};
use crate::support::wire::{self, post};

/// Formatting that any parse-and-rewrite would lose.
const ODD: &[u8] = b"{ \"model\" :\"m\",\t\"messages\":[{\"content\":\"\\u00e9 \xe2\x82\xac\",\"role\":\"user\"}] ,\"x\":1.50,\"x\":2e0, \"n\":null }\n";

#[test]
fn a_request_arrives_as_it_was_sent() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let serin = Serin::before(upstream.address, "");
    let bodies: [&[u8]; 5] = [ODD, b"", b"not json", &[0, 255, 13, 10, 0], &vec![b'x'; 3_000_000]];
    for body in bodies {
        let request =
            post("/v1/chat/completions?a=%2F&b=", "X-Odd-Case: Kept\r\nx-twice: 1\r\nx-twice: 2\r\n", body);
        assert_eq!(wire::send(serin.traffic(), &request).status, 200);
    }
    let received = upstream.received();
    for (request, body) in received.iter().zip(bodies) {
        assert!(
            request.head.starts_with("POST /v1/chat/completions?a=%2F&b= HTTP/1.1\r\n"),
            "{}",
            request.head
        );
        assert!(request.body == body, "a body of {} bytes changed", body.len());
        assert_eq!(request.headers("x-twice"), ["1", "2"]);
        assert!(request.head.contains("\r\nX-Odd-Case: Kept\r\n"), "{}", request.head);
        assert_eq!(request.headers("host"), ["test"]);
    }
    assert_eq!(received.len(), bodies.len());
}

#[test]
fn a_body_in_chunks_arrives_whatever_the_method() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let serin = Serin::before(upstream.address, "");
    for method in ["GET", "DELETE", "OPTIONS", "QUERY"] {
        let head = format!("{method} /v1/search HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
        let request = [head.as_bytes(), &chunk(b"what was asked"), &chunk(b"")].concat();
        assert_eq!(wire::send(serin.traffic(), &request).status, 200);
        let received = upstream.received().pop().expect("one");
        assert_eq!(received.headers("transfer-encoding"), ["chunked"], "{method}");
        let body = String::from_utf8_lossy(&received.body).into_owned();
        assert!(body.contains("what was asked") && body.ends_with("0\r\n\r\n"), "{method}: {body:?}");
    }
}

#[test]
fn nothing_is_added_but_a_request_id() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let serin = Serin::before(upstream.address, "");
    let bare = wire::send(serin.traffic(), b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n");
    let id = bare.header("x-request-id").expect("one is made");
    assert_eq!(upstream.received()[0].headers("x-request-id"), [id]);
    let with =
        wire::send(serin.traffic(), b"GET /v1/models HTTP/1.1\r\nHost: h\r\nX-Request-Id: mine\r\n\r\n");
    assert_eq!(with.head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(
        upstream.received()[1].head,
        "GET /v1/models HTTP/1.1\r\nHost: h\r\nX-Request-Id: mine\r\n\r\n"
    );
}

#[test]
fn a_response_arrives_as_it_was_sent() {
    let long = vec![b'y'; 1_500_000];
    let cases: [(&str, &str, &[u8]); 4] = [
        ("200 OK", "application/json", ODD),
        ("429 Too Many Requests", "application/problem+json", b"{\"detail\": \"slow down\"}"),
        ("503 Service Unavailable", "text/html", b"<h1>busy</h1>"),
        ("200 OK", "application/octet-stream", &long),
    ];
    for (status, kind, body) in cases {
        let upstream = Upstream::canned(whole(status, kind, body));
        let serin = Serin::before(upstream.address, "");
        let request = post("/v1/chat/completions", "", b"{}");
        let (direct, through) =
            (wire::send(upstream.address, &request), wire::send(serin.traffic(), &request));
        assert_eq!(
            (through.status, through.header("content-type")),
            (direct.status, direct.header("content-type"))
        );
        assert!(through.body == body && through.whole, "{status}: the body changed");
        // A refusal is passed on, never retried.
        assert_eq!(upstream.received().len(), 2);
    }
}

/// A stream with everything SSE allows and some parsers choke on.
fn awkward_stream() -> Vec<u8> {
    let mut bytes = b"\xef\xbb\xbf: comment\n\nevent: x\r\nid: 1\r\nretry: 10\r\ndata: a\r\ndata: b\r\n\r\ndata:c\rdata: d\r\r".to_vec();
    for token in ["\u{e9}", "\u{4e2d}\u{6587}", "\u{1f426}", " word"] {
        bytes.extend_from_slice(
            format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{token}\"}}}}]}}\n\n").as_bytes(),
        );
    }
    bytes.extend_from_slice(b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n");
    bytes
}

#[test]
fn a_stream_arrives_whole_for_any_split() {
    let stream = awkward_stream();
    for size in [1, 2, 3, 7, 64, stream.len()] {
        let bytes = stream.clone();
        let upstream = Upstream::start(move |_, out| {
            let mut ok = out.write_all(&chunked("text/event-stream")).is_ok();
            for piece in bytes.chunks(size) {
                ok &= out.write_all(&chunk(piece)).is_ok();
            }
            ok && out.write_all(b"0\r\n\r\n").is_ok()
        });
        let serin = Serin::before(upstream.address, "");
        let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{\"stream\":true}"));
        assert!(answer.body == stream && answer.whole, "pieces of {size}: {:?}", answer.text());
    }
}

#[test]
fn a_first_event_is_not_held_back() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: first\n\n")].concat());
        // Nothing more comes until the client has gone.
        crate::support::upstream::until_closed(out);
        false
    });
    let serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    wire::read_until(&mut client, b"data: first\n\n");
}

#[test]
fn a_broken_answer_stays_broken() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: half\n\n")].concat());
        false
    });
    let serin = Serin::before(upstream.address, "");
    let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{\"stream\":true}"));
    assert_eq!(answer.body, b"data: half\n\n");
    assert!(!answer.whole, "a cut stream must not end as if it were complete");
    serin.reaches("serin_proxy_requests_total{outcome=\"upstream_cut\",upstream=\"router\"}", 1.0);
}

#[test]
fn what_is_not_an_api_passes_too() {
    let upstream = Upstream::start(|request, out| {
        out.write_all(&whole("200 OK", "x/y", request.head.as_bytes())).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    for line in ["GET /", "PUT /a//b/../c?d#", "DELETE /v1/files/%00", "OPTIONS *", "PATCH /x", "REPORT /y"] {
        let line = line.trim_end_matches('#');
        let answer = wire::send(serin.traffic(), format!("{line} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes());
        assert!(answer.text().starts_with(&format!("{line} HTTP/1.1\r\n")), "{line}: {}", answer.text());
    }
    let head = wire::connect(serin.traffic());
    let mut head = head;
    head.write_all(b"HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    while wire::more(&mut head, &mut bytes) {}
    assert!(
        bytes.starts_with(b"HTTP/1.1 200 OK\r\n") && bytes.ends_with(b"\r\n\r\n"),
        "{}",
        String::from_utf8_lossy(&bytes)
    );
}

#[test]
fn many_at_once_never_mix() {
    let upstream = Upstream::start(|request, out| {
        out.write_all(&whole("200 OK", "application/json", &request.body)).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let address = serin.traffic();
    let clients: Vec<_> = (0..16)
        .map(|client| {
            std::thread::spawn(move || {
                let mut stream = wire::connect(address);
                for round in 0..40 {
                    let body = format!(
                        "{{\"client\":{client},\"round\":{round},\"pad\":\"{}\"}}",
                        "z".repeat(round * 97)
                    );
                    stream.write_all(&post("/v1/chat/completions", "", body.as_bytes())).unwrap();
                    assert_eq!(wire::read_answer(&mut stream).text(), body);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}
