//! Canaries: synthetic conversations sent through the own front door to see whether the model
//! behind it still knows what it was told.
//!
//! The [`patrol`] asks the [`schedule`] when and the [`plan`] which probe is next, builds it
//! ([`probe`]), lets the [`driver`] send it as an ordinary client would, has the answer judged, and
//! hands the verdict to the [`scoreboard`], which keeps the evidence, the [`alarm`]s and the
//! [`metrics`]. This module reaches the proxy over a socket only.

pub mod alarm;
mod config;
pub mod driver;
mod length;
pub mod metrics;
mod patrol;
pub mod plan;
pub mod probe;
pub mod schedule;
pub mod scoreboard;
#[cfg(test)]
mod scripted;

pub use config::{Config, ConfigError};
pub use length::Bucket;
pub use metrics::Metrics;
pub use patrol::{Books, Patrol, Step, run};
