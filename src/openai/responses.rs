//! Answers of `/v1/responses`: one object, or a stream of events whose last one holds it whole.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::fold::{Choice, Fold, ToolCall};
use super::usage::Usage;

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
    #[serde(default)]
    delta: Option<String>,
    #[serde(borrow, default)]
    item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(default)]
    message: Option<String>,
}

#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(borrow, default)]
    output: Option<Vec<&'a RawValue>>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Item {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    content: Option<Vec<Part>>,
    #[serde(default)]
    summary: Option<Vec<Part>>,
    #[serde(default)]
    call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
}

/// Takes the data of one event.
pub fn event(fold: &mut Fold, data: &[u8]) {
    let Ok(event) = serde_json::from_slice::<Event<'_>>(data) else {
        fold.malformed += 1;
        return;
    };
    let text = event.delta.as_deref().unwrap_or_default();
    match event.kind.as_str() {
        "response.output_text.delta" => choice(fold).content.push_str(text),
        "response.refusal.delta" => choice(fold).refusal.push_str(text),
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            choice(fold).reasoning_content.push_str(text);
        }
        "response.output_item.done" => {
            // Its texts have come as deltas; a call is taken here, whole.
            if let Some(Ok(item)) = event.item.map(|item| serde_json::from_str::<Item>(item.get())) {
                call(fold, &item);
            }
        }
        "response.completed" | "response.incomplete" | "response.failed" => {
            fold.done = true;
            if let Some(response) = event.response {
                fold.malformed += u64::from(!whole(fold, response.get().as_bytes()));
            }
        }
        "response.created" => {
            if let Some(Ok(made)) = event.response.map(|made| serde_json::from_str::<Whole<'_>>(made.get())) {
                fold.id = made.id.or(fold.id.take());
                fold.model = made.model.or(fold.model.take());
            }
        }
        "error" => {
            let error = event.error.map(|error| error.get().to_owned()).or(event.message);
            fold.error.get_or_insert(error.unwrap_or_default());
        }
        _ => {}
    }
}

/// Takes a whole answer, which counts for more than what came of it in pieces. Returns whether it was one.
pub fn whole(fold: &mut Fold, body: &[u8]) -> bool {
    let Ok(whole) = serde_json::from_slice::<Whole<'_>>(body) else { return false };
    let known = whole.output.is_some() || whole.error.is_some();
    if let Some(error) = whole.error.filter(|error| error.get() != "null") {
        fold.error.get_or_insert_with(|| error.get().to_owned());
    }
    fold.id = whole.id.or(fold.id.take());
    fold.model = whole.model.or(fold.model.take());
    fold.usage = whole.usage.or(fold.usage);
    let items = whole.output.unwrap_or_default();
    if !items.is_empty() {
        fold.choices.clear();
    }
    for item in items {
        let Ok(item) = serde_json::from_str::<Item>(item.get()) else { continue };
        let all = |parts: &Option<Vec<Part>>| -> String {
            parts.iter().flatten().filter_map(|part| part.text.as_deref()).collect()
        };
        match item.kind.as_str() {
            "message" => {
                let refusal: String =
                    item.content.iter().flatten().filter_map(|part| part.refusal.as_deref()).collect();
                choice(fold).content.push_str(&all(&item.content));
                choice(fold).refusal.push_str(&refusal);
            }
            "reasoning" => {
                let text = if item.content.is_some() { all(&item.content) } else { all(&item.summary) };
                choice(fold).reasoning_content.push_str(&text);
            }
            _ => call(fold, &item),
        }
    }
    if let (Some(status), Some(choice)) = (whole.status, fold.choices.first_mut()) {
        choice.finish_reason = Some(status);
    }
    known
}

fn choice(fold: &mut Fold) -> &mut Choice {
    if fold.choices.is_empty() {
        fold.choices.push(Choice { role: "assistant".into(), ..Choice::default() });
    }
    &mut fold.choices[0]
}

fn call(fold: &mut Fold, item: &Item) {
    if item.kind != "function_call" {
        return;
    }
    let calls = &mut choice(fold).tool_calls;
    if calls.len() >= Fold::MAX_PARTS {
        fold.malformed += 1;
        return;
    }
    let of = |text: &Option<String>| text.clone().unwrap_or_default();
    calls.push(ToolCall { id: of(&item.call_id), name: of(&item.name), arguments: of(&item.arguments) });
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"{"id":"resp_1","model":"m","status":"completed","error":null,"output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"Hello"}]},{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"}],"usage":{"input_tokens":7,"output_tokens":3,"input_tokens_details":{"cached_tokens":4},"output_tokens_details":{"reasoning_tokens":1}}}"#;

    #[test]
    fn the_last_event_counts_and_a_cut_stream_has_what_came() {
        let events = [
            r#"{"type":"response.created","response":{"id":"resp_1","model":"m","output":[]}}"#.to_owned(),
            r#"{"type":"response.reasoning_summary_text.delta","delta":"hm"}"#.to_owned(),
            r#"{"type":"response.output_text.delta","delta":"Hel"}"#.to_owned(),
            r#"{"type":"response.output_text.delta","delta":"lo"}"#.to_owned(),
            r#"{"type":"response.output_item.done","item":{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":1}"}}"#.to_owned(),
            format!(r#"{{"type":"response.completed","response":{WHOLE}}}"#),
        ];
        let mut plain = Fold::default();
        assert!(whole(&mut plain, WHOLE.as_bytes()));
        let mut fold = Fold::default();
        events[..5].iter().for_each(|data| event(&mut fold, data.as_bytes()));
        let cut = (fold.choices[0].content.clone(), fold.choices[0].tool_calls.clone(), fold.done);
        assert_eq!(cut, ("Hello".to_owned(), plain.choices[0].tool_calls.clone(), false));
        event(&mut fold, events[5].as_bytes());
        assert_eq!((&fold.choices, fold.usage, fold.done), (&plain.choices, plain.usage, true));
        let usage = fold.usage.expect("is told");
        assert_eq!(
            (usage.prompt_tokens, usage.cached_tokens, usage.reasoning_tokens),
            (Some(7), Some(4), Some(1))
        );
        assert_eq!(fold.id.as_deref(), Some("resp_1"));
    }

    #[test]
    fn failures_are_told() {
        let mut fold = Fold::default();
        event(&mut fold, br#"{"type":"error","message":"gone"}"#);
        assert_eq!(fold.error.as_deref(), Some("gone"));
        assert!(!whole(&mut Fold::default(), b"{}"));
    }
}
