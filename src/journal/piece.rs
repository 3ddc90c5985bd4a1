//! Cuts a body into pieces, so that what a client sends again with every turn is stored once.
//!
//! The cuts are lexical and lose nothing: pieces put together are the body, whatever it is. A JSON object is cut where
//! its elements begin: messages, tools, long values; what lies between them stays as it is. Long pieces, and bodies of
//! another kind, are cut by their content (FastCDC's gear hash, Xia et al., USENIX ATC 2016), so that an edit in the
//! middle leaves most of them as they were.

use std::ops::Range;

use crate::openai::field;
use crate::openai::outline::{Element, Outline, SMALL};

/// What a body is cut into, in order and without holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// Bytes that hardly come again.
    Gap(Range<usize>),
    /// A value that may.
    Value(Range<usize>),
    /// An element of a list, not cut yet.
    Element(Element),
    /// Values that come again together: the elements of a list, or what one of them is cut into.
    List(Vec<Run>),
}

/// A text from this length on is a piece: what a model has said comes back in the history of the next request, in
/// another message but in the same words.
const TEXT: usize = 512;
/// A longer piece is cut by its content: into pieces of these sizes, and of about `LEAST` + `AVERAGE`.
const LONG: usize = 16 << 10;
const LEAST: usize = 1 << 10;
const AVERAGE: usize = 4 << 10;

/// Cuts a request along its outline; elements of its lists are left for [`cut_element`].
pub fn cut(body: &[u8], outline: &Outline) -> Vec<Run> {
    if outline.fields.is_empty() {
        return cut_text(body);
    }
    let (mut runs, mut gap) = (Vec::new(), 0);
    for field in &outline.fields {
        let inner = match field.elements.as_slice() {
            [] => value(body, field.value.clone()),
            elements => vec![Run::List(elements.iter().cloned().map(Run::Element).collect())],
        };
        if gap < field.value.start {
            runs.push(Run::Gap(gap..field.value.start));
        }
        gap = inner.last().map_or(field.value.start, Run::end);
        runs.extend(inner);
    }
    if gap < body.len() {
        runs.push(Run::Gap(gap..body.len()));
    }
    runs
}

/// Cuts a body of which only its texts may come again.
pub fn cut_text(body: &[u8]) -> Vec<Run> {
    texts(body, 0..body.len())
}

/// What an element is cut into, as one.
pub fn cut_element(body: &[u8], element: Range<usize>) -> Run {
    let mut cuts = texts(body, element.clone());
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
            Run::Element(element) => element.range.end,
            Run::List(runs) => runs.last().map_or(0, Run::end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(body: &[u8]) -> Vec<Range<usize>> {
        fn flat(body: &[u8], run: Run) -> Vec<Range<usize>> {
            match run {
                Run::Gap(range) | Run::Value(range) => vec![range],
                Run::Element(element) => flat(body, cut_element(body, element.range)),
                Run::List(runs) => runs.into_iter().flat_map(|run| flat(body, run)).collect(),
            }
        }
        cut(body, &Outline::of(body)).into_iter().flat_map(|run| flat(body, run)).collect()
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
