//! Folds the chunks of a completion into the messages that the client ends up with.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::delta::{Chunk, ChunkChoice, Delta, ToolCallDelta};
use super::usage::Usage;
use crate::alike;

/// One assembled assistant message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Choice {
    pub role: String,
    pub content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reasoning_content: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub refusal: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    pub finish_reason: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// The arguments as the model wrote them, which need not be valid JSON.
    pub arguments: String,
}

/// What chunks have added up to so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fold {
    pub choices: Vec<Choice>,
    /// The server's id of the answer.
    pub id: Option<String>,
    pub model: Option<String>,
    pub usage: Option<Usage>,
    /// The `error` object of the stream, as JSON text.
    pub error: Option<String>,
    /// Whether the terminator `[DONE]` was seen.
    pub done: bool,
    /// Chunks that did not parse.
    pub malformed: u64,
    /// The block that is being built, where answers come in blocks.
    pub(super) open_block: Option<usize>,
    /// The chunk before, where the next may differ from it in one word only.
    last: Option<Template>,
}

/// A chunk that says nothing but a word.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Template {
    chunk: alike::Template,
    choice: usize,
    /// Whether the word is thought and not said.
    thought: bool,
}

impl Fold {
    /// The most choices, and tool calls in one choice, that are kept; further ones are counted as malformed.
    pub const MAX_PARTS: usize = 128;

    /// Takes the data of one chunk. Returns whether it was one.
    pub(super) fn chat(&mut self, data: &[u8]) -> bool {
        if self.is_one_more_word(data) {
            return true;
        }
        let Some(chunk) = Chunk::parse(data) else { return false };
        self.chunk(&chunk);
        self.last = Template::of(data, &chunk);
        true
    }

    /// Takes a chunk that differs from the one before in its word only, without reading it: a stream has hundreds of
    /// them. Reading it would do the same.
    fn is_one_more_word(&mut self, data: &[u8]) -> bool {
        let Some(last) = &self.last else { return false };
        let word = last.chunk.word(data).map(|word| std::str::from_utf8(&data[word]));
        let Some(Ok(word)) = word else { return false };
        let Some(choice) = self.choices.get_mut(last.choice) else { return false };
        let text = if last.thought { &mut choice.reasoning_content } else { &mut choice.content };
        text.push_str(word);
        true
    }

    /// Takes one chunk, or a whole answer.
    pub fn chunk(&mut self, chunk: &Chunk<'_>) {
        if let Some(error) = chunk.error.filter(|error| error.get() != "null") {
            self.error.get_or_insert_with(|| error.get().to_owned());
        }
        if let Some(id) = chunk.id.as_ref().filter(|_| self.id.is_none()) {
            self.id = Some(id.clone().into_owned());
        }
        if let Some(model) = chunk.model.as_ref().filter(|_| self.model.is_none()) {
            self.model = Some(model.clone().into_owned());
        }
        self.usage = chunk.usage.or(self.usage);
        for (place, part) in (0u32..).zip(chunk.choices.iter().flatten()) {
            self.choice(part.index.unwrap_or(place), part);
        }
    }

    fn choice(&mut self, index: u32, part: &ChunkChoice<'_>) {
        if index as usize >= Fold::MAX_PARTS {
            self.malformed += 1;
            return;
        }
        let index = index as usize;
        if self.choices.len() <= index {
            self.choices.resize_with(index + 1, Choice::default);
        }
        let choice = &mut self.choices[index];
        choice.content.push_str(part.text.as_deref().unwrap_or_default());
        for delta in part.delta.iter().chain(&part.message) {
            self.malformed += choice.add(delta);
        }
        if let Some(reason) = &part.finish_reason {
            choice.finish_reason = Some(reason.clone().into_owned());
        }
    }
}

