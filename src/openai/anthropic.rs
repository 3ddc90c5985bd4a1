//! Answers of `/v1/messages`: one object, or a stream of events that build it block by block.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::fold::{Choice, Fold, ToolCall};
use super::usage::Usage;

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(default)]
    index: usize,
    #[serde(default)]
    content_block: Option<Block>,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    usage: Option<Counts>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    content: Option<Vec<Block>>,
    #[serde(default)]
    stop_reason: Option<String>,
    #[serde(default)]
    usage: Option<Counts>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    input: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    thinking: Option<String>,
    #[serde(default)]
    partial_json: Option<String>,
    #[serde(default)]
    stop_reason: Option<String>,
}

#[derive(Deserialize)]
struct Counts {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

/// Takes the data of one event.
pub fn event(fold: &mut Fold, data: &[u8]) {
    let Ok(event) = serde_json::from_slice::<Event<'_>>(data) else {
        fold.malformed += 1;
        return;
    };
    if let Some(error) = event.error.filter(|error| error.get() != "null") {
        fold.error.get_or_insert_with(|| error.get().to_owned());
    }
    count(fold, event.usage);
    match event.kind.as_str() {
        "message_start" => {
            if let Some(Ok(whole)) =
                event.message.map(|message| serde_json::from_str::<Whole<'_>>(message.get()))
            {
                head(fold, whole);
            }
        }
        "content_block_start" => {
            if let Some(block) = event.content_block {
                begin(fold, event.index, block, false);
            }
        }
        "content_block_delta" => {
            if let Some(delta) = event.delta {
                go_on(fold, event.index, delta);
            }
        }
        "message_delta" => {
            let reason = event.delta.and_then(|delta| delta.stop_reason);
            let choice = choice(fold);
            choice.finish_reason = reason.or(choice.finish_reason.take());
        }
        "message_stop" => fold.done = true,
        _ => {}
    }
}

/// Takes a whole answer. Returns whether it was one.
pub fn whole(fold: &mut Fold, body: &[u8]) -> bool {
    let Ok(mut whole) = serde_json::from_slice::<Whole<'_>>(body) else { return false };
    let known = whole.content.is_some() || whole.error.is_some();
    if let Some(error) = whole.error {
        fold.error.get_or_insert_with(|| error.get().to_owned());
    }
    let blocks = whole.content.take().unwrap_or_default();
    let reason = whole.stop_reason.take();
    head(fold, whole);
    for (index, block) in blocks.into_iter().enumerate() {
        begin(fold, index, block, true);
    }
    if known && fold.error.is_none() {
        choice(fold).finish_reason = reason;
    }
    known
}

fn head(fold: &mut Fold, whole: Whole<'_>) {
    fold.id = whole.id.or(fold.id.take());
    fold.model = whole.model.or(fold.model.take());
    count(fold, whole.usage);
}

fn choice(fold: &mut Fold) -> &mut Choice {
    if fold.choices.is_empty() {
        fold.choices.push(Choice { role: "assistant".into(), ..Choice::default() });
    }
    &mut fold.choices[0]
}

/// Begins a block. Of a stream, a tool's input comes later, and what stands at its beginning is only a place for it.
fn begin(fold: &mut Fold, index: usize, block: Block, whole: bool) {
    let full = fold.choices.first().is_some_and(|choice| choice.tool_calls.len() >= Fold::MAX_PARTS);
    let choice = choice(fold);
    choice.content.push_str(block.text.as_deref().unwrap_or_default());
    choice.reasoning_content.push_str(block.thinking.as_deref().unwrap_or_default());
    if !matches!(block.kind.as_str(), "tool_use" | "server_tool_use") {
        return;
    }
    if full {
        fold.malformed += 1;
        return;
    }
    let arguments = block.input.filter(|_| whole).map_or_else(String::new, |input| input.get().to_owned());
    let (id, name) = (block.id.unwrap_or_default(), block.name.unwrap_or_default());
    choice.tool_calls.push(ToolCall { id, name, arguments });
    fold.open_block = Some(index);
}

fn go_on(fold: &mut Fold, index: usize, delta: Delta) {
    let open = fold.open_block == Some(index);
    let choice = choice(fold);
    choice.content.push_str(delta.text.as_deref().unwrap_or_default());
    choice.reasoning_content.push_str(delta.thinking.as_deref().unwrap_or_default());
    if let (Some(part), Some(call), true) = (delta.partial_json, choice.tool_calls.last_mut(), open) {
        call.arguments.push_str(&part);
    }
}

/// Input tokens are told without those that were read from a cache; other interfaces count all.
fn count(fold: &mut Fold, counts: Option<Counts>) {
    let Some(counts) = counts else { return };
    let before = fold.usage.unwrap_or_default();
    let cached = counts.cache_read_input_tokens.or(before.cached_tokens);
    let extra = counts.cache_read_input_tokens.unwrap_or(0) + counts.cache_creation_input_tokens.unwrap_or(0);
    fold.usage = Some(Usage {
        prompt_tokens: counts.input_tokens.map(|input| input.saturating_add(extra)).or(before.prompt_tokens),
        completion_tokens: counts.output_tokens.or(before.completion_tokens),
        cached_tokens: cached,
        reasoning_tokens: before.reasoning_tokens,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_builds_what_the_whole_answer_says() {
        let mut streamed = Fold::default();
        for data in [
            r#"{"type":"message_start","message":{"id":"msg_1","model":"m","content":[],"usage":{"input_tokens":5,"cache_read_input_tokens":20,"output_tokens":1}}}"#,
            r#"{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"x"}}"#,
            r#"{"type":"content_block_stop","index":0}"#,
            r#"{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"Hé"}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"llo"}}"#,
            r#"{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\""}}"#,
            r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":":1}"}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}"#,
            r#"{"type":"message_stop"}"#,
        ] {
            event(&mut streamed, data.as_bytes());
        }
        let mut plain = Fold::default();
        let body = r#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"hm","signature":"x"},{"type":"text","text":"Héllo"},{"type":"tool_use","id":"t1","name":"f","input":{"a":1}}],"stop_reason":"tool_use","usage":{"input_tokens":5,"cache_read_input_tokens":20,"output_tokens":9}}"#;
        assert!(whole(&mut plain, body.as_bytes()));
        assert_eq!(
            (&streamed.choices, streamed.usage, &streamed.id),
            (&plain.choices, plain.usage, &plain.id)
        );
        assert_eq!((streamed.usage.and_then(|usage| usage.prompt_tokens), streamed.done), (Some(25), true));
        assert_eq!(streamed.malformed, 0);
    }

    #[test]
    fn errors_and_other_bodies_are_told() {
        let mut fold = Fold::default();
        event(&mut fold, br#"{"type":"error","error":{"type":"overloaded_error"}}"#);
        assert!(fold.error.is_some() && !fold.done);
        let mut fold = Fold::default();
        assert!(whole(&mut fold, br#"{"type":"error","error":{"type":"x"}}"#) && fold.error.is_some());
        assert!(!whole(&mut Fold::default(), b"{}") && !whole(&mut Fold::default(), b"[]"));
    }
}
