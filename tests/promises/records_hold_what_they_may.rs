//! What is kept of an exchange is what the operator and the client both allow, through every interface and for streams
//! as for whole answers; and a secret in a body is kept as its mask.

use serde_json::{Value, json};
use serin::journal::{Capture, Exchange};
use serin::openai::Api;

use crate::support::Serin;
use crate::support::journal::exchanges;
use crate::support::upstream::{Received, Upstream, whole};
use crate::support::wire::{self, post};

pub const SECRET: &str = "ghp_Zq8LmW3nR5tY7uI9oP1aS3dF5gH7jK9lX2cV";
pub const WORDS: &str = "the quick brown fox";

fn ask(api: Api, stream: bool) -> Value {
    // Long enough to be cut into pieces.
    let said = format!("{WORDS} has the key {SECRET}{}", " and runs".repeat(100));
    let messages = json!([{"role": "user", "content": said}]);
    match api {
        Api::Chat | Api::Messages => json!({"model": "m", "messages": messages, "stream": stream}),
        Api::Responses => json!({"model": "m", "input": messages, "stream": stream}),
        Api::Completions => json!({"model": "m", "prompt": said, "stream": stream}),
        Api::Generate => json!({"text": said, "stream": stream}),
    }
}

/// An answer that repeats the words and the key; as a stream in four pieces.
fn answer(request: &Received) -> Vec<u8> {
    let api = Api::ALL.into_iter().find(|api| request.head.contains(&format!("{} ", api.path()))).unwrap();
    let text = format!("{WORDS} and the key {SECRET}");
    if !String::from_utf8_lossy(&request.body).contains("\"stream\":true") {
        let body = match api {
            Api::Chat => json!({"choices": [{"message": {"role": "assistant", "content": text}}]}),
            Api::Messages => json!({"content": [{"type": "text", "text": text}]}),
            Api::Responses => {
                json!({"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]})
            }
            Api::Completions => json!({"choices": [{"text": text}]}),
            Api::Generate => json!({"text": text, "meta_info": {}}),
        };
        return whole("200 OK", "application/json", body.to_string().as_bytes());
    }
    let (pieces, mut events, mut so_far) = (text.as_bytes().chunks(17), String::new(), String::new());
    for piece in pieces {
        let piece = std::str::from_utf8(piece).unwrap();
        so_far.push_str(piece);
        let event = match api {
            Api::Chat => json!({"choices": [{"index": 0, "delta": {"content": piece}}]}),
            Api::Messages => {
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}})
            }
            Api::Responses => json!({"type": "response.output_text.delta", "item_id": "i", "delta": piece}),
            Api::Completions => json!({"choices": [{"index": 0, "text": piece}]}),
            Api::Generate => json!({"text": so_far, "meta_info": {}}),
        };
        events.push_str(&format!("data: {event}\n\n"));
    }
    let end = match api {
        Api::Messages => "data: {\"type\":\"message_stop\"}\n\n".to_owned(),
        Api::Responses => format!(
            "data: {}\n\n",
            json!({"type": "response.completed", "response": {"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]}})
        ),
        _ => "data: [DONE]\n\n".to_owned(),
    };
    whole("200 OK", "text/event-stream", (events + &end).as_bytes())
}

/// Everything of a record as text.
pub fn all(exchange: &Exchange) -> String {
    let bodies = [&exchange.request_body, &exchange.response_body, &exchange.answer];
    let bodies = bodies.map(|body| String::from_utf8_lossy(body).into_owned()).concat();
    let read = serin::conversation::read(exchange).map(|reading| reading.answer.fold.choices);
    format!("{bodies}{exchange:?}{read:?}")
}

/// Sends one request through every interface, streamed and not; returns the records.
fn recorded(settings: &str, header: &str, change: impl Fn(&mut Value)) -> Vec<Exchange> {
    exchanges(&mut asked(settings, header, change))
}

/// Serin, after one request through every interface, streamed and not.
pub fn asked(settings: &str, header: &str, change: impl Fn(&mut Value)) -> Serin {
    let upstream = Upstream::start(|request, out| {
        use std::io::Write;
        out.write_all(&answer(request)).is_ok()
    });
    let serin = Serin::before(upstream.address, settings);
    for api in Api::ALL {
        for stream in [false, true] {
            let mut body = ask(api, stream);
            change(&mut body);
            let body = body.to_string();
            let through = wire::send(serin.traffic(), &post(api.path(), header, body.as_bytes()));
            assert_eq!(through.status, 200, "{api:?}");
            let received = upstream.received().pop().unwrap();
            assert!(received.body == body.as_bytes() && received.headers("x-serin-record").is_empty());
            // Of the stream's pieces each is somewhere in the answer.
            assert!(through.text().contains(&SECRET[SECRET.len() - 2..]), "traffic is never masked");
        }
    }
    serin
}

#[test]
fn secrets_are_kept_as_masks_through_every_interface() {
    let records = recorded("", "", |_| {});
    assert_eq!(records.len(), 2 * Api::ALL.len());
    for record in records {
        let text = all(&record);
        for part in [&SECRET[4..16], &SECRET[16..28], &SECRET[28..]] {
            assert!(!text.contains(part), "{}: {part} in {text}", record.target);
        }
        assert!(text.contains(WORDS) && text.contains("the key ghp_"), "{}: {text}", record.target);
        assert!(!record.request_kept_hash.is_empty() && record.request_kept_hash != record.request_body_hash);
        // Asked and answered with the same key: it has the same mask.
        let mask = &text[text.find("the key ghp_").unwrap() + 8..][..SECRET.len()];
        let read = serin::conversation::read(&record).unwrap();
        assert!(read.answer.fold.choices[0].content.ends_with(mask), "{}: {text}", record.target);
    }
}

#[test]
fn the_least_of_policy_and_wish_is_kept() {
    let hash =
        |record: &Exchange| !record.request_body_hash.is_empty() && !record.response_body_hash.is_empty();
    for (policy, asked, words, secret, hashes) in [
        ("full", "", true, true, true),
        ("full", "redacted", true, false, true),
        ("redacted", "full", true, false, true),
        ("hash", "full", false, false, true),
        ("full", "hash", false, false, true),
        ("redacted", "meta", false, false, false),
        ("meta", "full", false, false, false),
        ("full", "whatever", false, false, false),
    ] {
        let header = if asked.is_empty() { String::new() } else { format!("x-serin-record: {asked}\r\n") };
        let records = recorded(&format!("[record]\nmode = \"{policy}\"\n"), &header, |_| {});
        assert_eq!(records.len(), 2 * Api::ALL.len());
        for record in &records {
            let (text, case) = (all(record), format!("{policy} {asked} {}", record.target));
            assert_eq!((text.contains(WORDS), text.contains(SECRET)), (words, secret), "{case}: {text}");
            assert_eq!(hash(record), hashes, "{case}");
            let kept =
                record.request_capture() == Capture::Whole && record.response_capture() == Capture::Whole;
            assert_eq!(kept, words, "{case}");
        }
    }
    assert_eq!(recorded("[record]\nmode = \"off\"\n", "", |_| {}).len(), 0);
    assert_eq!(recorded("", "x-serin-record: off\r\n", |_| {}).len(), 0);
    let forbidden = recorded("[record]\nopt_out = false\n", "x-serin-record: off\r\n", |_| {});
    assert!(forbidden.len() == 10 && forbidden.iter().all(|record| all(record).contains(WORDS)));
}

#[test]
fn what_the_server_is_not_to_store_is_not_stored_here() {
    let unstored = |settings: &str| recorded(settings, "", |body| body["store"] = json!(false));
    for record in unstored("") {
        assert!(!all(&record).contains(WORDS) && record.request_body_hash.is_empty(), "{}", record.target);
    }
    assert!(unstored("[record]\nunstored = \"redacted\"\n").iter().all(|record| all(record).contains(WORDS)));
    let stored = recorded("", "", |body| body["store"] = json!(true));
    assert!(stored.iter().all(|record| all(record).contains(WORDS)));
}

#[test]
fn a_body_in_an_unknown_coding_is_not_kept_unless_everything_may_be() {
    for (settings, reason, kept) in [
        ("", "outcome=\"meta\",reason=\"opaque\"", false),
        ("[record]\nmode = \"full\"\n", "outcome=\"full\",reason=\"\"", true),
    ] {
        let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
        let mut serin = Serin::before(upstream.address, settings);
        wire::send(
            serin.traffic(),
            &post("/v1/chat/completions", "Content-Encoding: br\r\n", b"\x0b\x02\x80mystery"),
        );
        serin.reaches(&format!("serin_recorder_turns_total{{{reason}}}"), 1.0);
        assert_eq!(exchanges(&mut serin)[0].request_body.is_empty(), !kept);
    }
}
