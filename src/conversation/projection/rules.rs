//! The rules of stitching, which are data.

use std::sync::LazyLock;

use serde::Deserialize;

/// See `rules.toml`, which says what each is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    pub version: u32,
    pub harness_tags: Vec<String>,
    pub text_parts: Vec<String>,
    pub dropped_parts: Vec<String>,
    pub anchor: usize,
    pub start: usize,
    pub line: usize,
    pub argument: usize,
    pub retry: u64,
    pub failure: u64,
    pub compaction: u64,
    pub collapse: u32,
    pub text_block: usize,
    pub ids_block: usize,
    pub session_headers: Vec<String>,
    pub thread_headers: Vec<String>,
    pub parent_thread_headers: Vec<String>,
    pub parent_session_headers: Vec<String>,
}

/// The rules of this build.
pub static RULES: LazyLock<Rules> =
    LazyLock::new(|| toml::from_str(include_str!("rules.toml")).expect("a test reads the rules"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_can_be_read() {
        assert!(RULES.version >= 2 && RULES.start >= RULES.anchor && RULES.text_block > 0);
    }
}
