//! What is read of an exchange.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::journal::Header;

fn read(exchange: &Exchange) -> Reading {
    Reading::of(&Key::of_tenant("default"), &mut Memo::new(100, 100), exchange)
}

fn turn(request: impl Into<Bytes>, response: impl Into<Bytes>, media: &'static str) -> Exchange {
    Exchange {
        method: "POST".into(),
        target: "/v1/chat/completions?trace=1".into(),
        request_body: request.into(),
        status: 200,
        response_headers: vec![Header { name: "Content-Type".into(), value: media.into() }],
        response_body: response.into(),
        ..Exchange::default()
    }
}

#[test]
fn only_what_is_posted_to_a_model_is_a_turn() {
    let mut exchange = turn("", "", "");
    assert!(is_turn(&exchange));
    exchange.method = "OPTIONS".into();
    assert!(!is_turn(&exchange));
    exchange.method = "POST".into();
    for api in Api::ALL {
        exchange.target = api.path().into();
        assert!(is_turn(&exchange));
    }
    exchange.target = "/v1/embeddings?x=/v1/chat/completions".into();
    assert!(!is_turn(&exchange));
}

#[test]
fn system_messages_count_but_stand_outside_the_chain() {
    let answers = |reading: &Reading| {
        let key = Key::of_tenant("default");
        reading.answers(&key, Base { node: key.root(), groups: 0 })
    };
    let with = |system: &str| {
        let body = format!(
            r#"{{"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"a"}}]}}"#
        );
        read(&turn(
            body,
            r#"{"choices":[{"message":{"content":"b"}},{"message":{"content":"c"}}]}"#,
            "application/json",
        ))
    };
    let (one, two) = (with("x"), with("y"));
    let (first, second) = (answers(&one), answers(&two));
    assert_eq!((one.groups.len(), one.groups[0].messages, one.has_history, first.len()), (1, 2, false, 2));
    assert_eq!((one.groups[0].hash, &first), (two.groups[0].hash, &second));
    assert_ne!(one.environment, two.environment);
    assert_ne!(first[0], first[1]);
}

#[test]
fn a_body_that_was_not_kept_whole_is_not_read() {
    let mut cut = turn(r#"{"messages":[]}"#, "{}", "application/json");
    cut.set_request_capture(Capture::Truncated);
    assert!(!read(&cut).readable);
}

#[test]
fn a_body_of_ever_so_many_messages_is_not_read() {
    let of = |count: usize| {
        let body = format!(r#"{{"messages":[{}]}}"#, vec!["1"; count].join(","));
        read(&turn(body, "{}", "application/json")).readable
    };
    assert!(of(MOST_MESSAGES) && !of(MOST_MESSAGES + 1));
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i32>().prop_map(Into::into),
        prop::sample::select(vec![
            "user",
            "assistant",
            "system",
            "text",
            "<system-reminder>",
            "{\"a\":1}",
            "\u{0}é"
        ])
        .prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let names = prop::sample::select(vec![
            "role",
            "content",
            "type",
            "text",
            "tool_calls",
            "function",
            "name",
            "arguments",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::btree_map(names.prop_map(str::to_owned), inner, 0..6)
                .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(request in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(!read(&turn(request, "", "")).readable);
    }

    #[test]
    fn arbitrary_messages_never_panic(messages in prop::collection::vec(json(), 0..5)) {
        let body = serde_json::json!({"messages": messages}).to_string();
        let reading = read(&turn(body, "", ""));
        prop_assert!(reading.readable && reading.groups.len() <= messages.len());
    }
}

#[test]
fn the_answer_outlives_its_stream() {
    let stream = "data: {\"id\":\"r1\",\"model\":\"served\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"hey\"},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":4}}\n\ndata: [DONE]\n\n";
    let mut exchange = turn(r#"{"messages":[{"role":"user","content":"a"}]}"#, stream, "text/event-stream");
    let key = Key::of_tenant("default");
    let base = Base { node: key.root(), groups: 0 };
    let before = read(&exchange);
    exchange.answer = keep_answer(&before.answer);
    exchange.facts = Some(before.facts(&key, base));
    exchange.response_body = Bytes::new();
    let after = read(&exchange);
    assert_eq!(after.facts(&key, base), before.facts(&key, base));
    assert_eq!(after.answer.fold.choices, before.answer.fold.choices);
}
