//! A conversation of three requests is listed as one, from what was recorded.

use std::io::Write;

use serde_json::{Value, json};

use crate::support::upstream::{Upstream, chunk, chunked, whole};
use crate::support::{Serin, base, program, wire};

/// Answers with the number of messages it was sent, streamed where asked.
fn counting() -> Upstream {
    Upstream::start(|request, out| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let text = format!("answer {}", asked["messages"].as_array().map_or(0, Vec::len));
        if asked["stream"] == true {
            let delta = |delta: Value, reason: Value| {
                let event =
                    json!({"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]});
                chunk(format!("data: {event}\n\n").as_bytes())
            };
            let (front, back) = text.split_at(3);
            let stream = [
                chunked("text/event-stream"),
                delta(json!({"role": "assistant", "content": front}), Value::Null),
                delta(json!({"content": back}), json!("stop")),
                chunk(b"data: [DONE]\n\n"),
                b"0\r\n\r\n".to_vec(),
            ];
            return out.write_all(&stream.concat()).is_ok();
        }
        let message = json!({"role": "assistant", "content": text});
        let answer = json!({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                            "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}});
        out.write_all(&whole("200 OK", "application/json", answer.to_string().as_bytes())).is_ok()
    })
}

/// Holds a chat of three turns, the second one streamed.
fn chat(serin: &Serin) {
    let mut messages = Vec::new();
    for (turn, text) in ["one?", "two?", "three?"].iter().enumerate() {
        messages.push(json!({"role": "user", "content": text}));
        let answer =
            wire::chat(serin.traffic(), &json!({"model": "m", "messages": messages, "stream": turn == 1}));
        assert_eq!(answer.status, 200);
        messages.push(json!({"role": "assistant", "content": format!("answer {}", messages.len())}));
    }
}

#[test]
fn listed_and_shown_from_the_command_line() {
    let upstream = counting();
    let mut serin = Serin::before(upstream.address, "");
    chat(&serin);
    // Another user who also begins with "one?" is another conversation.
    wire::chat(serin.traffic(), &json!({"model": "m", "messages": [{"role": "user", "content": "one?"}]}));
    serin.stop();
    let dir = serin.dir.path();
    std::fs::write(dir.join("config.toml"), base(dir, "")).unwrap();

    let listed = program::run(dir, &["sessions", "list", "--json"]);
    let lines: Vec<Value> = String::from_utf8(listed.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let turns: Vec<_> = lines.iter().map(|line| line["turns"].as_u64().unwrap()).collect();
    assert_eq!(turns, [1, 3], "the latest first: {lines:?}");
    let id = lines[1]["id"].as_str().unwrap();
    assert_eq!((lines[1]["model"].as_str(), lines[1]["upstream"].as_str()), (Some("m"), Some("router")));

    let shown = program::run(dir, &["sessions", "show", id, "--json"]);
    let session: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let turns = session["turns"].as_array().unwrap();
    let answers: Vec<_> = turns.iter().map(|turn| turn["response"]["content"].as_str().unwrap()).collect();
    assert_eq!(answers, ["answer 1", "answer 3", "answer 5"], "{session:#}");
    assert_eq!(turns[2]["parent"], turns[1]["id"]);
    assert_eq!(turns[1]["request"]["messages"][0]["content"], "two?");

    let show = |id: &str| String::from_utf8(program::run(dir, &["sessions", "show", id]).stdout).unwrap();
    let whole = show(id);
    assert!(whole.contains("three?") && whole.contains("answer 5"), "{whole}");
    // A beginning of an id is enough where it is unambiguous; both began at about the same time, so it is long.
    assert_eq!(show(&id[..id.len() - 2]), whole);
}

#[test]
fn shown_while_it_is_still_being_recorded() {
    let upstream = counting();
    let serin = Serin::before(upstream.address, "");
    chat(&serin);
    serin.reaches("serin_recorder_turns_total{outcome=\"full\",reason=\"\"}", 3.0);
    let dir = serin.dir.path();
    std::fs::write(dir.join("config.toml"), base(dir, "")).unwrap();
    let listed = program::run(dir, &["sessions", "list", "--json"]);
    let line: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(line["turns"], 3);
}
