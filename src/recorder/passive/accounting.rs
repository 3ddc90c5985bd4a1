//! How many tokens a prompt should come to: by the model's own tokenizer where one is configured, else by what prompts of
//! the same model, language and size have come to before.
//!
//! Learned is the logarithm of tokens over what is expected to be in proportion to them. A value is suspicious beyond five
//! robust deviations from the median. What is suspicious is not learned: a fault that lasts does not become the rule.

use std::collections::{HashMap, VecDeque};

use super::finding::OK;
use super::{Check, Finding, Turn};
use crate::fidelity::degeneration;
use crate::openai::Words;

/// Values that a baseline holds, and those it must have before it says anything.
const WINDOW: usize = 128;
const LEAST: usize = 64;
/// Deviations that are suspicious.
const DEVIATIONS: f64 = 5.0;
/// The least that a robust deviation is taken for: between prompts of one kind, and against a tokenizer.
const FLOOR: f64 = 0.03;
const FLOOR_COUNTED: f64 = 0.01;
/// Turns the median of absolute deviations into what a standard deviation would be.
const NORMAL: f64 = 1.4826;
/// Shorter prompts are mostly template.
const SHORTEST: usize = 1024;
/// What a message costs beside its words, in bytes.
const PER_MESSAGE: usize = 16;
/// Values between two looks at the whole window.
const REFRESH: usize = 8;

/// What prompts are alike in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Class {
    model: String,
    /// The script most letters are of; one apart for prompts that a tokenizer has counted.
    language: u16,
    /// By factors of four.
    size: u32,
}

/// What prompts of one class have come to.
#[derive(Debug, Default)]
struct Baseline {
    values: VecDeque<f64>,
    median: f64,
    deviation: f64,
    fresh: usize,
}

/// What a prompt is measured by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// In proportion to its tokens.
    amount: f64,
    language: u16,
    counted: bool,
}

/// What was learned.
pub struct Accounting {
    baselines: HashMap<Class, Baseline>,
    /// Models, languages and sizes that are told apart.
    most: usize,
}

impl Baseline {
    fn is_ready(&self) -> bool {
        self.values.len() >= LEAST
    }

