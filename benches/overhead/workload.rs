//! The kinds of traffic: four that load the machine, two that show the latency a lone client sees.

use std::net::SocketAddr;
use std::time::Duration;

use crate::mock::PACE_HEADER;
use crate::options::Options;

pub struct Workload {
    pub name: &'static str,
    pub what: &'static str,
    pub connections: usize,
    pub stop: Stop,
    /// Time between two chunks of an answer, where the upstream paces it.
    pace: Option<Duration>,
    body: String,
}

/// When a connection sends no further request.
#[derive(Clone, Copy)]
pub enum Stop {
    After(Duration),
    /// Number of requests on each connection.
    Each(usize),
}

/// Time between two chunks of a paced stream: a model that makes 100 tokens a second.
const PACE: Duration = Duration::from_millis(10);
const SMALL_BODY: usize = 200;
const LARGE_BODY: usize = 128 * 1024;

pub fn all(options: &Options) -> Vec<Workload> {
    let closed = Stop::After(options.measure);
    let alone = Stop::After(options.measure / 2);
    vec![
        Workload {
            name: "small JSON",
            what: "200-byte request, 1.5 KB answer, 64 connections",
            connections: 64,
            stop: closed,
            pace: None,
            body: body(SMALL_BODY, false),
        },
        Workload {
            name: "SSE burst",
            what: "200-chunk stream, sent as fast as it is taken, 64 connections",
            connections: 64,
            stop: closed,
            pace: None,
            body: body(SMALL_BODY, true),
        },
        Workload {
            name: "SSE paced",
            what: "200-chunk stream, one chunk every 10 ms, 64 streams at once",
            connections: 64,
            stop: Stop::Each(1),
            pace: Some(PACE),
            body: body(SMALL_BODY, true),
        },
        Workload {
            name: "128 KiB request",
            what: "128 KiB request, 1.5 KB answer, 32 connections",
            connections: 32,
            stop: closed,
            pace: None,
            body: body(LARGE_BODY, false),
        },
        Workload {
            name: "small JSON, one client",
            what: "the same request and answer, one connection, one after the other",
            connections: 1,
            stop: alone,
            pace: None,
            body: body(SMALL_BODY, false),
        },
        Workload {
            name: "SSE burst, one client",
            what: "the same stream, one connection, one after the other",
            connections: 1,
            stop: alone,
            pace: None,
            body: body(SMALL_BODY, true),
        },
    ]
}

impl Workload {
    /// The bytes of one request to `address`, with `extra` header lines.
    pub fn request(&self, address: SocketAddr, extra: &str) -> Vec<u8> {
        let pace =
            self.pace.map(|pace| format!("{PACE_HEADER}: {}\r\n", pace.as_micros())).unwrap_or_default();
        let length = self.body.len();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{pace}{extra}\r\n"
        );
        [head.as_bytes(), self.body.as_bytes()].concat()
    }
}

/// A chat request of exactly `length` bytes.
fn body(length: usize, stream: bool) -> String {
    let head = r#"{"model":"mock","messages":[{"role":"user","content":""#;
    let tail = format!(r#""}}],"max_tokens":200,"stream":{stream}}}"#);
    let words = "count to two hundred and say each number as a word ";
    let filler: String = words.chars().cycle().take(length - head.len() - tail.len()).collect();
    format!("{head}{filler}{tail}")
}
