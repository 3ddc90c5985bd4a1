//! Text rules of the projection.

use super::rules::RULES;

/// How many tags may turn out to be unclosed before the rest of a text is taken as it is. Each costs a search through
/// that rest, so a hostile text could otherwise take quadratic time.
const MAX_UNCLOSED: usize = 64;

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
    let mut unclosed = 0;
    while let Some(start) = rest.find('<').filter(|_| unclosed < MAX_UNCLOSED) {
        let (before, tagged) = rest.split_at(start);
        out.push_str(before);
        let close = harness_tag(tagged).map(|name| format!("</{name}>"));
        let end = close.as_ref().and_then(|close| Some(tagged.find(close)? + close.len()));
        match end {
            Some(end) => rest = &tagged[end..],
            None => {
                unclosed += usize::from(close.is_some());
                out.push('<');
                rest = &tagged[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The name of the harness tag that a text begins with.
fn harness_tag(text: &str) -> Option<&str> {
    let name = text.strip_prefix('<')?;
    let end =
        name.find(|character: char| !(character.is_ascii_alphanumeric() || matches!(character, '-' | '_')))?;
    let name = &name[..end];
    RULES.harness_tags.iter().any(|pattern| is_match(pattern, name)).then_some(name)
}

fn is_match(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix) && name.len() > prefix.len(),
        None => pattern == name,
    }
}

/// A system prompt without what changes from day to day: digits and what hangs together with them, and paths.
pub fn template(texts: &[&str]) -> String {
    let mut template = String::with_capacity(texts.iter().map(|text| text.len()).sum());
    for word in texts.iter().flat_map(|text| text.split_whitespace()) {
        if !template.is_empty() {
            template.push(' ');
        }
        let changes = word.bytes().any(|byte| byte.is_ascii_digit() || byte == b'/');
        template.push_str(if changes { "*" } else { word });
    }
    template
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
