//! What is found, what is not, and what a mask never does.

mod table;

use proptest::prelude::*;

use super::*;
use table::{NO_SECRETS, NOT_PERSONAL, PERSONAL, SECRETS};

const KEY: [u8; 32] = [7; 32];

fn masks() -> &'static Masks {
    static MASKS: std::sync::LazyLock<Masks> = std::sync::LazyLock::new(Masks::standard);
    &MASKS
}

/// A filled template, and where its secrets are.
struct Sample {
    text: String,
    secrets: Vec<Range<usize>>,
}

fn alphabet(kind: u8) -> &'static [u8] {
    match kind {
        b'd' => b"0123456789",
        b'h' => b"0123456789abcdef",
        b'x' => b"abcdefghijklmnopqrstuvwxyz0123456789",
        b'u' => b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
        b'a' => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
        b'b' => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-",
        b's' => b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
        _ => panic!("no such kind: {}", char::from(kind)),
    }
}

/// Characters of one kind, the same for the same seed. It ends in a letter, as `{end}` wants.
fn made_up(kind: u8, length: usize, seed: &str) -> String {
    let letters = alphabet(kind);
    let mut draw = blake3::Hasher::new().update(seed.as_bytes()).finalize_xof();
    let mut bytes = vec![0; length];
    draw.fill(&mut bytes);
    let mut text: Vec<u8> = bytes.iter().map(|byte| letters[usize::from(*byte) % letters.len()]).collect();
    if let Some(last) = text.last_mut().filter(|last| !last.is_ascii_alphanumeric()) {
        *last = letters[0];
    }
    String::from_utf8(text).unwrap()
}

fn fill(template: &str) -> Sample {
    let mut sample = Sample { text: String::new(), secrets: Vec::new() };
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let inner = &rest[open + 1..];
        let close = inner.find('}').unwrap_or(0);
        let (made, secret) = match inner[..close].split_at_checked(1) {
            Some(("=", text)) => (text.to_owned(), true),
            Some((kind @ ("a" | "b" | "d" | "h" | "s" | "u" | "x"), size)) if size.parse::<u16>().is_ok() => {
                let seed = format!("{template}{}", sample.text.len());
                (made_up(kind.as_bytes()[0], size.parse().unwrap(), &seed), true)
            }
            Some(("~", kind)) => (
                made_up(kind.as_bytes()[0], kind[1..].parse().unwrap(), &format!("{template}{}", rest.len())),
                false,
            ),
            _ => {
                sample.text.push_str(&rest[..=open]);
                rest = inner;
                continue;
            }
        };
        sample.text.push_str(&rest[..open]);
        let start = sample.text.len();
        sample.text.push_str(&made);
        if secret {
            sample.secrets.push(start..sample.text.len());
        }
        rest = &inner[close + 1..];
    }
    sample.text.push_str(rest);
    sample
}

/// The text as it is kept.
fn masked(text: &str, class: Class) -> String {
    let masked = masks().mask(&KEY, text.as_bytes(), class);
    masked.map_or_else(|| text.to_owned(), |masked| String::from_utf8(masked.bytes).unwrap())
}

fn faults(rule: &str, template: &str, class: Class) -> Vec<String> {
    let sample = fill(template);
    let Some(found) = masks().mask(&KEY, sample.text.as_bytes(), class) else {
        return vec![format!("{template}: nothing was found in {:?}", sample.text)];
    };
    let mut faults = Vec::new();
    let names: Vec<_> = found.found.iter().map(|(rule, _)| masks().name(*rule)).collect();
    if !names.contains(&rule) {
        faults.push(format!("{template}: found by {names:?}, not by {rule}"));
    }
    for (at, (before, after)) in sample.text.bytes().zip(&found.bytes).enumerate() {
        let secret = sample.secrets.iter().any(|range| range.contains(&at)) && before.is_ascii_alphanumeric();
        if secret == (before == *after) {
            let text = String::from_utf8_lossy(&found.bytes);
            faults.push(format!("{template}: byte {at} of {:?} became {text:?}", sample.text));
            break;
        }
    }
    faults
}

