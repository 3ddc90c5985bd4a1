//! Traces: the client's `traceparent` passes untouched, and where a collector is named each sampled exchange becomes a span
//! that OpenTelemetry's own messages can read.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::support::Serin;
use crate::support::peer;
use crate::support::upstream::{Upstream, whole};
use crate::support::wire::{self, post};

const PROTO: &[&str] = &["opentelemetry-proto==1.45.2"];
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

struct Collector {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    port: u64,
}

impl Collector {
    fn start(statuses: &[&str]) -> Self {
        let mut child = Command::new(peer::python(PROTO))
            .arg(peer::script("python/collector.py"))
            .args(statuses)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        Self { child, lines, port: first["port"].as_u64().unwrap() }
    }

    /// The next request it got.
    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("the collector ended").unwrap()).unwrap()
    }

    fn section(&self, more: &str) -> String {
        format!("[trace]\nendpoint = \"http://127.0.0.1:{}\"\n{more}\n", self.port)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The spans of one request.
fn spans(seen: &Value) -> Vec<Value> {
    seen["request"]["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

/// Base 64 as the JSON of protobuf writes bytes.
fn bytes(text: &Value) -> String {
    const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text.as_str().unwrap().trim_end_matches('=').chars();
    let bits: String = bits.map(|digit| format!("{:06b}", DIGITS.find(digit).unwrap())).collect();
    let whole = bits.len() / 8 * 8;
    let nibbles = bits.as_bytes()[..whole].chunks(4);
    nibbles
        .map(|four| format!("{:x}", u8::from_str_radix(std::str::from_utf8(four).unwrap(), 2).unwrap()))
        .collect()
}

/// An attribute's value, as text.
fn attribute(span: &Value, key: &str) -> String {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|attribute| attribute["key"] == key);
    let value = &found.unwrap_or_else(|| panic!("no {key} in {span}"))["value"];
    let value = value.as_object().unwrap().values().next().unwrap();
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn upstream() -> Upstream {
    Upstream::canned(whole("200 OK", "application/json", b"{\"planted\": \"answer\"}"))
}

fn traced(flags: &str) -> Vec<u8> {
    post(
        "/v1/chat/completions?api_key=planted",
        &format!(
            "Traceparent: 00-{TRACE}-{PARENT}-{flags}\r\nTracestate: a=1\r\nAuthorization: Bearer planted\r\n\
             User-Agent: tester/1\r\n"
        ),
        b"{\"model\": \"m1\", \"messages\": [{\"role\": \"user\", \"content\": \"planted\"}]}",
    )
}

#[test]
fn a_sampled_exchange_becomes_a_span_of_the_client_s_trace_and_the_header_is_untouched() {
    let up = upstream();
    let mut collector = Collector::start(&["503"]);
    let dir = tempfile::tempdir().unwrap();
    let headers = dir.path().join("headers");
    std::fs::write(&headers, "x-key: of the collector\n").unwrap();
    let section = collector.section(&format!("headers_file = {headers:?}\nservice = \"front\""));
    let serin = Serin::before(up.address, &section);
    assert_eq!(wire::send(serin.traffic(), &traced("01")).status, 200);
    let first = collector.next();
    assert_eq!((&first["status"], &first["path"]), (&503.into(), &"/v1/traces".into()));
    let seen = collector.next();
    assert_eq!(seen["request"], first["request"], "sent again as it was");
    assert_eq!((&seen["type"], &seen["key"]), (&"application/x-protobuf".into(), &"of the collector".into()));
    assert_eq!(seen["exact"], true);
    assert!(!seen.to_string().contains("planted"), "{seen}");
    let resource = &seen["request"]["resourceSpans"][0]["resource"];
    assert_eq!(attribute(resource, "service.name"), "front");
    let all = spans(&seen);
    assert_eq!(all.len(), 1, "{seen}");
    let span = &all[0];
    assert_eq!((bytes(&span["traceId"]), bytes(&span["parentSpanId"])), (TRACE.into(), PARENT.into()));
    assert_eq!((&span["kind"], &span["traceState"]), (&"SPAN_KIND_SERVER".into(), &"a=1".into()));
    assert_eq!((&span["name"], &span["flags"]), (&"POST /v1/chat/completions".into(), &0x301.into()));
    assert!(span["startTimeUnixNano"].as_str() < span["endTimeUnixNano"].as_str());
    assert!(span.get("status").is_none(), "{span}");
    for (key, expected) in [
        ("http.request.method", "POST"),
        ("url.path", "/v1/chat/completions"),
        ("url.query", "api_key=<withheld>"),
        ("http.response.status_code", "200"),
        ("server.address", "test"),
        ("client.address", "127.0.0.1"),
        ("user_agent.original", "tester/1"),
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "m1"),
        ("http.response.body.size", "21"),
        ("serin.end", "complete"),
        ("serin.upstream", "router"),
        ("serin.attempts", "1"),
    ] {
        assert_eq!(attribute(span, key), expected, "{key}");
    }
    let passed = up.received()[0].headers("traceparent");
    assert_eq!(passed, [format!("00-{TRACE}-{PARENT}-01")]);
    serin.reaches("serin_trace_spans_total{outcome=\"exported\"}", 1.0);
}

#[test]
fn where_it_is_wanted_the_upstream_s_part_hangs_below_ours_and_failures_are_errors() {
    let up = Upstream::start(|request, out| {
        let status = if request.head.starts_with("GET /bad") { "500 Broken" } else { "200 OK" };
        std::io::Write::write_all(out, &whole(status, "text/plain", b"x")).is_ok()
    });
    let mut collector = Collector::start(&[]);
    let mut serin = Serin::before(up.address, &collector.section("propagate = \"span\"\nratio = 1.0"));
    wire::send(serin.traffic(), &traced("01"));
    wire::send(serin.traffic(), &traced("00"));
    wire::get(serin.traffic(), "/bad");
    // A stop sends what is left.
    serin.stop();
    let mut all = spans(&collector.next());
    while all.len() < 2 {
        all.extend(spans(&collector.next()));
    }
    assert_eq!(all.len(), 2, "what the client did not sample is no span of ours: {all:?}");
    let sent: Vec<_> = up.received().iter().map(|request| request.headers("traceparent")).collect();
    let ours = format!("00-{TRACE}-{}-01", bytes(&all[0]["spanId"]));
    assert_eq!((&sent[0], bytes(&all[0]["parentSpanId"])), (&vec![ours], PARENT.into()));
    assert_eq!(sent[1], [format!("00-{TRACE}-{PARENT}-00")], "untouched");
    let fresh = format!("00-{}-{}-01", bytes(&all[1]["traceId"]), bytes(&all[1]["spanId"]));
    assert_eq!((&sent[2], all[1].get("parentSpanId")), (&vec![fresh], None));
    assert_eq!((&all[1]["status"]["code"], &all[1]["name"]), (&"STATUS_CODE_ERROR".into(), &"GET".into()));
    assert_eq!(attribute(&all[1], "error.type"), "500");
}

#[test]
fn a_collector_that_is_away_costs_spans_and_nothing_else() {
    let up = upstream();
    let nowhere = crate::support::nowhere();
    let mut serin =
        Serin::before(up.address, &format!("[trace]\nendpoint = \"http://{nowhere}\"\nqueue = 1\n"));
    for _ in 0..600 {
        assert_eq!(wire::get(serin.traffic(), "/").status, 200);
    }
    // One batch is tried until it is given up; what found no room beside it is lost at once. Both are counted.
    serin.reaches("serin_trace_spans_total{outcome=\"queue_full\"}", 1.0);
    serin.reaches("serin_trace_spans_total{outcome=\"unreachable\"}", 1.0);
    serin.stop();
    let mut refusing = Collector::start(&["401"]);
    let serin = Serin::before(up.address, &refusing.section(""));
    wire::get(serin.traffic(), "/");
    assert_eq!(refusing.next()["status"], 401);
    serin.reaches("serin_trace_spans_total{outcome=\"rejected\"}", 1.0);
    wire::get(serin.traffic(), "/");
    serin.reaches("serin_trace_spans_total{outcome=\"exported\"}", 1.0);
}

#[test]
fn without_a_collector_nothing_is_added() {
    let up = upstream();
    let serin = Serin::before(up.address, "");
    wire::send(serin.traffic(), &traced("01"));
    wire::get(serin.traffic(), "/");
    let sent: Vec<_> = up.received().iter().map(|request| request.headers("traceparent")).collect();
    assert_eq!(sent, [vec![format!("00-{TRACE}-{PARENT}-01")], vec![]]);
}
