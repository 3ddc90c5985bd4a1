//! Cuts a body into pieces, so that what a client sends again with every turn is stored once.
//!
//! The cuts are lexical and lose nothing: pieces put together are the body, whatever it is. A JSON object is cut where
//! its elements begin: messages, tools, long values; what lies between them stays as it is. Long pieces, and bodies of
//! another kind, are cut by their content (FastCDC's gear hash, Xia et al., USENIX ATC 2016), so that an edit in the
//! middle leaves most of them as they were.

use std::ops::Range;

use crate::openai::field;

/// What a body is cut into, in order and without holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// Bytes that hardly come again.
    Gap(Range<usize>),
    /// A value that may.
    Value(Range<usize>),
    /// Values that come again together: the elements of a list, or what one of them is cut into.
    List(Vec<Run>),
}

/// A value below this is not worth a piece of its own.
const SMALL: usize = 256;
/// A text from this length on is a piece: what a model has said comes back in the history of the next request, in
/// another message but in the same words.
const TEXT: usize = 512;
/// An element of a list that is an object is a piece; others are taken together until they have this many bytes.
const SCALARS: usize = 2048;
/// A longer piece is cut by its content: into pieces of these sizes, and of about `LEAST` + `AVERAGE`.
const LONG: usize = 16 << 10;
const LEAST: usize = 1 << 10;
const AVERAGE: usize = 4 << 10;

/// Cuts a request.
pub fn cut(body: &[u8]) -> Vec<Run> {
    object(body).unwrap_or_else(|| cut_text(body))
}

/// Cuts a body of which only its texts may come again.
pub fn cut_text(body: &[u8]) -> Vec<Run> {
    texts(body, 0..body.len())
}

/// The fields of a JSON object; `None` where the body is none.
fn object(body: &[u8]) -> Option<Vec<Run>> {
    let at = |rest: &[u8]| body.len() - rest.len();
    let mut rest = body.trim_ascii_start().strip_prefix(b"{")?.trim_ascii_start();
    let (mut runs, mut gap) = (Vec::new(), 0);
    while rest.first() != Some(&b'}') {
        let (_, after) = field::string(rest)?;
        let begins = after.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let after = field::skip(begins)?;
        let range = at(begins)..at(after);
        if range.len() >= SMALL {
            let inner = list(body, &range).unwrap_or_else(|| value(body, range.clone()));
            if gap < range.start {
                runs.push(Run::Gap(gap..range.start));
            }
            gap = inner.last().map_or(range.start, Run::end);
            runs.extend(inner);
        }
        rest = after.trim_ascii_start();
        match rest.first()? {
            b',' => rest = rest[1..].trim_ascii_start(),
            b'}' => {}
            _ => return None,
        }
    }
    if gap < body.len() {
        runs.push(Run::Gap(gap..body.len()));
    }
    Some(runs)
}

/// The elements of a JSON list, each with the separator before it, up to its closing bracket.
fn list(body: &[u8], range: &Range<usize>) -> Option<Vec<Run>> {
    let at = |rest: &[u8]| range.end - rest.len();
    let mut rest = body[range.clone()].strip_prefix(b"[")?.trim_ascii_start();
    let (mut elements, mut begins) = (Vec::new(), range.start);
    while rest.first() != Some(&b']') {
        let scalar = !matches!(rest.first()?, b'{' | b'[');
        rest = field::skip(rest)?;
        let element = begins..at(rest);
        if !scalar || element.len() >= SCALARS {
            begins = element.end;
            elements.push(one(texts(body, element.clone()), element));
        }
        rest = rest.trim_ascii_start();
        match rest.first()? {
            b',' => rest = rest[1..].trim_ascii_start(),
            b']' => {}
            _ => return None,
        }
    }
    // What is left, the closing bracket at least, belongs to the gap behind.
    Some(if elements.is_empty() { value(body, range.clone()) } else { vec![Run::List(elements)] })
}

/// What an element is cut into, as one.
fn one(mut cuts: Vec<Run>, element: Range<usize>) -> Run {
    match cuts.len() {
        0 | 1 => cuts.pop().map_or(Run::Value(element.clone()), |cut| match cut {
            Run::Gap(_) => Run::Value(element),
            other => other,
        }),
        _ => Run::List(cuts),
    }
}

/// Cuts out the long strings of what is JSON, or looks like it; where there is none, it is one value.
fn texts(body: &[u8], range: Range<usize>) -> Vec<Run> {
    let (mut runs, mut gap, mut from) = (Vec::new(), range.start, range.start);
    while let Some(quote) = memchr::memchr(b'"', &body[from..range.end]) {
        let Some((text, after)) = field::string(&body[from + quote..range.end]) else { break };
        let (start, end) = (from + quote + 1, range.end - after.len() - 1);
        from = end + 1;
        if text.len() >= TEXT {
            if gap < start {
                runs.push(Run::Gap(gap..start));
            }
            runs.extend(value(body, start..end));
            gap = end;
        }
    }
    if runs.is_empty() {
        return value(body, range);
    }
    if gap < range.end {
        runs.push(Run::Gap(gap..range.end));
    }
    runs
}

fn value(body: &[u8], range: Range<usize>) -> Vec<Run> {
    match range.len() {
        0 => Vec::new(),
        1..SMALL => vec![Run::Gap(range)],
        SMALL..LONG => vec![Run::Value(range)],
        _ => {
            let mut pieces = Vec::new();
            chunks(body, range, &mut pieces);
            vec![Run::List(pieces.into_iter().map(Run::Value).collect())]
        }
    }
}

