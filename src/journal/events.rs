//! A streamed response in little room: each event as what differs from the event before.
//!
//! The events of one answer are alike but for a word, and thirty to ninety times as long as that word. An event is
//! written as how many bytes it shares with the one before at its beginning and at its end, and what stands between.
//! Nothing is understood here, so nothing can be misunderstood: any bytes come back as they were.

use prost::encoding::{decode_varint, encode_varint};

/// The most bytes of a decoded stream. More is damage.
const MAX: usize = super::frame::MAX_RAW as usize;

/// Writes a stream as differences.
pub fn encode(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(body.len() / 16 + 64);
    let mut before: &[u8] = &[];
    for event in events(body) {
        let begins = shared(before, event);
        let room = before.len().min(event.len()) - begins;
        let ends = shared_end(before, event, room);
        let middle = &event[begins..event.len() - ends];
        encode_varint(begins as u64, &mut out);
        encode_varint(ends as u64, &mut out);
        encode_varint(middle.len() as u64, &mut out);
        out.extend_from_slice(middle);
        before = event;
    }
    out
}

/// Reads differences back. `None`: they are no such thing.
pub fn decode(mut coded: &[u8]) -> Option<Vec<u8>> {
    let mut body: Vec<u8> = Vec::new();
    let mut before = 0..0;
    while !coded.is_empty() {
        let mut number = || usize::try_from(decode_varint(&mut coded).ok()?).ok();
        let (begins, ends, middle) = (number()?, number()?, number()?);
        let start = body.len();
        if begins.checked_add(ends)? > before.len()
            || start.checked_add(begins + ends)?.checked_add(middle)? > MAX
        {
            return None;
        }
        let (middle, rest) = coded.split_at_checked(middle)?;
        coded = rest;
        body.extend_from_within(before.start..before.start + begins);
        body.extend_from_slice(middle);
        body.extend_from_within(before.end - ends..before.end);
        before = start..body.len();
    }
    Some(body)
}

/// The events, each with the blank line that ends it; what stands behind the last one is one more.
fn events(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = body;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = blank_line(rest).unwrap_or(rest.len());
        let (event, after) = rest.split_at(end);
        rest = after;
        Some(event)
    })
}

/// Where the first blank line has ended.
fn blank_line(bytes: &[u8]) -> Option<usize> {
    let ends = |at: &usize| matches!(bytes[at + 1..], [b'\n', ..] | [b'\r', b'\n', ..]);
    let at = memchr::memchr_iter(b'\n', bytes).find(ends)?;
    Some(at + if bytes[at + 1] == b'\n' { 2 } else { 3 })
}

/// How many bytes two slices share at their beginning.
fn shared(left: &[u8], right: &[u8]) -> usize {
    let words = left.as_chunks::<8>().0.iter().zip(right.as_chunks::<8>().0);
    let same = 8 * words.take_while(|(left, right)| left == right).count();
    let bytes = left[same..].iter().zip(&right[same..]);
    same + bytes.take_while(|(left, right)| left == right).count()
}

/// How many bytes two slices share at their end, up to a limit.
fn shared_end(left: &[u8], right: &[u8], most: usize) -> usize {
    let (left, right) = (&left[left.len() - most..], &right[right.len() - most..]);
    let words = left.as_rchunks::<8>().1.iter().rev().zip(right.as_rchunks::<8>().1.iter().rev());
    let same = 8 * words.take_while(|(left, right)| left == right).count();
    let (left, right) = (&left[..most - same], &right[..most - same]);
    let bytes = left.iter().rev().zip(right.iter().rev());
    same + bytes.take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_answer_takes_little_more_than_its_words() {
        let chunk = |word: &str| {
            format!(
                "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}},\"finish_reason\":null}}]}}\n\n"
            )
        };
        let words = ["The", " quick", " brown", " fox"].repeat(50);
        let body: String = words.iter().map(|word| chunk(word)).collect();
        let coded = encode(body.as_bytes());
        assert_eq!(decode(&coded).as_deref(), Some(body.as_bytes()));
        assert!(coded.len() < body.len() / 14, "{} of {}", coded.len(), body.len());
    }

    #[test]
    fn claims_that_cannot_be_are_refused() {
        for coded in [&[1u8, 0, 0][..], &[0, 0, 200], &[0, 0, 1], &[0, 0], &[0, 0, 2, 1, 2, 2, 1, 0]] {
            assert_eq!(decode(coded), None, "{coded:?}");
        }
        let huge = [&[0u8, 0, 1, 7][..], &[0xff; 9], &[1]].concat();
        assert_eq!(decode(&huge), None);
    }

    proptest! {
        #[test]
        fn any_bytes_come_back(tokens in proptest::collection::vec(
            prop::sample::select(vec!["data: ", "\n", "\n\n", "\r\n\r\n", "\r\n", "aaaaaaaaaaaa", "aaaaaaaaaaab", "b", "", "é"]), 0..80,
        )) {
            let body = tokens.concat();
            prop_assert_eq!(decode(&encode(body.as_bytes())), Some(body.into_bytes()));
        }

        #[test]
        fn arbitrary_bytes_never_panic(coded in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = decode(&coded);
        }
    }
}
