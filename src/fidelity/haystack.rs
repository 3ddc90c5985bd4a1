//! Filler text: plain English made on the spot, deterministic from a seed, never the same sentence
//! twice in one prompt.
//!
//! Repetition would be served by block caches and n-gram speculation in ways real text is not, and
//! text from elsewhere would be known to the model.

mod words;

use std::collections::HashSet;

use crate::stats::Dice;

/// Makes filler for one prompt. Sentences do not repeat over all calls on the same value.
#[derive(Debug)]
pub struct Haystack {
    dice: Dice,
    seen: HashSet<u64>,
}

impl Haystack {
    /// Filler that depends on `seed` only.
    pub fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed), seen: HashSet::new() }
    }

    /// Exactly `count` words in whole sentences, separated by single blanks; empty for none.
    pub fn words(&mut self, count: usize) -> String {
        let mut text = String::with_capacity(count.saturating_mul(7));
        let mut left = count;
        while left > words::CLOSINGS.len() {
            let sentence = self.fresh_sentence();
            let length = sentence.split(' ').count();
            if length > left {
                break;
            }
            append(&mut text, &sentence);
            left -= length;
        }
        self.close(&mut text, left);
        text
    }

    /// Random words for the head of a prompt, so that no cached prefix fits it.
    pub fn salt(&mut self, count: usize) -> String {
        let lists = ["adjective", "thing", "place", "person"];
        let words: Vec<&str> =
            (0..count).map(|at| self.dice.pick(words::list(lists[at % lists.len()]))).collect();
        words.join(" ")
    }

    /// Fills the last `left` words, fewer than a long sentence, with closings of known length.
    fn close(&mut self, text: &mut String, mut left: usize) {
        while left > 0 {
            let longest = words::CLOSINGS.len().min(left);
            append(text, words::CLOSINGS[longest - 1]);
            left -= longest;
        }
    }

    fn fresh_sentence(&mut self) -> String {
        // A repeat is rare (there are over 10^9 sentences); a few tries keep the loop bounded.
        let mut sentence = self.sentence();
        for _ in 0..16 {
            if self.seen.insert(fingerprint(&sentence)) {
                break;
            }
            sentence = self.sentence();
        }
        sentence
    }

    fn sentence(&mut self) -> String {
        let mut text = String::new();
        let mut rest = self.dice.pick(words::PATTERNS);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, tail) = after.split_once('}').unwrap_or((after, ""));
            text.push_str(before);
            let word = self.dice.pick(words::list(name));
            if name.starts_with(char::is_uppercase) {
                let (first, others) = word.split_at(1);
                text.push_str(&first.to_uppercase());
                text.push_str(others);
            } else {
                text.push_str(word);
            }
            rest = tail;
        }
        text.push_str(rest);
        text
    }
}

fn append(text: &mut String, sentence: &str) {
    if !text.is_empty() {
        text.push(' ');
    }
    text.push_str(sentence);
}

fn fingerprint(sentence: &str) -> u64 {
    let hash = blake3::hash(sentence.as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_filler_never_repeats_a_sentence() {
        let text = Haystack::new(1).words(60_000);
        let sentences: Vec<&str> = text.split_inclusive(". ").collect();
        let distinct: HashSet<_> = sentences.iter().collect();
        // The closing may be one of the fixed ones; everything else is fresh.
        assert!(sentences.len() > 4_000 && distinct.len() >= sentences.len() - 3, "{}", sentences.len());
    }

    #[test]
    fn is_stands_at_a_steady_density() {
        let text = Haystack::new(2).words(20_000);
        let share = text.split(' ').filter(|word| *word == "is").count() as f64 / 20_000.0;
        assert!((0.055..0.09).contains(&share), "{share}");
    }

    #[test]
    fn patterns_draw_from_known_lists_and_closings_count_up() {
        for pattern in words::PATTERNS {
            for name in pattern.split('{').skip(1).filter_map(|rest| rest.split_once('}')) {
                assert!(words::list(name.0).len() > 20, "{} in {pattern}", name.0);
            }
        }
        for (at, closing) in words::CLOSINGS.iter().enumerate() {
            assert_eq!(closing.split(' ').count(), at + 1, "{closing}");
        }
    }

    #[test]
    fn salts_differ_by_seed() {
        let salts: HashSet<String> = (0..500).map(|seed| Haystack::new(seed).salt(6)).collect();
        assert_eq!(salts.len(), 500);
    }

    proptest! {
        #[test]
        fn counts_words_exactly_and_repeats_itself_by_seed(seed: u64, count in 0usize..3_000) {
            let text = Haystack::new(seed).words(count);
            prop_assert_eq!(text.split_whitespace().count(), count);
            prop_assert!(count == 0 || text.ends_with('.'));
            prop_assert_eq!(Haystack::new(seed).words(count), text);
        }
    }
}
