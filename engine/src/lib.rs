//! Serin's embedded inference engine: a sparse-attention core and the models that run on it.
//!
//! Floors, from the top: this file; `session` (queue, slots, streaming); `forward` (the one forward pass); `cpu` and
//! `sampler` (operations); `kv` and `backend` (caches and the vocabulary of operations); `weights`, `tokenizer`,
//! `template`, `random` and `error`. A file uses its own floor or lower ones.

pub mod backend;
pub mod cpu;
mod error;
pub mod forward;
pub mod kv;
pub mod random;
pub mod sampler;
mod session;
pub mod template;
pub mod tokenizer;
pub mod weights;

pub use backend::TopK;
pub use error::Error;
pub use session::{
    Chat, Engine, EngineConfig, Event, FinishReason, Generate, Model, Prompt, REFERENCE, Sink,
};
