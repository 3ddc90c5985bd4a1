//! What clients are answered is checked once it is recorded: each fault moves its own counter and flags its turn, healthy
//! answers move none, in every mode in which there is something to read.

use std::io::Write;
use std::sync::Mutex;

use serde_json::{Value, json};
use serin::conversation::{Conversations, Filter};
use serin::fidelity::secret::is_code;
use serin::fidelity::text::{normalise, tokens};

use crate::support::upstream::{Received, Upstream, chunk, chunked, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually};

const TOOLS: &str = r#"[{"type":"function","function":{"name":"read_file","parameters":{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}}}]"#;

/// What the client asks its upstream to answer, the check that must see it, and what that must come to.
const FAULTS: [(&str, &str, &str); 10] = [
    ("deny", "denied_context", "first_message"),
    ("not told", "denied_context", "not_told"),
    ("loop", "degeneration", "loop"),
    ("marks", "degeneration", "template_mark"),
    ("broken", "degeneration", "broken_character"),
    ("script", "degeneration", "foreign_script"),
    ("bad json", "tools", "invalid_json"),
    ("bad name", "tools", "unknown_name"),
    ("bad schema", "tools", "schema"),
    ("announced", "tools", "announced"),
];

/// Two healthy turns come with every fault.
const HEALTHY: [&str; 5] = [
    "Der Zug fährt um acht Uhr ab, und das Gleis steht auf der Tafel.",
    "El tren sale a las ocho y el andén está en el panel.",
    "Le train part à huit heures.",
    "火车八点出发,站台在牌子上。",
    "電車は八時に出ます。",
];

