//! A Rust file as the rules see it: its text, the same text with comments and literals blanked, and the
//! spans that only a test build compiles.

use std::fmt;
use std::ops::Range;

/// One file. The views have the same length in characters and the same lines as the text.
pub struct Source {
    /// Path from the repository's root, with `/`.
    pub path: String,
    pub text: String,
    /// The text with every character of a comment or literal replaced by a space.
    pub code: String,
    /// `code` with test-only items blanked as well: what ships.
    pub shipped: String,
    test_spans: Vec<Range<usize>>,
}

/// What a rule objects to, and where.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    /// Counted from 1; 0 when the finding is about the whole file.
    pub line: usize,
    pub says: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        let code = blank(text, |kind| kind != Kind::Code);
        let test_spans =
            if is_test_path(path) { std::iter::once(0..code.len()).collect() } else { test_spans(&code) };
        let mut shipped = code.clone();
        for span in &test_spans {
            shipped = blank_range(&shipped, span.clone());
        }
        Source { path: path.to_owned(), text: text.to_owned(), code, shipped, test_spans }
    }

    /// The test-only half of `code`: everything else is blank.
    pub fn tests(&self) -> String {
        let mut view = self.code.clone();
        let mut from = 0;
        for span in &self.test_spans {
            view = blank_range(&view, from..span.start);
            from = span.end;
        }
        blank_range(&view, from..view.len())
    }

    /// Lines that are not inside a test-only item.
    pub fn shipped_lines(&self) -> usize {
        let lines = |range: &Range<usize>| self.code[range.clone()].lines().count();
        self.code.lines().count() - self.test_spans.iter().map(lines).sum::<usize>()
    }

    pub fn finding(&self, line: usize, says: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, says: says.into() }
    }

    /// The string literals of the shipped half, with the line each starts on.
    pub fn shipped_strings(&self) -> Vec<(usize, String)> {
        let kept = blank(&self.text, |kind| kind == Kind::Comment);
        let mut found = Vec::new();
        for (number, (kept, code)) in kept.lines().zip(self.code.lines()).enumerate() {
            let start = line_start(&self.code, number);
            if self.test_spans.iter().any(|span| span.contains(&start)) {
                continue;
            }
            let literal: String =
                kept.chars().zip(code.chars()).map(|(k, c)| if c == ' ' { k } else { '\n' }).collect();
            for piece in literal.split(['"', '\n']).map(str::trim).filter(|piece| !piece.is_empty()) {
                found.push((number + 1, piece.to_owned()));
            }
        }
        found
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.says),
            line => write!(f, "{}:{line}: {}", self.path, self.says),
        }
    }
}

/// The line of a byte offset, counted from 1.
pub fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].bytes().filter(|byte| *byte == b'\n').count() + 1
}

/// Byte offsets where `word` stands alone, not as part of a longer identifier.
pub fn find_word(text: &str, word: &str) -> Vec<usize> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .filter(|(at, _)| !text[..*at].ends_with(part) && !text[at + word.len()..].starts_with(part))
        .map(|(at, _)| at)
        .collect()
}

/// The offset just past the bracket that closes the one at `open`; the end of the text if none does.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, c) in code[open..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return open + at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

