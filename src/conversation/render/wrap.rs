//! Text in lines of a terminal.

use unicode_normalization::char::is_combining_mark;

/// Columns that a text takes on one line.
pub fn columns(text: &str) -> usize {
    text.chars().map(column).sum()
}

/// Wide are the scripts of East Asia, and pictures. A terminal that thinks otherwise shows a ragged edge.
fn column(character: char) -> usize {
    match character {
        _ if is_combining_mark(character) => 0,
        '\u{200b}'..='\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// A text's lines, none wider than `width`; broken at blanks where there are any, with tabs as blanks. Blanks that begin a
/// line stay: code is indented.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    text.replace('\t', "    ").lines().flat_map(|line| broken(line, width)).collect()
}

fn broken(line: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest = line.trim_end();
    while columns(rest) > width {
        let end = fitting(rest, width);
        let blank = rest[..end].rfind(' ').filter(|at| !rest[..*at].trim().is_empty());
        let (head, tail) = match blank.filter(|_| !rest[end..].starts_with(' ')) {
            Some(at) => rest.split_at(at + 1),
            None => rest.split_at(end),
        };
        lines.push(head.trim_end().to_owned());
        rest = tail.trim_start_matches(' ');
    }
    lines.push(rest.to_owned());
    lines
}

/// How many bytes of a text fit; at least one character.
fn fitting(text: &str, width: usize) -> usize {
    let mut taken = 0;
    for (at, character) in text.char_indices() {
        taken += column(character);
        if taken > width && at > 0 {
            return at;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_break_at_blanks_and_keep_their_indentation() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("    code that is long\n\tx", 12), ["    code", "that is long", "    x"]);
        assert_eq!(wrapped("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("日本語です", 4), ["日本", "語で", "す"]);
        assert_eq!(wrapped("a\n\nb", 9), ["a", "", "b"]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_too_wide(text in "[a-z 日e\\u{301}\\n]{0,80}", width in 2usize..20) {
            let lines = wrapped(&text, width);
            prop_assert!(lines.iter().all(|line| columns(line) <= width), "{lines:?}");
            let bare = |text: &str| text.split_whitespace().collect::<String>();
            prop_assert_eq!(bare(&lines.concat()), bare(&text));
        }
    }
}
