//! Finding a code in normalised text, whole or damaged.

use crate::fidelity::secret::{Secret, is_code};
use crate::fidelity::text::{Token, tokens};

/// The most single-character edits that still count as damage and not as another text.
const MAX_EDITS: usize = 2;

/// Whether the whole code stands in `text` between word boundaries.
///
/// Its segments may be joined by dashes, blanks or low lines: what counts is the code, not the
/// format it was put in.
pub fn holds(text: &str, secret: &Secret) -> bool {
    let segments = secret.segments();
    tokens(text).windows(4).any(|window| {
        window.iter().zip(segments).all(|(token, segment)| token.text == segment)
            && window[1..].iter().all(Token::continues)
    })
}

/// Whether `text` holds something that was this code before a fault touched it: at most two edits
/// away, or of a code's shape with at least two of the four segments in their places. (A made-up or
/// misread code has the right check character by chance only, one time in 32.)
///
/// Ask [`holds`] first: the code itself is also "at most two edits away".
pub fn holds_damaged(text: &str, secret: &Secret) -> bool {
    let tokens = tokens(text);
    let near = |window: &[Token<'_>]| {
        window[1..].iter().all(Token::continues)
            && may_be_near(window, secret)
            && edits_within(&joined(window), secret.as_str())
    };
    // A damaged separator makes the code one token shorter, an added one makes it longer.
    (2..=6).any(|width| tokens.windows(width).any(near))
        || tokens.windows(4).any(|window| shares_half(window, secret))
}

fn shares_half(window: &[Token<'_>], secret: &Secret) -> bool {
    let found: [&str; 4] = std::array::from_fn(|i| window[i].text);
    let exact = found.iter().zip(secret.segments()).filter(|(found, segment)| *found == segment).count();
    is_code(found) && exact >= 2 && window[1..].iter().all(Token::continues)
}

/// A cheap first look: the length fits and enough of the four digits are left.
fn may_be_near(window: &[Token<'_>], secret: &Secret) -> bool {
    let length = window.iter().map(|token| token.text.len() + 1).sum::<usize>() - 1;
    let digits = window.iter().flat_map(|token| token.text.bytes()).filter(u8::is_ascii_digit).count();
    // Two edits may replace two letters by wider ones, of up to four bytes each.
    let fits = secret.as_str().len() - MAX_EDITS..=secret.as_str().len() + 4 * MAX_EDITS;
    fits.contains(&length) && digits + MAX_EDITS >= 4
}

fn joined(window: &[Token<'_>]) -> String {
    window.iter().map(|token| token.text).collect::<Vec<_>>().join("-")
}

/// Whether the Levenshtein distance of two short texts is at most [`MAX_EDITS`].
fn edits_within(found: &str, expected: &str) -> bool {
    let (found, expected): (Vec<char>, Vec<char>) = (found.chars().collect(), expected.chars().collect());
    if found.len().abs_diff(expected.len()) > MAX_EDITS {
        return false;
    }
    let mut row: Vec<usize> = (0..=expected.len()).collect();
    for (i, a) in found.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in expected.iter().enumerate() {
            let kept = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = kept.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[expected.len()] <= MAX_EDITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn distance() {
        let cases = [
            ("kitten", "kitten", true),
            ("kitten", "sitten", true),
            ("kitten", "sittin", true),
            ("kitten", "sitting", false),
            ("", "ab", true),
            ("abc", "", false),
        ];
        for (a, b, near) in cases {
            assert_eq!(edits_within(a, b), near, "{a} {b}");
            assert_eq!(edits_within(b, a), near, "{b} {a}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in ".*") {
            let secret = Secret::parse("amber-river-4821-k").expect("a code");
            holds(&text, &secret);
            holds_damaged(&text, &secret);
        }

        #[test]
        fn a_planted_code_is_found_between_any_words(before in "([a-z]{1,9} ){0,5}", after in "( [a-z]{1,9}){0,5}") {
            let secret = Secret::parse("amber-river-4821-k").expect("a code");
            let text = format!("{before}{secret}{after}");
            prop_assert!(holds(&text, &secret));
        }
    }
}
