//! Bodies of any size pass, in memory that does not grow with them, and the record sees all that it promises to keep.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serin::journal::Capture;

use crate::support::journal::exchanges;
use crate::support::program::Program;
use crate::support::upstream::{Upstream, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually};

const MEBIBYTE: usize = 1 << 20;

/// Byte `at` of every body here. No two blocks are alike, so that nothing can be dropped, doubled or swapped unseen.
fn block(at: usize) -> Vec<u8> {
    let mut bytes = vec![0; 64 * 1024];
    blake3::Hasher::new().update(&at.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn write_body(stream: &mut TcpStream, size: usize) -> bool {
    (0..size / block(0).len()).all(|at| stream.write_all(&block(at)).is_ok())
}

/// Reads a head and `size` bytes, which must be those of [`write_body`]; the head, or nothing at the end.
fn read_body(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut piece = vec![0; block(0).len()];
    for at in 0..length.unwrap_or(0) / piece.len() {
        stream.read_exact(&mut piece).unwrap();
        assert!(piece == block(at), "block {at} changed");
    }
    Some(head)
}

/// Takes a body, checks it and sends one of the same size back; keeps nothing.
fn mirror() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                while let Some(head) = read_body(&mut stream) {
                    let size: usize = head
                        .split("/size/")
                        .nth(1)
                        .and_then(|rest| rest.split(' ').next()?.parse().ok())
                        .unwrap();
                    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
                    write_body(&mut stream, size);
                }
            });
        }
    });
    address
}

#[test]
fn large_bodies_pass_both_ways_in_flat_memory() {
    let dir = tempfile::tempdir().unwrap();
    let serin = Program::before(mirror(), dir.path());
    let mut client = wire::connect(serin.traffic);
    let mut peaks = Vec::new();
    // The last is larger than all that the memory may grow by; it is as large as a request may be unless set otherwise.
    let sizes = [1, 8, 64, 64, 64, 64, 512];
    for (number, megabytes) in sizes.into_iter().enumerate() {
        let size = megabytes * MEBIBYTE;
        write!(client, "POST /size/{size} HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n").unwrap();
        assert!(write_body(&mut client, size));
        assert!(read_body(&mut client).unwrap().starts_with("HTTP/1.1 200"));
        let recorded = || {
            let of = |outcome: &str| {
                serin.metric(&format!("serin_recorder_turns_total{{{outcome}}}")).unwrap_or(0.0)
            };
            of("outcome=\"full\",reason=\"\"") + of("outcome=\"shape\",reason=\"budget\"")
        };
        eventually("it is recorded", || (recorded() as usize == number + 1).then_some(()));
        peaks.push(serin.kilobytes("VmHWM"));
    }
    println!("peaks in kB: {peaks:?}");
    // What is kept of a body is bounded, and so is what an exchange of any size costs on its way to the disk; what the
    // allocator keeps of that, it keeps once.
    let (kept, last) = (16 * 1024, peaks.len() - 1);
    assert!(peaks[last] - peaks[0] < 12 * kept, "{peaks:?} kB");
    assert!(peaks[last] - peaks[last - 1] < 4 * kept, "{peaks:?} kB");
}

#[test]
fn the_record_holds_all_of_a_large_body() {
    let body: Vec<u8> = (0..96).flat_map(block).collect();
    let upstream = Upstream::canned(whole("200 OK", "application/json", &body));
    let mut serin = Serin::before(upstream.address, "");
    for size in [9_000, 40_000, 2 * MEBIBYTE, body.len()] {
        assert!(wire::send(serin.traffic(), &post("/v1/chat/completions", "", &body[..size])).body == body);
    }
    let records = exchanges(&mut serin);
    for (record, size) in records.iter().zip([9_000, 40_000, 2 * MEBIBYTE, body.len()]) {
        assert!(record.request_body == body[..size] && record.response_body == body, "{size}");
        assert_eq!((record.request_capture(), record.response_capture()), (Capture::Whole, Capture::Whole));
    }
    assert_eq!(records.len(), 4);
}

