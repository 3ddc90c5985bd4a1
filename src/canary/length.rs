//! Prompt lengths: the closed loop that meets them, and the buckets they are reported in.

use std::collections::HashMap;

/// Weight of the newest measurement in the average.
const NEWEST: f64 = 0.5;
/// Tokens per word of plain English, before anything has been measured.
const FIRST_GUESS: f64 = 1.4;
/// Tokens taken to be spent on the template and the tool. Where it is wrong, the rates of the
/// single lengths make up for it.
const OVERHEAD: u32 = 100;
/// Bounds of a rate: below, a prompt was cut or cannot have been counted; above, not even single
/// bytes are so many. A report beyond them must not bend later prompts.
const RATES: std::ops::RangeInclusive<f64> = 0.5..=8.0;
/// The most (model, length) pairs remembered.
const MAX_PAIRS: usize = 256;

/// A length class, named by its nominal prompt length.
///
/// A prompt falls into the class whose nominal length is nearest on a logarithmic scale, so the
/// class `1k` holds 1 to 1,448 tokens, `2k` 1,449 to 2,508 and so on. A probe aims at a nominal
/// length plus up to 255 tokens, and with these edges it stays in its class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket(usize);

const NOMINAL: [(u32, &str); 11] = [
    (1_024, "1k"),
    (2_048, "2k"),
    (3_072, "3k"),
    (4_096, "4k"),
    (6_144, "6k"),
    (8_192, "8k"),
    (12_288, "12k"),
    (16_384, "16k"),
    (32_768, "32k"),
    (65_536, "64k"),
    (131_072, "128k+"),
];

impl Bucket {
    /// The class of a prompt of `tokens`.
    pub fn of(tokens: u32) -> Self {
        let square = u64::from(tokens) * u64::from(tokens);
        let above = |pair: &[(u32, &str)]| square > u64::from(pair[0].0) * u64::from(pair[1].0);
        Self(NOMINAL.windows(2).take_while(|pair| above(pair)).count())
    }

    /// The name as a label value.
    pub fn as_str(self) -> &'static str {
        NOMINAL[self.0].1
    }
}

/// Learns how many tokens a word costs, per model and nominal length.
///
/// What a template adds beyond the guess is spread over the words, so lengths are learnt apart.
#[derive(Debug, Default)]
pub struct LengthLoop {
    rates: HashMap<(String, u32), f64>,
    latest: HashMap<String, f64>,
}

impl LengthLoop {
    /// Words, fixed ones included, that should come to `tokens` at the nominal length `length`.
    pub fn words_for(&self, model: &str, length: u32, tokens: u32) -> usize {
        let known = self.rates.get(&(model.to_owned(), length)).or_else(|| self.latest.get(model));
        (f64::from(tokens.saturating_sub(OVERHEAD)) / known.copied().unwrap_or(FIRST_GUESS)).round() as usize
    }

    /// Takes what a model reported for a prompt of `words` at the nominal length `length`.
    pub fn learn(&mut self, model: &str, length: u32, words: usize, tokens: u32) {
        if words == 0 || tokens == 0 {
            return;
        }
        let measured = f64::from(tokens.saturating_sub(OVERHEAD)) / words as f64;
        let measured = measured.clamp(*RATES.start(), *RATES.end());
        let key = (model.to_owned(), length);
        if self.rates.len() >= MAX_PAIRS && !self.rates.contains_key(&key) {
            self.rates.clear();
            self.latest.clear();
        }
        let rate =
            self.rates.entry(key).and_modify(|rate| *rate += NEWEST * (measured - *rate)).or_insert(measured);
        self.latest.insert(model.to_owned(), *rate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_change_between_their_names() {
        let cases = [
            (0, "1k"),
            (1_024, "1k"),
            (1_024 + 255, "1k"),
            (1_448, "1k"),
            (1_449, "2k"),
            (2_048, "2k"),
            (2_508, "2k"),
            (2_509, "3k"),
            (4_096 + 331, "4k"),
            (8_193, "8k"),
            (16_384, "16k"),
            (32_768, "32k"),
            (65_536, "64k"),
            (131_072, "128k+"),
            (u32::MAX, "128k+"),
        ];
        for (tokens, expected) in cases {
            assert_eq!(Bucket::of(tokens).as_str(), expected, "{tokens}");
        }
    }

    #[test]
    fn nominal_lengths_with_jitter_stay_in_their_class() {
        for (nominal, name) in NOMINAL {
            for extra in [0, 128, 255] {
                assert_eq!(Bucket::of(nominal + extra).as_str(), name, "{nominal} + {extra}");
            }
        }
    }

    #[test]
    fn two_rounds_meet_the_length() {
        // A model that spends 1.7 tokens a word and 90 on its template.
        let reported = |words: usize| (1.7 * words as f64 + 90.0).round() as u32;
        let mut lengths = LengthLoop::default();
        for length in [1_024, 8_192] {
            for _ in 0..2 {
                let words = lengths.words_for("m", length, length);
                lengths.learn("m", length, words, reported(words));
            }
            let met = reported(lengths.words_for("m", length, length));
            assert!(met.abs_diff(length) <= length / 50, "{met} for {length}");
        }
    }

    #[test]
    fn even_the_first_prompt_falls_into_its_class() {
        // Sparing and lavish tokenizers, small and large templates.
        for (rate, template) in [(1.2, 10), (1.3, 150), (1.5, 80), (1.6, 120)] {
            for (nominal, name) in NOMINAL {
                let words = LengthLoop::default().words_for("m", nominal, nominal + 128);
                let met = (rate * words as f64) as u32 + template;
                let near = Bucket::of(met).as_str() == name || nominal > 1_024;
                assert!(near, "{met} tokens for {nominal} at {rate} a word and {template}");
            }
        }
    }

    #[test]
    fn a_cut_prompt_does_not_make_later_ones_grow_without_bound() {
        let mut lengths = LengthLoop::default();
        (0..20).for_each(|_| lengths.learn("m", 8_192, 6_000, 50));
        assert!(lengths.words_for("m", 8_192, 8_192) <= 2 * 8_192);
    }

    #[test]
    fn memory_is_bounded() {
        let mut lengths = LengthLoop::default();
        (0..1_000).for_each(|model| lengths.learn(&model.to_string(), 1_024, 100, 150));
        assert!(lengths.rates.len() <= MAX_PAIRS && lengths.latest.len() <= MAX_PAIRS);
    }

    proptest! {
        #[test]
        fn any_report_is_survived(words: usize, tokens: u32, wanted in 0u32..2_000_000) {
            let mut lengths = LengthLoop::default();
            lengths.learn("m", 1_024, words, tokens);
            prop_assert!(lengths.words_for("m", 1_024, wanted) <= 10_000_000);
        }
    }
}
