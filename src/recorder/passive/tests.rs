//! Turns of every interface, looked at by all checks.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::conversation::{self, Kind};
use crate::journal::Header;

const SYSTEM: &str = "You are a clerk at a railway station.";

fn exchange(id: &str, path: &str, request: &str, status: u32, media: &str, response: &str) -> Exchange {
    Exchange {
        id: id.into(),
        method: "POST".into(),
        target: path.into(),
        request_body: request.to_owned().into(),
        status,
        upstream: "router".into(),
        response_headers: vec![Header { name: "content-type".into(), value: media.to_owned().into() }],
        response_body: response.to_owned().into(),
        ..Exchange::default()
    }
}

fn turn(exchange: &Exchange, kind: Kind, parent: &str) -> Turn {
    let reading = conversation::read(exchange).expect("is a turn");
    let place = Place { kind, parent: parent.into(), ambiguous: false };
    Turn { tenant: 0, seen: Seen::of(exchange, &Arc::default()), reading, place }
}

struct Bench {
    registry: crate::metrics::Metrics,
    checks: Checks,
}

impl Bench {
    fn new(config: &Config) -> Bench {
        let registry = crate::metrics::Metrics::default();
        let crosstalk = registry.counter("serin_test_crosstalk_total", "Crosstalk.");
        let parts = Parts { metrics: Metrics::new(&registry), dye: Arc::new(Registry::new(64)), crosstalk };
        Bench { checks: Checks::new(config, parts).expect("starts"), registry }
    }

    fn look(&mut self, exchange: &Exchange, kind: Kind, parent: &str) -> Vec<(&'static str, &'static str)> {
        let found = self.checks.look(&turn(exchange, kind, parent)).into_iter();
        found.map(|finding| (finding.check.name(), finding.outcome)).collect()
    }

    /// What is not well about a turn by itself.
    fn faults(&mut self, exchange: &Exchange) -> Vec<(&'static str, &'static str)> {
        let mut found = self.look(exchange, Kind::Root, "");
        found.retain(|(_, outcome)| *outcome != "ok");
        found
    }

    fn text(&self) -> String {
        String::from_utf8(self.registry.text().expect("text")).expect("UTF-8")
    }
}

fn chat(id: &str, messages: &Value, answer: &Value, prompt_tokens: u64) -> Exchange {
    let request = json!({"model": "m", "messages": messages}).to_string();
    let usage = json!({"prompt_tokens": prompt_tokens, "completion_tokens": 200,
        "completion_tokens_details": {"reasoning_tokens": answer["tokens"].as_u64().unwrap_or(0)}});
    let choice = json!({"index": 0, "message": answer, "finish_reason": "stop"});
    let response = json!({"choices": [choice], "usage": usage}).to_string();
    exchange(id, "/v1/chat/completions", &request, 200, "application/json", &response)
}

