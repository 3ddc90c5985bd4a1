//! The OpenAI-compatible wire formats, read on a copy and never on the path.
//!
//! Everything here is a view of bytes that somebody else owns: nothing is re-serialised for forwarding, unknown
//! fields are ignored, and bytes that do not parse are an answer (`None`, a count) and not an error of the proxy.

pub mod answer;
mod anthropic;
mod api;
pub mod coding;
pub mod delta;
mod events;
pub mod field;
pub mod fold;
mod generate;
pub mod outline;
pub mod request;
mod responses;
pub mod sse;
mod text;
pub mod usage;
pub mod words;

pub use answer::Answer;
pub use api::Api;
pub use fold::{Choice, Fold, ToolCall};
pub use request::{Ask, Message};
pub use usage::Usage;
pub use words::Words;
