//! Conversations as text for a terminal. Recorded text is hostile: nothing of it may steer the terminal.

use std::fmt::Write;

use serde_json::Value;

use super::view::{Response, Session, SessionLine, Turn};

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

/// A conversation as a transcript.
pub fn show(session: &Session) -> String {
    let count = session.turns.len();
    let turns = if count == 1 { "turn" } else { "turns" };
    let mut text = format!("conversation {}, {count} {turns}\n", line_of(&session.id));
    for (number, turn) in (1..).zip(&session.turns) {
        show_turn(&mut text, session, number, turn);
    }
    text
}

fn show_turn(text: &mut String, session: &Session, number: usize, turn: &Turn) {
    let place = |id: &String| session.turns.iter().position(|other| other.id == *id).map(|place| place + 1);
    let parent =
        turn.parent.as_ref().and_then(place).map_or_else(String::new, |place| format!(" of turn {place}"));
    let _ = writeln!(
        text,
        "\n── turn {number} · {}{parent} · {} · {} · status {} · {}",
        turn.kind,
        turn.started,
        line_of(&turn.model),
        turn.status,
        line_of(&turn.end),
    );
    let flags = if turn.flags.is_empty() { String::new() } else { format!(" · {}", turn.flags.join(", ")) };
    let _ = writeln!(text, "   {}{flags}", line_of(&turn.id));
    match &turn.request {
        Some(request) => request.messages.iter().for_each(|raw| show_message(text, raw.get())),
        None => text.push_str("(the request was not recorded whole, or is no chat request)\n"),
    }
    show_response(text, &turn.response);
}

fn show_message(text: &mut String, raw: &str) {
    let message: Value = serde_json::from_str(raw).unwrap_or(Value::Null);
    let role = message["role"].as_str().unwrap_or("?");
    let mut content = match &message["content"] {
        Value::String(content) => content.clone(),
        Value::Null => String::new(),
        Value::Array(parts) => parts.iter().map(part).collect::<Vec<_>>().join("\n"),
        other => other.to_string(),
    };
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let arguments =
            function["arguments"].as_str().map_or_else(|| function["arguments"].to_string(), str::to_owned);
        let _ = write!(content, "\n[calls {}({arguments})]", function["name"].as_str().unwrap_or("?"));
    }
    speech(text, role, &content);
}

fn part(part: &Value) -> String {
    match part["text"].as_str() {
        Some(words) => words.to_owned(),
        None => format!("[{}]", part["type"].as_str().unwrap_or("part")),
    }
}

fn show_response(text: &mut String, response: &Response) {
    let message = &response.message;
    if !message.reasoning_content.is_empty() {
        speech(text, "assistant, reasoning", &message.reasoning_content);
    }
    let mut content = message.content.clone();
    for call in &message.tool_calls {
        let _ = write!(content, "\n[calls {}({})]", call.name, call.arguments);
    }
    if !message.is_empty() {
        speech(text, "assistant", &content);
    }
    if let Some(error) = &response.error {
        speech(text, "error", error);
    }
    if !response.parsed {
        text.push_str("(the response could not be read in full)\n");
    }
}

fn speech(text: &mut String, role: &str, content: &str) {
    let _ = writeln!(text, "{}:", line_of(role));
    for line in plain(content.trim()).lines() {
        let _ = writeln!(text, "    {line}");
    }
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
