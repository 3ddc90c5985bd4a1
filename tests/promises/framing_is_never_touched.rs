//! However a body is cut, encoded or typed, its bytes pass as they are; no line end, character or encoding is looked at
//! on the path.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, mpsc};

use serin::conversation::reading::answer_of;
use serin::journal::Capture;

use crate::support::journal::exchanges;
use crate::support::peer::{self, ENCODERS};
use crate::support::program::Program;
use crate::support::upstream::{Upstream, chunk, chunked, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, scale};

/// Two kilobytes of what SSE allows: a mark, all line ends, comments, fields, characters of one to four bytes, damage.
fn sample() -> Vec<u8> {
    let mut bytes = b"\xef\xbb\xbf: hi\n\nevent: x\r\nid: 1\r\nretry: 10\r\ndata: a\r\ndata: b\r\n\r\ndata:c\rdata: d\r\r".to_vec();
    bytes.extend_from_slice("data: {\"t\":\"\u{fffd}\"}\n\n".as_bytes());
    bytes.extend_from_slice(b"data: cut \xe4\xb8\n\ndata: \xff\n\n");
    let words = [
        "\u{e9}t\u{e9}",
        "\u{4e2d}\u{6587}\u{5b57}",
        "\u{1f426}\u{200d}\u{1f525}",
        " plain",
        "e\u{301}",
        "\u{fffd}",
    ];
    for word in words.iter().cycle() {
        if bytes.len() > 2_000 {
            break;
        }
        bytes.extend_from_slice(
            format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{word}\"}}}}]}}\n\n").as_bytes(),
        );
    }
    bytes.extend_from_slice(b"data: {\"choices\":[]}\n\ndata: [DONE]\n\n");
    bytes
}

/// Reads from the client's side until `count` bytes of the body are there; their framing is a length.
fn take(client: &mut TcpStream, seen: &mut Vec<u8>, count: usize) {
    while seen.len() < count {
        assert!(wire::more(client, seen), "the stream ended after {} bytes", seen.len());
    }
}

/// An upstream that writes the pieces of `sample` one at a time, each when told to.
fn in_step(pieces: impl Fn(usize) -> Vec<Vec<u8>> + Send + Sync + 'static) -> (Upstream, mpsc::Sender<()>) {
    let (seen, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |request, out| {
        let number = request.headers("x-number")[0].parse().unwrap();
        let pieces = pieces(number);
        let length: usize = pieces.iter().map(Vec::len).sum();
        let wait = wait.lock().unwrap();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {length}\r\n\r\n");
        let mut ok = out.write_all(head.as_bytes()).is_ok();
        for piece in pieces {
            ok &= wait.recv().is_ok() && out.write_all(&piece).is_ok();
        }
        ok
    });
    (upstream, seen)
}

/// Asks for the answer with that number and takes its pieces in step.
fn asked(client: &mut TcpStream, go: &mpsc::Sender<()>, number: usize, lengths: &[usize]) -> Vec<u8> {
    client.write_all(&post("/v1/chat/completions", &format!("X-Number: {number}\r\n"), b"{}")).unwrap();
    let mut seen = Vec::new();
    let end = loop {
        if let Some(at) = wire::find(&seen, b"\r\n\r\n") {
            break at + 4;
        }
        assert!(wire::more(client, &mut seen));
    };
    let mut body = seen.split_off(end);
    let mut due = 0;
    for length in lengths.iter().filter(|length| **length > 0) {
        go.send(()).unwrap();
        due += length;
        take(client, &mut body, due);
    }
    body
}

#[test]
fn every_split_position_of_a_stream_passes() {
    let bytes = sample();
    let whole = bytes.clone();
    let (upstream, go) = in_step(move |at| {
        let (one, two) = whole.split_at(at);
        [one.to_vec(), two.to_vec()].into_iter().filter(|piece| !piece.is_empty()).collect()
    });
    let mut serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    for at in 0..bytes.len() {
        let seen = asked(&mut client, &go, at, &[at, bytes.len() - at]);
        assert!(seen == bytes, "split at {at}");
    }
    drop(client);
    // What was recorded is whole too, and read the same way whatever the split.
    let records = exchanges(&mut serin);
    assert_eq!(records.len(), bytes.len());
    let first = answer_of(&records[0]);
    for (at, record) in records.iter().enumerate() {
        assert!(record.response_body == bytes, "recorded, split at {at}");
        assert!(answer_of(record) == first, "read, split at {at}");
    }
}

