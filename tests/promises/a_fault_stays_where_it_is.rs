//! One client's or server's odd ways cost nobody else anything, and take nothing from an answer that was given.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use hyper::http::Response;

use crate::support::http2_upstream::{H2Upstream, whole as whole_http2};
use crate::support::upstream::{Upstream, chunk, chunked, whole};
use crate::support::wire::{self, more, post, read_answer};
use crate::support::{Serin, eventually};

/// Often enough to see what happens only sometimes.
const TRIES: usize = 20;

/// An upstream that sees a request's head and no more.
fn after_the_head(answer: &'static [u8], tries: usize, then: impl Fn(TcpStream) + Send + 'static) -> Serin {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok).take(tries) {
            let mut seen = Vec::new();
            while wire::find(&seen, b"\r\n\r\n").is_none() && more(&mut stream, &mut seen) {}
            let _ = stream.write_all(answer);
            then(stream);
        }
    });
    Serin::before(address, "[breaker]\nfailures = 10\n")
}

#[test]
fn who_reads_slowly_over_http_2_holds_back_nobody_else_and_loses_nothing() {
    const PIECES: usize = 300_000;
    let upstream = H2Upstream::start(|_, request, mut respond| {
        let done = async move {
            if request.uri().path() != "/slow" {
                return whole_http2(respond, "fine");
            }
            let mut send = respond.send_response(Response::new(()), false).unwrap();
            for _ in 0..PIECES {
                send.send_data(Bytes::from_static(b"abcd"), false).unwrap();
            }
            send.send_data(Bytes::new(), true).unwrap();
        };
        (Box::pin(done), None)
    });
    let address = upstream.address;
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{address}\"\nhttp = \"2\"\n[limits]\nthreads = 1\n[fallback]\nfor = []\n"
    ));
    let mut slow = wire::connect(serin.traffic());
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 4096).unwrap();
    slow.write_all(&post("/slow", "", b"{}")).unwrap();
    serin.reaches("serin_proxy_in_flight", 1.0);
    for _ in 0..TRIES {
        assert_eq!(wire::send(serin.traffic(), &post("/fine", "", b"{}")).text(), "fine");
    }
    rustix::net::sockopt::set_socket_recv_buffer_size(&slow, 1 << 20).unwrap();
    let answer = read_answer(&mut slow);
    assert_eq!((answer.status, answer.whole, answer.body.len()), (200, true, 4 * PIECES));
    assert_eq!(upstream.connections(), 1, "all of them shared it");
}

#[test]
fn an_answer_given_before_its_request_was_read_leaves_the_connection_usable() {
    let early = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly";
    let serin = after_the_head(early, 2, |mut stream| while more(&mut stream, &mut Vec::new()) {});
    let mut client = wire::connect(serin.traffic());
    client.write_all(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n1234567890").unwrap();
    assert_eq!(read_answer(&mut client).text(), "early");
    client.write_all(&[b'x'; 990]).unwrap();
    client.write_all(b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let second = read_answer(&mut client);
    assert_eq!((second.status, second.text().as_str()), (200, "early"));
}

#[test]
fn a_refusal_of_ours_leaves_the_connection_usable_too() {
    let upstream = Upstream::canned(whole("200 OK", "a/b", b"yes"));
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\n[[route]]\npath_prefix = \"/v1\"\nupstreams = [\"router\"]\n[fallback]\nfor = []\n",
        upstream.address
    ));
    let mut client = wire::connect(serin.traffic());
    client.write_all(b"POST /nowhere HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n").unwrap();
    client.write_all(&[b'x'; 100_000]).unwrap();
    assert_eq!(read_answer(&mut client).status, 404);
    client.write_all(&[b'x'; 100_000]).unwrap();
    client.write_all(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut client).text(), "yes");
}

#[test]
fn a_client_that_sends_too_much_reads_why_it_was_refused() {
    let upstream = Upstream::canned(whole("200 OK", "a/b", b"yes"));
    let serin = Serin::before(upstream.address, "[limits]\nbody = \"64KiB\"\n");
    for _ in 0..TRIES {
        let mut client = wire::connect(serin.traffic());
        // Closed with bytes unread, the connection would be reset and the answer lost.
        client.write_all(&post("/v1/x", "", &vec![b'x'; 4 << 20])).unwrap();
        let answer = read_answer(&mut client);
        assert_eq!((answer.status, answer.whole), (413, true));
    }
}

