//! `[passive]`

use serde::{Deserialize, Serialize};

/// What is checked of clients' exchanges once they are recorded.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub enabled: bool,
    /// Turns that may wait to be checked; past it they go unchecked and are counted.
    pub queue: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { enabled: true, queue: 1024 }
    }
}
