//! Without an upstream the embedded engine is the upstream. Tests use its built-in reference model.

use std::io::Write;

use serde_json::{Value, json};

use crate::support::{Serin, eventually, wire};

const STEM: &str = "Finish this sentence exactly as it was given: The tag of locker Q7 is";

/// Three messages in which the code must be carried from the first turn to the last.
fn recall(model: &str) -> Value {
    json!({"model": model, "temperature": 0, "max_tokens": 40, "messages": [
        {"role": "user", "content": "Please note this down. The tag of locker Q7 is amber-river-4821-k. Just say OK."},
        {"role": "assistant", "content": "OK."},
        {"role": "user", "content": STEM},
    ]})
}

#[test]
fn a_code_from_an_earlier_turn_is_recalled() {
    let serin = Serin::start("");
    let answer = wire::chat(serin.traffic(), &recall("serin-reference"));
    let body = answer.json();
    assert_eq!((answer.status, answer.header("x-serin-served-by")), (200, Some("embedded")));
    let text = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains("amber-river-4821-k"), "{body}");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let usage = &body["usage"];
    assert!(
        usage["prompt_tokens"].as_u64() > Some(30) && usage["completion_tokens"].as_u64() > Some(5),
        "{usage}"
    );
    // What was never given is not invented.
    let none = json!({"model": "serin-reference", "messages": [{"role": "user", "content": STEM}], "temperature": 0});
    assert!(wire::chat(serin.traffic(), &none).text().contains("NONE"));
}

#[test]
fn the_stream_says_the_same_as_the_whole_answer() {
    let serin = Serin::start("");
    let whole = wire::chat(serin.traffic(), &recall("serin-reference")).json();
    let mut asked = recall("serin-reference");
    asked["stream"] = json!(true);
    asked["stream_options"] = json!({"include_usage": true});
    let stream = wire::chat(serin.traffic(), &asked);
    assert_eq!(stream.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let text = stream.text();
    assert!(stream.whole && text.ends_with("data: [DONE]\n\n"), "{text}");
    let events: Vec<Value> = text
        .split("\n\n")
        .filter_map(|event| serde_json::from_str(event.strip_prefix("data: ")?).ok())
        .collect();
    let said: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

#[test]
fn a_second_turn_reuses_the_first() {
    let serin = Serin::start("");
    let first = wire::chat(serin.traffic(), &recall("serin-reference")).json();
    let mut asked = recall("serin-reference");
    let said = first["choices"][0]["message"].clone();
    let messages = asked["messages"].as_array_mut().unwrap();
    messages.extend([said, json!({"role": "user", "content": STEM})]);
    let second = wire::chat(serin.traffic(), &asked).json();
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached + 2 >= first["usage"]["prompt_tokens"].as_u64().unwrap(), "{second}");
    assert!(second["choices"][0]["message"]["content"].as_str().unwrap().contains("4821-k"), "{second}");
}

#[test]
fn what_it_cannot_do_is_refused_in_the_api_s_own_form() {
    let serin = Serin::start("[fallback]\nfor = []\n");
    let messages = json!([{"role": "user", "content": "x"}]);
    let refused =
        wire::chat(serin.traffic(), &json!({"model": "serin-reference", "messages": messages, "n": 2}));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (400, Some("invalid_request")));
    let unknown = wire::chat(serin.traffic(), &json!({"model": "gpt-9", "messages": messages}));
    assert_eq!((unknown.status, unknown.json()["error"]["code"].as_str()), (404, Some("model_not_found")));
    let broken = wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", b"{"));
    assert_eq!(broken.status, 400);
    let listed = wire::get(serin.traffic(), "/v1/models").json();
    assert_eq!(listed["data"][0]["id"], "serin-reference");
    let other = wire::get(serin.traffic(), "/v1/embeddings");
    assert_eq!((other.status, other.json()["error"]["code"].as_str()), (404, Some("not_found")));
}

#[test]
fn a_client_that_leaves_stops_the_engine() {
    let serin = Serin::start("");
    let mut asked = json!({"model": "serin-reference", "max_tokens": 100_000, "stream": true});
    // A long text keeps the engine reading long enough to leave in the middle.
    asked["messages"] =
        json!([{"role": "user", "content": "the box is on the shelf and the door is open ".repeat(9_000)}]);
    let mut client = wire::connect(serin.traffic());
    client.write_all(&wire::post("/v1/chat/completions", "", asked.to_string().as_bytes())).unwrap();
    eventually("the engine has it", || (serin.metric("serin_engine_queue_depth") == Some(1.0)).then_some(()));
    drop(client);
    eventually("the engine is free", || {
        (serin.metric("serin_engine_queue_depth") == Some(0.0)).then_some(())
    });
    let cancelled = "serin_engine_requests_total{model_name=\"serin-reference\",outcome=\"cancelled\"}";
    assert_eq!(serin.metric(cancelled), Some(1.0), "{}", serin.metrics());
}

#[test]
fn a_busy_engine_refuses_instead_of_piling_up() {
    let serin = Serin::start("[fallback]\nslots = 1\nqueue = 1\n");
    let long = json!({"model": "serin-reference", "messages": [
        {"role": "user", "content": "the lamp is by the window and the road is wet ".repeat(9_000)}]});
    let request = wire::post("/v1/chat/completions", "", long.to_string().as_bytes());
    let hold = || {
        let mut client = wire::connect(serin.traffic());
        client.write_all(&request).unwrap();
        client
    };
    let _working = hold();
    serin.reaches("serin_engine_tokens_total{kind=\"prompt\"}", 1.0);
    let _waiting = hold();
    eventually("the second one waits", || {
        (serin.metric("serin_engine_queue_depth") == Some(2.0)).then_some(())
    });
    let refused = wire::chat(serin.traffic(), &recall("serin-reference"));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("5")), "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "engine_busy");
}