fn message(wanted: &str) -> Value {
    let call = |name: &str, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"role": "assistant", "content": null, "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]})
    };
    let said = |text: &str| json!({"role": "assistant", "content": text});
    match wanted {
        "deny" => said("This seems to be the first message of our conversation."),
        "not told" => said("You haven't told me your name."),
        "loop" => said(&"and on and on it goes ".repeat(40)),
        "marks" => said("The train<|im_end|> leaves at eight."),
        "broken" => said("The train \u{fffd} leaves at eight."),
        "script" => said("The train leaves at eight, สวัสดี and the platform is on the board."),
        "bad json" => call("read_file", r#"{"path":"a""#),
        "bad name" => call("open_file", r#"{"path":"a"}"#),
        "bad schema" => call("read_file", r#"{"file":"a"}"#),
        "announced" => {
            json!({"role": "assistant", "content": "", "reasoning_content": "The user wants it. Let me call read_file."})
        }
        "good call" => call("read_file", r#"{"path":"a"}"#),
        number => said(number.parse::<usize>().map_or("Hello.", |at| HEALTHY[at % HEALTHY.len()])),
    }
}

/// Answers what the last message asks for, as a stream where that is asked for.
fn script(request: &Received, out: &mut std::net::TcpStream) -> bool {
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let last = body["messages"].as_array().and_then(|messages| messages.last()).cloned().unwrap_or_default();
    let wanted = last["content"].as_str().and_then(|text| text.strip_prefix("answer: ")).unwrap_or("hello");
    let (message, usage) = (message(wanted), json!({"prompt_tokens": 40, "completion_tokens": 9}));
    let written = if body["stream"] == true {
        let event = |value: Value| chunk(format!("data: {value}\n\n").as_bytes());
        let parts = [
            chunked("text/event-stream"),
            event(json!({"choices": [{"index": 0, "delta": message}]})),
            event(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage})),
            chunk(b"data: [DONE]\n\n"),
            b"0\r\n\r\n".to_vec(),
        ];
        out.write_all(&parts.concat())
    } else {
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        let answer = json!({"id": "a", "model": "m", "choices": [choice], "usage": usage}).to_string();
        out.write_all(&whole("200 OK", "application/json", answer.as_bytes()))
    };
    written.is_ok()
}

fn ask(serin: &Serin, wanted: &str, stream: bool) {
    let messages = json!([
        {"role": "user", "content": format!("my name is Ada, 我叫 エイダ, and this is about {wanted}")},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": format!("answer: {wanted}")},
    ]);
    let tools: Value = serde_json::from_str(TOOLS).unwrap();
    let body = json!({"model": "m", "messages": messages, "stream": stream, "tools": tools}).to_string();
    let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", body.as_bytes()));
    assert!(answer.whole && answer.status == 200, "{wanted}");
}

/// All counts of the checks but those of what is well, by check and outcome.
fn findings(serin: &Serin) -> Vec<(String, String, f64)> {
    let text = serin.metrics();
    let label = |line: &str, name: &str| {
        line.split(&format!("{name}=\"")).nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let lines = text.lines().filter(|line| line.starts_with("serin_passive_checks_total{"));
    let all = lines.map(|line| {
        let count = line.rsplit(' ').next().unwrap().parse().unwrap();
        (label(line, "check"), label(line, "outcome"), count)
    });
    all.filter(|(_, outcome, count)| outcome != "ok" && *count > 0.0).collect()
}

fn ok(check: &str) -> String {
    format!(
        "serin_passive_checks_total{{check=\"{check}\",model_name=\"m\",outcome=\"ok\",upstream=\"router\"}}"
    )
}

#[test]
fn each_fault_moves_its_own_counter_in_every_mode_that_reads() {
    for mode in ["full", "redacted", "hash"] {
        let upstream = Upstream::start(script);
        let settings = format!("[canary]\nenabled = false\n[record]\nmode = \"{mode}\"\n");
        let mut serin = Serin::before(upstream.address, &settings);
        for (at, stream) in [(0, false), (1, true), (2, false), (3, true), (4, false)] {
            ask(&serin, &at.to_string(), stream);
        }
        ask(&serin, "good call", true);
        for check in ["denied_context", "degeneration", "tools"] {
            serin.reaches(&ok(check), 6.0);
        }
        assert_eq!(findings(&serin), [], "{mode}: healthy answers");
        for (at, (wanted, check, outcome)) in FAULTS.into_iter().enumerate() {
            ask(&serin, wanted, at % 2 == 0);
            let found = |found: &(String, String, f64)| found.0 == check && found.1 == outcome;
            eventually(&format!("{mode}: {wanted} is {outcome}"), || {
                findings(&serin).iter().any(found).then_some(())
            });
        }
        let counts = findings(&serin);
        assert_eq!((counts.len(), counts.iter().map(|count| count.2).sum::<f64>()), (FAULTS.len(), 10.0));
        serin.stop();
        let dir = serin.dir.path().join("data");
        let lines = Conversations::read_only(&dir).unwrap().list(&Filter::default()).unwrap();
        let flagged = |name| lines.iter().filter(|line| line.flags.contains(&name)).count();
        assert_eq!((flagged("denied_context"), flagged("degenerate"), flagged("tool_invalid")), (2, 4, 4));
    }
}

#[test]
fn what_may_not_be_read_or_is_switched_off_is_not_checked() {
    let upstream = Upstream::start(script);
    let serin = Serin::before(upstream.address, "[canary]\nenabled = false\n[record]\nmode = \"meta\"\n");
    ask(&serin, "deny", false);
    serin.reaches("serin_passive_skipped_total{reason=\"mode\"}", 1.0);
    assert_eq!(findings(&serin), []);
    let off = Serin::before(upstream.address, "[canary]\nenabled = false\n[passive]\nenabled = false\n");
    ask(&off, "deny", false);
    off.reaches("serin_recorder_turns_total{outcome=\"full\",reason=\"\"}", 1.0);
    assert!(!off.metrics().contains("serin_passive_checks_total{"));
}

/// The last code that was planted, as the upstream of canaries has seen it.
static PLANTED: Mutex<String> = Mutex::new(String::new());

fn code_in(text: &str) -> Option<String> {
    let text = normalise(text);
    let tokens = tokens(&text);
    tokens
        .windows(4)
        .map(|window| std::array::from_fn(|at| window[at].text))
        .find(|words| is_code(*words))
        .map(|words: [&str; 4]| words.join("-"))
}

#[test]
fn a_canarys_code_in_a_clients_answer_is_critical_unless_the_client_has_sent_it() {
    let upstream = Upstream::start(|request, out| {
        let text = String::from_utf8_lossy(&request.body).into_owned();
        let mut planted = PLANTED.lock().unwrap();
        let (mixed, code) = (text.contains("mix up"), code_in(&text));
        if let Some(code) = code.as_ref().filter(|_| !mixed) {
            planted.clone_from(code);
        }
        // Probes go on and plant others: who sends a code gets that one back.
        let said = match mixed {
            true => format!("The tag is {}.", code.as_ref().unwrap_or(&planted)),
            false => "Nothing to say.".to_owned(),
        };
        let choice =
            json!({"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"});
        let body = json!({"choices": [choice], "usage": {"prompt_tokens": 900}}).to_string();
        out.write_all(&whole("200 OK", "application/json", body.as_bytes())).is_ok()
    });
    let mut serin =
        Serin::before(upstream.address, "[canary]\nenabled = true\ninterval = \"100ms\"\nmodel = \"m\"\n");
    let probes = || serin.metrics().lines().any(|line| line.starts_with("serin_canary_probes_total{"));
    eventually("a probe was sent", || probes().then_some(()));
    let production = "serin_crosstalk_total{scope=\"production\"}";
    assert_eq!(serin.metric(production), Some(0.0));
    let say = |text: &str| {
        let body = json!({"model": "m", "messages": [{"role": "user", "content": text}]}).to_string();
        let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", body.as_bytes()));
        assert!(answer.whole, "{text}");
    };
    say("please mix up");
    serin.reaches(production, 1.0);
    let code = PLANTED.lock().unwrap().clone();
    say(&format!("mix up {code}"));
    serin.reaches(&ok("crosstalk"), 1.0);
    assert_eq!(serin.metric(production), Some(1.0), "whoever sends a code may get it back");
    serin.stop();
    let flags = |dir: &str| -> Vec<Vec<&'static str>> {
        let sessions = Conversations::read_only(&serin.dir.path().join(dir)).unwrap();
        sessions.list(&Filter::default()).unwrap().into_iter().map(|line| line.flags).collect()
    };
    assert_eq!(flags("data").concat().iter().filter(|name| **name == "crosstalk").count(), 1);
    // The probe that ran when Serin was stopped was cut, and there is one at a time.
    let (cut, whole): (Vec<_>, Vec<_>) =
        flags("data/canary").into_iter().partition(|flags| flags.contains(&"incomplete"));
    assert!(cut.len() <= 1 && !cut.concat().contains(&"crosstalk"), "{cut:?}");
    assert!(whole.concat().iter().all(|name| name.starts_with("verdict:")), "{whole:?}");
    assert!(!whole.concat().is_empty());
}

/// An upstream that counts a token for four bytes of its messages, or half as many where a message asks it to forget; its
/// context is 8,000 tokens, and it cuts what is longer unless it is asked to be honest.
fn counting(request: &Received, out: &mut std::net::TcpStream) -> bool {
    let body = String::from_utf8_lossy(&request.body).into_owned();
    if request.head.starts_with("GET /v1/models") {
        let list = br#"{"object":"list","data":[{"id":"m","max_model_len":8000}]}"#;
        return out.write_all(&whole("200 OK", "application/json", list)).is_ok();
    }
    let tokens = body.len() / if body.contains("forget half") { 8 } else { 4 };
    if tokens > 8_000 && body.contains("be honest") {
        let refusal = br#"{"error":{"message":"This model's maximum context length is 8000 tokens."}}"#;
        return out.write_all(&whole("400 Bad Request", "application/json", refusal)).is_ok();
    }
    let choice =
        json!({"index": 0, "message": {"role": "assistant", "content": "Noted."}, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": tokens.min(7_900), "completion_tokens": 3});
    let answer = json!({"choices": [choice], "usage": usage}).to_string();
    out.write_all(&whole("200 OK", "application/json", answer.as_bytes())).is_ok()
}

fn say(serin: &Serin, messages: &Value) {
    let body = json!({"model": "m", "messages": messages}).to_string();
    let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", body.as_bytes()));
    assert!(answer.whole, "{}", answer.text());
}

fn prose(number: usize, bytes: usize) -> Value {
    let words: String = (0..bytes / 20).map(|at| format!("word {number} of {at:06}. ")).collect();
    json!({"role": "user", "content": words})
}

#[test]
fn prompts_are_held_against_their_words_their_past_and_their_limit() {
    let upstream = Upstream::start(counting);
    let mut serin = Serin::before(upstream.address, "[canary]\nenabled = false\n");
    assert_eq!(wire::get(serin.traffic(), "/v1/models").status, 200);
    for number in 0..80 {
        say(&serin, &json!([prose(number, 8_000)]));
    }
    let noted = json!({"role": "assistant", "content": "Noted."});
    let more = json!({"role": "user", "content": "and more"});
    say(&serin, &json!([prose(3, 8_000), noted, more]));
    serin.reaches(&ok("turn_monotonicity"), 1.0);
    serin.reaches(&ok("prompt_tokens"), 10.0);
    serin.reaches(&ok("over_length"), 10.0);
    assert_eq!(findings(&serin), [], "nothing is wrong yet");
    let found = |serin: &Serin, check: &str, outcome: &str| {
        eventually(outcome, || {
            findings(serin)
                .iter()
                .any(|found| found.0 == check && found.1 == outcome && found.2 == 1.0)
                .then_some(())
        });
    };
    say(&serin, &json!([prose(90, 8_000), {"role": "user", "content": "forget half"}]));
    found(&serin, "prompt_tokens", "short");
    say(&serin, &json!([prose(4, 8_000), noted, {"role": "user", "content": "forget half"}]));
    found(&serin, "turn_monotonicity", "shrunk");
    say(&serin, &json!([prose(91, 60_000)]));
    found(&serin, "over_length", "truncated");
    say(&serin, &json!([prose(92, 60_000), {"role": "user", "content": "be honest"}]));
    found(&serin, "over_length", "refused");
    for series in ["serin_recorder_links_total{kind=\"append\"}", "serin_recorder_links_total{kind=\"root\"}"]
    {
        assert!(serin.metric(series).is_some_and(|count| count >= 2.0), "{series}");
    }
    assert!(
        serin.metric("serin_recorder_tokens_total{kind=\"prompt\"}").is_some_and(|count| count > 100_000.0)
    );
    assert_eq!(serin.metric("serin_recorder_tokens_total{kind=\"output\"}"), Some(84.0 * 3.0));
    serin.stop();
    let lines =
        Conversations::read_only(&serin.dir.path().join("data")).unwrap().list(&Filter::default()).unwrap();
    let flagged = |name| lines.iter().filter(|line| line.flags.contains(&name)).count();
    assert_eq!((flagged("turn_not_monotonic"), flagged("silent_truncation")), (1, 1));
    assert!(flagged("prompt_short") >= 1);
}

#[test]
fn bodies_go_on_as_they_come() {
    let upstream = Upstream::start(|request, out| {
        let answer: Vec<u8> = request.body.iter().rev().copied().collect();
        if request.head.contains("/chunks") {
            let parts = [chunked("a/b"), chunk(b"first"), chunk(&[b'x'; 70_000]), b"0\r\n\r\n".to_vec()];
            return out.write_all(&parts.concat()).is_ok();
        }
        out.write_all(&whole("200 OK", "a/b", &answer)).is_ok()
    });
    let serin =
        Serin::before(upstream.address, "[canary]\nenabled = false\n[passive]\ndigest_sample = 1.0\n");
    for (path, length) in
        [("/small", 10), ("/large", 300_000), ("/chunks", 100), ("/v1/chat/completions", 40_000)]
    {
        let answer = wire::send(serin.traffic(), &post(path, "", &vec![b'a'; length]));
        assert!(answer.whole, "{path}");
    }
    for direction in ["request", "response"] {
        let series = |outcome| {
            format!("serin_passive_digests_total{{direction=\"{direction}\",outcome=\"{outcome}\"}}")
        };
        serin.reaches(&series("equal"), 4.0);
        assert_eq!(serin.metric(&series("different")), Some(0.0));
    }
}
