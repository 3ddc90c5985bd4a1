//! Masks for secrets in bodies: what looks like a credential is replaced by letters and digits of the same kinds.
//!
//! A mask keeps length, punctuation, escapes and the class of every character (digit, lower, upper), so JSON stays
//! JSON, offsets stay true and token counts stay close. It is a keyed hash of the secret: under one key the same secret
//! has the same mask everywhere, and nobody without the key can tell which. The rules are [`rules.toml`](rules.toml).
//!
//! Pure functions over bytes, in time linear in the body: the rules are found by their literal words first, their
//! expressions run without backtracking over a bounded stretch from there, and finds and tries are capped.

mod checks;
mod cover;
mod rules;
mod scan;
mod shape;
mod stream;

use std::ops::Range;

use aho_corasick::AhoCorasick;

use cover::Cover;
use rules::Rule;
use scan::Found;

/// The rules that Serin ships.
const STANDARD: &str = include_str!("rules.toml");

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Credentials.
    Secret,
    /// Credentials, and what identifies a person.
    Personal,
}

/// Compiled rules. Build once: it takes milliseconds.
pub struct Masks {
    rules: Vec<Rule>,
    words: AhoCorasick,
    /// For each pattern of `words`: its length and the rules it stands for.
    tried: rules::Tried,
}

/// A body with its secrets masked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    pub bytes: Vec<u8>,
    /// Which rule found what, in order of place. A secret that was cut into pieces stands here once for each piece.
    pub found: Vec<(usize, Range<usize>)>,
    /// False where a cap was reached, so that secrets may be left: such a body must not be kept.
    pub complete: bool,
}

/// Why rules cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the rules are no valid TOML: {0}")]
    File(#[from] toml::de::Error),
    #[error("rule {name}: {error}")]
    Pattern { name: String, error: Box<regex::Error> },
    #[error("the rules' words: {0}")]
    Words(#[from] aho_corasick::BuildError),
}

impl Masks {
    /// The rules that Serin ships.
    pub fn standard() -> Masks {
        Masks::parse(STANDARD).expect("a test compiles the rules that are built in")
    }

    /// Compiles rules written as in `rules.toml`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn parse(text: &str) -> Result<Masks, Error> {
        let rules = rules::parse(text)?;
        let (words, tried) = rules::words(&rules)?;
        Ok(Masks { rules, words, tried })
    }

    /// The name of the rule with this index.
    pub fn name(&self, rule: usize) -> &str {
        self.rules.get(rule).map_or("", |rule| &rule.name)
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Masks what is found in a body or a text; `None` means that nothing was found and nothing copied.
    pub fn mask(&self, key: &[u8; 32], bytes: &[u8], class: Class) -> Option<Masked> {
        self.mask_parts(key, bytes, class, std::slice::from_ref(&(0..bytes.len())))
    }

    /// Masks what is found in parts of a body, each looked through by itself. They lie in it in order.
    pub fn mask_parts(
        &self,
        key: &[u8; 32],
        bytes: &[u8],
        class: Class,
        parts: &[Range<usize>],
    ) -> Option<Masked> {
        let found = scan::find_in(self, bytes, class, parts);
        if found.finds.is_empty() && found.complete {
            return None;
        }
        let mut out = bytes.to_vec();
        for find in &found.finds {
            shape::mask(key, &mut out[find.range.clone()]);
        }
        Some(finish(out, found))
    }

    /// Masks what is found in a stream of server-sent events: in each event, and in what the events' deltas say
    /// together. A body that is no such stream is masked as [`Masks::mask`] does.
    pub fn mask_stream(&self, key: &[u8; 32], body: &[u8], class: Class) -> Option<Masked> {
        let mut across = stream::find(self, key, body, class);
        let covered = Cover::of(across.pieces.iter().map(|(_, range, _)| range.clone()));
        let mut whole = scan::find_in(self, body, class, &across.new);
        if !whole.finds.is_empty() {
            // What stands in one event may stand in all that are like it.
            whole = scan::find(self, body, class);
        }
        let complete = across.complete && whole.complete;
        if across.pieces.is_empty() && whole.finds.is_empty() && complete {
            return None;
        }
        let mut out = body.to_vec();
        for (_, range, mask) in &across.pieces {
            out[range.clone()].copy_from_slice(mask);
        }
        let mut finds: Vec<_> = across.pieces.drain(..).map(|(rule, range, _)| (rule, range)).collect();
        for find in &whole.finds {
            for left in covered.outside(find.range.clone()) {
                shape::mask(key, &mut out[left.clone()]);
                finds.push((find.rule, left));
            }
        }
        finds.sort_by_key(|(_, range)| range.start);
        Some(Masked { bytes: out, found: finds, complete })
    }
}

fn finish(bytes: Vec<u8>, found: Found) -> Masked {
    let mut finds: Vec<_> = found.finds.into_iter().map(|find| (find.rule, find.range)).collect();
    finds.sort_by_key(|(_, range)| range.start);
    Masked { bytes, found: finds, complete: found.complete }
}

#[cfg(test)]
mod tests;
