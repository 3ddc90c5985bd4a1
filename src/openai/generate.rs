//! Answers of SGLang's `/generate`: each chunk holds all of the text so far.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::fold::{Choice, Fold};
use super::usage::Usage;

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    index: usize,
    #[serde(default)]
    meta_info: Option<Meta>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta {
    id: Option<String>,
    finish_reason: Option<Finish>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Finish {
    #[serde(rename = "type")]
    kind: String,
}

/// Takes one chunk, or a whole answer. Returns whether it was one.
pub fn chunk(fold: &mut Fold, data: &[u8]) -> bool {
    if let Ok(many) = serde_json::from_slice::<Vec<&RawValue>>(data) {
        return !many.is_empty()
            && many.iter().enumerate().all(|(index, one)| {
                serde_json::from_str(one.get()).is_ok_and(|chunk| take(fold, Chunk { index, ..chunk }))
            });
    }
    serde_json::from_slice(data).is_ok_and(|chunk| take(fold, chunk))
}

fn take(fold: &mut Fold, chunk: Chunk<'_>) -> bool {
    let known = chunk.text.is_some() || chunk.meta_info.is_some() || chunk.error.is_some();
    if let Some(error) = chunk.error.filter(|error| error.get() != "null") {
        fold.error.get_or_insert_with(|| error.get().to_owned());
    }
    if chunk.index >= Fold::MAX_PARTS {
        return false;
    }
    if fold.choices.len() <= chunk.index && chunk.text.is_some() {
        fold.choices.resize_with(chunk.index + 1, Choice::default);
    }
    if let (Some(text), Some(choice)) = (chunk.text, fold.choices.get_mut(chunk.index)) {
        // A server may also be told to send only what is new.
        if text.starts_with(&choice.content) { choice.content = text } else { choice.content.push_str(&text) }
    }
    let Some(meta) = chunk.meta_info else { return known };
    fold.id = meta.id.or(fold.id.take());
    fold.usage = Some(Usage {
        prompt_tokens: meta.prompt_tokens,
        completion_tokens: meta.completion_tokens,
        cached_tokens: meta.cached_tokens,
        reasoning_tokens: None,
    });
    if let (Some(finish), Some(choice)) = (meta.finish_reason, fold.choices.get_mut(chunk.index)) {
        choice.finish_reason = Some(finish.kind);
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_grows_or_is_added_to() {
        for texts in [["He", "Hello"], ["He", "llo"]] {
            let mut fold = Fold::default();
            let body = |text: &str, finish: &str| {
                format!(
                    r#"{{"text":"{text}","meta_info":{{"id":"g","finish_reason":{finish},"prompt_tokens":4,"completion_tokens":2,"cached_tokens":1}}}}"#
                )
            };
            assert!(chunk(&mut fold, body(texts[0], "null").as_bytes()));
            assert!(chunk(&mut fold, body(texts[1], r#"{"type":"stop"}"#).as_bytes()));
            let choice = &fold.choices[0];
            assert_eq!((choice.content.as_str(), choice.finish_reason.as_deref()), ("Hello", Some("stop")));
            assert_eq!(fold.usage.and_then(|usage| usage.prompt_tokens), Some(4));
        }
    }

    #[test]
    fn several_answers_and_none() {
        let mut fold = Fold::default();
        assert!(chunk(&mut fold, br#"[{"text":"a"},{"text":"b"}]"#) && fold.choices.len() == 2);
        assert!(
            !chunk(&mut fold, b"{}")
                && !chunk(&mut fold, b"[]")
                && !chunk(&mut fold, br#"{"text":"x","index":4000}"#)
        );
    }
}