impl Template {
    /// `None` for a chunk that says anything else, which saying again would add to.
    fn of(data: &[u8], chunk: &Chunk<'_>) -> Option<Template> {
        let [part] = chunk.choices.as_deref()? else { return None };
        let index = part.index.unwrap_or(0) as usize;
        let delta = part.delta.as_ref().filter(|_| part.message.is_none() && part.text.is_none())?;
        let silent = |text: &Option<Cow<'_, str>>| text.as_deref().is_none_or(str::is_empty);
        let thought = silent(&delta.content);
        let (said, others) = match thought {
            true => (&delta.reasoning_content, [&delta.reasoning, &delta.refusal]),
            false => (&delta.content, [&delta.reasoning, &delta.refusal]),
        };
        let only = others.into_iter().all(silent)
            && (thought || silent(&delta.reasoning_content))
            && delta.tool_calls.as_ref().is_none_or(Vec::is_empty);
        let Some(Cow::Borrowed(word)) = said else { return None };
        if !only || chunk.error.is_some_and(|error| error.get() != "null") {
            return None;
        }
        // A borrowed word lies in the data.
        let start = word.as_ptr().addr().checked_sub(data.as_ptr().addr())?;
        let chunk = alike::Template::new(data, start..start + word.len())?;
        Some(Template { chunk, choice: index, thought })
    }
}

