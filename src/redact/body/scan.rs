//! Finding: words first, then the rules that stand for them, then what was found by more than one.

use std::ops::Range;

use super::checks::Check;
use super::cover::Cover;
use super::rules::Rule;
use super::{Class, Masks};

/// Finds past this are not looked for: the body is then no text with secrets in it but something built to cost.
const MAX_FINDS: usize = 65_536;
/// Expressions that may be tried on a body: this many, and one more for every 32 bytes.
const MIN_TRIES: usize = 1 << 20;
const BYTES_FOR_A_TRY: usize = 32;
/// The most bytes one expression looks at from where it begins; private keys are the longest.
const REACH: usize = 16 * 1024;

/// What a rule found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Find {
    pub rule: usize,
    /// What is to be masked.
    pub range: Range<usize>,
}

/// What all rules found, without overlaps.
#[derive(Debug)]
pub struct Found {
    pub finds: Vec<Find>,
    /// False where a cap was reached.
    pub complete: bool,
}

/// A match of one rule: the whole of it, and what it captured.
struct Hit {
    rule: usize,
    whole: Range<usize>,
    captured: Vec<Range<usize>>,
}

struct Search<'a> {
    masks: &'a Masks,
    /// The part that is looked through, and where it begins in the body.
    bytes: &'a [u8],
    base: usize,
    hits: Vec<Hit>,
    /// Where in the body each rule goes on: behind its last match.
    next: Vec<usize>,
    tries: usize,
}

/// Looks for everything of a class.
pub fn find(masks: &Masks, bytes: &[u8], class: Class) -> Found {
    find_in(masks, bytes, class, std::slice::from_ref(&(0..bytes.len())))
}

/// Looks for everything of a class in parts of a body, in each as if it stood alone. The parts are in order.
pub fn find_in(masks: &Masks, bytes: &[u8], class: Class, parts: &[Range<usize>]) -> Found {
    let tries = MIN_TRIES + bytes.len() / BYTES_FOR_A_TRY;
    let mut search =
        Search { masks, bytes: &[], base: 0, hits: Vec::new(), next: vec![0; masks.rules.len()], tries };
    let complete = parts.iter().all(|part| search.part(&bytes[part.clone()], part.start, class));
    Found { finds: settle(bytes, search.hits), complete }
}

impl<'a> Search<'a> {
    /// Looks through one part; false where a cap was reached.
    fn part(&mut self, bytes: &'a [u8], base: usize, class: Class) -> bool {
        (self.bytes, self.base) = (bytes, base);
        let mut complete = self.words(class);
        for (index, rule) in self.masks.rules.iter().enumerate() {
            if rule.words.is_empty() && rule.class <= class {
                complete &= self.everywhere(index, rule);
            }
        }
        complete
    }

    /// Tries the rules whose words stand in the body; false where a cap was reached.
    fn words(&mut self, class: Class) -> bool {
        let masks = self.masks;
        for word in masks.words.find_overlapping_iter(self.bytes) {
            let (length, rules) = &masks.tried[word.pattern().as_usize()];
            for index in rules {
                let rule = &masks.rules[*index];
                let Some(start) = word.end().checked_sub(length + rule.back) else { continue };
                if rule.class > class || self.base + start < self.next[*index] || !self.may_begin(rule, start)
                {
                    continue;
                }
                if self.tries == 0 || self.hits.len() == MAX_FINDS {
                    return false;
                }
                self.tries -= 1;
                self.anchored(*index, rule, start);
            }
        }
        true
    }

    fn anchored(&mut self, index: usize, rule: &Rule, start: usize) {
        let end = self.bytes.len().min(start + REACH);
        let Some(captures) = rule.pattern.captures(&self.bytes[start..end]) else { return };
        self.take(index, rule, start, &captures);
    }

    /// Tries a rule on every byte; false where a cap was reached.
    fn everywhere(&mut self, index: usize, rule: &Rule) -> bool {
        let mut from = 0;
        while let Some(found) = self.bytes.get(from..).and_then(|rest| rule.pattern.find(rest)) {
            if self.tries == 0 || self.hits.len() == MAX_FINDS {
                return false;
            }
            self.tries -= 1;
            let (start, end) = (from + found.start(), from + found.end());
            from = start + 1;
            if !self.may_begin(rule, start) {
                continue;
            }
            let Some(captures) = rule.pattern.captures(&self.bytes[start..end]) else { continue };
            if self.take(index, rule, start, &captures) {
                from = end;
            }
        }
        true
    }

    fn take(
        &mut self,
        index: usize,
        rule: &Rule,
        start: usize,
        captures: &regex::bytes::Captures<'_>,
    ) -> bool {
        let whole = captures.get_match();
        let end = start + whole.end();
        if rule.ends && self.bytes.get(end).is_some_and(|byte| is_word(*byte)) {
            return false;
        }
        let captured: Vec<_> = captures.iter().skip(1).flatten().filter(|part| !part.is_empty()).collect();
        let holds = |check: Check| captured.iter().all(|part| check.holds(part.as_bytes(), whole.as_bytes()));
        if captured.is_empty() || !rule.check.is_none_or(holds) {
            return false;
        }
        let behind = |part: &regex::bytes::Match<'_>| behind_escape(self.bytes, start + part.start());
        let base = self.base;
        let captured = captured
            .iter()
            .map(|part| base + behind(part).min(start + part.end())..base + start + part.end())
            .collect();
        self.hits.push(Hit { rule: index, whole: base + start..base + end, captured });
        self.next[index] = base + end;
        true
    }

    /// Whether a match of this rule may begin here: not in the middle of a word, unless the rule says so.
    fn may_begin(&self, rule: &Rule, at: usize) -> bool {
        let before = &self.bytes[..at];
        rule.joined
            || !before.last().is_some_and(|byte| is_word(*byte) || *byte == b'-')
            || ends_in_escape(before)
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether the letters in front of a place belong to an escape, such as `\n` or `\u0026`.
fn ends_in_escape(before: &[u8]) -> bool {
    match before {
        [.., b'\\', b'n' | b'r' | b't' | b'b' | b'f'] => true,
        [.., b'\\', b'u', a, b, c, d] => [a, b, c, d].iter().all(|byte| byte.is_ascii_hexdigit()),
        _ => false,
    }
}

/// Where a secret begins whose first letters may be those of an escape, as the `n` of `\n` in front of an address.
fn behind_escape(bytes: &[u8], at: usize) -> usize {
    let back = bytes[..at].iter().rev().take(5).position(|byte| *byte == b'\\');
    match back.map(|back| at - back - 1) {
        Some(slash) if bytes[slash + 1] == b'u' => slash + 6,
        Some(slash) if slash + 1 == at => at + 1,
        _ => at,
    }
}

/// Gives every byte to the first rule that matched it.
fn settle(bytes: &[u8], mut hits: Vec<Hit>) -> Vec<Find> {
    hits.sort_by_key(|hit| (hit.rule, hit.whole.start));
    let mut matched = Cover::default();
    let mut finds = Vec::new();
    for hit in hits {
        let parts = hit.captured.into_iter().flat_map(|part| matched.outside(part));
        let told = |range: &Range<usize>| bytes[range.clone()].iter().any(u8::is_ascii_alphanumeric);
        finds.extend(parts.filter(told).map(|range| Find { rule: hit.rule, range }));
        matched.add(hit.whole);
    }
    finds
}
