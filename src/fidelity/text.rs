//! One reading of text for all checks: normalised, and split where words end.

use unicode_normalization::UnicodeNormalization;

/// A word of normalised text with the separator in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    /// What stands between this word and the one before.
    pub gap: &'a str,
}

impl Token<'_> {
    /// Whether this word may follow another one inside a code: joined by a dash, or by blanks or
    /// low lines where a model wrote the code in a format of its own.
    pub fn continues(&self) -> bool {
        (1..=3).contains(&self.gap.len())
            && self.gap.chars().all(|c| c == '-' || c == '_' || c.is_whitespace())
    }
}

/// Normalises text for matching: NFKC, lower case, every dash a hyphen, and no zero-width
/// characters, Markdown marks (`*`, `` ` ``, `\`) or soft hyphens.
pub fn normalise(text: &str) -> String {
    // Plain text is composed as it is.
    if text.is_ascii() {
        return text.chars().map(|c| c.to_ascii_lowercase()).filter_map(canonical).collect();
    }
    text.nfkc().flat_map(char::to_lowercase).filter_map(canonical).collect()
}

fn canonical(c: char) -> Option<char> {
    match c {
        '\u{2010}'..='\u{2015}' | '\u{2043}' | '\u{2212}' | '\u{fe58}' | '\u{fe63}' | '\u{ff0d}' => Some('-'),
        '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{ad}' | '*' | '`' | '\\' => None,
        '\u{2018}' | '\u{2019}' | '\u{02bc}' => Some('\''),
        '\u{201c}' | '\u{201d}' | '\u{201e}' => Some('"'),
        _ => Some(c),
    }
}

/// Whether `c` belongs to a word. Characters of scripts that are written without spaces are
/// separators, so a code is found right beside them.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() && !is_unspaced(c)
}

/// Han, kana, bopomofo, hangul (whose particles are glued to a foreign word), Thai, Lao, Khmer,
/// Burmese.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1100}'..='\u{11ff}' | '\u{1780}'..='\u{17ff}'
        | '\u{2e80}'..='\u{2fdf}' | '\u{3005}'..='\u{3007}' | '\u{3040}'..='\u{31ff}' | '\u{3400}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// The words of normalised text, in order.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut gap_start, mut word_start) = (0, None);
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (word_start, is_word(c)) {
            (None, true) => word_start = Some(at),
            (Some(start), false) => {
                found.push(Token { text: &text[start..at], gap: &text[gap_start..start] });
                (gap_start, word_start) = (at, None);
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<&str> {
        tokens(text).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn unifies_writing() {
        assert_eq!(normalise("**AMBER\u{2013}river**\u{200b}-\u{ff14}821"), "amber-river-4821");
        assert_eq!(normalise("don\u{2019}t"), "don't");
    }

    #[test]
    fn splits_where_words_end() {
        assert_eq!(words("a-b 84152,é"), ["a", "b", "84152", "é"]);
        assert_eq!(words("标签是amber-river。"), ["amber", "river"]);
        assert_eq!(words(""), Vec::<&str>::new());
    }

    proptest! {
        #[test]
        fn plain_text_is_normalised_as_any(text in "[\\x00-\\x7f]{0,60}") {
            let slowly: String = text.nfkc().flat_map(char::to_lowercase).filter_map(canonical).collect();
            prop_assert_eq!(normalise(&text), slowly);
        }

        #[test]
        fn tokens_cover_the_words_of_any_text(text in ".*") {
            let text = normalise(&text);
            let expected: String = text.chars().filter(|c| is_word(*c)).collect();
            prop_assert_eq!(words(&text).concat(), expected);
        }
    }
}