#[test]
fn a_stream_of_single_bytes_passes() {
    let bytes = sample();
    let whole = bytes.clone();
    let (upstream, go) = in_step(move |_| whole.chunks(1).map(<[u8]>::to_vec).collect());
    let serin = Serin::before(upstream.address, "");
    let seen = asked(&mut wire::connect(serin.traffic()), &go, 0, &vec![1; bytes.len()]);
    assert!(seen == bytes);
    let replacements =
        |bytes: &[u8]| bytes.windows(3).filter(|three| *three == "\u{fffd}".as_bytes()).count();
    assert_eq!(replacements(&seen), replacements(&bytes));
}

#[test]
fn the_content_type_decides_nothing() {
    let bytes = sample();
    for kind in [
        "",
        "Content-Type: text/plain\r\n",
        "Content-Type: application/json\r\n",
        "Content-Type: \r\n",
        "content-type: TEXT/Event-Stream; x=\"y;\"\r\n",
        "Content-Type: application/octet-stream\r\n",
        "Content-Type: a/b\r\nContent-Type: c/d\r\n",
    ] {
        let head = format!("HTTP/1.1 200 OK\r\n{kind}Transfer-Encoding: chunked\r\n\r\n").into_bytes();
        let (go, wait) = mpsc::channel::<()>();
        let (wait, sent) = (Mutex::new(wait), bytes.clone());
        let upstream = Upstream::start(move |_, out| {
            let first = out.write_all(&[head.as_slice(), &chunk(&sent[..100])].concat()).is_ok();
            // The rest comes only when the client has the first piece.
            first
                && wait.lock().unwrap().recv().is_ok()
                && out.write_all(&[chunk(&sent[100..]), b"0\r\n\r\n".to_vec()].concat()).is_ok()
        });
        let serin = Serin::before(upstream.address, "");
        let mut client = wire::connect(serin.traffic());
        client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
        let mut seen = Vec::new();
        while wire::find(&seen, &bytes[..100]).is_none() {
            assert!(wire::more(&mut client, &mut seen), "{kind:?}: the first piece was held back");
        }
        go.send(()).unwrap();
        while wire::find(&seen, b"0\r\n\r\n").is_none() {
            assert!(wire::more(&mut client, &mut seen));
        }
        let head = String::from_utf8_lossy(&seen[..wire::find(&seen, b"\r\n\r\n").unwrap() + 2]).into_owned();
        let kinds = |text: &str| {
            text.lines()
                .filter(|line| line.to_lowercase().starts_with("content-type"))
                .map(|line| line.trim_end().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(kinds(&head), kinds(kind));
    }
}

#[test]
fn compressed_bodies_pass_untouched_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let plain = sample();
    std::fs::write(dir.path().join("plain"), &plain).unwrap();
    peer::run_python(ENCODERS, "python/encode.py", &[dir.path().display().to_string()]);
    for encoding in ["gzip", "deflate", "br", "zstd"] {
        let bytes = std::fs::read(dir.path().join(encoding)).unwrap();
        assert!(bytes != plain && !bytes.is_empty());
        for stream in [true, false] {
            let sent = bytes.clone();
            let upstream = Upstream::start(move |_, out| {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: {encoding}\r\nVary: Accept-Encoding\r\n"
                );
                let rest = if stream {
                    [
                        b"Transfer-Encoding: chunked\r\n\r\n".to_vec(),
                        sent.chunks(7).flat_map(chunk).collect(),
                        b"0\r\n\r\n".to_vec(),
                    ]
                    .concat()
                } else {
                    [format!("Content-Length: {}\r\n\r\n", sent.len()).as_bytes(), &sent].concat()
                };
                out.write_all(&[head.as_bytes(), &rest].concat()).is_ok()
            });
            // What nobody here can look through is kept only where everything may be.
            let mode = if encoding == "br" { "full" } else { "redacted" };
            let mut serin = Serin::before(upstream.address, &format!("[record]\nmode = \"{mode}\"\n"));
            let request = post(
                "/v1/chat/completions",
                &format!("Content-Encoding: {encoding}\r\nAccept-Encoding: {encoding};q=1.0\r\n"),
                &bytes,
            );
            let answer = wire::send(serin.traffic(), &request);
            assert!(answer.body == bytes && answer.whole, "{encoding} {stream}: the answer changed");
            assert_eq!(answer.header("content-encoding"), Some(encoding));
            let received = &upstream.received()[0];
            assert!(received.body == bytes, "{encoding}: the request changed");
            assert_eq!(received.headers("accept-encoding"), [format!("{encoding};q=1.0")]);
            // A real client decodes it to what was encoded.
            let url = format!("http://{}/v1/chat/completions", serin.traffic());
            assert!(
                peer::curl(&["--compressed", "-d", "{}", &url]) == plain,
                "{encoding} {stream}: curl saw something else"
            );
            let records = exchanges(&mut serin);
            assert!(records[0].response_body == bytes && records[0].response_capture() == Capture::Whole);
        }
    }
}

