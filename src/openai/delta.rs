//! One chunk of a streamed completion, or one whole completion: both have the same shape here.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::text::borrowed;
use super::usage::Usage;

/// A chunk. Chat chunks carry `delta`, whole chat answers `message`, plain completions `text`.
#[derive(Debug, Deserialize)]
pub struct Chunk<'a> {
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub id: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub choices: Option<Vec<ChunkChoice<'a>>>,
    #[serde(default)]
    pub usage: Option<Usage>,
    #[serde(borrow, default)]
    pub error: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub struct ChunkChoice<'a> {
    #[serde(default)]
    pub index: Option<u32>,
    #[serde(borrow, default)]
    pub delta: Option<Delta<'a>>,
    #[serde(borrow, default)]
    pub message: Option<Delta<'a>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub text: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub finish_reason: Option<Cow<'a, str>>,
}

#[derive(Debug, Deserialize)]
pub struct Delta<'a> {
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub role: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub content: Option<Cow<'a, str>>,
    /// The name that DeepSeek, SGLang and older vLLM use.
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub reasoning_content: Option<Cow<'a, str>>,
    /// The name that newer vLLM and OpenRouter use.
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub reasoning: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub refusal: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub tool_calls: Option<Vec<ToolCallDelta<'a>>>,
}

#[derive(Debug, Deserialize)]
pub struct ToolCallDelta<'a> {
    #[serde(default)]
    pub index: Option<u32>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub function: Option<FunctionDelta<'a>>,
}

#[derive(Debug, Deserialize)]
pub struct FunctionDelta<'a> {
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub name: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "borrowed")]
    pub arguments: Option<Cow<'a, str>>,
}

impl<'a> Chunk<'a> {
    /// Reads a chunk or a whole answer. `None` where it is no JSON object of that shape.
    pub fn parse(bytes: &'a [u8]) -> Option<Chunk<'a>> {
        serde_json::from_slice(bytes).ok()
    }
}
