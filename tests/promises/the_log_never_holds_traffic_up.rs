//! What is logged: a line for each exchange where that is wanted, JSON for machines, and nothing that traffic waits for.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use serde_json::Value;

use crate::support::program::{self, Program};
use crate::support::upstream::{Upstream, whole};
use crate::support::wire::{self, post};
use crate::support::{base, eventually};

fn configure(dir: &std::path::Path, address: std::net::SocketAddr, more: &str) {
    let text = format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{address}\"\n[fallback]\nfor = []\n[log]\n{more}\n"
    );
    std::fs::write(dir.join("config.toml"), base(dir, &text)).unwrap();
}

/// The lines of the access log once there are so many.
fn lines(file: &std::path::Path, count: usize) -> Vec<Value> {
    eventually(&format!("{count} lines"), || {
        let text = std::fs::read_to_string(file).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .filter(|_| text.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        (lines.len() >= count).then_some(lines)
    })
}

#[test]
fn every_exchange_leaves_one_line_without_a_secret_in_it() {
    let up = Upstream::canned(whole("200 OK", "application/json", b"{\"planted\": \"answer\"}"));
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), up.address, "access = true");
    let log = dir.path().join("access.log");
    let mut serin = Program::start_into(program::command(dir.path()), File::create(&log).unwrap().into());
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = post(
        "/v1/chat/completions?limit=1&api_key=planted-query",
        &format!(
            "Authorization: Bearer planted-key\r\nUser-Agent: tester/1\r\nX-Request-Id: mine\r\n\
             Traceparent: 00-{trace}-00f067aa0ba902b7-01\r\n"
        ),
        b"{\"model\": \"m1\", \"messages\": [{\"role\": \"user\", \"content\": \"planted-prompt\"}]}",
    );
    assert_eq!(wire::send(serin.traffic, &request).status, 200);
    let line = lines(&log, 1).remove(0);
    let text = line.to_string();
    for (key, expected) in [
        ("request_id", "mine"),
        ("method", "POST"),
        ("target", "/v1/chat/completions?limit=1&api_key=<withheld>"),
        ("end", "complete"),
        ("upstream", "router"),
        ("served_by", "router"),
        ("model", "m1"),
        ("trace", trace),
        ("user_agent", "tester/1"),
    ] {
        assert_eq!(line[key], expected, "{key} in {text}");
    }
    assert_eq!((&line["status"], &line["attempts"]), (&200.into(), &1.into()), "{text}");
    assert_eq!((&line["bytes_down"], line["bytes_up"].as_u64() > Some(60)), (&21.into(), true), "{text}");
    assert!(line["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{text}");
    assert!(line["first_byte_seconds"].as_f64() <= line["seconds"].as_f64(), "{text}");
    assert!(
        line["time"].as_str().unwrap().ends_with('Z') && line["id"].as_str().unwrap().len() == 36,
        "{text}"
    );
    assert!(!text.contains("planted"), "{text}");

    // Off and on again without a restart, and an upstream that is not there.
    let nowhere = crate::support::nowhere();
    configure(dir.path(), nowhere, "access = true");
    serin.signal("HUP");
    serin.says("is in force");
    assert_eq!(wire::send(serin.traffic, &post("/v1/chat/completions", "", b"{}")).status, 502);
    let line = lines(&log, 2).remove(1);
    assert_eq!((&line["status"], &line["end"]), (&502.into(), &"upstream_refused".into()), "{line}");
    assert_eq!(line["request_id"], line["id"], "{line}");
    configure(dir.path(), up.address, "access = false");
    serin.signal("HUP");
    serin.says("is in force");
    wire::get(serin.traffic, "/");
    serin.signal("TERM");
    assert_eq!(serin.wait().0, Some(0));
    assert_eq!(lines(&log, 2).len(), 2);
}

#[test]
fn the_log_can_be_json_too() {
    let up = Upstream::canned(whole("200 OK", "text/plain", b"ok"));
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), up.address, "format = \"json\"");
    let mut child =
        program::command(dir.path()).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
    let parse =
        |line: String| serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let listening =
        errors.by_ref().map(|line| parse(line.unwrap())).find(|line| line["message"] == "listening");
    let listening = listening.unwrap();
    assert_eq!((listening["level"].as_str(), listening["time"].as_str().unwrap().len()), (Some("info"), 27));
    let traffic = listening["traffic"].as_str().unwrap().parse().unwrap();
    assert_eq!(wire::get(traffic, "/").status, 200);
    assert!(std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let rest: Vec<_> = errors.map(|line| parse(line.unwrap())).collect();
    assert!(rest.iter().any(|line| line["message"] == "drained"), "{rest:?}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_reader_that_stopped_reading_costs_lines_and_no_traffic() {
    let up = Upstream::canned(whole("200 OK", "text/plain", b"ok"));
    let dir = tempfile::tempdir().unwrap();
    configure(dir.path(), up.address, "access = true\nqueue = 16");
    // Nobody ever reads from this pipe.
    let (_unread, pipe) = std::io::pipe().unwrap();
    let mut serin = Program::start_into(program::command(dir.path()), pipe.into());
    let mut client = wire::connect(serin.traffic);
    for _ in 0..2_000 {
        client
            .write_all(b"GET /a/path/of/some/length/so/that/the/pipe/is/full HTTP/1.1\r\nHost: h\r\n\r\n")
            .unwrap();
        assert_eq!(wire::read_answer(&mut client).status, 200);
    }
    let dropped = eventually("lines are lost", || {
        let text = wire::get(serin.admin, "/metrics").text();
        crate::support::value(&text, "serin_log_dropped_total").filter(|lost| *lost > 0.0)
    });
    assert!(dropped < 2_000.0);
    serin.signal("TERM");
    assert_eq!(serin.wait().0, Some(0), "and it still ends");
}