#[test]
fn an_upstream_that_refuses_a_large_request_unread_is_heard_and_not_blamed() {
    let refusal = b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nno!";
    let serin = after_the_head(refusal, usize::MAX, drop);
    for _ in 0..TRIES {
        let mut client = wire::connect(serin.traffic());
        let mut up = client.try_clone().unwrap();
        let sends = std::thread::spawn(move || up.write_all(&post("/v1/x", "", &vec![b'x'; 4 << 20])));
        let answer = read_answer(&mut client);
        assert_eq!((answer.status, answer.text().as_str()), (413, "no!"));
        let _ = client.shutdown(Shutdown::Both);
        let _ = sends.join();
    }
    let open = "serin_upstream_breaker_state{state=\"open\",upstream=\"router\"}";
    assert_eq!(serin.metric(open), Some(0.0));
}

#[test]
fn a_head_that_came_before_a_break_arrives() {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Seen: 1\r\n\r\n";
    let serin = after_the_head(head, usize::MAX, drop);
    // More would open the breaker.
    for _ in 0..9 {
        let answer = wire::get(serin.traffic(), "/v1/x");
        assert_eq!((answer.status, answer.header("x-seen"), answer.whole), (200, Some("1"), false));
    }
}

#[test]
fn an_answer_without_a_body_is_complete_however_its_stream_ends() {
    let upstream = H2Upstream::start(|_, _, mut respond| {
        let done = async move {
            let head = Response::builder().status(204).body(()).unwrap();
            let mut send = respond.send_response(head, false).unwrap();
            tokio::task::yield_now().await;
            send.send_data(Bytes::new(), true).unwrap();
        };
        (Box::pin(done), None)
    });
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\nhttp = \"2\"\n[fallback]\nfor = []\n",
        upstream.address
    ));
    for _ in 0..TRIES {
        assert_eq!(wire::get(serin.traffic(), "/v1/x").status, 204);
    }
    let complete = "serin_proxy_requests_total{outcome=\"complete\",upstream=\"router\"}";
    serin.reaches(complete, TRIES as f64);
}

#[test]
fn only_the_protocol_that_was_asked_for_is_switched_to() {
    for answer in ["Upgrade: h2c\r\n", ""] {
        let answer = format!("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{answer}\r\n");
        let upstream = Upstream::canned(answer);
        let serin = Serin::before(upstream.address, "");
        let ask = b"GET /v1/x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let answer = wire::send(serin.traffic(), ask);
        assert_eq!((answer.status, answer.json()["error"]["code"].as_str()), (502, Some("upstream_cut")));
    }
}

#[test]
fn an_upstream_s_own_pages_are_not_read_without_end() {
    // A health check and a word about a client that left are answered with a body that never ends.
    let (most, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (longest, checks) = (most.clone(), seen.clone());
    let upstream = Upstream::start(move |request, out| {
        if request.head.starts_with("POST /v1") {
            let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
            return out.read(&mut [0; 1]).is_ok_and(|some| some > 0);
        }
        let _ = out.write_all(&chunked("text/plain"));
        let mut written = 0;
        while out.write_all(&chunk(&[b'x'; 1 << 16])).is_ok() {
            written += 1 << 16;
        }
        longest.fetch_max(written, SeqCst);
        checks.fetch_add(1, SeqCst);
        false
    });
    let serin = Serin::start(&format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\nhealth = \"/health\"\nabort = \"/abort_request\"\n\
         [breaker]\nhealth_every = \"20ms\"\n[fallback]\nfor = []\n",
        upstream.address
    ));
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "X-Request-Id: 7\r\n", b"{\"stream\":true}")).unwrap();
    assert!(more(&mut client, &mut Vec::new()));
    drop(client);
    serin.reaches("serin_upstream_aborts_total{outcome=\"told\",upstream=\"router\"}", 1.0);
    eventually("many checks", || (seen.load(SeqCst) > TRIES).then_some(()));
    // What the two sockets hold is more than what is read.
    assert!(most.load(SeqCst) < 64 << 20, "{} bytes of one page were taken", most.load(SeqCst));
    assert_eq!(serin.metric("serin_upstream_healthy{upstream=\"router\"}"), Some(1.0));
}