fn assert_none(faults: Vec<String>) {
    assert!(faults.is_empty(), "{} fault(s):\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn every_secret_is_masked_and_nothing_beside_it() {
    assert_none(SECRETS.iter().flat_map(|(rule, template)| faults(rule, template, Class::Secret)).collect());
}

#[test]
fn persons_are_masked_where_that_is_asked_for() {
    assert_none(
        PERSONAL.iter().flat_map(|(rule, template)| faults(rule, template, Class::Personal)).collect(),
    );
    for (_, template) in PERSONAL {
        let text = fill(template).text;
        assert_eq!(masked(&text, Class::Secret), text);
    }
}

#[test]
fn what_only_looks_like_a_secret_stays() {
    let cases = NO_SECRETS.iter().map(|text| (text, Class::Secret));
    for (template, class) in cases.chain(NOT_PERSONAL.iter().map(|text| (text, Class::Personal))) {
        let text = fill(template).text;
        let found = masks().mask(&KEY, text.as_bytes(), class);
        let names: Vec<_> = found
            .iter()
            .flat_map(|found| &found.found)
            .map(|(rule, range)| (masks().name(*rule), &text[range.clone()]))
            .collect();
        assert!(found.is_none(), "{text:?}: {names:?}");
    }
}

#[test]
fn every_rule_has_its_case() {
    let told: std::collections::BTreeSet<_> = SECRETS.iter().chain(PERSONAL).map(|(rule, _)| *rule).collect();
    let without: Vec<_> =
        (0..masks().len()).map(|rule| masks().name(rule)).filter(|name| !told.contains(name)).collect();
    assert!(without.is_empty(), "{without:?}");
    assert!(SECRETS.len() + PERSONAL.len() >= 120 && NO_SECRETS.len() + NOT_PERSONAL.len() >= 80);
}

/// A mask found through one or two layers of JSON is the mask of the text itself.
#[test]
fn escaping_changes_no_mask() {
    for (rule, template) in SECRETS {
        let text = fill(template).text;
        let expected = masked(&text, Class::Secret);
        let once = serde_json::json!({"role": "tool", "content": text}).to_string();
        let twice = serde_json::json!({"arguments": once}).to_string();
        let slashed = once.replace('/', r"\/");
        for body in [&once, &slashed] {
            let value: serde_json::Value = serde_json::from_str(&masked(body, Class::Secret)).unwrap();
            assert_eq!(value["content"], expected, "{rule}: {body}");
        }
        let value: serde_json::Value = serde_json::from_str(&masked(&twice, Class::Secret)).unwrap();
        let inner: serde_json::Value = serde_json::from_str(value["arguments"].as_str().unwrap()).unwrap();
        assert_eq!(inner["content"], expected, "{rule}: {twice}");
    }
}

/// A text as an answer of one API, in deltas of `step` characters, with another choice beside it.
fn streamed(api: &str, text: &str, step: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    let mut body = String::new();
    for (number, piece) in letters.chunks(step).enumerate() {
        let piece: String = piece.iter().collect();
        let event = match api {
            "chat" => {
                serde_json::json!({"id": "c", "choices": [{"index": 0, "delta": {"content": piece}}, {"index": 1, "delta": {"content": "other words "}}]})
            }
            "reasoning" => {
                serde_json::json!({"choices": [{"index": 0, "delta": {"reasoning_content": piece}}]})
            }
            "tools" => {
                serde_json::json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 1, "function": {"arguments": piece}}]}}]})
            }
            "messages" => {
                serde_json::json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": piece}})
            }
            _ => {
                serde_json::json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": piece})
            }
        };
        let end = ["\n\n", "\r\n\r\n", "\r\r"][number % 3];
        body.push_str(&format!("data: {event}{end}"));
    }
    body + "data: [DONE]\n\n"
}