fn is_test_path(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

fn line_start(text: &str, number: usize) -> usize {
    text.split_inclusive('\n').take(number).map(str::len).sum()
}

fn blank_range(text: &str, range: Range<usize>) -> String {
    let blanked: String = text[range.clone()].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
    format!("{}{blanked}{}", &text[..range.start], &text[range.end..])
}

/// Items under `#[cfg(test)]`, from the attribute to the end of the item.
fn test_spans(code: &str) -> Vec<Range<usize>> {
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (at, _) in code.match_indices("#[cfg(test)]").chain(code.match_indices("#[cfg(all(test")) {
        if !spans.iter().any(|span| span.contains(&at)) {
            spans.push(at..item_end(code, closing(code, at + 1)));
        }
    }
    spans.sort_by_key(|span| span.start);
    spans
}

/// The end of the item that starts at `from`: its `;`, or the brace that closes its body.
fn item_end(code: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(next) = code[at..].find(['(', '[', '{', ';']) {
        let stop = at + next;
        match code.as_bytes()[stop] {
            b';' => return stop + 1,
            b'{' => return closing(code, stop),
            _ => at = closing(code, stop),
        }
    }
    code.len()
}

fn blank(text: &str, unwanted: impl Fn(Kind) -> bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let kinds = classify(&chars);
    let keep = |(c, kind): (&char, &Kind)| if unwanted(*kind) && *c != '\n' { ' ' } else { *c };
    chars.iter().zip(&kinds).map(keep).collect()
}

/// The kind of every character. Quotes and prefixes of a literal belong to the literal.
fn classify(chars: &[char]) -> Vec<Kind> {
    let mut kinds = Vec::with_capacity(chars.len());
    while kinds.len() < chars.len() {
        let at = kinds.len();
        let (kind, end) = lexeme(chars, at);
        kinds.resize(end.clamp(at + 1, chars.len()), kind);
    }
    kinds
}

fn lexeme(chars: &[char], at: usize) -> (Kind, usize) {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => (Kind::Comment, until(chars, at, |c| c == '\n')),
        '/' if next == Some('*') => (Kind::Comment, block_comment_end(chars, at)),
        '"' => (Kind::Literal, quoted_end(chars, at, '"')),
        '\'' if next == Some('\\') || chars.get(at + 2) == Some(&'\'') => {
            (Kind::Literal, quoted_end(chars, at, '\''))
        }
        c if c.is_alphabetic() || c == '_' => word_or_raw_string(chars, at),
        _ => (Kind::Code, at + 1),
    }
}

fn until(chars: &[char], from: usize, stop: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|c| stop(*c)).map_or(chars.len(), |step| from + step)
}

fn block_comment_end(chars: &[char], from: usize) -> usize {
    let mut depth = 0usize;
    let mut at = from;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn quoted_end(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from + 1;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// An identifier, or a literal such as `r#"..."#`, `b"..."`, `br"..."` that starts like one.
fn word_or_raw_string(chars: &[char], at: usize) -> (Kind, usize) {
    let end = until(chars, at, |c| !c.is_alphanumeric() && c != '_');
    let word: String = chars[at..end].iter().collect();
    let hashes = chars[end..].iter().take_while(|c| **c == '#').count();
    let raw = matches!(word.as_str(), "r" | "br" | "cr") && chars.get(end + hashes) == Some(&'"');
    if !raw {
        return (Kind::Code, end);
    }
    let mut close = vec!['"'];
    close.resize(1 + hashes, '#');
    let body = end + hashes + 1;
    let found = chars[body..].windows(close.len()).position(|window| window == close);
    (Kind::Literal, found.map_or(chars.len(), |step| body + step + close.len()))
}

mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank_in_code() {
        let text = "let a = \"todo!()\"; // dbg!\nlet b = r#\"x\"y\"#; /* /* */ c */ d('\"', 'a, '\\'')";
        let code = Source::new("src/a.rs", text).code;
        assert_eq!(code.lines().next().map(str::trim_end), Some("let a =          ;"));
        assert_eq!(code.split_whitespace().last(), Some(")"));
        assert!(code.contains("d(") && code.contains("'a") && !code.contains('x') && !code.contains(" c "));
        assert_eq!(code.chars().count(), text.chars().count());
    }

    #[test]
    fn test_items_do_not_ship() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\" }\n}\nfn c() {}\n";
        let source = Source::new("src/a.rs", text);
        assert!(source.shipped.contains("fn a") && source.shipped.contains("fn c"));
        assert!(!source.shipped.contains("fn b") && source.tests().contains("fn b"));
        assert!(!source.tests().contains("fn a"));
        assert_eq!(source.shipped_lines(), 2);
    }

    #[test]
    fn a_test_attribute_on_a_use_ends_at_its_semicolon() {
        let source = Source::new("src/a.rs", "#[cfg(test)]\nuse x::{a, b};\nfn c() {}\n");
        assert!(source.shipped.contains("fn c") && !source.shipped.contains("use"));
    }

    #[test]
    fn strings_are_listed_with_their_lines_and_without_tests() {
        let text = "f(\"one\", \"two\");\n// \"no\"\n#[cfg(test)]\nmod t { const A: &str = \"three\"; }\n";
        let strings = Source::new("src/a.rs", text).shipped_strings();
        assert_eq!(strings, vec![(1, "one".to_owned()), (1, "two".to_owned())]);
    }

    #[test]
    fn words_match_whole() {
        assert_eq!(find_word("unsafe_code unsafe my_unsafe", "unsafe"), vec![12]);
    }
}
