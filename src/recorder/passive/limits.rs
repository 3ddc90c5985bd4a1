//! How many tokens each model's context has, as the configuration says, as servers list it or as they name it when they
//! refuse a prompt; and prompts that cannot fit and were answered all the same.

use std::collections::HashMap;

use serde::Deserialize;

use super::finding::OK;
use super::{Check, Finding, Turn};

/// What may be a context's length in tokens.
const SANE: std::ops::Range<u64> = 128..1 << 30;
/// Characters between the words that name a limit and its number.
const NEAR: usize = 24;
/// Of a refusal, how much is looked at.
const LOOKED_AT: usize = 4096;

/// By which servers name the limit of a prompt; the number follows.
const NAMED: [&str; 9] = [
    "context length is",
    "context length of",
    "context length (",
    "context length:",
    "context window of",
    "context window is",
    "context size (",
    "max_model_len",
    "\"n_ctx\"",
];

/// The lengths that are known.
pub struct Limits {
    configured: HashMap<String, u64>,
    learned: HashMap<String, u64>,
    /// Models that are learned about.
    most: usize,
}

#[derive(Deserialize)]
struct Listed {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(alias = "context_length", alias = "context_window")]
    max_model_len: Option<u64>,
}

impl Limits {
    /// Learns of `most` models besides those that are configured.
    pub fn new(configured: HashMap<String, u64>, most: usize) -> Limits {
        Limits { configured, learned: HashMap::new(), most }
    }

    fn of(&self, model: &str) -> Option<u64> {
        self.configured.get(model).or_else(|| self.learned.get(model)).copied()
    }

    fn learn(&mut self, model: &str, tokens: u64) {
        if SANE.contains(&tokens) && (self.learned.len() < self.most || self.learned.contains_key(model)) {
            self.learned.insert(model.to_owned(), tokens);
        }
    }

    /// Takes a list of models, as `GET /v1/models` brings it.
    pub fn listed(&mut self, body: &[u8]) {
        let Ok(listed) = serde_json::from_slice::<Listed>(body) else { return };
        for model in listed.data {
            model.max_model_len.into_iter().for_each(|tokens| self.learn(&model.id, tokens));
        }
    }

    /// A prompt that was refused for its length.
    pub fn refused(&mut self, turn: &Turn, body: &[u8]) -> Option<Finding> {
        let text = String::from_utf8_lossy(&body[..body.len().min(LOOKED_AT)]).to_lowercase();
        let tokens = named(&text)?;
        self.learn(&turn.reading.model, tokens);
        Some(Check::OverLength.came_to("refused"))
    }

    /// A prompt that was answered and should come to so many tokens at least.
    pub fn answered(&mut self, model: &str, least: u64, reported: Option<u64>) -> Option<Finding> {
        let limit = self.of(model)?;
        if let Some(reported) = reported.filter(|reported| *reported > limit) {
            // It has read more than it was said to be able to.
            self.learn(model, reported);
            return Some(Check::OverLength.came_to(OK));
        }
        Some(Check::OverLength.came_to(if least > limit { "truncated" } else { OK }))
    }
}

/// The limit that a refusal names.
fn named(text: &str) -> Option<u64> {
    let after = NAMED.iter().find_map(|words| number(text.split_once(words)?.1));
    after.or_else(|| {
        // "prompt is too long: 210000 tokens > 200000 maximum"
        let (_, rest) = text.split_once("tokens >")?;
        number(rest).filter(|_| rest.contains("maximum"))
    })
}

fn number(text: &str) -> Option<u64> {
    let start = text.char_indices().take(NEAR).find(|(_, c)| c.is_ascii_digit())?.0;
    let digits: String =
        text[start..].chars().take_while(|c| c.is_ascii_digit() || matches!(c, ',' | '_')).collect();
    digits.replace([',', '_'], "").parse().ok().filter(|tokens| SANE.contains(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn servers_name_their_limit_in_many_ways() {
        for (text, expected) in [
            ("this model's maximum context length is 8192 tokens. however, you requested 9000", Some(8192)),
            ("the input (9000 tokens) is longer than the model's context length (8,192 tokens).", Some(8192)),
            ("requested token count exceeds the model's maximum context length of 4096 tokens", Some(4096)),
            ("prompt is too long: 208310 tokens > 200000 maximum", Some(200_000)),
            ("{\"error\":{\"n_prompt_tokens\":9000,\"n_ctx\":4096}}", Some(4096)),
            ("exceeds the available context size (2048 tokens)", Some(2048)),
            ("max_tokens must be at most 4096", None),
            ("the context length is unknown to us, and has been for a long while: 12", None),
            ("rate limit reached: 30000 tokens > 20000 in a minute", None),
            ("", None),
        ] {
            assert_eq!(named(text), expected, "{text}");
        }
    }

    #[test]
    fn what_cannot_fit_and_was_answered_is_told() {
        let mut limits = Limits::new(HashMap::from([("a".to_owned(), 8192)]), 9);
        let outcome = |found: Option<Finding>| found.map(|found| found.outcome);
        assert_eq!(outcome(limits.answered("a", 8192, Some(8000))), Some(OK));
        assert_eq!(outcome(limits.answered("a", 8193, Some(4096))), Some("truncated"));
        assert_eq!(outcome(limits.answered("a", 8193, None)), Some("truncated"));
        assert_eq!(outcome(limits.answered("b", 8193, None)), None, "nothing is known of it");
    }

    #[test]
    fn lists_teach_and_what_was_read_all_the_same_corrects() {
        let mut limits = Limits::new(HashMap::new(), 2);
        limits.listed(
            br#"{"data":[{"id":"b","max_model_len":4096},{"id":"c"},{"id":"d","context_length":1}]}"#,
        );
        assert_eq!((limits.of("b"), limits.of("c"), limits.of("d")), (Some(4096), None, None));
        assert_eq!(limits.answered("b", 5000, Some(5000)).map(|found| found.outcome), Some(OK));
        assert_eq!(limits.of("b"), Some(5000));
        limits.listed(b"{");
        // Of two there is room for another one, and no more; those that are known are corrected still.
        limits.listed(br#"{"data":[{"id":"e","max_model_len":512},{"id":"f","max_model_len":512},{"id":"b","max_model_len":600}]}"#);
        assert_eq!((limits.of("e"), limits.of("f"), limits.of("b")), (Some(512), None, Some(600)));
    }

    proptest! {
        #[test]
        fn any_refusal_is_survived(text in ".{0,80}(context length is|tokens >).{0,40}") {
            let _ = named(&text);
        }
    }
}
