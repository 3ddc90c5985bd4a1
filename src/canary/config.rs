//! The `[canary]` section of the configuration.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::Span;

/// The longest API key that is read from a file, in bytes.
const MAX_API_KEY: u64 = 8 * 1024;
/// The most lengths or temperatures to rotate through.
const MAX_ROTATION: usize = 32;

/// How to probe. Every key has a default.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Whether to probe at all.
    pub enabled: bool,
    /// Time between ordinary probes.
    pub interval: Span,
    /// The model to probe; empty for the built-in reference model or else the first one served.
    pub model: String,
    /// A file that holds the API key to send; empty for none. Read anew for each probe.
    pub api_key_file: PathBuf,
    /// PEM files of the certificate to show where the listener asks clients for one; both or neither.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// Prompt lengths to rotate through, in tokens.
    pub lengths: Vec<u32>,
    /// The answer's limit in tokens, reasoning included; doubled once when an answer is cut off.
    pub max_tokens: u32,
    /// Sampling temperatures to rotate through.
    pub temperature: Vec<f64>,
}

/// What is wrong with a `[canary]` section.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("[canary] interval is {0}: use 100ms or more")]
    Interval(Span),
    #[error("[canary] lengths holds {0} entries: use 1 to 32")]
    LengthCount(usize),
    #[error("[canary] lengths holds {0}: use 64 to 1048576 tokens")]
    Length(u32),
    #[error("[canary] temperature holds {0} entries: use 1 to 32")]
    TemperatureCount(usize),
    #[error("[canary] temperature holds {0}: use 0 to 2")]
    Temperature(f64),
    #[error("[canary] max_tokens is {0}: use 16 to 8192")]
    MaxTokens(u32),
    #[error("[canary] cert_file and key_file belong together; set both or neither")]
    Certificate,
    #[error("[canary] model is longer than 256 bytes")]
    Model,
    #[error("cannot read [canary] api_key_file {path}: {source}")]
    ApiKeyUnreadable { path: PathBuf, source: std::io::Error },
    #[error("[canary] api_key_file {0} does not hold one line of visible characters, 8 KiB at most")]
    ApiKeyUnusable(PathBuf),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            interval: Span(Duration::from_secs(60)),
            model: String::new(),
            api_key_file: PathBuf::new(),
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            lengths: vec![1024],
            max_tokens: 1500,
            temperature: vec![0.6, 0.0],
        }
    }
}

impl Config {
    /// Checks what the types do not say. Whether the key file can be read is [`Config::api_key`]'s to find out.
    ///
    /// # Errors
    /// The first thing that is wrong, in the order of the keys.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.interval.0 < Duration::from_millis(100) {
            return Err(ConfigError::Interval(self.interval));
        }
        if self.model.len() > 256 {
            return Err(ConfigError::Model);
        }
        if self.cert_file.as_os_str().is_empty() != self.key_file.as_os_str().is_empty() {
            return Err(ConfigError::Certificate);
        }
        if !(1..=MAX_ROTATION).contains(&self.lengths.len()) {
            return Err(ConfigError::LengthCount(self.lengths.len()));
        }
        if let Some(wrong) = self.lengths.iter().find(|length| !(64..=1 << 20).contains(*length)) {
            return Err(ConfigError::Length(*wrong));
        }
        if !(16..=8192).contains(&self.max_tokens) {
            return Err(ConfigError::MaxTokens(self.max_tokens));
        }
        if !(1..=MAX_ROTATION).contains(&self.temperature.len()) {
            return Err(ConfigError::TemperatureCount(self.temperature.len()));
        }
        match self.temperature.iter().find(|temperature| !(0.0..=2.0).contains(*temperature)) {
            Some(wrong) => Err(ConfigError::Temperature(*wrong)),
            None => Ok(()),
        }
    }

    /// The certificate to show and its key, if there is one.
    pub fn identity(&self) -> Option<(PathBuf, PathBuf)> {
        let named = !self.cert_file.as_os_str().is_empty();
        named.then(|| (self.cert_file.clone(), self.key_file.clone()))
    }

    /// The API key to send, read from its file; `None` when no file is named.
    ///
    /// # Errors
    /// When the file cannot be read or holds no usable key.
    pub fn api_key(&self) -> Result<Option<String>, ConfigError> {
        let path = &self.api_key_file;
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        let unreadable = |source| ConfigError::ApiKeyUnreadable { path: path.clone(), source };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut text = String::new();
        file.take(MAX_API_KEY + 1).read_to_string(&mut text).map_err(unreadable)?;
        let key = text.trim();
        let usable =
            !key.is_empty() && text.len() as u64 <= MAX_API_KEY && key.bytes().all(|b| b.is_ascii_graphic());
        if usable { Ok(Some(key.to_owned())) } else { Err(ConfigError::ApiKeyUnusable(path.clone())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_section_is_the_default() {
        let config: Config = toml::from_str("").expect("an empty table");
        assert_eq!(config, Config::default());
        config.check().expect("defaults are lawful");
    }

    #[test]
    fn every_key_is_read() {
        let text = "enabled = false\ninterval = \"5m\"\nmodel = \"m\"\napi_key_file = \"k\"\ncert_file = \"c\"\nkey_file = \"d\"\nlengths = [2048]\nmax_tokens = 99\ntemperature = [1.0]";
        let config: Config = toml::from_str(text).expect("all keys");
        let expected = Config {
            enabled: false,
            interval: Span(Duration::from_secs(300)),
            model: "m".into(),
            api_key_file: "k".into(),
            cert_file: "c".into(),
            key_file: "d".into(),
            lengths: vec![2048],
            max_tokens: 99,
            temperature: vec![1.0],
        };
        assert_eq!(config, expected);
    }

    #[test]
    fn mistakes_are_named() {
        for text in
            ["intervall = \"60s\"", "interval = \"60\"", "interval = \"99999999999h\"", "interval = 60"]
        {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
        }
        let cases = [
            ("interval = \"10ms\"", "[canary] interval"),
            ("lengths = []", "[canary] lengths"),
            ("lengths = [63]", "[canary] lengths"),
            ("temperature = [2.5]", "[canary] temperature"),
            ("temperature = []", "[canary] temperature"),
            ("cert_file = \"c\"", "set both or neither"),
            ("max_tokens = 1", "[canary] max_tokens"),
        ];
        for (text, named) in cases {
            let config: Config = toml::from_str(text).expect("parses");
            let error = config.check().expect_err(text).to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    #[test]
    fn api_key_is_one_visible_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let config = Config { api_key_file: path.clone(), ..Config::default() };
        std::fs::write(&path, "sk-abc\n").expect("written");
        assert_eq!(config.api_key().expect("usable"), Some("sk-abc".to_owned()));
        for wrong in ["", "two words", "two\nlines", &"x".repeat(9_000)] {
            std::fs::write(&path, wrong).expect("written");
            assert!(config.api_key().is_err(), "{wrong}");
        }
    }
}
