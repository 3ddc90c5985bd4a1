//! The official clients talk to Serin as to any server.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;

use serde_json::json;

use crate::support::Serin;
use crate::support::upstream::{Upstream, chunk, chunked, whole};

pub const OPENAI: &str = "openai==3.57.0";
const ANTHROPIC: &str = "anthropic==2.15.0";

/// A virtual environment with the package in it, made once below `target/` from the package index.
pub fn python(package: &str) -> PathBuf {
    // One at a time: tests run beside each other.
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock();
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(package);
    let (python, mark) = (root.join("bin/python"), root.join("made"));
    if !mark.exists() {
        let run = |command: &mut Command| {
            let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&root));
        run(Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            package,
        ]));
        std::fs::write(mark, "").unwrap();
    }
    python
}

/// Runs one of the scripts beside this file, which prints `ok`.
pub fn run(package: &str, script: &str, arguments: &[String]) {
    let script = format!("{}/tests/promises/python/{script}", env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(python(package)).arg(script).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok");
}

#[test]
fn three_turns_whole_and_streamed() {
    let serin = Serin::start("");
    run(OPENAI, "three_turns.py", &[format!("http://{}/v1", serin.traffic())]);
}

/// What the Messages API sends, whole or as its events.
fn messages() -> Upstream {
    Upstream::start(|request, out| {
        let message = |content: serde_json::Value| {
            json!({"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": content,
                   "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 1, "output_tokens": 1}})
        };
        if !String::from_utf8_lossy(&request.body).contains("\"stream\":true") {
            let answer = message(json!([{"type": "text", "text": "hello"}])).to_string();
            return out.write_all(&whole("200 OK", "application/json", answer.as_bytes())).is_ok();
        }
        let events = [
            json!({"type": "message_start", "message": message(json!([]))}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": {"output_tokens": 1}}),
            json!({"type": "message_stop"}),
        ];
        let mut ok = out.write_all(&chunked("text/event-stream")).is_ok();
        for event in events {
            let name = event["type"].as_str().unwrap_or_default();
            ok &= out.write_all(&chunk(format!("event: {name}\ndata: {event}\n\n").as_bytes())).is_ok();
        }
        ok && out.write_all(b"0\r\n\r\n").is_ok()
    })
}

#[test]
fn the_messages_api_passes_and_our_errors_have_its_form() {
    let upstream = messages();
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (up, down) = (Serin::before(upstream.address, ""), Serin::before(nowhere, ""));
    let urls = [up.traffic(), down.traffic()].map(|address| format!("http://{address}"));
    run(ANTHROPIC, "anthropic_errors.py", &urls);
}
