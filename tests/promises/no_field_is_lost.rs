//! No field, order or number of a body is lost or changed, whether we know it or not; what the upstream says of it is
//! the answer.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use serin::journal::Capture;

use crate::support::journal::exchanges;
use crate::support::upstream::{Received, Upstream, chunk, chunked, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, scale};

/// Answers with the body it was sent, as a stream if that is asked for.
fn echo() -> Upstream {
    Upstream::start(|request, out| {
        if request.headers("x-shape") == ["stream"] {
            let pieces: Vec<u8> = request.body.chunks(23).flat_map(chunk).collect();
            return out
                .write_all(&[chunked("text/event-stream"), pieces, b"0\r\n\r\n".to_vec()].concat())
                .is_ok();
        }
        out.write_all(&whole("200 OK", "application/json", &request.body)).is_ok()
    })
}

/// JSON as a person or a strange library may write it: any keys, any numbers, escapes, blanks.
fn odd_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        prop::sample::select(vec![
            "null",
            "true",
            "false",
            "0",
            "-0",
            "1.50",
            "1e2",
            "1E+02",
            "0.1e-7",
            "12345678901234567890123",
            "\"\"",
            "\"\\u00e9\\/\\ud83d\\udc26\"",
            "\"\u{e9}\u{4e2d}\u{1f426}\"",
            "\"\\u0000\"",
            "\"data: [DONE]\\n\\n\"",
            "[]",
            "{}",
        ])
        .prop_map(str::to_owned),
        "\"[ -!#-\\[\\]-~]{0,20}\"",
    ];
    let blank = prop::sample::select(vec!["", " ", "\n", "\t ", "\r\n"]);
    leaf.prop_recursive(4, 40, 5, move |inner| {
        let (key, blank) = ("\"[a-z_]{0,9}\"", blank.clone());
        prop_oneof![
            (prop::collection::vec(inner.clone(), 0..5), blank.clone())
                .prop_map(|(items, blank)| format!("[{blank}{}{blank}]", items.join(&format!("{blank},")))),
            // A key may stand twice: that too is the upstream's business.
            prop::collection::vec((key, blank, inner), 0..5).prop_map(|fields| {
                let fields: Vec<String> = fields
                    .into_iter()
                    .map(|(key, blank, value)| format!("{blank}{key}{blank}:{blank}{value}"))
                    .collect();
                format!("{{{}}}", fields.join(","))
            }),
        ]
    })
}

