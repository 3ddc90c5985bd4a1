//! The driver against a scripted front door.

use std::net::SocketAddr;

use super::door::Limits;
use super::*;
use crate::canary::config::Config;
use crate::canary::plan::Plan;
use crate::canary::probe::{Recipe, Slot};
use crate::canary::scripted::{Asked, Scripted, code_in, completion, response, says};
use crate::fidelity::secret::Minter;

fn driver(target: SocketAddr) -> Driver {
    Driver::new(Door::new(target, Limits { body: 64 << 10, ..Limits::default() }), tag::Key::new([5; 32]))
}

fn probe(stream: bool) -> Probe {
    let slot = Slot { stream, ..Plan::new(&Config::default(), 3).next_slot() };
    let minter = Minter::new([1; 32]);
    Probe::build(&slot, Recipe { id: "p1", model: "m", minter: &minter, words: 200 })
}

/// One probe against a script.
async fn run(stream: bool, answer: impl Fn(usize, &Asked) -> String) -> (Outcome, Vec<Asked>) {
    let server = Scripted::start().await;
    let driver = driver(server.address());
    let (probe, live) = (probe(stream), Registry::new(64));
    live.register(&probe.secret, &probe.id);
    let outcome = server.during(answer, driver.run(&probe, 1_000, Some("sk-1"), &live)).await;
    (outcome, server.asked.into_inner().expect("no panic while held"))
}

fn events(chunks: &[Value], end: &str) -> String {
    let body: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    response(200, "content-type: text/event-stream\r\n", &format!("{body}{end}"))
}

fn chunk(delta: &Value, finish_reason: Option<&str>) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})
}

#[tokio::test]
async fn recall_passes_and_the_request_is_an_ordinary_one() {
    let (outcome, asked) = run(false, |_, asked| says(asked, &code_in(&asked.body))).await;
    assert_eq!(outcome.judgement.verdict, Verdict::Recalled);
    assert_eq!((outcome.upstream.as_str(), outcome.exchanges, outcome.cause), ("embedded", 1, None));
    assert!(outcome.prompt_tokens > 200);
    let head = &asked[0].head;
    assert!(head.starts_with("post /v1/chat/completions http/1.1\r\n"), "{head}");
    assert!(
        head.contains("\r\nauthorization: bearer sk-1\r\n") && head.contains("\r\nhost: 127.0.0.1:"),
        "{head}"
    );
    let sealed = head.lines().find_map(|line| line.strip_prefix("x-serin-canary: ")).expect("a tag");
    assert_eq!(tag::Key::new([5; 32]).verify(sealed), Some("p1"));
}

#[tokio::test]
async fn losses_are_told_apart() {
    for (content, expected) in [
        ("blue-house-1234-x", Verdict::LostWrong),
        ("NONE", Verdict::LostUnknown),
        ("This is the first message in our conversation.", Verdict::Denied),
        ("", Verdict::Empty),
    ] {
        let (outcome, _) = run(false, |_, asked| says(asked, content)).await;
        assert_eq!((outcome.judgement.verdict, outcome.exchanges), (expected, 1), "{content:?}");
    }
}

#[tokio::test]
async fn refusals_to_serve_are_errors_with_pressure() {
    let (outcome, _) = run(false, |_, _| response(429, "retry-after: 7\r\n", "{}")).await;
    assert_eq!((outcome.judgement.verdict, outcome.cause), (Verdict::Error, Some("status 429")));
    assert_eq!(outcome.pressure, Some(Pressure { retry_after: Some(Duration::from_secs(7)) }));
    let (outcome, _) = run(false, |_, _| response(503, "", "")).await;
    assert_eq!(outcome.pressure, Some(Pressure { retry_after: None }));
    let (outcome, _) = run(false, |_, _| response(500, "", "")).await;
    assert_eq!((outcome.judgement.verdict, outcome.pressure), (Verdict::Error, None));
    let (outcome, _) = run(false, |_, _| response(400, "", "maximum context length is 512")).await;
    assert_eq!(outcome.judgement.verdict, Verdict::RejectedLength);
}

#[tokio::test]
async fn nobody_there_is_an_error() {
    let server = Scripted::start().await;
    let address = server.address();
    drop(server);
    let outcome = driver(address).run(&probe(false), 100, None, &Registry::new(64)).await;
    assert_eq!((outcome.judgement.verdict, outcome.cause), (Verdict::Error, Some("connect")));
    assert_eq!(outcome.upstream, "unknown");
}

#[tokio::test]
async fn a_hung_up_connection_is_an_error() {
    let (outcome, _) = run(false, |_, _| String::new()).await;
    assert_eq!((outcome.judgement.verdict, outcome.cause), (Verdict::Error, Some("transport")));
}

#[tokio::test]
async fn streams_are_put_together() {
    let (outcome, asked) = run(true, |_, asked| {
        let code = code_in(&asked.body);
        let (first, second) = code.split_at(7);
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 321, "prompt_tokens_details": {"cached_tokens": 300}}});
        let chunks = [
            chunk(&json!({"role": "assistant", "reasoning_content": "Hm. "}), None),
            chunk(&json!({"content": first}), None),
            chunk(&json!({"content": second}), Some("stop")),
            usage,
        ];
        events(&chunks, "data: [DONE]\n\n")
    })
    .await;
    assert_eq!(outcome.judgement.verdict, Verdict::Recalled);
    assert_eq!((outcome.prompt_tokens, outcome.cached_tokens), (321, 300));
    assert_eq!(asked[0].body["stream_options"]["include_usage"], true);
}