fn said(text: &str) -> Value {
    json!({"role": "assistant", "content": text})
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn every_interface_tells_of_a_denial_and_of_a_loop() {
    let history = json!([user("I am Ada"), said("Hello."), user("who am I?")]);
    let looping = "and so on ".repeat(60);
    for (answer, expected) in [
        ("You have not told me who you are.", ("denied_context", "not_told")),
        (looping.as_str(), ("degeneration", "loop")),
    ] {
        let text = json!(answer);
        let chat = json!({"choices": [{"message": said(answer), "finish_reason": "stop"}]}).to_string();
        let responses = json!({"id": "r", "output": [{"type": "message", "content": [{"type": "output_text", "text": answer}]}]});
        let messages = json!({"content": [{"type": "text", "text": answer}], "stop_reason": "end_turn"});
        let events = format!(
            "data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{text}}}}}]}}\n\ndata: [DONE]\n\n"
        );
        let asked = json!({"model": "m", "messages": history}).to_string();
        let whole = "application/json";
        for (path, request, media, response) in [
            ("/v1/chat/completions", asked.clone(), whole, chat),
            ("/v1/chat/completions", asked.clone(), "text/event-stream", events),
            ("/v1/responses", json!({"input": history}).to_string(), whole, responses.to_string()),
            ("/v1/messages", asked, whole, messages.to_string()),
        ] {
            let found =
                Bench::new(&Config::default()).faults(&exchange("1", path, &request, 200, media, &response));
            assert_eq!(found, [expected], "{path} {media}");
        }
    }
    let prompt = json!({"prompt": "Once upon a time"}).to_string();
    let completion = json!({"choices": [{"text": looping}]}).to_string();
    let generated = json!({"text": looping, "meta_info": {}}).to_string();
    for (path, request, response) in [
        ("/v1/completions", prompt.as_str(), completion.as_str()),
        ("/generate", r#"{"text":"Once"}"#, generated.as_str()),
    ] {
        let found = Bench::new(&Config::default()).faults(&exchange(
            "1",
            path,
            request,
            200,
            "application/json",
            response,
        ));
        assert_eq!(found, [("degeneration", "loop")], "{path}");
    }
}

#[test]
fn a_session_of_two_messages_has_nothing_to_be_forgotten() {
    let mut bench = Bench::new(&Config::default());
    let denial = said("You have not told me who you are.");
    assert_eq!(bench.faults(&chat("1", &json!([user("a"), user("who am I?")]), &denial, 9)), []);
}

#[test]
fn what_the_request_shows_is_not_held_against_its_answer() {
    let mut bench = Bench::new(&Config::default());
    for (asked, answer) in [
        ("what does <|im_end|> mean?", "<|im_end|> ends a message."),
        ("where does \u{fffd} come from?", "\u{fffd} stands for bytes that are no text."),
        ("translate into Russian: the train leaves", "Поезд отправляется."),
        ("say no no no no no no no no no no no no no no no no no no no no no", &"no ".repeat(25)),
    ] {
        assert_eq!(bench.faults(&chat("1", &json!([user(asked)]), &said(answer), 9)), [], "{asked}");
    }
}

#[test]
fn a_prompt_that_goes_on_must_not_shrink() {
    let first = json!([{"role": "system", "content": SYSTEM}, user("a long question")]);
    let mut second = first.as_array().expect("a list").clone();
    second.extend([said("an answer"), user("and more")]);
    let second = json!(second);
    // Of 1000 tokens a hundredth and 16 may be missing; half of the answer's 200 must have come.
    let look = |tokens: u64, kind, messages: &Value| {
        let mut bench = Bench::new(&Config::default());
        bench.look(&chat("1", &first, &said("an answer"), 1000), Kind::Root, "");
        let found = bench.look(&chat("2", messages, &said("yes"), tokens), kind, "1");
        found.into_iter().find(|(check, _)| *check == "turn_monotonicity").map(|(_, outcome)| outcome)
    };
    assert_eq!(look(1200, Kind::Append, &second), Some("ok"));
    assert_eq!(look(1074, Kind::Append, &second), Some("ok"));
    assert_eq!(look(1073, Kind::Append, &second), Some("shrunk"));
    assert_eq!(look(100, Kind::Branch, &second), None, "only what goes on");
    let other = json!([{"role": "system", "content": "Another prompt."}, user("a long question"), said("an answer"), user("b")]);
    assert_eq!(look(100, Kind::Append, &other), None, "another system prompt");
    let cut = json!([{"role": "system", "content": SYSTEM}, user("a short question"), said("an answer"), user("b")]);
    assert_eq!(look(100, Kind::Append, &cut), None, "another history");
    let image = json!([{"role": "system", "content": SYSTEM}, user("a long question"), said("an answer"),
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]);
    assert_eq!(look(100, Kind::Append, &image), None, "images take what they take");
    let rewritten = json!([{"role": "system", "content": SYSTEM}, user("a long question"), said("other words"), user("b")]);
    assert_eq!(look(980, Kind::Append, &rewritten), Some("ok"), "its answer was dropped");
    assert_eq!(look(970, Kind::Append, &rewritten), Some("shrunk"));
}

#[test]
fn old_reasoning_may_be_dropped_and_is_counted() {
    let first = json!([user("a question")]);
    let thought =
        json!({"role": "assistant", "content": "an answer", "reasoning_content": "hm", "tokens": 150});
    let second = json!([user("a question"), said("an answer"), user("and more")]);
    let mut bench = Bench::new(&Config::default());
    bench.look(&chat("1", &first, &thought, 1000), Kind::Root, "");
    let found = bench.look(&chat("2", &second, &said("yes"), 900), Kind::Append, "1");
    assert!(found.contains(&("turn_monotonicity", "ok")), "{found:?}");
    assert!(bench.text().contains("serin_passive_history_reasoning_dropped_total 1"));
    let mut kept = thought.clone();
    kept["content"] = json!("an answer");
    let third = json!([user("a question"), kept, user("and more")]);
    bench.look(&chat("3", &third, &said("yes"), 1200), Kind::Append, "1");
    assert!(bench.text().contains("serin_passive_history_reasoning_dropped_total 1"), "it was sent back");
}

#[test]
fn a_prompt_over_the_limit_is_refused_or_silently_cut() {
    let model = config::Model { name: "m".into(), tokenizer: "".into(), context: 8_000 };
    let mut bench = Bench::new(&Config { model: vec![model], ..Config::default() });
    let long = |bytes: usize| json!([user(&"a line of words, told once\n".repeat(bytes / 27))]);
    for _ in 0..70 {
        bench.look(&chat("1", &long(20_000), &said("yes"), 5_000), Kind::Root, "");
    }
    let outcome = |found: Vec<(&'static str, &'static str)>| {
        found.into_iter().find(|(check, _)| *check == "over_length").map(|(_, outcome)| outcome)
    };
    assert_eq!(
        outcome(bench.look(&chat("2", &long(20_000), &said("yes"), 5_000), Kind::Root, "")),
        Some("ok")
    );
    assert_eq!(
        outcome(bench.look(&chat("3", &long(60_000), &said("yes"), 4_000), Kind::Root, "")),
        Some("truncated")
    );
    let request = json!({"model": "m", "messages": long(60_000)}).to_string();
    let refusal = r#"{"error":{"message":"This model's maximum context length is 8000 tokens."}}"#;
    let refused = exchange("4", "/v1/chat/completions", &request, 400, "application/json", refusal);
    assert_eq!(bench.faults(&refused), [("over_length", "refused")]);
    let other = exchange(
        "5",
        "/v1/chat/completions",
        &request,
        400,
        "application/json",
        r#"{"error":{"message":"no"}}"#,
    );
    assert_eq!(bench.faults(&other), []);
    assert!(bench.text().contains("serin_passive_skipped_total{reason=\"no_answer\"} 1"));
}

proptest! {
    #[test]
    fn any_bodies_are_survived(request in ".{0,80}", response in ".{0,80}", status in 100u32..600, stream: bool) {
        let media = if stream { "text/event-stream" } else { "application/json" };
        let mut bench = Bench::new(&Config::default());
        for api in Api::ALL {
            let one = exchange("1", api.path(), &request, status, media, &response);
            let _ = bench.look(&one, Kind::Append, "1");
        }
    }

    #[test]
    fn any_answer_to_any_message_is_survived(asked in ".{0,80}", answer in ".{0,80}", arguments in ".{0,40}", tokens: u64) {
        let mut bench = Bench::new(&Config::default());
        let mut said = said(&answer);
        said["tool_calls"] = json!([{"id": "1", "function": {"name": "f", "arguments": arguments}}]);
        let messages = json!([user(&asked), said, user(&asked)]);
        let found = bench.look(&chat("1", &messages, &said, tokens), Kind::Root, "");
        prop_assert!(found.len() <= Check::ALL.len());
    }
}
