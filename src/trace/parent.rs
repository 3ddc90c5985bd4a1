//! `traceparent` as W3C's Trace Context defines it.

use std::fmt;

use crate::ids;

/// A trace and the span in it that sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    flags: u8,
}

const SAMPLED: u8 = 1;

impl Parent {
    pub fn sampled_of(trace: [u8; 16], span: [u8; 8]) -> Self {
        Self { trace, span, flags: SAMPLED }
    }

    pub fn sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Reads a header's value; `None` for what is to be ignored. Of versions not yet invented the known part is read.
    pub fn read(text: &str) -> Option<Self> {
        let (known, rest) = text.split_at_checked(55)?;
        let mut fields = known.split('-');
        let [version] = hex(fields.next()?)?;
        let parent = Self {
            trace: hex(fields.next()?)?,
            span: hex(fields.next()?)?,
            flags: hex::<1>(fields.next()?)?[0],
        };
        let ends_well = match version {
            0 => rest.is_empty(),
            0xff => false,
            _ => rest.is_empty() || rest.starts_with('-'),
        };
        let valid = ends_well && fields.next().is_none() && parent.trace != [0; 16] && parent.span != [0; 8];
        valid.then_some(parent)
    }
}

impl fmt::Display for Parent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "00-{}-{}-{:02x}", ids::hex(&self.trace), ids::hex(&self.span), self.flags)
    }
}

/// Exactly `N` bytes in lower-case hexadecimal.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_the_recommendation_forbids_is_ignored() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert!(Parent::read(good).unwrap().sampled());
        assert!(!Parent::read(&good.replace("-01", "-02")).unwrap().sampled());
        assert!(Parent::read(&format!("cc{}-what-the-future-will-be-like", &good[2..])).is_some());
        for bad in [
            String::new(),
            good[..54].to_owned(),
            format!("{good}-more"),
            format!("ff{}", &good[2..]),
            format!("cc{}.more", &good[2..]),
            good.to_uppercase(),
            good.replace("4bf92f3577b34da6a3ce929d0e0e4736", "00000000000000000000000000000000"),
            good.replace("00f067aa0ba902b7", "0000000000000000"),
            good.replace('-', "_"),
            good.replacen("4b", "4é", 1),
        ] {
            assert_eq!(Parent::read(&bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back_and_nothing_panics(trace in any::<[u8; 16]>(), span in any::<[u8; 8]>(), text in ".{0,60}") {
            prop_assume!(trace != [0; 16] && span != [0; 8]);
            let parent = Parent::sampled_of(trace, span);
            prop_assert_eq!(Parent::read(&parent.to_string()), Some(parent));
            let _ = Parent::read(&text);
        }
    }
}
