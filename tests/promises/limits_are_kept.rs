//! Every limit of the path does what it says: nothing waits for ever, and nothing fills memory.

use std::io::{Read, Write};
use std::time::Duration;

use crate::support::program::Program;
use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually};

#[test]
fn an_upstream_that_never_answers_is_given_up() {
    let upstream = Upstream::start(|_, out| {
        until_closed(out);
        false
    });
    let serin = Serin::before(upstream.address, "[limits]\nhead = \"50ms\"\n");
    let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}"));
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (504, Some("upstream_timeout")));
    eventually("its connection is closed", || (upstream.gone() == 1).then_some(()));
    serin.reaches("serin_proxy_requests_total{outcome=\"timeout_head\",upstream=\"router\"}", 1.0);
}

#[test]
fn a_stream_that_falls_silent_is_cut_and_not_completed() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        until_closed(out);
        false
    });
    let serin = Serin::before(upstream.address, "[limits]\nidle = \"50ms\"\n");
    let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}"));
    assert_eq!((answer.text().as_str(), answer.whole), ("data: 1\n\n", false));
    serin.reaches("serin_proxy_requests_total{outcome=\"timeout_idle\",upstream=\"router\"}", 1.0);
}

#[test]
fn a_peer_that_sends_no_request_is_closed() {
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"ok"));
    let serin = Serin::before(upstream.address, "[limits]\nheader_read = \"50ms\"\nconnections = 2\n");
    let mut silent = wire::connect(serin.traffic());
    let mut slow = wire::connect(serin.traffic());
    slow.write_all(b"PRI * HT").unwrap();
    for stream in [&mut silent, &mut slow] {
        let mut rest = Vec::new();
        assert!(stream.read_to_end(&mut rest).is_ok(), "it was never closed");
    }
    assert_eq!(wire::get(serin.traffic(), "/").status, 200);
    let mut half = wire::connect(serin.traffic());
    half.write_all(b"GET / HTTP/1.1\r\nHost:").unwrap();
    let mut rest = Vec::new();
    half.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&rest));
}

#[test]
fn a_client_that_stops_reading_holds_the_upstream_back_and_is_cut_off() {
    let (sent, written) = std::sync::mpsc::channel();
    let upstream = Upstream::start(move |_, out| {
        let _ = out.write_all(&chunked("application/octet-stream"));
        let piece = chunk(&vec![b'x'; 64 * 1024]);
        let mut total = 0usize;
        while out.write_all(&piece).is_ok() {
            total += piece.len();
            let _ = sent.send(total);
        }
        false
    });
    let serin = Serin::before(upstream.address, "[limits]\nclient_stall = \"1s\"\n");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    let mut first = [0; 16];
    client.read_exact(&mut first).unwrap();
    eventually("the client is cut off", || (upstream.gone() == 1).then_some(()));
    // What the sockets and one connection's buffer hold, and not what an upstream could send in a second.
    let total = written.try_iter().last().unwrap_or(0);
    assert!(total < 32 << 20, "{total} bytes were taken from the upstream for a client that reads nothing");
    serin.reaches("serin_proxy_requests_total{outcome=\"client_cancelled\",upstream=\"router\"}", 1.0);
}

#[test]
fn a_pipelined_request_holds_nothing_back() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: now\n\n")].concat());
        until_closed(out);
        false
    });
    let serin = Serin::before(upstream.address, "[limits]\ndrain = \"10ms\"\n");
    let mut client = wire::connect(serin.traffic());
    let request = post("/v1/chat/completions", "", b"{}");
    client.write_all(&[request.clone(), request].concat()).unwrap();
    let mut seen = Vec::new();
    while wire::find(&seen, b"data: now\n\n").is_none() {
        assert!(wire::more(&mut client, &mut seen), "the event was held back");
    }
}

#[test]
fn tiny_pieces_hold_no_more_memory_than_they_are() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&chunked("text/event-stream"));
        for _ in 0..3_000 {
            // One segment a piece, so that each comes in a read of its own.
            if out.write_all(&chunk(b"data: x\n\n")).is_err() {
                return false;
            }
            std::thread::park_timeout(Duration::from_micros(50));
        }
        until_closed(out);
        false
    });
    let serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 3_000 * 9 {
        assert!(wire::more(&mut client, &mut seen));
    }
    let held = eventually("the copy is accounted for", || {
        // The gauge follows the recorder's thread, which looks around twice a second.
        serin.metric("serin_recorder_queue_bytes").filter(|bytes| *bytes >= 27_000.0)
    });
    assert!(held < 300_000.0, "{held} bytes are held for 27,000");
}

#[test]
fn an_embedded_request_that_never_comes_whole_is_given_up() {
    let serin = Serin::start("[fallback]\nrequest_read = \"50ms\"\n");
    let answer = wire::send(
        serin.traffic(),
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{\"half\":",
    );
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (408, Some("request_timeout")));
    let large = vec![b' '; 2 << 20];
    let serin = Serin::start("[fallback]\nmax_request = \"1MiB\"\n");
    let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", &large));
    assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (413, Some("too_large")));
}

#[test]
fn a_body_larger_than_allowed_is_refused_in_the_apis_own_form() {
    let upstream =
        Upstream::start(|request, out| out.write_all(&whole("200 OK", "a/b", &request.body)).is_ok());
    let serin = Serin::before(upstream.address, "[limits]\nbody = \"64KiB\"\n");
    let most = vec![b'x'; 64 * 1024];
    assert_eq!(wire::send(serin.traffic(), &post("/v1/chat/completions", "", &most)).body, most);
    // Announced as too large: no upstream hears of it.
    let announced = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 65537\r\n\r\n";
    let answer = wire::send(serin.traffic(), announced);
    assert_eq!((answer.status, answer.header("connection")), (413, Some("close")));
    let error = &answer.json()["error"];
    assert_eq!(
        (error["type"].as_str(), error["code"].as_str()),
        (Some("invalid_request_error"), Some("request_too_large"))
    );
    assert!(error["message"].as_str().unwrap().contains("64KiB; raise [limits] body"), "{error}");
    assert_eq!(upstream.received().len(), 1);
    // In chunks, it is seen when it is.
    let mut chunked = b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    chunked.extend(chunk(&most));
    chunked.extend(chunk(b"x"));
    let answer = wire::send(serin.traffic(), &chunked);
    assert_eq!((answer.status, answer.json()["error"]["type"].as_str()), (413, Some("request_too_large")));
    assert_eq!(upstream.received().len(), 1, "half a request is no request");
    assert_eq!(serin.metric("serin_proxy_too_large_total"), Some(2.0));
    let open = "serin_upstream_breaker_state{state=\"open\",upstream=\"router\"}";
    assert_eq!(serin.metric(open), Some(0.0));
    serin.reaches("serin_proxy_requests_total{outcome=\"proxy_refused\",upstream=\"router\"}", 1.0);
}

#[test]
fn a_body_larger_than_allowed_is_logged_with_its_size() {
    let upstream = Upstream::canned(whole("200 OK", "a/b", b"{}"));
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::with(upstream.address, dir.path(), "[limits]\nbody = \"64KiB\"\n");
    let announced = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 65537\r\n\r\n";
    assert_eq!(wire::send(serin.traffic, announced).status, 413);
    let said = serin.says("larger than [limits] body");
    assert!(said.contains("bytes=65537") && said.contains("most=65536"), "{said}");
}
