//! A request that two servers could read in two ways is refused and its connection closed; it never reaches the upstream.

use std::io::Write;

use crate::support::upstream::{Upstream, whole};
use crate::support::{Serin, wire};

/// Requests that must be refused: what is wrong, and the bytes. `{smuggled}` stands for a second request hidden in the first.
const REFUSED: &[(&str, &str)] = &[
    // Two lengths.
    ("two lengths", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde"),
    ("two lengths in one line", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4, 5\r\n\r\nabcde"),
    (
        "two lengths, first zero",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nContent-Length: 30\r\n\r\n{smuggled}",
    ),
    // A length that is no number.
    ("signed length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +4\r\n\r\nabcd"),
    ("negative length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n"),
    ("hexadecimal length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x4\r\n\r\nabcd"),
    ("length with a unit", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4 bytes\r\n\r\nabcd"),
    ("length with a blank inside", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1 2\r\n\r\nabcd"),
    ("length with a fraction", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4.0\r\n\r\nabcd"),
    ("empty length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\nabcd"),
    (
        "length beyond 64 bits",
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\nabcd",
    ),
    ("length in words", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: four\r\n\r\nabcd"),
    ("length as a list", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4,\r\n\r\nabcd"),
    // Transfer codings that do not end in chunked.
    ("unknown coding", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\n{smuggled}"),
    (
        "chunked, then another",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    ("identity", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\nabcd"),
    (
        "coding with a tab inside",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chun\tked\r\n\r\n0\r\n\r\n",
    ),
    ("coding in quotes", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    ("coding with a prefix", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    (
        "chunks in HTTP/1.0",
        "POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{smuggled}",
    ),
    // Header lines.
    ("blank before the colon", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length : 4\r\n\r\nabcd"),
    ("tab before the colon", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
    ("folded header", "GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n"),
    ("folded length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n 4\r\n\r\nabcd"),
    ("folded with a tab", "GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n\tb\r\n\r\n"),
    ("folded first line", "GET / HTTP/1.1\r\n Host: h\r\n\r\n"),
    ("NUL in a value", "GET / HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n"),
    ("NUL in a name", "GET / HTTP/1.1\r\nHost: h\r\nX\0Y: a\r\n\r\n"),
    ("control byte in a value", "GET / HTTP/1.1\r\nHost: h\r\nX: a\x01b\r\n\r\n"),
    ("bare CR in a value", "GET / HTTP/1.1\r\nHost: h\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n"),
    ("name in brackets", "GET / HTTP/1.1\r\nHost: h\r\n[X]: a\r\n\r\n"),
    ("name with a blank", "GET / HTTP/1.1\r\nHost: h\r\nX Y: a\r\n\r\n"),
    ("empty name", "GET / HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n"),
    ("line without a colon", "GET / HTTP/1.1\r\nHost: h\r\nnonsense\r\n\r\n"),
    // Hosts.
    ("two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    ("the same host twice", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
    ("no host", "GET / HTTP/1.1\r\n\r\n"),
    // Request lines.
    ("no target", "GET HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("two blanks", "GET  / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("blank in the target", "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("tab in the target", "GET /a\tb HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("no version", "GET /\r\nHost: h\r\n\r\n"),
    ("version 0.9", "GET / HTTP/0.9\r\nHost: h\r\n\r\n"),
    ("version 1.2", "GET / HTTP/1.2\r\nHost: h\r\n\r\n"),
    ("version 2.0 in text", "GET / HTTP/2.0\r\nHost: h\r\n\r\n"),
    ("version in small letters", "GET / http/1.1\r\nHost: h\r\n\r\n"),
    ("not HTTP", "GET / ICAP/1.0\r\nHost: h\r\n\r\n"),
    ("method with a bracket", "GE[T / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("method with a NUL", "GE\0T / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\u{7f}\x03\r\n\r\n"),
    ("garbage", "\u{7f}\u{7f}\u{7f}\u{7f}\r\n\r\n"),
    ("a tunnel", "CONNECT elsewhere.test:443 HTTP/1.1\r\nHost: elsewhere.test:443\r\n\r\n"),
    ("a tunnel by path", "CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n"),
    // Chunks: the head is sound, the body is not; what was sent on is cut off and never completed.
    (
        "chunk size with a sign",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n+4\r\nabcd\r\n0\r\n\r\n",
    ),
    (
        "negative chunk size",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunk size that is no number",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "chunk size beyond 64 bits",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na\r\n0\r\n\r\n",
    ),
    (
        "chunk longer than said",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n0\r\n\r\n",
    ),
    (
        "chunk without its line end",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd0\r\n\r\n",
    ),
    (
        "empty chunk size",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabcd\r\n0\r\n\r\n",
    ),
    (
        "chunk size in 0x",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x4\r\nabcd\r\n0\r\n\r\n",
    ),
    (
        "chunk size ended by LF alone",
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\nabcd\r\n0\r\n\r\n",
    ),
];

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";

/// Sends the bytes and reads until the connection is closed.
fn exchange(serin: &Serin, bytes: &[u8]) -> String {
    let mut client = wire::connect(serin.traffic());
    client.write_all(bytes).unwrap();
    let mut answer = Vec::new();
    while wire::more(&mut client, &mut answer) {}
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn none_of_a_corpus_reaches_the_upstream_whole() {
    assert!(REFUSED.len() >= 60);
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"accepted"));
    let serin = Serin::before(upstream.address, "[limits]\nheader_read = \"2s\"\n");
    let mut wrong = Vec::new();
    for (what, template) in REFUSED {
        let request = template.replace("{smuggled}", SMUGGLED);
        let answer = exchange(&serin, request.as_bytes());
        let status = answer.split(' ').nth(1).unwrap_or("none");
        let refused = ["400", "501", "505"].contains(&status) && answer.matches("HTTP/1.1 ").count() == 1;
        if !refused || answer.contains("accepted") {
            wrong.push(format!("{what}: {answer:?}"));
        }
    }
    let arrived: Vec<_> = upstream.received().iter().map(|request| request.head.clone()).collect();
    assert!(
        wrong.is_empty() && arrived.is_empty(),
        "answered:\n{}\narrived:\n{arrived:#?}",
        wrong.join("\n")
    );
}

#[test]
fn a_head_that_cannot_be_read_is_counted() {
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"accepted"));
    let serin = Serin::before(upstream.address, "");
    let long = format!("GET /v1/models HTTP/1.1\r\nHost: h\r\nX-Long: {}\r\n\r\n", "x".repeat(200_000));
    for (head, status) in
        [("GET / HTTP/9.9\r\n\r\n", "400"), ("G@T / HTTP/1.1\r\n\r\n", "400"), (&long, "431")]
    {
        let answer = exchange(&serin, head.as_bytes());
        assert!(answer.is_empty() && status == "431" || answer.contains(status), "{status}: {answer:?}");
    }
    serin.reaches("serin_proxy_bad_heads_total", 3.0);
}

/// Length and chunks together, in every order and disguise: each would be read by its chunks here and by its length
/// elsewhere.
const BOTH: &[&str] = &[
    "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
    "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 100\r\n",
    "content-length:5\r\nX: y\r\nTRANSFER-ENCODING:chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\nContent-Length: 5\r\n",
    "Transfer-Encoding: gzip\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: nonsense\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length:\r\n",
    "Content-Length: 5\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Connection: content-length\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Content-Length: 5\nTransfer-Encoding: chunked\n",
    "Expect: 100-continue\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
];

/// A request that is sound and keeps its connection, of each kind of framing.
const SOUND: [&str; 4] = [
    "",
    "GET /sound HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST /sound HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na\nb",
    "POST /sound HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\na\nb\r\n0\r\nT: x\r\n\r\n",
];

#[test]
fn a_length_beside_chunks_is_refused() {
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"accepted"));
    let serin = Serin::before(upstream.address, "");
    for headers in BOTH {
        for before in SOUND {
            let arrived = upstream.received().len();
            let request = format!(
                "{before}POST / HTTP/1.1\r\nHost: h\r\n{headers}\r\n5\r\nabcde\r\n0\r\n\r\n{SMUGGLED}"
            );
            let answer = exchange(&serin, request.as_bytes());
            let refused = answer.split("HTTP/1.1 ").last().unwrap_or_default();
            assert!(
                refused.starts_with("400 ") && refused.contains("\"ambiguous_length\""),
                "{before:?} {headers:?}: {answer}"
            );
            let received = &upstream.received()[arrived..];
            assert_eq!(received.len(), usize::from(!before.is_empty()), "{headers:?}: {received:?}");
        }
    }
}

/// The same one byte at a time: nothing depends on how the network cuts it.
#[test]
fn a_length_beside_chunks_is_refused_however_it_is_cut() {
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"accepted"));
    let serin = Serin::before(upstream.address, "");
    for before in SOUND {
        let mut client = wire::connect(serin.traffic());
        let request = format!("{before}POST / HTTP/1.1\r\nHost: h\r\n{}\r\n5\r\nabcde\r\n", BOTH[0]);
        for byte in request.as_bytes() {
            // It may have been refused before all of it is written.
            if client.write_all(&[*byte]).is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        while wire::more(&mut client, &mut answer) {}
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            answer.contains("HTTP/1.1 400 ") && answer.contains("ambiguous_length"),
            "{before:?}: {answer}"
        );
    }
    assert!(upstream.received().iter().all(|request| request.head.contains(" /sound ")));
}

#[test]
fn the_admin_side_refuses_it_too() {
    let serin = Serin::start("");
    let request = format!("GET /healthz HTTP/1.1\r\nHost: h\r\n{}\r\n0\r\n\r\n", BOTH[0]);
    assert_eq!(wire::send(serin.admin(), request.as_bytes()).status, 400);
}

/// A body may hold anything, and what follows it on the connection is read as before.
#[test]
fn a_body_that_looks_like_such_a_request_passes() {
    let upstream =
        Upstream::start(|request, out| out.write_all(&whole("200 OK", "text/plain", &request.body)).is_ok());
    let serin = Serin::before(upstream.address, "");
    let inner = format!("POST / HTTP/1.1\r\nHost: h\r\n{}\r\n0\r\n\r\n", BOTH[0]);
    let sized = format!("POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{inner}", inner.len());
    let chunked = format!(
        "POST /2 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{inner}\r\n0\r\n\r\n",
        inner.len()
    );
    let mut client = wire::connect(serin.traffic());
    for request in [&sized, &chunked, &sized, &chunked] {
        client.write_all(request.as_bytes()).unwrap();
        let answer = wire::read_answer(&mut client);
        assert!(answer.status == 200 && answer.text().contains(&inner), "{}", answer.head);
    }
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"accepted"));
    let serin = Serin::before(upstream.address, "");
    let many: String = (0..200).map(|n| format!("X-{n}: v\r\n")).collect();
    let large = format!("X: {}\r\n", "v".repeat(1 << 20));
    for headers in [many, large] {
        let mut client = wire::connect(serin.traffic());
        // The server may close before all of it is written.
        let _ = client.write_all(format!("GET / HTTP/1.1\r\nHost: h\r\n{headers}\r\n").as_bytes());
        let answer = wire::read_answer(&mut client);
        assert!([0, 400, 431].contains(&answer.status), "{}", answer.head);
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn what_is_unusual_and_sound_passes() {
    let upstream =
        Upstream::start(|request, out| out.write_all(&whole("200 OK", "text/plain", &request.body)).is_ok());
    let serin = Serin::before(upstream.address, "");
    let sound: [(&str, &str); 6] = [
        ("GET / HTTP/1.1\r\nhost:h\r\n\r\n", ""),
        ("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\nabcd", "abcd"),
        (
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: Chunked\r\n\r\n4;ext=\"a b\"\r\nabcd\r\n0\r\n\r\n",
            "abcd",
        ),
        (
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0004\r\nabcd\r\n00\r\n\r\n",
            "abcd",
        ),
        ("GET / HTTP/1.0\r\n\r\n", ""),
        ("\r\nGET / HTTP/1.1\r\nHost: h\r\nX:\t a \t\r\n\r\n", ""),
    ];
    for (request, echoed) in sound {
        let answer = wire::send(serin.traffic(), request.as_bytes());
        let body = upstream.received().pop().unwrap_or_default().body;
        assert_eq!(answer.status, 200, "{request:?}: {}", answer.head);
        assert!(
            answer.text().contains(echoed) && String::from_utf8_lossy(&body).contains(echoed),
            "{request:?}"
        );
    }
}