#[test]
fn a_bomb_costs_what_it_weighs() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("plain"), b"x").unwrap();
    peer::run_python(ENCODERS, "python/encode.py", &[dir.path().display().to_string()]);
    let bomb = std::fs::read(dir.path().join("bomb")).unwrap();
    assert!(bomb.len() < 64 << 10, "{}", bomb.len());
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: zstd\r\nContent-Length: {}\r\n\r\n",
        bomb.len()
    );
    let upstream = Upstream::canned([answer.as_bytes(), &bomb].concat());
    let serin = Program::before(upstream.address, dir.path());
    let before = serin.kilobytes("VmHWM");
    let request = post("/v1/chat/completions", "Content-Encoding: zstd\r\n", &bomb);
    assert!(wire::send(serin.traffic, &request).body == bomb);
    eventually("it is durable", || {
        (serin.metric("serin_recorder_turns_total{outcome=\"meta\",reason=\"opaque\"}") == Some(1.0))
            .then_some(())
    });
    let grown = serin.kilobytes("VmHWM") - before;
    assert!(grown < 50_000, "{grown} kB for a bomb of 200 MB");
}

#[test]
fn a_line_that_never_ends_passes_and_fills_no_memory() {
    let (megabytes, piece) = (64 * scale(), vec![b'Q'; 1 << 20]);
    let upstream = Upstream::start(move |_, out| {
        let mut ok = out.write_all(&[chunked("text/event-stream"), chunk(b"data: ")].concat()).is_ok();
        for _ in 0..megabytes {
            ok &= out.write_all(&chunk(&piece)).is_ok();
        }
        ok && out.write_all(b"0\r\n\r\n").is_ok()
    });
    let dir = tempfile::tempdir().unwrap();
    let serin = Program::with(upstream.address, dir.path(), "[limits]\nbody_copy = \"4MiB\"\n");
    let before = serin.kilobytes("VmHWM");
    let mut client = wire::connect(serin.traffic);
    client.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    let (mut buffer, mut count) = (vec![0; 1 << 16], 0);
    loop {
        let n = client.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        count += buffer[..n].iter().filter(|byte| **byte == b'Q').count();
    }
    assert_eq!(count, megabytes << 20);
    eventually("it is recorded", || {
        (serin.metric("serin_recorder_turns_total{outcome=\"shape\",reason=\"budget\"}") == Some(1.0))
            .then_some(())
    });
    let grown = serin.kilobytes("VmHWM") - before;
    assert!(grown < 40_000, "{grown} kB for a line of {megabytes} MiB");
}

#[test]
fn an_answer_in_one_piece_with_odd_bytes_passes() {
    for body in [b"\xef\xbb\xbf{\"a\":\"\xff\"}\r".as_slice(), b"\r\n\r\n", b"0\r\n\r\n", b"\0"] {
        let upstream = Upstream::canned(whole("200 OK", "application/json", body));
        let serin = Serin::before(upstream.address, "");
        assert_eq!(wire::send(serin.traffic(), &post("/v1/chat/completions", "", body)).body, body);
    }
}
