//! Conversations as text for a terminal. Recorded text is hostile: nothing of it may steer the terminal.

mod message;
mod tree;
mod wrap;

use super::view::SessionLine;
pub use tree::{Look, show};

/// A table of conversations.
pub fn list(lines: &[SessionLine]) -> String {
    let head = ["ID", "ENDED", "TURNS", "BRANCHES", "MODEL", "UPSTREAM", "FLAGS"].map(str::to_owned);
    let rows = lines.iter().map(|line| {
        let flags = line.flags.join(",");
        let (turns, branches) = (line.turns.to_string(), line.branches.to_string());
        [
            line_of(&line.id),
            line.ended.clone(),
            turns,
            branches,
            line_of(&line.model),
            line_of(&line.upstream),
            flags,
        ]
    });
    let table: Vec<[String; 7]> = std::iter::once(head).chain(rows).collect();
    let widths: Vec<usize> =
        (0..7).map(|column| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &table {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Text for one line: as [`plain`], with line breaks shown as blanks.
fn line_of(text: &str) -> String {
    plain(text).replace(['\n', '\t'], " ")
}

/// Text without terminal escape sequences, control characters other than line feed and tab, and characters that
/// reorder what is shown.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => skip_escape(&mut characters),
            '\u{9b}' => skip_sequence(&mut characters),
            '\n' | '\t' => out.push(character),
            _ if steers(character) => {}
            _ => out.push(character),
        }
    }
    out
}

/// Whether a character moves what a terminal shows: a control character, or one that reorders or breaks lines.
pub fn steers(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn skip_escape(characters: &mut Characters<'_>) {
    match characters.peek() {
        Some('[') => {
            characters.next();
            skip_sequence(characters);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => skip_string(characters),
        Some(' '..='~') => {
            characters.next();
        }
        _ => {}
    }
}

/// Parameters and the final byte of a control sequence.
fn skip_sequence(characters: &mut Characters<'_>) {
    while characters.next_if(|character| matches!(character, ' '..='?')).is_some() {}
    characters.next_if(|character| matches!(character, '@'..='~'));
}

/// A control string, up to BEL or ESC \. One that does not end on its line is taken to end there, so that it cannot
/// hide the rest of a transcript.
fn skip_string(characters: &mut Characters<'_>) {
    while let Some(character) = characters.next_if(|character| *character != '\n') {
        if character == '\u{7}' || character == '\u{1b}' && characters.next_if_eq(&'\\').is_some() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escapes_vanish_and_text_stays() {
        let text = "a\u{1b}[31mred\u{1b}[0m\u{1b}]0;title\u{7}b\u{1b}]8;;x\u{1b}\\c\rd\u{8}\u{202e}e\u{9b}2Jf\n\u{1b}]never\nend\u{1b}";
        assert_eq!(plain(text), "aredbcdef\n\nend");
    }

    #[test]
    fn the_table_lines_up() {
        let line = SessionLine {
            id: "abc".into(),
            model: "m\u{1b}[2J".into(),
            upstream: "u".into(),
            started: "s".into(),
            ended: "e".into(),
            turns: 3,
            branches: 0,
            flags: vec!["error"],
        };
        let want = "ID   ENDED  TURNS  BRANCHES  MODEL  UPSTREAM  FLAGS\nabc  e      3      0         m      u         error\n";
        assert_eq!(list(&[line]), want);
    }

    proptest! {
        #[test]
        fn nothing_that_steers_a_terminal_passes(text in "[\\x00-\\x7f\\u{80}-\\u{9f}é\\u{202e}]{0,60}") {
            prop_assert!(plain(&text).chars().all(|character| matches!(character, '\n' | '\t') || !character.is_control()));
        }
    }
}