/// What the deltas of a stream say together.
fn assembled(body: &str) -> String {
    let mut text = String::new();
    for line in body.split(['\n', '\r']) {
        let Some(event) =
            line.strip_prefix("data: ").and_then(|json| serde_json::from_str::<serde_json::Value>(json).ok())
        else {
            continue;
        };
        for pointer in [
            "/choices/0/delta/content",
            "/choices/0/delta/reasoning_content",
            "/choices/0/delta/tool_calls/0/function/arguments",
            "/delta/partial_json",
            "/delta",
        ] {
            text.push_str(event.pointer(pointer).and_then(|value| value.as_str()).unwrap_or_default());
        }
    }
    text
}

#[test]
fn a_secret_in_pieces_is_masked_in_place() {
    for (rule, template) in SECRETS {
        let text = format!("Here: {} and so on.", fill(template).text);
        let expected = masked(&text, Class::Secret);
        for (api, step) in
            [("chat", 1), ("chat", 7), ("reasoning", 3), ("tools", 5), ("messages", 4), ("responses", 2)]
        {
            let body = streamed(api, &text, step);
            let found = masks().mask_stream(&KEY, body.as_bytes(), Class::Secret).expect("found");
            let after = String::from_utf8(found.bytes).unwrap();
            assert_eq!(after.len(), body.len());
            assert_eq!(assembled(&after), expected, "{rule} by {api} in steps of {step}");
            assert!(
                found.complete
                    && after.matches("other words ").count() == body.matches("other words ").count()
            );
            assert!(
                found.found.iter().all(|(_, range)| !body[range.clone()].contains('"')),
                "a piece lies in one string"
            );
        }
    }
}

#[test]
fn a_secret_is_masked_in_events_that_say_everything_from_the_beginning() {
    let secret = fill("my key is ghp_{a36} and more").text;
    let said = |end: usize| format!("data: {}\n\n", serde_json::json!({"text": secret[..end], "index": 0}));
    let body: String = (1..secret.len()).step_by(7).chain([secret.len()]).map(said).collect();
    let after =
        String::from_utf8(masks().mask_stream(&KEY, body.as_bytes(), Class::Secret).expect("found").bytes)
            .unwrap();
    let expected = masked(&secret, Class::Secret);
    let wanted: String = (1..secret.len())
        .step_by(7)
        .chain([secret.len()])
        .map(|end| format!("data: {}\n\n", serde_json::json!({"text": expected[..end], "index": 0})))
        .collect();
    assert_eq!(after, wanted);
}

/// Two strings may be a beginning and the whole, or two pieces that happen to begin alike.
#[test]
fn a_secret_in_two_pieces_that_begin_alike_is_masked() {
    for template in ["aa{h30}-us21", "{=AAAAAAAA}AAAAAAAAAAAAAA{=Zq7}{a77}"] {
        let text = fill(template).text;
        let first = text.bytes().take_while(|byte| *byte == text.as_bytes()[0]).count() / 2;
        let event = |word: &str| {
            format!("data: {}\n\n", serde_json::json!({"choices": [{"delta": {"content": word}}]}))
        };
        let body = event(&text[..first]) + &event(&text[first..]);
        let found = masks().mask_stream(&KEY, body.as_bytes(), Class::Secret).expect("found");
        let after = assembled(&String::from_utf8(found.bytes).unwrap());
        assert_eq!(after, masked(&text, Class::Secret), "{text}");
    }
}

