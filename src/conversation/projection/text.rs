//! Text rules of the projection.

/// Tags that coding harnesses add to user messages and tool results, and change from send to send.
const HARNESS_TAGS: [&str; 4] = ["system-reminder", "environment_context", "command-*", "local-command-*"];

/// CRLF becomes LF, blanks at line ends go, runs of blank lines become one, both ends are trimmed. Case, inner
/// blanks and Unicode forms stay as they are.
pub fn normalise(text: &str) -> String {
    let text = text.trim();
    let mut out = String::with_capacity(text.len());
    let mut blank_lines = 0;
    for line in text.split('\n') {
        let line = line.trim_end();
        if line.is_empty() {
            blank_lines += 1;
            continue;
        }
        if !out.is_empty() {
            out.push_str(if blank_lines > 0 { "\n\n" } else { "\n" });
        }
        blank_lines = 0;
        out.push_str(line);
    }
    out
}

/// Removes spans of harness tags. A tag that is never closed stays: dropping everything behind it would lose a
/// message.
pub fn without_harness_tags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let (before, tagged) = rest.split_at(start);
        out.push_str(before);
        match tag_span(tagged) {
            Some(len) => rest = &tagged[len..],
            None => {
                out.push('<');
                rest = &tagged[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The length of a harness tag with all it encloses, at the start of `text`.
fn tag_span(text: &str) -> Option<usize> {
    let name_end = text[1..].find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_')))? + 1;
    let name = &text[1..name_end];
    if !HARNESS_TAGS.iter().any(|pattern| is_match(pattern, name)) {
        return None;
    }
    let close = format!("</{name}>");
    Some(text.find(&close)? + close.len())
}

fn is_match(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix) && name.len() > prefix.len(),
        None => pattern == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tags_go_and_unclosed_tags_stay() {
        let text = "a<system-reminder x=1>é<b></system-reminder>b <command-name>/x</command-name><b>c</b> 1<2 <command->d</command->";
        assert_eq!(without_harness_tags(text), "ab <b>c</b> 1<2 <command->d</command->");
        assert_eq!(
            without_harness_tags("x <system-reminder>never closed"),
            "x <system-reminder>never closed"
        );
    }

    proptest! {
        #[test]
        fn normalising_twice_is_normalising_once(text in "[ab \\t\\r\\n]{0,60}") {
            let once = normalise(&text);
            prop_assert_eq!(&normalise(&once), &once);
        }

        #[test]
        fn any_text_survives(text in "[<>/a-z\\-é ]{0,80}") {
            let _ = without_harness_tags(&text);
        }
    }
}
