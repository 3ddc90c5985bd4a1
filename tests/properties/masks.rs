//! What a mask does to a body, and what it never does.

use std::cell::RefCell;
use std::sync::LazyLock;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use serin::journal::{Exchange, Header};
use serin::openai::coding;
use serin::openai::outline::Outline;
use serin::recorder::secrets::Secrets;
use serin::redact::body::{Class, Masked, Masks};

use super::pieces;

const KEY: [u8; 32] = [7; 32];
/// Bytes in front: the class, the coding, the interface of a stream, the kind of a planted secret.
const HEAD: usize = 4;
/// Codings that bodies come in; the last is not known.
const CODINGS: [&str; 5] = ["", "gzip", "deflate", "zstd", "br"];
/// What no secret looks like without the rest: how it begins, and how many letters and digits follow.
const SHAPES: [(&str, usize); 6] =
    [("ghp_", 36), ("hf_", 34), ("npm_", 36), ("nfp_", 38), ("sk-ant-api03-", 95), ("glpat-", 20)];

static MASKS: LazyLock<Masks> = LazyLock::new(Masks::standard);

/// A mask changes letters and digits of what was found and nothing else; a secret of a known shape is found in any body, and in a
/// stream however it was cut; an exchange's bodies are masked in their coding, whatever was looked through before.
pub fn masks(input: &[u8]) {
    let Some((head, rest)) = input.split_at_checked(HEAD) else { return };
    let class = if head[0] % 2 == 0 { Class::Secret } else { Class::Personal };
    let (cuts, text) = pieces::cut(rest);
    let bodies = pieces::parts(text);
    for body in &bodies {
        mild(body, MASKS.mask(&KEY, body, class).as_ref());
        mild(body, MASKS.mask_stream(&KEY, body, class).as_ref());
    }
    let secret = planted(head[3]);
    // Nobody can know it for a secret where it stands alone, as a fuzzer that has learned it may write it.
    if text.windows(secret.1.len()).all(|window| window != secret.1.as_bytes()) {
        plant(text, &secret, usize::from(head[0] / 2));
        streamed(head[2], text, &cuts, &secret);
    }
    kept(&bodies, CODINGS[usize::from(head[1]) % CODINGS.len()]);
}

/// A made-up secret: the fixed part and what must not stay.
fn planted(seed: u8) -> (&'static str, String) {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let (begins, length) = SHAPES[usize::from(seed) % SHAPES.len()];
    let mut drawn = vec![0; length];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut drawn);
    (begins, drawn.iter().map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()])).collect())
}

/// What a mask keeps of a byte.
fn kind(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => b'0',
        b'a'..=b'z' => b'a',
        b'A'..=b'Z' => b'A',
        other => other,
    }
}

fn is_json(bytes: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
}

/// The length, the kinds of characters, all that was not found, and JSON stay.
fn mild(before: &[u8], masked: Option<&Masked>) {
    let Some(Masked { bytes: after, found, .. }) = masked else { return };
    assert!(before.iter().map(|byte| kind(*byte)).eq(after.iter().map(|byte| kind(*byte))));
    assert!(found.windows(2).all(|pair| pair[0].1.end <= pair[1].1.start), "{found:?}");
    let mut at = 0;
    for range in
        found.iter().map(|(_, range)| range.clone()).chain(std::iter::once(before.len()..before.len()))
    {
        assert!(before[at..range.start] == after[at..range.start], "bytes beside {range:?} changed");
        at = range.end;
    }
    assert!(!is_json(before) || is_json(after), "{:?} is JSON no more", String::from_utf8_lossy(after));
}

/// A secret in a text, and in a text within JSON, does not stay.
fn plant(text: &[u8], (begins, secret): &(&str, String), at: usize) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let at = (0..=text.len().min(at * 32)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let text = format!("{} {begins}{secret} {}", &text[..at], &text[at..]);
    let once = json!({"messages": [{"role": "user", "content": text}]}).to_string();
    for body in [&text, &once, &json!({ "arguments": once }).to_string()] {
        let masked = MASKS.mask(&KEY, body.as_bytes(), Class::Secret);
        let masked = masked.unwrap_or_else(|| panic!("nothing is found in {body:?}"));
        mild(body.as_bytes(), Some(&masked));
        let after = String::from_utf8(masked.bytes).expect("text stays text");
        assert!(!masked.complete || !after.contains(secret.as_str()), "{after}");
    }
}

