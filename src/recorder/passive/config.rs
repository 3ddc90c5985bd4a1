//! `[passive]`

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What is checked of clients' exchanges once they are recorded.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub enabled: bool,
    /// Turns that may wait to be checked; past it they go unchecked and are counted.
    pub queue: usize,
    /// The share of exchanges of which a checksum is taken where bodies come in and where they go out.
    pub digest_sample: f64,
    /// Turns, and lines with their token counts, that are remembered.
    pub turns: usize,
    pub lines: usize,
    /// Models that are learned about.
    pub models: usize,
    /// Codes of canaries that are looked for in clients' answers.
    pub codes: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub model: Vec<Model>,
}

/// `[[passive.model]]`: what is known of a model.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// As clients ask for it.
    pub name: String,
    /// Its `tokenizer.json`; empty where there is none at hand.
    #[serde(default)]
    pub tokenizer: PathBuf,
    /// Tokens of its context; 0 where that is to be learned.
    #[serde(default)]
    pub context: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            queue: 1024,
            digest_sample: 0.01,
            turns: 16_384,
            lines: 131_072,
            models: 1_024,
            codes: 8_192,
            model: Vec::new(),
        }
    }
}

impl Config {
    /// What no single key can know.
    ///
    /// # Errors
    /// One line that says what is wrong and how to mend it.
    pub fn check(&self) -> Result<(), String> {
        for (at, model) in self.model.iter().enumerate() {
            if model.name.is_empty() || self.model[..at].iter().any(|earlier| earlier.name == model.name) {
                return Err(format!(
                    "two [[passive.model]] are named {:?}, or one has no name; each model needs one of its own",
                    model.name
                ));
            }
        }
        match (0.0..=1.0).contains(&self.digest_sample) {
            true => Ok(()),
            false => Err(format!(
                "[passive] digest_sample = {} is no share; it goes from 0 to 1",
                self.digest_sample
            )),
        }
    }
}