#[test]
fn unknown_keys_at_every_level_pass_both_ways() {
    let upstream = echo();
    let serin = Serin::before(upstream.address, "");
    let client = Mutex::new(wire::connect(serin.traffic()));
    let strategy = (odd_json(), odd_json(), odd_json(), any::<bool>(), any::<bool>());
    let cases = u32::try_from(400 * scale()).unwrap();
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let passes = |(top, message, deep, streamed, first): (String, String, String, bool, bool)| {
        let unknown = format!("\"vendor_x\" : {top}");
        let known = format!(
            "\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"y\":{message},\"content\":[{{\"type\":\"text\",\"text\":\"hi\",\"z\":{deep}}}]}}]"
        );
        let body = if first { format!("{{{unknown},{known}}}") } else { format!("{{{known},{unknown}}}") };
        let shape = if streamed { "X-Shape: stream\r\n" } else { "" };
        let mut client = client.lock().unwrap();
        client.write_all(&post("/v1/chat/completions", shape, body.as_bytes())).unwrap();
        let answer = wire::read_answer(&mut client);
        let arrived = upstream.received().pop().unwrap_or_default().body;
        prop_assert_eq!(String::from_utf8_lossy(&arrived), body.as_str(), "on its way up");
        prop_assert_eq!(answer.text(), body, "on its way down");
        Ok(())
    };
    runner.run(&strategy, passes).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn keys_arrive_in_the_order_they_were_sent() {
    // As many orders of the same keys as there are; the sum an upstream's prefix cache would see is the same.
    let upstream = echo();
    let serin = Serin::before(upstream.address, "");
    let keys = ["zeta", "model", "alpha", "messages", "10", "9"];
    for shift in 0..keys.len() {
        for swap in 0..keys.len() {
            let mut order = keys;
            order.rotate_left(shift);
            order.swap(0, swap);
            let fields: Vec<String> = order.iter().map(|key| format!("\"{key}\":[]")).collect();
            let body = format!("{{{}}}", fields.join(","));
            wire::send(serin.traffic(), &post("/v1/chat/completions", "", body.as_bytes()));
            let arrived = upstream.received().pop().unwrap().body;
            assert_eq!(blake3::hash(&arrived), blake3::hash(body.as_bytes()), "{body}");
        }
    }
}

#[test]
fn an_upstreams_refusal_of_a_field_reaches_the_client() {
    let refusal =
        b"{\"error\" : {\"message\":\"unknown field `rid`\",\"type\":\"BadRequest\", \"code\":400.0}}";
    let upstream = Upstream::start(|request, out| {
        let knows = !String::from_utf8_lossy(&request.body).contains("\"rid\"");
        let answer = if knows {
            whole("200 OK", "application/json", b"{}")
        } else {
            whole("400 Bad Request", "application/json", refusal)
        };
        out.write_all(&answer).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let answer = wire::chat(serin.traffic(), &json!({"model": "m", "messages": [], "rid": "a"}));
    assert_eq!((answer.status, answer.body.as_slice()), (400, refusal.as_slice()));
    assert_eq!(wire::chat(serin.traffic(), &json!({"model": "m", "messages": []})).status, 200);
}

#[test]
fn nothing_is_refused_by_a_schema() {
    let upstream = echo();
    let serin = Serin::before(upstream.address, "");
    let property = |n: usize| json!({"type": ["string", "null"], "description": format!("property {n}"), "pattern": "^\\d+$"});
    let tools: Vec<Value> = (0..64)
        .map(|n| {
            let properties: Vec<(String, Value)> = (0..24).map(|m| (format!("p{m}"), property(n * m))).collect();
            json!({"type": "custom", "function": {"name": format!("tool.{n}"), "parameters": {"$defs": {}, "properties": properties}}})
        })
        .collect();
    let large = json!({"model": "m", "messages": [], "tools": tools}).to_string();
    assert!(large.len() > 116_000, "{}", large.len());
    let odd = [
        large.as_bytes(),
        b"{",
        b"[]",
        b"\"text\"",
        b"{\"model\":7,\"messages\":\"none\",\"stream\":\"yes\"}",
        b"\xff\xfe\x00",
        b"{\"messages\":[]}{\"messages\":[]}",
        b"{\"stream\":false,\"stream_options\":{\"include_usage\":true}}",
    ];
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/generate",
        "/v1/rerank",
    ] {
        for body in odd {
            let answer = wire::send(serin.traffic(), &post(path, "", body));
            assert_eq!((answer.status, answer.body.as_slice()), (200, body), "{path}");
            assert_eq!(upstream.received().pop().unwrap().body, body);
        }
    }
}

#[test]
fn a_thousand_at_once_never_mix() {
    // Nobody is answered before all have arrived, so all thousand are in flight at the same time.
    let arrived = Arc::new((Mutex::new(0), Condvar::new()));
    let all = 1_000;
    let upstream = Upstream::start(move |request, out| {
        let (count, changed) = &*arrived;
        let mut count = count.lock().unwrap();
        *count += 1;
        changed.notify_all();
        while *count < all {
            count = changed.wait(count).unwrap();
        }
        drop(count);
        let own =
            format!("{} {}", request.headers("x-number").join(","), String::from_utf8_lossy(&request.body));
        out.write_all(&whole("200 OK", "application/json", own.as_bytes())).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let body = |n: usize| {
        // Every third has a parameter that must not show up in the others.
        let own = if n.is_multiple_of(3) { format!(",\"seed\":{n}") } else { String::new() };
        format!(
            "{{\"model\":\"m{n}\"{own},\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}",
            "w".repeat(n)
        )
    };
    let mut clients: Vec<_> = (0..all)
        .map(|n| {
            let mut client = wire::connect(serin.traffic());
            client
                .write_all(&post("/v1/chat/completions", &format!("X-Number: {n}\r\n"), body(n).as_bytes()))
                .unwrap();
            client
        })
        .collect();
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(wire::read_answer(client).text(), format!("{n} {}", body(n)));
    }
}

/// A captured request: its head without framing, and its body.
fn captured(name: &str) -> (String, Vec<u8>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/clients").join(name);
    let bytes = std::fs::read(path).unwrap();
    let end = wire::find(&bytes, b"\r\n\r\n").unwrap() + 2;
    (String::from_utf8(bytes[..end].to_vec()).unwrap(), bytes[end + 2..].to_vec())
}

/// What the capturing script answered a chat client with.
fn tool_call(request: &Received, out: &mut std::net::TcpStream) -> bool {
    let body = String::from_utf8_lossy(&request.body);
    let delta = if body.contains("\"role\":\"tool\"") {
        json!({"role": "assistant", "content": "done"})
    } else {
        let arguments = "{\"command\": \"echo hello\", \"description\": \"say hello\"}";
        let call = json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": "bash", "arguments": arguments}});
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    };
    let event = json!({"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]});
    let events = format!("data: {event}\n\ndata: [DONE]\n\n");
    out.write_all(&whole("200 OK", "text/event-stream", events.as_bytes())).is_ok()
}

#[test]
fn requests_of_real_coding_clients_pass_and_are_read() {
    let upstream = Upstream::start(tool_call);
    // Codex asks never to be stored.
    let mut serin = Serin::before(upstream.address, "[record]\nunstored = \"redacted\"\n");
    let names: Vec<String> = ["claude-code", "codex", "opencode"]
        .iter()
        .flat_map(|name| [1, 2].map(|n| format!("{name}-{n}.http")))
        .collect();
    for name in &names {
        let (head, body) = captured(name);
        let request = format!("{head}Authorization: Bearer unused\r\nContent-Length: {}\r\n\r\n", body.len());
        assert_eq!(wire::send(serin.traffic(), &[request.as_bytes(), &body].concat()).status, 200, "{name}");
        let arrived = upstream.received().pop().unwrap();
        assert!(arrived.body == body, "{name}: the body changed");
        let id = format!("x-request-id: {}\r\n", arrived.headers("x-request-id").join(""));
        assert_eq!(arrived.head.replace(&id, ""), request, "{name}");
    }
    let records = exchanges(&mut serin);
    assert_eq!(records.len(), names.len());
    for (record, name) in records.iter().zip(&names) {
        let body: Value = serde_json::from_slice(&captured(name).1).unwrap();
        assert!(
            record.request_body == captured(name).1 && record.request_capture() == Capture::Whole,
            "{name}"
        );
        let read = serin::conversation::read(record).unwrap();
        assert!(read.readable && read.streaming, "{name}");
        assert_eq!(read.model, body["model"].as_str().unwrap(), "{name}");
        let list = body["messages"].as_array().or_else(|| body["input"].as_array()).unwrap();
        assert_eq!(read.messages as usize, list.len(), "{name}");
    }
    let config = serin.dir.path().join("config.toml");
    std::fs::write(config, crate::support::base(serin.dir.path(), "")).unwrap();
    let listed = crate::support::program::run(serin.dir.path(), &["sessions", "list", "--json"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let sessions: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let turns: Vec<_> = sessions.iter().map(|session| session["turns"].clone()).collect();
    assert_eq!(turns, [json!(2), json!(2), json!(2)], "each client's two turns are one session: {listed}");
}