/// What is found in a text is masked in the stream that says it, wherever that is cut.
fn streamed(api: u8, text: &[u8], cuts: &[&[u8]], (begins, secret): &(&str, String)) {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let middle = (0..=text.len() / 2).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let text = format!("{} {begins}{secret} {}", &text[..middle], &text[middle..]);
    let words = words(&text, cuts);
    let body: String = words.iter().map(|word| format!("data: {}\n\n", event(api, word))).collect();
    let masked = MASKS.mask_stream(&KEY, body.as_bytes(), Class::Secret).expect("a secret is in there");
    mild(body.as_bytes(), Some(&masked));
    if !masked.complete {
        return;
    }
    let said: String =
        String::from_utf8(masked.bytes).expect("text stays text").lines().filter_map(word_of).collect();
    let escaped = escaped(&text);
    let expected = MASKS.mask(&KEY, escaped.as_bytes(), Class::Secret).expect("a secret is in there");
    let said = self::escaped(&said);
    assert_eq!(said.len(), escaped.len());
    let stays = |at: usize| said.as_bytes()[at] == escaped.as_bytes()[at];
    for at in expected.found.iter().flat_map(|(_, range)| range.clone()) {
        assert!(
            expected.bytes[at] == escaped.as_bytes()[at] || !stays(at),
            "byte {at} of {escaped:?} stays in {said:?}"
        );
    }
    assert!(!said.contains(secret.as_str()), "{said}");
}

/// A text in as many words as there are pieces of something else, and as long as these; the last is what is left.
fn words<'a>(text: &'a str, lengths: &[&[u8]]) -> Vec<&'a str> {
    let (mut words, mut left) = (Vec::new(), text);
    for piece in lengths.iter().take(lengths.len().saturating_sub(1)) {
        let end = (piece.len()..=left.len()).find(|at| left.is_char_boundary(*at)).unwrap_or(left.len());
        let (word, after) = left.split_at(end);
        words.push(word);
        left = after;
    }
    words.push(left);
    words
}

fn event(api: u8, word: &str) -> Value {
    match api % 5 {
        0 => {
            json!({"id": "c", "choices": [{"index": 0, "delta": {"content": word}}, {"index": 1, "delta": {"content": "so "}}]})
        }
        1 => json!({"choices": [{"index": 0, "delta": {"reasoning_content": word}}]}),
        2 => {
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 1, "function": {"arguments": word}}]}}]})
        }
        3 => {
            json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": word}})
        }
        _ => {
            json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0, "delta": word})
        }
    }
}

fn word_of(line: &str) -> Option<String> {
    const PLACES: [&str; 5] = [
        "/choices/0/delta/content",
        "/choices/0/delta/reasoning_content",
        "/choices/0/delta/tool_calls/0/function/arguments",
        "/delta/partial_json",
        "/delta",
    ];
    let event: Value = serde_json::from_str(line.strip_prefix("data: ")?).expect("JSON stays JSON");
    PLACES.iter().find_map(|place| event.pointer(place)?.as_str().map(str::to_owned))
}

/// A text as it stands between the quotes of JSON.
fn escaped(text: &str) -> String {
    let quoted = json!(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// The bodies of exchanges are masked in their coding, and part by part as they are as a whole.
fn kept(bodies: &[&[u8]], coded: &str) {
    thread_local!(static SECRETS: RefCell<Secrets> = RefCell::new(Secrets::new(8)));
    for body in bodies {
        let Some(sent) = coding::encode(Some(coded.as_bytes()), body.to_vec()) else {
            let mut one = exchange(coded, body.to_vec());
            let looked = SECRETS.with_borrow_mut(|secrets| secrets.mask(&KEY, &mut one));
            assert!(looked.is_err() || body.is_empty(), "nobody knows what is in there");
            continue;
        };
        let mut one = exchange(coded, sent);
        let before = one.clone();
        // The second time what holds no secret is known.
        let mut again = one.clone();
        let looked =
            SECRETS.with_borrow_mut(|secrets| (secrets.mask(&KEY, &mut one), secrets.mask(&KEY, &mut again)));
        let (Ok(outline), Ok(_)) = looked else {
            assert!(looked.0.is_err() && looked.1.is_err() && one == before, "half of it is masked");
            continue;
        };
        assert_eq!(one, again, "what was looked through before changes the mask");
        assert_eq!(outline, Outline::of(&one.request_body));
        for (kept, was, hash) in [
            (&one.request_body, &before.request_body, &one.request_kept_hash),
            (&one.response_body, &before.response_body, &one.response_kept_hash),
        ] {
            assert!(hash.is_empty() && kept == was || hash.as_ref() == blake3::hash(kept).as_bytes());
        }
        let plain = coding::decode(Some(coded.as_bytes()), &one.request_body).expect("its own coding");
        parts_are_whole(body, &plain);
    }
}

/// JSON that is looked through in parts is masked as it is in one.
fn parts_are_whole(body: &[u8], plain: &[u8]) {
    let masked = MASKS.mask(&KEY, body, Class::Secret);
    if is_json(body) {
        assert_eq!(masked.as_ref().map_or(body, |masked| &masked.bytes[..]), plain);
    }
}

fn exchange(coded: &str, sent: Vec<u8>) -> Exchange {
    let header = |name: &str, value: &str| Header { name: name.into(), value: value.to_owned().into() };
    let coding = Some(header("content-encoding", coded)).filter(|_| !coded.is_empty());
    let body = Bytes::from(sent);
    Exchange {
        request_headers: coding.iter().cloned().collect(),
        response_headers: [header("content-type", "text/event-stream")].into_iter().chain(coding).collect(),
        request_body: body.clone(),
        response_body: body,
        ..Exchange::default()
    }
}
