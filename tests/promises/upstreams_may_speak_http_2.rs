//! An upstream that speaks HTTP/2: the same promises as over HTTP/1.1, with streams in the place of connections.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use h2::Reason;
use hyper::HeaderMap;
use hyper::http::Response;

use crate::support::http2_upstream::{H2Upstream, read, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually};

fn before(upstream: &H2Upstream) -> Serin {
    let address = upstream.address;
    Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{address}\"\nhttp = \"2\"\n[fallback]\nfor = []\n"
    ))
}

fn outcome(serin: &Serin, outcome: &str) {
    serin.reaches(&format!("serin_proxy_requests_total{{outcome=\"{outcome}\",upstream=\"router\"}}"), 1.0);
}

#[test]
fn body_host_headers_and_trailers_pass() {
    let upstream = H2Upstream::start(|_, request, mut respond| {
        let done = async move {
            let (head, body) = request.into_parts();
            let seen = format!(
                "{} {} {:?} host:{} {}",
                head.method,
                head.uri,
                head.headers.get_all("x-twice").iter().collect::<Vec<_>>(),
                head.headers.contains_key("host"),
                String::from_utf8(read(body).await).unwrap()
            );
            let answer = Response::builder()
                .status(207)
                .header("x-back", "1")
                .header("trailer", "x-sum")
                .body(())
                .unwrap();
            let mut send = respond.send_response(answer, false).unwrap();
            send.send_data(Bytes::from(seen), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", "7".parse().unwrap());
            send.send_trailers(trailers).unwrap();
        };
        (Box::pin(done), None)
    });
    let serin = before(&upstream);
    let request = post("/v1/x?q=%20a", "X-Twice: a\r\nX-Twice: b\r\nTE: trailers\r\n", b"up");
    let answer = wire::send(serin.traffic(), &request);
    assert_eq!(answer.status, 207);
    assert_eq!(answer.text(), "POST http://test/v1/x?q=%20a [\"a\", \"b\"] host:false up");
    assert_eq!((answer.header("x-back"), answer.whole), (Some("1"), true));
    outcome(&serin, "complete");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&request).unwrap();
    wire::read_until(&mut client, b"\r\n0\r\nx-sum: 7\r\n\r\n");
}