#[test]
fn peak_memory_follows_the_bodies_in_flight_and_no_multiple_of_them() {
    // All are in flight before any is answered.
    let (count, size) = (24, 4 * MEBIBYTE);
    let arrived = std::sync::Arc::new((std::sync::Mutex::new(0), std::sync::Condvar::new()));
    let upstream = Upstream::start(move |_, out| {
        let (arrived, changed) = &*arrived;
        let mut arrived = arrived.lock().unwrap();
        *arrived += 1;
        changed.notify_all();
        while *arrived < count {
            arrived = changed.wait(arrived).unwrap();
        }
        drop(arrived);
        out.write_all(&whole("200 OK", "application/json", b"{}")).is_ok()
    });
    let dir = tempfile::tempdir().unwrap();
    let serin = Program::before(upstream.address, dir.path());
    let before = serin.kilobytes("VmHWM");
    let clients: Vec<_> = (0..count)
        .map(|_| {
            let address = serin.traffic;
            std::thread::spawn(move || {
                let mut client = wire::connect(address);
                write!(client, "POST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n").unwrap();
                assert!(write_body(&mut client, size));
                wire::read_answer(&mut client).status
            })
        })
        .collect();
    clients.into_iter().for_each(|client| assert_eq!(client.join().unwrap(), 200));
    let turns = "serin_recorder_turns_total{outcome=\"full\",reason=\"\"}";
    eventually("all are recorded", || (serin.metric(turns) == Some(f64::from(count))).then_some(()));
    let (grown, in_flight) = (serin.kilobytes("VmHWM") - before, count as usize * size / 1024);
    println!("{grown} kB for {in_flight} kB in flight");
    // 1.2 times, and a constant for buffers of the path and of the recorder's thread.
    assert!(grown < in_flight * 12 / 10 + 64 * 1024, "{grown} kB for {in_flight} kB in flight");
}

#[test]
fn headers_of_one_connection_end_here_and_the_others_pass() {
    let upstream = Upstream::canned(
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Mine\r\nKeep-Alive: timeout=5\r\nX-Mine: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nAnthropic-Ratelimit: 7\r\nContent-Length: 2\r\n\r\n{}".as_slice(),
    );
    let serin = Serin::before(upstream.address, "");
    let request = b"POST /v1/messages HTTP/1.1\r\nHost: api.test\r\nConnection: X-Hop, keep-alive\r\nX-Hop: 1\r\nKeep-Alive: 5\r\nTE: trailers, deflate\r\n\
        Proxy-Authorization: Basic eA==\r\nAuthorization: Bearer k\r\nAnthropic-Beta: a\r\nAnthropic-Beta: b\r\nTraceparent: 00-1-2-01\r\n\
        X-Tenant: t\r\nContent-Length: 2\r\n\r\n{}";
    let answer = wire::send(serin.traffic(), request);
    let received = upstream.received().remove(0);
    for (name, values) in [
        ("host", vec!["api.test"]),
        ("authorization", vec!["Bearer k"]),
        ("anthropic-beta", vec!["a", "b"]),
        ("traceparent", vec!["00-1-2-01"]),
        ("x-tenant", vec!["t"]),
        ("content-length", vec!["2"]),
        ("x-hop", vec![]),
        ("keep-alive", vec![]),
        ("proxy-authorization", vec![]),
        ("te", vec![]),
    ] {
        assert_eq!(received.headers(name), values, "{name}");
    }
    let cookies: Vec<&str> = answer.head.lines().filter(|line| line.starts_with("Set-Cookie: ")).collect();
    assert_eq!(cookies, ["Set-Cookie: a=1", "Set-Cookie: b=2"]);
    assert_eq!(
        (answer.header("anthropic-ratelimit"), answer.header("x-mine"), answer.header("keep-alive")),
        (Some("7"), None, None)
    );
}

#[test]
fn a_request_id_is_the_same_everywhere() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let mut serin = Serin::before(upstream.address, "");
    let made = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}"));
    let made = made.header("x-request-id").unwrap().to_owned();
    assert_eq!(upstream.received()[0].headers("x-request-id"), [made.as_str()]);
    wire::send(serin.traffic(), &post("/v1/chat/completions", "X-Request-Id: mine\r\n", b"{}"));
    assert_eq!(upstream.received()[1].headers("x-request-id"), ["mine"]);
    let records = exchanges(&mut serin);
    assert_eq!(records[0].id, made);
    let kept =
        records[1].request_headers.iter().find(|header| header.name.eq_ignore_ascii_case("x-request-id"));
    assert_eq!(kept.map(|header| header.value.as_ref()), Some(b"mine".as_slice()));
}