    fn learn(&mut self, value: f64, floor: f64) {
        self.values.push_back(value);
        if self.values.len() > WINDOW {
            self.values.pop_front();
        }
        self.fresh += 1;
        if self.fresh >= REFRESH {
            self.fresh = 0;
            self.median = median(self.values.iter().copied());
            let deviations = self.values.iter().map(|value| (value - self.median).abs());
            self.deviation = (NORMAL * median(deviations)).max(floor);
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    let middle = values.len() / 2;
    match values.is_empty() {
        true => 0.0,
        false => *values.select_nth_unstable_by(middle, f64::total_cmp).1,
    }
}

impl Measure {
    /// Of the words of a request; `counted`: their tokens, as the model's tokenizer has counted them. `None` where words do
    /// not tell: beside images, of token ids, or where the server adds what it has kept.
    pub fn of(turn: &Turn, words: &Words, counted: Option<usize>) -> Option<Measure> {
        if words.has_media || words.is_ids || turn.reading.previous.is_some() || words.text.len() < SHORTEST {
            return None;
        }
        let messages = turn.reading.messages as usize;
        Some(match counted {
            Some(tokens) => Measure { amount: (tokens + 4 * messages) as f64, language: 0, counted: true },
            None => Measure {
                amount: (words.text.len() + PER_MESSAGE * messages) as f64,
                language: degeneration::dominant(&words.text),
                counted: false,
            },
        })
    }

    fn class(&self, model: &str) -> Class {
        let size = (self.amount.max(1.0) as u64).ilog2() / 2;
        Class { model: model.to_owned(), language: self.language, size }
    }

    fn floor(&self) -> f64 {
        if self.counted { FLOOR_COUNTED } else { FLOOR }
    }
}

impl Accounting {
    /// Learns of `most` models, languages and sizes.
    pub fn new(most: usize) -> Accounting {
        Accounting { baselines: HashMap::new(), most }
    }

    /// Holds what the server has counted against what is known, and learns from it.
    pub fn check(&mut self, model: &str, measure: &Measure, tokens: u64) -> Option<Finding> {
        if tokens == 0 {
            return Some(Check::PromptTokens.came_to("short"));
        }
        let class = measure.class(model);
        if self.baselines.len() >= self.most && !self.baselines.contains_key(&class) {
            return None;
        }
        let baseline = self.baselines.entry(class).or_default();
        let value = (tokens as f64 / measure.amount).ln();
        let off = value - baseline.median;
        if baseline.is_ready() && off.abs() > DEVIATIONS * baseline.deviation {
            return Some(Check::PromptTokens.came_to(if off < 0.0 { "short" } else { "long" }));
        }
        let ready = baseline.is_ready();
        baseline.learn(value, measure.floor());
        ready.then(|| Check::PromptTokens.came_to(OK))
    }

    /// The fewest tokens that a prompt should come to, by prompts of its size or, where there are none, of the next
    /// smaller size that is known.
    pub fn least(&self, model: &str, measure: &Measure) -> Option<u64> {
        let mut class = measure.class(model);
        loop {
            if let Some(baseline) = self.baselines.get(&class).filter(|baseline| baseline.is_ready()) {
                let least = baseline.median - DEVIATIONS * baseline.deviation;
                return Some((measure.amount * least.exp()) as u64);
            }
            class.size = class.size.checked_sub(1)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Dice;
    use proptest::prelude::*;

    fn measure(bytes: f64) -> Measure {
        Measure { amount: bytes, language: 1, counted: false }
    }

    /// Prompts of 20 to 30 KB at about four bytes a token.
    fn learned(count: usize) -> (Accounting, usize) {
        let (mut accounting, mut dice, mut suspicious) = (Accounting::new(9), Dice::new(5), 0);
        for _ in 0..count {
            let bytes = 20_000.0 + 1000.0 * f64::from(dice.below(10) as u32);
            let tokens = bytes / (3.8 + 0.04 * f64::from(dice.below(10) as u32));
            let found = accounting.check("m", &measure(bytes), tokens as u64);
            suspicious += usize::from(found.is_some_and(|found| found.outcome != OK));
        }
        (accounting, suspicious)
    }

    fn outcome(accounting: &mut Accounting, bytes: f64, tokens: u64) -> Option<&'static str> {
        accounting.check("m", &measure(bytes), tokens).map(|found| found.outcome)
    }

    #[test]
    fn calm_traffic_is_no_finding_and_a_missing_half_is_one() {
        let (mut accounting, suspicious) = learned(2_000);
        assert_eq!(suspicious, 0);
        assert_eq!(outcome(&mut accounting, 24_000.0, 6_000), Some(OK));
        assert_eq!(outcome(&mut accounting, 24_000.0, 5_500), Some(OK), "a near miss");
        assert_eq!(outcome(&mut accounting, 24_000.0, 3_000), Some("short"));
        assert_eq!(outcome(&mut accounting, 24_000.0, 12_000), Some("long"));
        assert_eq!(outcome(&mut accounting, 24_000.0, 0), Some("short"));
    }

    #[test]
    fn a_fault_that_lasts_does_not_become_the_rule() {
        let (mut accounting, _) = learned(200);
        for _ in 0..1000 {
            assert_eq!(outcome(&mut accounting, 24_000.0, 3_000), Some("short"));
        }
        assert_eq!(outcome(&mut accounting, 24_000.0, 6_000), Some(OK));
    }

    #[test]
    fn nothing_is_said_before_enough_is_known() {
        let (mut accounting, _) = learned(LEAST - 1);
        assert_eq!(
            (outcome(&mut accounting, 24_000.0, 6_000), accounting.least("m", &measure(24_000.0)).is_some()),
            (None, true)
        );
        assert_eq!(outcome(&mut accounting, 500_000.0, 6_000), None, "another size");
        assert_eq!(accounting.check("other", &measure(24_000.0), 10), None);
    }

    #[test]
    fn what_is_larger_than_anything_known_is_estimated_from_what_is() {
        let (accounting, _) = learned(200);
        let least = accounting.least("m", &measure(400_000.0)).expect("is known");
        assert!((60_000..100_000).contains(&least), "{least}");
        assert_eq!(accounting.least("m", &measure(2_000.0)), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut accounting = Accounting::new(5);
        for number in 0..10 {
            accounting.check(&format!("m{number}"), &measure(5_000.0), 1_000);
        }
        assert_eq!(accounting.baselines.len(), 5);
    }

    proptest! {
        #[test]
        fn any_count_is_survived(bytes in 0.0f64..1e12, tokens: u64) {
            let (mut accounting, _) = learned(70);
            let _ = (accounting.check("m", &measure(bytes), tokens), accounting.least("m", &measure(bytes)));
        }
    }
}
