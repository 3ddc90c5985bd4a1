//! The OpenAI-compatible wire formats, read on a copy and never on the path.
//!
//! Everything here is a view of bytes that somebody else owns: nothing is re-serialised for forwarding, unknown
//! fields are ignored, and bytes that do not parse are an answer (`None`, a count) and not an error of the proxy.

pub mod answer;
pub mod chat;
pub mod delta;
pub mod field;
pub mod fold;
pub mod sse;
pub mod usage;

pub use answer::Answer;
pub use chat::{ChatRequest, Message};
pub use fold::{Choice, Fold, ToolCall};
pub use usage::Usage;

/// The path of chat completions.
pub const CHAT_PATH: &str = "/v1/chat/completions";
/// The path of plain completions.
pub const COMPLETIONS_PATH: &str = "/v1/completions";
