//! What fails is seen to fail, by the client and in the record; what was sent before is not lost; others do not suffer.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use serin::journal::{Capture, End};

use crate::support::journal::exchanges;
use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, h2, scale};

const HALF: &[u8] = b"data: {\"choices\":[{\"delta\":{\"content\":\"half\"}}]}\n\n";

/// Breaks off after half a stream, in the way the path says.
fn breaking() -> Upstream {
    Upstream::start(|request, out| {
        let head = chunked("text/event-stream");
        let bytes = if request.head.contains("/in-a-chunk") {
            [head, b"ff\r\n".to_vec(), HALF.to_vec()].concat()
        } else if request.head.contains("/of-a-length") {
            [b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec(), HALF.to_vec()].concat()
        } else if request.head.contains("/nonsense") {
            [head, chunk(HALF), b"zz\r\n".to_vec()].concat()
        } else {
            [head, chunk(HALF)].concat()
        };
        let _ = out.write_all(&bytes);
        if request.head.contains("/reset") {
            // Closing with bytes unread resets the connection; the client's second request lies there.
            let _ = socket2::SockRef::from(&*out).set_linger(Some(std::time::Duration::ZERO));
        }
        false
    })
}

const BREAKS: [&str; 4] = ["/between-chunks", "/in-a-chunk", "/of-a-length", "/nonsense"];

#[test]
fn a_cut_stream_is_cut_for_the_client_and_recorded_with_its_cause() {
    let upstream = breaking();
    let mut serin = Serin::before(upstream.address, "");
    for path in BREAKS {
        let answer = wire::send(serin.traffic(), &post(path, "", b"{\"stream\":true}"));
        assert_eq!((answer.status, answer.body.as_slice(), answer.whole), (200, HALF, false), "{path}");
    }
    let records = exchanges(&mut serin);
    assert_eq!(records.len(), BREAKS.len());
    for (record, path) in records.iter().zip(BREAKS) {
        assert_eq!((record.end(), record.response_body.as_ref()), (End::UpstreamCut, HALF), "{path}");
        assert_eq!(record.response_capture(), Capture::Whole, "{path}: all that came is there");
    }
}

#[test]
fn over_http_2_a_cut_stream_is_reset() {
    let upstream = breaking();
    let serin = Serin::before(upstream.address, "");
    for path in BREAKS {
        let mut seen = Vec::new();
        let ended =
            h2::post(serin.traffic(), path, b"{\"stream\":true}", |piece| seen.extend_from_slice(piece));
        let said = ended.expect_err("a cut stream must not end as if it were complete");
        assert!(said.contains("stream error") || said.contains("reset"), "{path}: {said}");
        assert_eq!(seen, HALF, "{path}");
    }
}

#[test]
fn what_a_leaving_client_had_received_is_recorded_with_its_cause() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(HALF)].concat());
        until_closed(out);
        false
    });
    let mut serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{\"stream\":true,\"messages\":[]}")).unwrap();
    wire::read_until(&mut client, HALF);
    drop(client);
    eventually("it is over", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
    let record = exchanges(&mut serin).remove(0);
    assert_eq!(
        (record.end(), record.response_body.as_ref(), record.status),
        (End::ClientCancelled, HALF, 200)
    );
}

#[test]
fn the_last_bytes_before_a_close_always_arrive() {
    // The upstream writes the end and closes at once, in three framings; the end must never be lost in the close.
    let last = b"data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    let upstream = Upstream::start(move |request, out| {
        let answer = match request.headers("x-framing").first().map(String::as_str) {
            Some("chunked") => {
                [chunked("text/event-stream"), chunk(HALF), chunk(last), b"0\r\n\r\n".to_vec()].concat()
            }
            Some("length") => whole("200 OK", "text/event-stream", &[HALF, last].concat()),
            _ => [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", HALF, last].concat(),
        };
        let (start, end) = answer.split_at(answer.len() - last.len() / 2);
        let _ = out.write_all(start).and_then(|()| out.write_all(end));
        false
    });
    let serin = Serin::before(upstream.address, "");
    let (address, left) = (serin.traffic(), AtomicUsize::new(10_000 * scale()));
    let expected = [HALF, last].concat();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut client = None;
                while let Ok(number) = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)) {
                    let framing = ["chunked", "length", "close"][number % 3];
                    let mut stream = client.take().unwrap_or_else(|| wire::connect(address));
                    let headers = format!("X-Framing: {framing}\r\n");
                    stream.write_all(&post("/v1/chat/completions", &headers, b"{\"stream\":true}")).unwrap();
                    let answer = wire::read_answer(&mut stream);
                    assert!(
                        answer.whole && answer.body == expected,
                        "{number} {framing}: {}{}",
                        answer.head,
                        answer.text()
                    );
                    // Framed by chunks on our side, a connection can be used again.
                    client = answer.header("connection").is_none().then_some(stream);
                }
            });
        }
    });
    let complete = "serin_proxy_requests_total{outcome=\"complete\",upstream=\"router\"}";
    assert_eq!(serin.metric(complete), Some(10_000.0 * scale() as f64));
}

