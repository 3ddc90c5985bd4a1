//! Serin: a transparent recording proxy with live fidelity canaries.

pub mod canary;
pub mod clock;
pub mod fidelity;
pub mod stats;
