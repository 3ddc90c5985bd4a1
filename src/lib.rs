//! Serin: a transparent recording proxy with live fidelity canaries. `docs/ARCHITECTURE.md` is the map.

pub mod admin;
pub mod alike;
pub mod app;
pub mod body;
pub mod canary;
pub mod cli;
pub mod clock;
pub mod config;
pub mod conversation;
pub mod fidelity;
pub mod ids;
pub mod import;
pub mod journal;
pub mod log;
pub mod metrics;
pub mod openai;
pub mod proxy;
pub mod recent;
pub mod recorder;
pub mod redact;
pub mod server;
pub mod stats;
pub mod tls;
pub mod trace;
pub mod units;
pub mod upstream;
