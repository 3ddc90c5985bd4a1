//! Texts that differ from the one before in one word: the events of a stream do, and need not be read one by one.

use std::ops::Range;

/// A text and the place of a string's characters in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    text: Vec<u8>,
    word: Range<usize>,
}

impl Template {
    /// `None` where the place is not in the text.
    pub fn new(text: &[u8], word: Range<usize>) -> Option<Template> {
        text.get(word.clone())?;
        Some(Template { text: text.to_vec(), word })
    }

    /// Where another text has its word, if it is the same but for that word and has no quote, backslash or control
    /// character in it: so a reader of JSON would find the same in both.
    pub fn word(&self, other: &[u8]) -> Option<Range<usize>> {
        let (before, after) = (&self.text[..self.word.start], &self.text[self.word.end..]);
        let word = other.strip_prefix(before)?.strip_suffix(after)?;
        let plain = word.iter().all(|byte| *byte >= 0x20 && !matches!(byte, b'"' | b'\\'));
        plain.then(|| before.len()..before.len() + word.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_may_differ() {
        let text = br#"{"content":"one","n":1}"#;
        let template = Template::new(text, 12..15).expect("is inside");
        let word = |other: &str| template.word(other.as_bytes()).map(|range| other[range].to_owned());
        assert_eq!(word(r#"{"content":"another","n":1}"#).as_deref(), Some("another"));
        assert_eq!(word(r#"{"content":"","n":1}"#).as_deref(), Some(""));
        for other in [
            r#"{"content":"one","n":2}"#,
            r#"{"content":"a\nb","n":1}"#,
            r#"{"content":"a","x":"b","n":1}"#,
            r#"{"content":"#,
            "",
        ] {
            assert_eq!(word(other), None, "{other}");
        }
        assert_eq!(Template::new(text, 12..99), None);
    }
}
