//! Answers in all the forms servers send, and bytes that are none.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn reply(is_event_stream: bool, body: impl Into<Bytes>) -> Reply {
    Reply {
        status: 200,
        upstream: None,
        turn: None,
        retry_after: None,
        is_event_stream,
        body: body.into(),
        broken: None,
    }
}

fn answered(parsed: &Parsed) -> &Answer {
    let Delivery::Answered(answer) = &parsed.delivery else { panic!("{parsed:?}") };
    answer
}

#[test]
fn whole_answers() {
    let body = r#"{"choices":[{"message":{"content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],
        "reasoning":"r","refusal":null},"finish_reason":"stop"},{"index":1,"message":{"content":"no"}}],
        "usage":{"prompt_tokens":7}}"#;
    let parsed = parse(&reply(false, body));
    assert_eq!((answered(&parsed).content.as_str(), answered(&parsed).reasoning.as_str()), ("ab", "r"));
    assert_eq!((parsed.prompt_tokens, parsed.cached_tokens), (7, 0));
}

#[test]
fn what_is_no_answer_is_malformed() {
    for body in
        ["", "not json", "[]", "{}", "{\"choices\":[]}", "{\"error\":{\"message\":\"x\"}}", "{\"choices\":7}"]
    {
        assert_eq!(parse(&reply(false, body)).delivery, Delivery::Malformed, "{body}");
    }
    for body in ["data: nope\n\n", "data: {\"error\":{}}\n\n", "data: [DONE]\n\n"] {
        assert_eq!(parse(&reply(true, body)).delivery, Delivery::Malformed, "{body}");
    }
    assert!(matches!(parse(&reply(true, "")).delivery, Delivery::Interrupted(_)));
}

#[test]
fn events_in_every_line_ending() {
    let text = ": hello\nevent: x\ndata: {\"choices\":[{\"delta\":\ndata: {\"content\":\"a\"}}]}\n\n\n\
                data:{\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    for body in [text.to_owned(), text.replace('\n', "\r\n"), format!("\u{feff}{text}")] {
        assert_eq!(answered(&parse(&reply(true, body))).content, "ab");
    }
}

#[test]
fn a_finished_stream_needs_no_done_mark() {
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"stop\"}]}";
    assert_eq!(answered(&parse(&reply(true, body))).content, "a");
}

#[test]
fn tool_calls_come_in_pieces() {
    let body = r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"w","arguments":"{\"a\""}}]}}]}

data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}},{"index":99999999,"id":"far"}]},"finish_reason":"tool_calls"}]}

data: [DONE]

"#;
    let parsed = parse(&reply(true, body));
    assert_eq!(
        parsed.tool_calls,
        [ToolCall { id: "c".into(), name: "w".into(), arguments: "{\"a\":1}".into() }]
    );
    assert!(answered(&parsed).has_tool_calls);
    assert_eq!(answered(&parsed).tool_arguments, "{\"a\":1}");
}

#[test]
fn broken_bodies_say_how() {
    let broken =
        |failure, is_event_stream| Reply { broken: Some(failure), ..reply(is_event_stream, "data: {\"cho") };
    for is_event_stream in [true, false] {
        let cut = parse(&broken(Failure::Transport, is_event_stream)).delivery;
        assert!(matches!(cut, Delivery::Interrupted(_)), "{cut:?}");
        let large = parse(&broken(Failure::Oversized, is_event_stream)).delivery;
        assert_eq!(large, Delivery::Failed(Failure::Oversized));
    }
    assert_eq!(
        parse(&broken(Failure::TimeoutInAnswer, false)).delivery,
        Delivery::Failed(Failure::TimeoutInAnswer)
    );
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(body: Vec<u8>, is_event_stream: bool) {
        parse(&reply(is_event_stream, body.clone()));
        model_ids(&body);
    }

    #[test]
    fn any_json_is_read_without_panic(value in json_value(), is_event_stream: bool) {
        let body = if is_event_stream { format!("data: {value}\n\n") } else { value.to_string() };
        parse(&reply(is_event_stream, body));
    }

    #[test]
    fn a_text_survives_any_cut_into_events(pieces in proptest::collection::vec("[^\u{0}]{0,12}", 1..8)) {
        let mut body = String::new();
        for piece in &pieces {
            body.push_str(&format!("data: {}\n\n", serde_json::json!({"choices": [{"delta": {"content": piece}}]})));
        }
        body.push_str("data: [DONE]\n\n");
        let parsed = parse(&reply(true, body));
        prop_assert_eq!(&answered(&parsed).content, &pieces.concat());
    }
}

/// JSON that has the names of answers in unlawful places.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let names =
        ["choices", "message", "delta", "content", "tool_calls", "index", "function", "usage", "arguments"];
    leaf.prop_recursive(6, 64, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((proptest::sample::select(names.to_vec()), inner), 0..5).prop_map(
                |pairs| Value::Object(
                    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
                )
            ),
        ]
    })
}
