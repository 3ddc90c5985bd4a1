//! Token accounting as servers report it.

use serde::{Deserialize, Serialize};

/// The `usage` object. Fields that a server leaves out stay `None`: absent is not zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub reasoning_tokens: Option<u64>,
}

/// Chat calls them prompt and completion, the other interfaces input and output.
#[derive(Deserialize)]
struct Wire {
    #[serde(alias = "input_tokens")]
    prompt_tokens: Option<u64>,
    #[serde(alias = "output_tokens")]
    completion_tokens: Option<u64>,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<PromptDetails>,
    #[serde(alias = "output_tokens_details")]
    completion_tokens_details: Option<CompletionDetails>,
    reasoning_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl<'de> Deserialize<'de> for Usage {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let nested = wire.completion_tokens_details.and_then(|details| details.reasoning_tokens);
        Ok(Usage {
            prompt_tokens: wire.prompt_tokens,
            completion_tokens: wire.completion_tokens,
            cached_tokens: wire.prompt_tokens_details.and_then(|details| details.cached_tokens),
            // SGLang reports reasoning tokens at the top level.
            reasoning_tokens: nested.or(wire.reasoning_tokens),
        })
    }
}
