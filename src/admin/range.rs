//! A part of a body that was asked for (RFC 9110, section 14).

use std::ops::Range;

/// What a Range header comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Whole,
    Of(Range<usize>),
    /// Nothing of it is there.
    None,
}

/// Reads a Range header for a body of that many bytes. What is not understood, and several parts at once, mean the whole.
pub fn part(header: Option<&[u8]>, len: usize) -> Part {
    let text = header.and_then(|header| std::str::from_utf8(header).ok());
    let spec = text.and_then(|text| text.trim().strip_prefix("bytes="));
    let Some((first, last)) = spec.and_then(|spec| spec.split_once('-')) else { return Part::Whole };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse().unwrap_or(usize::MAX))
    };
    match (number(first.trim()), number(last.trim()), first.trim().is_empty(), last.trim().is_empty()) {
        (Some(first), Some(last), ..) if first <= last => within(first..last.saturating_add(1), len),
        (Some(first), None, _, true) => within(first..len, len),
        (None, Some(0), true, _) => Part::None,
        (None, Some(last), true, _) => within(len.saturating_sub(last)..len, len),
        _ => Part::Whole,
    }
}

fn within(range: Range<usize>, len: usize) -> Part {
    match range.start < len {
        true => Part::Of(range.start..range.end.min(len)),
        false => Part::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_as_the_standard_has_it() {
        for (header, want) in [
            ("bytes=0-0", Part::Of(0..1)),
            ("bytes=2-4", Part::Of(2..5)),
            ("bytes=2-", Part::Of(2..10)),
            ("bytes=-3", Part::Of(7..10)),
            ("bytes=-30", Part::Of(0..10)),
            ("bytes=5-99999999999999999999999", Part::Of(5..10)),
            ("bytes=10-", Part::None),
            ("bytes=10-12", Part::None),
            ("bytes=-0", Part::None),
            ("bytes=4-2", Part::Whole),
            ("bytes=1-2,4-5", Part::Whole),
            ("bytes=-", Part::Whole),
            ("bytes=+1-2", Part::Whole),
            ("lines=1-2", Part::Whole),
            ("", Part::Whole),
        ] {
            assert_eq!(part(Some(header.as_bytes()), 10), want, "{header}");
        }
        assert_eq!((part(None, 10), part(Some(b"bytes=0-"), 0)), (Part::Whole, Part::None));
    }
}
