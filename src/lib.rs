//! Serin: a transparent recording proxy with live fidelity canaries.

pub mod clock;
pub mod conversation;
pub mod ids;
pub mod journal;
pub mod openai;
pub mod recorder;
