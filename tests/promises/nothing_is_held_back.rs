//! What the upstream writes reaches the client before the upstream writes more: order, not clocks.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::support::upstream::{Upstream, chunk, chunked, until_closed};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, h2, program, scale};

fn event(number: usize) -> Vec<u8> {
    format!("data: {{\"n\":{number}}}\n\n").into_bytes()
}

/// An upstream that writes event `n + 1` only after it was told that the client has event `n`.
fn in_step(count: usize) -> (Upstream, mpsc::Sender<()>) {
    let (seen, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |_, out| {
        let wait = wait.lock().unwrap();
        let mut ok = out.write_all(&chunked("text/event-stream")).is_ok();
        for number in 0..count {
            ok &= out.write_all(&chunk(&event(number))).is_ok() && wait.recv().is_ok();
        }
        ok && out.write_all(b"0\r\n\r\n").is_ok()
    });
    (upstream, seen)
}

#[test]
fn each_event_arrives_before_the_next_is_written() {
    let count = 300 * scale();
    let (upstream, go) = in_step(count);
    let serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{\"stream\":true}")).unwrap();
    let mut seen = Vec::new();
    for number in 0..count {
        while wire::find(&seen, &event(number)).is_none() {
            assert!(wire::more(&mut client, &mut seen), "event {number} was held back");
        }
        seen.clear();
        go.send(()).unwrap();
    }
    while wire::find(&seen, b"0\r\n\r\n").is_none() {
        assert!(wire::more(&mut client, &mut seen));
    }
    assert_eq!(seen, b"0\r\n\r\n", "nothing but the end follows the last event");
}

#[test]
fn each_event_arrives_before_the_next_over_http_2() {
    let count = 300 * scale();
    let (upstream, go) = in_step(count);
    let serin = Serin::before(upstream.address, "");
    let mut number = 0;
    let ended = h2::post(serin.traffic(), "/v1/chat/completions", b"{\"stream\":true}", |piece| {
        assert_eq!(piece, event(number));
        number += 1;
        go.send(()).unwrap();
    });
    assert_eq!((ended, number), (Ok(200), count));
}

#[test]
fn the_head_arrives_before_any_byte_of_the_body() {
    for framing in ["Transfer-Encoding: chunked", "Content-Length: 5", "Connection: close"] {
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let upstream = Upstream::start(move |_, out| {
            let _ = out.write_all(format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n").as_bytes());
            let _ = wait.lock().unwrap().recv();
            let body =
                if framing.contains("chunked") { b"5\r\nhello\r\n0\r\n\r\n".as_slice() } else { b"hello" };
            out.write_all(body).is_ok() && !framing.contains("close")
        });
        let serin = Serin::before(upstream.address, "");
        let mut client = wire::connect(serin.traffic());
        client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
        let mut seen = Vec::new();
        while wire::find(&seen, b"\r\n\r\n").is_none() {
            assert!(wire::more(&mut client, &mut seen), "{framing}: the head was held back");
        }
        assert!(seen.ends_with(b"\r\n\r\n"), "{framing}");
        go.send(()).unwrap();
        while wire::find(&seen, b"hello").is_none() {
            assert!(wire::more(&mut client, &mut seen), "{framing}");
        }
    }
}

#[test]
fn a_request_body_goes_up_as_it_comes() {
    let upstream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let serin = Serin::before(upstream.local_addr().unwrap(), "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(b"POST /v1/files HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let (mut behind, _) = upstream.accept().unwrap();
    let mut seen = Vec::new();
    for number in 0..50 {
        client.write_all(&chunk(&event(number))).unwrap();
        while wire::find(&seen, &event(number)).is_none() {
            assert!(wire::more(&mut behind, &mut seen), "piece {number} was held back");
        }
    }
    // An answer may come while the request still goes up.
    behind.write_all(&crate::support::upstream::whole("200 OK", "a/b", b"early")).unwrap();
    let answer = wire::read_answer(&mut client);
    assert_eq!((answer.status, answer.text().as_str()), (200, "early"));
}

#[test]
fn a_thousand_streams_all_have_their_first_event_at_once() {
    // No stream goes on before every client has its first event: one that waits for another would wait for ever.
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(&event(0))].concat());
        until_closed(out);
        false
    });
    let serin = Serin::before(upstream.address, "");
    let mut clients: Vec<TcpStream> = (0..1_000)
        .map(|_| {
            let mut client = wire::connect(serin.traffic());
            client.write_all(&post("/v1/chat/completions", "", b"{\"stream\":true}")).unwrap();
            client
        })
        .collect();
    for client in &mut clients {
        wire::read_until(client, &event(0));
    }
    serin.reaches("serin_proxy_in_flight", 1_000.0);
    drop(clients);
    eventually("all are over", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
    // Each within ten seconds of its arrival: a connection that the busy machine drops is tried again after one and three.
    let soon = serin.metric("serin_proxy_first_byte_seconds_bucket{upstream=\"router\",le=\"10\"}");
    assert_eq!(soon, Some(1_000.0));
}