impl Choice {
    /// Whether the model has said nothing at all.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty()
            && self.tool_calls.is_empty()
            && self.reasoning_content.is_empty()
            && self.refusal.is_empty()
    }

    /// Returns how many parts it could not take.
    fn add(&mut self, delta: &Delta<'_>) -> u64 {
        if let Some(role) = delta.role.as_ref().filter(|role| !role.is_empty()) {
            self.role = role.clone().into_owned();
        }
        self.content.push_str(delta.content.as_deref().unwrap_or_default());
        // Servers that send both names send the same text twice.
        let reasoning = delta.reasoning_content.as_deref().or(delta.reasoning.as_deref());
        self.reasoning_content.push_str(reasoning.unwrap_or_default());
        self.refusal.push_str(delta.refusal.as_deref().unwrap_or_default());
        let calls = (0u32..).zip(delta.tool_calls.iter().flatten());
        calls.map(|(place, call)| u64::from(!self.add_call(call.index.unwrap_or(place), call))).sum()
    }

    fn add_call(&mut self, index: u32, part: &ToolCallDelta<'_>) -> bool {
        if index as usize >= Fold::MAX_PARTS {
            return false;
        }
        let index = index as usize;
        if self.tool_calls.len() <= index {
            self.tool_calls.resize_with(index + 1, ToolCall::default);
        }
        let call = &mut self.tool_calls[index];
        if let Some(id) = part.id.as_ref().filter(|_| call.id.is_empty()) {
            call.id = id.clone().into_owned();
        }
        if let Some(function) = &part.function {
            // A name comes once; some servers repeat it on every chunk.
            if call.name.is_empty() {
                call.name.push_str(function.name.as_deref().unwrap_or_default());
            }
            call.arguments.push_str(function.arguments.as_deref().unwrap_or_default());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::Api;
    use super::*;
    use proptest::prelude::*;

    fn fold(chunks: &[&str]) -> Fold {
        let mut fold = Fold::default();
        chunks.iter().for_each(|chunk| fold.event(Api::Chat, b"", chunk.as_bytes()));
        fold
    }

    #[test]
    fn content_reasoning_tools_and_usage_add_up() {
        let fold = fold(&[
            r#"{"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning_content":"th"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"reasoning":"ink"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"Hé"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"llo","tool_calls":[{"index":1,"id":"b","function":{"name":"g","arguments":"{\"a\""}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"function":{"arguments":":1}"}}]}}]}"#,
            r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#,
            "[DONE]",
        ]);
        let choice = &fold.choices[0];
        assert_eq!((choice.content.as_str(), choice.reasoning_content.as_str()), ("Héllo", "think"));
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        assert_eq!(choice.tool_calls, [call("a", "f", "{}"), call("b", "g", r#"{"a":1}"#)]);
        assert_eq!(choice.finish_reason.as_deref(), Some("tool_calls"));
        let usage = Usage {
            prompt_tokens: Some(7),
            completion_tokens: Some(3),
            cached_tokens: Some(4),
            reasoning_tokens: None,
        };
        assert_eq!(
            (fold.usage, fold.done, fold.malformed, fold.model.as_deref()),
            (Some(usage), true, 0, Some("m"))
        );
    }

    #[test]
    fn errors_and_bad_chunks_are_noticed() {
        let mut seen = fold(&[
            r#"{"choices":[{"delta":{"content":"a"}}]}"#,
            "{",
            r#"{"error":{"message":"out of memory"}}"#,
        ]);
        assert_eq!(
            (seen.error.as_deref(), seen.malformed, seen.done),
            (Some(r#"{"message":"out of memory"}"#), 1, false)
        );
        seen = Fold::default();
        seen.event(Api::Chat, b"error", b"gone");
        assert_eq!(seen.error.as_deref(), Some("gone"));
        assert_eq!(fold(&[r#"{"error":null,"choices":[]}"#]).error, None);
    }

    #[test]
    fn hostile_indices_are_counted_and_reserve_nothing() {
        let seen = fold(&[
            r#"{"choices":[{"index":4000000000,"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":999999999}]}}]}"#,
        ]);
        assert_eq!((seen.choices.len(), seen.choices[0].tool_calls.len(), seen.malformed), (1, 0, 2));
    }

    #[test]
    fn what_says_one_more_word_is_not_read() {
        for chunk in [
            r#"{"choices":[{"index":0,"delta":{"content":"one","reasoning_content":null}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":null,"reasoning_content":"one"}}]}"#,
        ] {
            let mut fold = fold(&[chunk]);
            assert!(fold.is_one_more_word(chunk.replace("one", " more").as_bytes()), "{chunk}");
            let said =
                [fold.choices[0].content.as_str(), fold.choices[0].reasoning_content.as_str()].concat();
            assert_eq!(said, "one more");
        }
    }

    proptest! {
        #[test]
        fn a_stream_is_folded_as_if_every_chunk_were_read(
            words in proptest::collection::vec(("[a-zé \\\\\"]{0,4}", 0usize..6), 0..30),
        ) {
            let chunk = |(word, kind): &(String, usize)| {
                let word = serde_json::json!(word);
                match kind {
                    0 => format!(r#"{{"choices":[{{"index":0,"delta":{{"content":{word},"role":"assistant"}}}}]}}"#),
                    1 => format!(r#"{{"choices":[{{"index":1,"delta":{{"content":{word}}}}}]}}"#),
                    2 => format!(r#"{{"choices":[{{"index":0,"delta":{{"reasoning":{word},"content":{word}}}}}]}}"#),
                    3 => format!(r#"{{"choices":[{{"index":0,"delta":{{"content":null,"reasoning_content":{word}}}}}]}}"#),
                    _ => format!(r#"{{"id":"x","choices":[{{"index":0,"delta":{{"content":{word}}},"finish_reason":null}}]}}"#),
                }
            };
            let chunks: Vec<String> = words.iter().map(chunk).collect();
            let mut quick = Fold::default();
            let mut slow = Fold::default();
            for chunk in &chunks {
                quick.event(Api::Chat, b"", chunk.as_bytes());
                slow.chunk(&Chunk::parse(chunk.as_bytes()).expect("is one"));
            }
            quick.last = None;
            prop_assert_eq!(quick, slow);
        }
    }

    #[test]
    fn plain_completions_fold_as_content() {
        let seen =
            fold(&[r#"{"choices":[{"text":"a"}]}"#, r#"{"choices":[{"text":"b","finish_reason":"stop"}]}"#]);
        assert_eq!(seen.choices[0].content, "ab");
    }
}