/// Cuts by content: where a hash over the last 64 bytes has its upper bits clear.
fn chunks(body: &[u8], range: Range<usize>, out: &mut Vec<Range<usize>>) {
    const MASK: u64 = (AVERAGE as u64 - 1) << 52;
    let mut start = range.start;
    while range.end - start > LEAST {
        let most = range.end.min(start + LONG);
        let mut hash = 0u64;
        let cut = (start + LEAST..most).find(|at| {
            hash = (hash << 1).wrapping_add(GEAR[usize::from(body[*at])]);
            hash & MASK == 0
        });
        let end = cut.map_or(most, |at| at + 1);
        out.push(start..end);
        start = end;
    }
    if start < range.end {
        out.push(start..range.end);
    }
}

/// A random number for each byte: SplitMix64 from 0 on.
static GEAR: [u64; 256] = {
    let mut gear = [0u64; 256];
    let (mut at, mut state) = (0, 0u64);
    while at < 256 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        gear[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    gear
};

impl Run {
    fn end(&self) -> usize {
        match self {
            Run::Gap(range) | Run::Value(range) => range.end,
            Run::List(runs) => runs.last().map_or(0, Run::end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(body: &[u8]) -> Vec<Range<usize>> {
        fn flat(run: Run) -> Vec<Range<usize>> {
            match run {
                Run::Gap(range) | Run::Value(range) => vec![range],
                Run::List(runs) => runs.into_iter().flat_map(flat).collect(),
            }
        }
        cut(body).into_iter().flat_map(flat).collect()
    }

    fn check(body: &[u8]) {
        let mut at = 0;
        for piece in pieces(body) {
            assert_eq!(piece.start, at, "no holes, no overlaps");
            assert!(piece.end > at, "no empty piece");
            at = piece.end;
        }
        assert_eq!(at, body.len());
    }

    fn messages(count: usize) -> String {
        let message =
            |at: usize| format!("{{\"role\":\"user\",\"content\":\"number {at} {}\"}}", "x".repeat(80));
        let all: Vec<String> = (0..count).map(message).collect();
        format!("{{\"model\":\"m\",\"messages\":[{}],\"stream\":true}}", all.join(","))
    }

    #[test]
    fn a_longer_history_begins_with_the_pieces_of_the_shorter() {
        let (short, long) = (messages(20), messages(22));
        let words = |body: &str| -> Vec<String> {
            pieces(body.as_bytes()).into_iter().map(|range| body[range].to_owned()).collect()
        };
        let (short, long) = (words(&short), words(&long));
        assert_eq!(short[..21], long[..21]);
        assert_eq!(long.len(), 24);
        assert_eq!(long[0], "{\"model\":\"m\",\"messages\":");
        assert_eq!(long[23], "],\"stream\":true}");
    }

    #[test]
    fn an_answer_is_the_same_piece_in_the_response_and_in_the_history() {
        let text = "what the model has said, ".repeat(40);
        let response = format!("{{\"id\":1,\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}]}}");
        let request = format!("{{\"messages\":[{{\"role\":\"assistant\",\"content\":\"{text}\"}}]}}");
        let has = |body: &str, pieces: Vec<Range<usize>>| pieces.into_iter().any(|range| body[range] == text);
        assert!(has(&response, pieces(response.as_bytes())) && has(&request, pieces(request.as_bytes())));
    }

    #[test]
    fn an_edit_in_a_long_text_changes_few_pieces() {
        let mut text: Vec<u8> = (0..20_000u64).flat_map(|at| format!("line {at}\n").into_bytes()).collect();
        let before = pieces(&text);
        let of = |text: &[u8], cuts: &[Range<usize>]| -> std::collections::HashSet<Vec<u8>> {
            cuts.iter().map(|cut| text[cut.clone()].to_vec()).collect()
        };
        let old = of(&text, &before);
        text.splice(50..50, *b"the time is 12:07");
        let after = pieces(&text);
        let new = of(&text, &after);
        assert!(before.len() > 20 && new.difference(&old).count() <= 3);
    }

    proptest! {
        #[test]
        fn any_bytes_are_cut_without_loss(bytes in proptest::collection::vec(any::<u8>(), 0..400), times in 1usize..100) {
            check(&bytes.repeat(times));
        }

        #[test]
        fn anything_like_json_is_cut_without_loss(text in r#"[ ]{0,3}\{("[a\\]{0,3}"|[\[\]{}:, 1]|"[a-z]{300}"){0,25}[} ]{0,3}"#) {
            check(text.as_bytes());
        }

        #[test]
        fn lists_are_cut_without_loss(items in proptest::collection::vec(0usize..6000, 0..40), spaces in "[ \n]{0,3}") {
            let item = |length: &usize| match length % 3 {
                0 => format!("{{\"a\":\"{}\"}}", "b".repeat(*length)),
                1 => format!("\"{}\"", "c".repeat(length % 50)),
                _ => length.to_string(),
            };
            let all: Vec<String> = items.iter().map(item).collect();
            let body = format!("{{\"x\":{spaces}[{spaces}{}{spaces}]{spaces},\"y\":1}}{spaces}", all.join(&format!("{spaces},{spaces}")));
            check(body.as_bytes());
            if !items.is_empty() && body.len() > 8000 {
                prop_assert!(pieces(body.as_bytes()).len() > 1);
            }
        }
    }
}