#[test]
fn a_silent_stream_gets_nothing_but_what_the_upstream_sent() {
    let silence = Duration::from_millis(400);
    let upstream = Upstream::start(move |_, out| {
        std::thread::park_timeout(silence);
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(&event(0))].concat());
        std::thread::park_timeout(silence);
        out.write_all(&[chunk(&event(1)), b"0\r\n\r\n".to_vec()].concat()).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "X-Request-Id: mine\r\n", b"{\"stream\":true}")).unwrap();
    let seen = wire::read_until(&mut client, b"0\r\n\r\n");
    let expected =
        [chunked("text/event-stream"), chunk(&event(0)), chunk(&event(1)), b"0\r\n\r\n".to_vec()].concat();
    // Sizes of chunks are hexadecimal in either case.
    let folded = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_lowercase();
    assert_eq!(folded(&seen), folded(&expected));
}

#[test]
fn a_stream_may_last_longer_than_any_silence_in_it() {
    let gap = Duration::from_millis(300);
    let upstream = Upstream::start(move |_, out| {
        let mut ok = out.write_all(&chunked("text/event-stream")).is_ok();
        for number in 0..8 {
            std::thread::park_timeout(gap);
            ok &= out.write_all(&chunk(&event(number))).is_ok();
        }
        ok && out.write_all(b"0\r\n\r\n").is_ok()
    });
    let limits = "[limits]\nhead = \"1500ms\"\nidle = \"1500ms\"\n";
    let serin = Serin::before(upstream.address, limits);
    let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{\"stream\":true}"));
    let expected: Vec<u8> = (0..8).flat_map(event).collect();
    assert!(answer.whole && answer.body == expected, "{}", answer.text());
}

#[test]
fn the_first_byte_is_measured_apart_from_the_whole() {
    let (before, after) = (Duration::from_millis(200), Duration::from_secs(2));
    let upstream = Upstream::start(move |_, out| {
        std::thread::park_timeout(before);
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(&event(0))].concat());
        std::thread::park_timeout(after);
        out.write_all(b"0\r\n\r\n").is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{\"stream\":true}"));
    let sum =
        |name: &str| serin.reaches(&format!("serin_proxy_{name}_seconds_sum{{upstream=\"router\"}}"), 0.001);
    let (first, whole) = (sum("first_byte"), sum("request"));
    assert!(first >= before.as_secs_f64() * 0.9, "{first}");
    assert!(whole >= first + after.as_secs_f64() * 0.9, "first byte after {first} s of {whole} s");
}

#[test]
fn by_default_a_silence_may_last_as_long_as_a_prefill() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.toml"), "").unwrap();
    let shown = program::run(dir.path(), &["check-config"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    let limits = shown.split("[limits]").nth(1).unwrap_or_else(|| panic!("{shown}"));
    let value = |key: &str| {
        let line = limits.lines().find(|line| line.starts_with(&format!("{key} = ")));
        line.unwrap_or_else(|| panic!("no {key} in {shown}")).split('"').nth(1).unwrap().to_owned()
    };
    assert_eq!((value("head").as_str(), value("idle").as_str()), ("30m", "10m"));
    // Below the five seconds after which uvicorn closes an unused connection.
    assert_eq!(value("pool_idle"), "4s");
    assert!(!limits.contains("total"), "there is no limit on the whole of a stream: {limits}");
}

/// Whether the kernel's keep-alive timer runs on the connection between these ports (`tr` of /proc/net/tcp).
fn keeps_alive(local: SocketAddr, peer: SocketAddr) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (local, peer) = (format!(":{:04X}", local.port()), format!(":{:04X}", peer.port()));
    let line = table.lines().find(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 5 && fields[1].ends_with(&local) && fields[2].ends_with(&peer)
    });
    let line = line.unwrap_or_else(|| panic!("no connection {local} {peer} in {table}"));
    line.split_whitespace().nth(5).is_some_and(|timer| timer.starts_with("02:"))
}

#[test]
fn both_sides_have_tcp_keep_alive() {
    let upstream = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let serin = Serin::before(upstream.local_addr().unwrap(), "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    let (behind, ours) = upstream.accept().unwrap();
    // While data is on its way the kernel shows another timer.
    eventually("keep-alive towards the upstream", || {
        keeps_alive(ours, behind.local_addr().unwrap()).then_some(())
    });
    eventually("keep-alive towards the client", || {
        keeps_alive(serin.traffic(), client.local_addr().unwrap()).then_some(())
    });
}