#[test]
fn a_hung_upstream_slows_nobody_else() {
    let hung = Upstream::start(|_, out| {
        until_closed(out);
        false
    });
    let well = Upstream::canned(whole("200 OK", "a/b", b"well"));
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"hung\"\nurl = \"http://{}\"\n[[upstream]]\nname = \"well\"\nurl = \"http://{}\"\n\
         [[route]]\npath_prefix = \"/hung\"\nupstreams = [\"hung\"]\n[[route]]\npath_prefix = \"/\"\nupstreams = [\"well\"]\n[fallback]\nfor = []\n",
        hung.address, well.address
    ));
    let waiting: Vec<_> = (0..500)
        .map(|_| {
            let mut client = wire::connect(serin.traffic());
            client.write_all(&post("/hung", "", b"{}")).unwrap();
            client
        })
        .collect();
    serin.reaches("serin_upstream_in_flight{upstream=\"hung\"}", 500.0);
    for _ in 0..500 {
        assert_eq!(wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}")).text(), "well");
    }
    serin.reaches("serin_proxy_requests_total{outcome=\"complete\",upstream=\"well\"}", 500.0);
    // A second is a thousand times what such an exchange takes.
    let soon = serin.metric("serin_proxy_request_seconds_bucket{upstream=\"well\",le=\"1\"}");
    assert_eq!(soon, Some(500.0));
    assert_eq!(wire::get(serin.admin(), "/readyz").status, 200);
    drop(waiting);
    eventually("all are over", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
}

#[test]
fn beside_a_hung_upstream_of_the_same_route_the_well_one_answers() {
    let hung = Upstream::start(|_, out| {
        until_closed(out);
        false
    });
    let well = Upstream::canned(whole("200 OK", "a/b", b"well"));
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"hung\"\nurl = \"http://{}\"\n[[upstream]]\nname = \"well\"\nurl = \"http://{}\"\n[fallback]\nfor = []\n",
        hung.address, well.address
    ));
    // What waits on it makes it the busier one, so that the others go by: few are ever caught.
    let mut caught = Vec::new();
    let mut answered = 0;
    for _ in 0..200 {
        let mut client = wire::connect(serin.traffic());
        client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
        let reached = eventually("it reaches one of them", || {
            let (well, hung) = (well.received().len(), hung.received().len());
            (well + hung == answered + caught.len() + 1).then_some(well > answered)
        });
        match reached {
            true => {
                assert_eq!(wire::read_answer(&mut client).text(), "well");
                answered += 1;
            }
            false => caught.push(client),
        }
    }
    assert!(caught.len() <= 3, "{} of 200 were sent to the one that hangs", caught.len());
}

#[test]
fn a_reset_upstream_is_a_cut_stream_too() {
    let upstream = breaking();
    let serin = Serin::before(upstream.address, "");
    let answer = wire::send(serin.traffic(), &post("/reset", "", b"{\"stream\":true}"));
    assert!(!answer.whole, "{}{}", answer.head, answer.text());
    // A reset may overtake what was sent before it; then there is no answer to cut, and ours says so.
    assert!([0, 200, 502].contains(&answer.status));
    serin.reaches("serin_proxy_requests_total{outcome=\"upstream_cut\",upstream=\"router\"}", 1.0);
}
