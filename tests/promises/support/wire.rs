//! HTTP/1.1 by hand, so that a test sees the very bytes.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An answer as it came over the wire.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and header lines, as received.
    pub head: String,
    /// The decoded body.
    pub body: Vec<u8>,
    /// The body ended as its framing says it should.
    pub whole: bool,
}

impl Answer {
    /// A header's value, by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends raw bytes and reads one answer.
pub fn send(address: SocketAddr, request: &[u8]) -> Answer {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    read_answer(&mut stream)
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())
}

/// Tells an admin side to read its configuration again.
pub fn reload(admin: SocketAddr) -> Answer {
    send(admin, b"POST /-/reload HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
}

/// A POST of JSON with further header lines, as bytes.
pub fn post(path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    request
}

pub fn chat(address: SocketAddr, body: &serde_json::Value) -> Answer {
    send(address, &post("/v1/chat/completions", "", body.to_string().as_bytes()))
}

/// Reads one answer; a connection that closes early yields what there was, with `whole` false.
pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut received = Vec::new();
    let head_end = loop {
        if let Some(at) = find(&received, b"\r\n\r\n") {
            break at + 4;
        }
        if !more(stream, &mut received) {
            let head = String::from_utf8_lossy(&received).into_owned();
            return Answer { status: 0, head, body: Vec::new(), whole: false };
        }
    };
    let head = String::from_utf8_lossy(&received[..head_end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let mut answer = Answer { status, head, body: received.split_off(head_end), whole: true };
    if answer.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
        answer.whole = dechunk(stream, &mut answer.body);
    } else if let Some(length) =
        answer.header("content-length").and_then(|length| length.parse::<usize>().ok())
    {
        while answer.body.len() < length {
            if !more(stream, &mut answer.body) {
                answer.whole = false;
                break;
            }
        }
        answer.body.truncate(length);
    } else if status != 204 && status != 304 {
        while more(stream, &mut answer.body) {}
    }
    answer
}

/// Reads some more; `false` at the end.
pub fn more(stream: &mut impl Read, into: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 16 * 1024];
    match stream.read(&mut buffer) {
        Ok(0) | Err(_) => false,
        Ok(n) => {
            into.extend_from_slice(&buffer[..n]);
            true
        }
    }
}

/// Reads until `end` has come; everything read.
pub fn read_until(stream: &mut impl Read, end: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    while find(&seen, end).is_none() {
        let goes_on = more(stream, &mut seen);
        assert!(goes_on, "{:?} never came after {:?}", bytes_shown(end), bytes_shown(&seen));
    }
    seen
}

fn bytes_shown(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// Replaces chunked bytes by the body they carry; `false` if the last chunk never came.
fn dechunk(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> bool {
    let mut body = Vec::new();
    let mut at = 0;
    let whole = loop {
        let Some(line) = find(&bytes[at..], b"\r\n") else {
            if more(stream, bytes) {
                continue;
            }
            break false;
        };
        let size = std::str::from_utf8(&bytes[at..at + line])
            .ok()
            .and_then(|size| usize::from_str_radix(size, 16).ok());
        let Some(size) = size else { break false };
        let begin = at + line + 2;
        while bytes.len() < begin + size + 2 {
            if !more(stream, bytes) {
                body.extend_from_slice(&bytes[begin.min(bytes.len())..(begin + size).min(bytes.len())]);
                *bytes = body;
                return false;
            }
        }
        if size == 0 {
            break true;
        }
        body.extend_from_slice(&bytes[begin..begin + size]);
        at = begin + size + 2;
    };
    *bytes = body;
    whole
}

pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