/// Events that differ in one word only are not looked at one by one.
#[test]
fn a_secret_beside_the_words_or_whole_in_one_of_them_is_masked() {
    let secret = fill("ghp_{a36}").text;
    let event = |note: &str, word: &str| {
        let event = serde_json::json!({"note": note, "choices": [{"index": 0, "delta": {"content": word}}]});
        format!("data: {event}\n\n")
    };
    let beside = ["one", " two", " three"].map(|word| event(&secret, word)).concat();
    let inside = ["so", "foo", secret.as_str(), " three"].map(|word| event("", word)).concat();
    for body in [beside, inside] {
        let after = masks().mask_stream(&KEY, body.as_bytes(), Class::Secret).expect("found");
        let after = String::from_utf8(after.bytes).unwrap();
        assert!(!after.contains(&secret[4..]) && after.contains(" three"), "{after}");
        assert_eq!(after.len(), body.len());
    }
}

#[test]
fn a_stream_without_secrets_is_not_copied() {
    for template in NO_SECRETS {
        let body = streamed("chat", &fill(template).text, 3);
        assert_eq!(masks().mask_stream(&KEY, body.as_bytes(), Class::Secret), None, "{template}");
    }
}

#[test]
fn an_address_behind_an_escape_leaves_it_whole() {
    for body in [
        r#"{"a":"x\njoe@example.org"}"#,
        r#"{"a":"x\u0026joe@example.org"}"#,
        r#"{"a":"{\"b\":\"\\njoe@example.org\"}"}"#,
    ] {
        let after = masked(body, Class::Personal);
        let value: serde_json::Value = serde_json::from_str(&after).unwrap();
        assert!(!after.contains("joe@"), "{after}");
        let start = body.find("joe").unwrap();
        assert_eq!(after[..start], body[..start], "{value}");
    }
}

#[test]
fn a_cap_is_told() {
    let many = "AKIAABCDEFGHIJKLMNOP ".repeat(70_000);
    let masked = masks().mask(&KEY, many.as_bytes(), Class::Secret).unwrap();
    assert!(!masked.complete && masked.found.len() <= 65_536);
}

#[test]
fn bad_rules_are_refused() {
    for text in
        ["", "[[rule]]\nname = \"a\"\npattern = \"(\"", "[[rule]]\nname = \"a\"\npattern = \"a\"\nword = []"]
    {
        assert!(Masks::parse(text).is_err(), "{text}");
    }
}

/// Pieces that rules look for, in any order, with bytes that are no text.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    let samples: Vec<Vec<u8>> =
        SECRETS.iter().chain(PERSONAL).map(|(_, template)| fill(template).text.into_bytes()).collect();
    let piece = prop_oneof![
        3 => prop::sample::select(samples),
        2 => prop::collection::vec(any::<u8>(), 0..12),
        1 => prop::sample::select(vec![b"\\".to_vec(), b"\\u00".to_vec(), b"\"".to_vec(), b"data: {\"text\":\"".to_vec(), b"\"}\n\n".to_vec()]),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn length_kinds_and_validity_stay(body in bodies()) {
        let kind = |byte: &u8| match byte {
            b'0'..=b'9' => b'0',
            b'a'..=b'z' => b'a',
            b'A'..=b'Z' => b'A',
            other => *other,
        };
        let kinds = |bytes: &[u8]| bytes.iter().map(kind).collect::<Vec<_>>();
        for masked in [masks().mask(&KEY, &body, Class::Personal), masks().mask_stream(&KEY, &body, Class::Personal)].into_iter().flatten() {
            prop_assert_eq!(kinds(&masked.bytes), kinds(&body));
            prop_assert_eq!(std::str::from_utf8(&masked.bytes).is_ok(), std::str::from_utf8(&body).is_ok());
            prop_assert!(masked.found.windows(2).all(|pair| pair[0].1.end <= pair[1].1.start));
        }
    }

    #[test]
    fn json_stays_json(texts in prop::collection::vec(".{0,20}", 3), rule in 0..SECRETS.len()) {
        let text = format!("{}{} {}", texts[0], fill(SECRETS[rule].1).text, texts[1]);
        let body = serde_json::json!({texts[2].as_str(): text}).to_string();
        let after = masked(&body, Class::Personal);
        prop_assert!(serde_json::from_str::<serde_json::Value>(&after).is_ok(), "{}", after);
    }
}
