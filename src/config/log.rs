//! `[log]`: what is logged, how, and whether each exchange gets a line of its own.

use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;

/// The section.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    level: Level,
    pub format: LogFormat,
    /// Whether each exchange of a client leaves a line of JSON on standard output.
    pub access: bool,
    /// Lines that may wait to be written.
    pub queue: usize,
}

/// How the lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    Json,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Log {
    pub fn level(&self) -> LevelFilter {
        match self.level {
            Level::Off => LevelFilter::OFF,
            Level::Error => LevelFilter::ERROR,
            Level::Warn => LevelFilter::WARN,
            Level::Info => LevelFilter::INFO,
            Level::Debug => LevelFilter::DEBUG,
            Level::Trace => LevelFilter::TRACE,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { level: Level::Info, format: LogFormat::Text, access: false, queue: 8_192 }
    }
}