#[test]
fn many_exchanges_share_a_connection() {
    let upstream = H2Upstream::start(|_, request, respond| {
        let done = async move {
            let echo = read(request.into_body()).await;
            whole(respond, echo);
        };
        (Box::pin(done), None)
    });
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\nhttp = \"2\"\n[fallback]\nfor = []\n[limits]\nthreads = 1\n",
        upstream.address
    ));
    let traffic = serin.traffic();
    wire::get(traffic, "/first");
    let clients: Vec<_> = (0..8)
        .map(|client| {
            std::thread::spawn(move || {
                for turn in 0..25 {
                    let body = format!("client {client} turn {turn} {}", "x".repeat(client * 9_000));
                    assert_eq!(wire::send(traffic, &post("/v1/x", "", body.as_bytes())).text(), body);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_client_that_leaves_resets_its_stream_and_no_other() {
    let reset = Arc::new(AtomicUsize::new(0));
    let seen = reset.clone();
    let upstream = H2Upstream::start(move |before, _, mut respond| {
        let seen = seen.clone();
        let done = async move {
            if before > 1 {
                return whole(respond, "alive");
            }
            if before == 0 {
                // Nothing is answered: the client leaves while it waits for the head.
                let _ = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
            } else {
                let mut send = respond.send_response(Response::new(()), false).unwrap();
                send.send_data(Bytes::from_static(b"data: 1\n\n"), false).unwrap();
                let _ = std::future::poll_fn(|cx| send.poll_reset(cx)).await;
            }
            seen.fetch_add(1, SeqCst);
        };
        (Box::pin(done), None)
    });
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\nhttp = \"2\"\n[fallback]\nfor = []\n[limits]\nthreads = 1\n",
        upstream.address
    ));
    let mut waiting = wire::connect(serin.traffic());
    waiting.write_all(&post("/v1/x", "", b"{}")).unwrap();
    eventually("it is in flight", || (serin.metric("serin_proxy_in_flight") == Some(1.0)).then_some(()));
    eventually("it has arrived", || (upstream.connections() == 1).then_some(()));
    let mut streaming = wire::connect(serin.traffic());
    streaming.write_all(&post("/v1/x", "", b"{}")).unwrap();
    wire::read_until(&mut streaming, b"data: 1");
    assert_eq!(reset.load(SeqCst), 0);
    drop(waiting);
    eventually("the waiting one is reset", || (reset.load(SeqCst) == 1).then_some(()));
    drop(streaming);
    eventually("the streaming one is reset", || (reset.load(SeqCst) == 2).then_some(()));
    assert_eq!(wire::get(serin.traffic(), "/x").text(), "alive");
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn what_the_server_did_not_look_at_is_sent_once_more() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let upstream = H2Upstream::start(move |_, request, mut respond| {
        let nth = count.fetch_add(1, SeqCst);
        let refuse = nth == 0 || request.uri().path() == "/never";
        let done = async move {
            let echo = read(request.into_body()).await;
            match refuse {
                true => respond.send_reset(Reason::REFUSED_STREAM),
                false => whole(respond, echo),
            }
        };
        (Box::pin(done), None)
    });
    let serin = before(&upstream);
    assert_eq!(wire::send(serin.traffic(), &post("/v1/x", "", b"twice")).text(), "twice");
    assert_eq!(asked.load(SeqCst), 2);
    let repeated = "serin_upstream_repeated_total{cause=\"unprocessed\",upstream=\"router\"}";
    assert_eq!(serin.metric(repeated), Some(1.0));
    let never = wire::send(serin.traffic(), &post("/never", "", b"x"));
    assert_eq!((never.status, asked.load(SeqCst)), (502, 4), "no third attempt");
}

#[test]
fn a_stream_that_was_worked_on_is_not_repeated() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let upstream = H2Upstream::start(move |_, _, mut respond| {
        count.fetch_add(1, SeqCst);
        (Box::pin(async move { respond.send_reset(Reason::INTERNAL_ERROR) }), None)
    });
    let serin = before(&upstream);
    assert_eq!(wire::send(serin.traffic(), &post("/v1/x", "", b"{}")).status, 502);
    assert_eq!(asked.load(SeqCst), 1);
    outcome(&serin, "upstream_cut");
}

#[test]
fn a_reset_in_mid_stream_is_seen_by_the_client() {
    let upstream = H2Upstream::start(|_, _, mut respond| {
        let done = async move {
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            send.send_data(Bytes::from_static(b"data: 1\n\n"), false).unwrap();
            tokio::task::yield_now().await;
            send.send_reset(Reason::INTERNAL_ERROR);
        };
        (Box::pin(done), None)
    });
    let serin = before(&upstream);
    let answer = wire::send(serin.traffic(), &post("/v1/x", "", b"{}"));
    assert!(!answer.whole, "{answer:?}");
    outcome(&serin, "upstream_cut");
}

#[test]
fn a_server_that_says_goodbye_is_met_again_on_a_new_connection() {
    let upstream = H2Upstream::start(|_, request, respond| {
        let done = async move {
            let echo = read(request.into_body()).await;
            whole(respond, echo);
        };
        (Box::pin(done), Some(Reason::NO_ERROR))
    });
    let serin = before(&upstream);
    for turn in 0..10 {
        let body = format!("turn {turn}");
        assert_eq!(wire::send(serin.traffic(), &post("/v1/x", "", body.as_bytes())).text(), body);
    }
    assert!(upstream.connections() > 1);
}

#[test]
fn a_connection_that_dies_under_a_request_is_no_reason_to_repeat_it() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let upstream = H2Upstream::start(move |_, _, respond| {
        let nth = count.fetch_add(1, SeqCst);
        // The second request is taken, and worked on, when the server goes down.
        let goodbye = (nth == 1).then_some(Reason::INTERNAL_ERROR);
        let done = async move {
            match nth {
                1 => std::future::pending().await,
                _ => whole(respond, "answered"),
            }
        };
        (Box::pin(done), goodbye)
    });
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\nhttp = \"2\"\n[fallback]\nfor = []\n[limits]\nthreads = 1\n",
        upstream.address
    ));
    assert_eq!(wire::send(serin.traffic(), &post("/v1/x", "", b"one")).text(), "answered");
    assert_eq!(wire::send(serin.traffic(), &post("/v1/x", "", b"two")).status, 502);
    assert_eq!((asked.load(SeqCst), upstream.connections()), (2, 1));
}

#[test]
fn a_reset_that_claims_no_error_is_a_break_all_the_same() {
    let upstream = H2Upstream::start(|_, _, mut respond| {
        let done = async move {
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            send.send_data(Bytes::from_static(b"data: 1\n\n"), false).unwrap();
            tokio::task::yield_now().await;
            send.send_reset(Reason::NO_ERROR);
        };
        (Box::pin(done), None)
    });
    let serin = before(&upstream);
    assert!(!wire::send(serin.traffic(), &post("/v1/x", "", b"{}")).whole);
    outcome(&serin, "upstream_cut");
}