#[tokio::test]
async fn a_cut_stream_is_inconclusive_even_with_the_code_in_it() {
    let (outcome, _) =
        run(true, |_, asked| events(&[chunk(&json!({"content": code_in(&asked.body)}), None)], "")).await;
    assert_eq!((outcome.judgement.verdict, outcome.cause), (Verdict::Malformed, Some("interrupted")));
    let (outcome, _) = run(true, |_, _| {
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n40\r\ndata: {\"cho".to_owned()
    })
    .await;
    assert_eq!((outcome.judgement.verdict, outcome.cause), (Verdict::Malformed, Some("interrupted")));
}

#[tokio::test]
async fn a_tool_call_is_answered_once_and_the_next_answer_counts() {
    let call = json!({"id": "c1", "type": "function", "function": {"name": "write", "arguments": "{\"path\":\"x\"}"}});
    let detour =
        completion(&json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls", 300);
    let first = detour.clone();
    let (outcome, asked) =
        run(false, move |n, asked| if n == 0 { first.clone() } else { says(asked, &code_in(&asked.body)) })
            .await;
    assert_eq!((outcome.judgement.verdict, outcome.exchanges), (Verdict::Recalled, 2));
    let messages = asked[1].body["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 5);
    assert_eq!(messages[3]["tool_calls"][0]["function"]["arguments"], "{\"path\":\"x\"}");
    assert_eq!((&messages[4]["role"], &messages[4]["tool_call_id"]), (&json!("tool"), &json!("c1")));
    assert_eq!(outcome.prompt_tokens, 300, "the length of the probe, not of the longer second request");

    let (outcome, _) = run(false, move |_, _| detour.clone()).await;
    assert_eq!((outcome.judgement.verdict, outcome.exchanges), (Verdict::LostWrong, 2));
}

#[tokio::test]
async fn a_cut_off_answer_gets_twice_the_room_once() {
    let cut = |_: &Asked| completion(&json!({"role": "assistant", "content": "Well, the"}), "length", 300);
    let (outcome, asked) =
        run(false, move |n, asked| if n == 0 { cut(asked) } else { says(asked, &code_in(&asked.body)) })
            .await;
    assert_eq!((outcome.judgement.verdict, outcome.exchanges), (Verdict::Recalled, 2));
    assert_eq!((&asked[0].body["max_tokens"], &asked[1].body["max_tokens"]), (&json!(1_000), &json!(2_000)));
    let (outcome, _) = run(false, move |_, asked| cut(asked)).await;
    assert_eq!((outcome.judgement.verdict, outcome.exchanges), (Verdict::Truncated, 2));
}

#[tokio::test]
async fn an_endless_answer_is_not_taken() {
    let (outcome, _) = run(false, |_, asked| says(asked, &"so ".repeat(40_000))).await;
    assert_eq!((outcome.judgement.verdict, outcome.cause), (Verdict::Error, Some("answer too large")));
}

#[tokio::test]
async fn silence_runs_into_the_limit() {
    let server = Scripted::start().await;
    let limits = Limits { head: Duration::from_millis(20), ..Limits::default() };
    let driver = Driver::new(Door::new(server.address(), limits), tag::Key::new([5; 32]));
    // Nothing accepts: the connection stands in the backlog and no answer comes.
    let outcome = driver.run(&probe(false), 100, None, &Registry::new(64)).await;
    assert_eq!(outcome.cause, Some("timeout before the answer"));
}

#[tokio::test]
async fn another_probes_code_is_crosstalk() {
    let server = Scripted::start().await;
    let (probe, live) = (probe(false), Registry::new(64));
    let other = Minter::new([9; 32]).mint("p2", 0);
    live.register(&probe.secret, &probe.id);
    live.register(&other, "p2");
    let driver = driver(server.address());
    let answer = |_: usize, asked: &Asked| says(asked, &format!("{} or {other}", code_in(&asked.body)));
    let outcome = server.during(answer, driver.run(&probe, 100, None, &live)).await;
    assert_eq!((outcome.judgement.verdict, outcome.judgement.base), (Verdict::Crosstalk, Verdict::Recalled));
}

#[tokio::test]
async fn crosstalk_in_an_exchange_that_is_repeated_is_not_forgotten() {
    let server = Scripted::start().await;
    let (probe, live) = (probe(false), Registry::new(64));
    let other = Minter::new([9; 32]).mint("p2", 0);
    live.register(&probe.secret, &probe.id);
    live.register(&other, "p2");
    let driver = driver(server.address());
    let cut = completion(&json!({"role": "assistant", "content": other.as_str()}), "length", 300);
    let answer =
        |n: usize, asked: &Asked| if n == 0 { cut.clone() } else { says(asked, &code_in(&asked.body)) };
    let outcome = server.during(answer, driver.run(&probe, 100, None, &live)).await;
    assert_eq!((outcome.judgement.verdict, outcome.exchanges), (Verdict::Crosstalk, 2));
    assert_eq!(outcome.judgement.stranger.as_deref(), Some("p2"));
}

#[tokio::test]
async fn models_are_listed() {
    let server = Scripted::start().await;
    let driver = driver(server.address());
    let list = json!({"object": "list", "data": [{"id": "a"}, {"id": "b"}, {"no": 1}]}).to_string();
    let answer = |n: usize, _: &Asked| response(if n == 0 { 200 } else { 500 }, "", &list);
    let (first, second) = server
        .during(answer, async { (driver.models("p", None).await, driver.models("p", None).await) })
        .await;
    assert_eq!(first, Ok(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(second, Err(500));
}
