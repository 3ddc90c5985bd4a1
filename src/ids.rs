//! Identifiers that sort by time.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A UUID of version 7 (RFC 9562 section 5.7): 48 bits of milliseconds since 1970, then 74 random bits.
/// Its text form sorts as its time does. Time and randomness come from the caller so that tests can repeat.
pub fn sortable(unix_nanos: u64, random: [u8; 10]) -> String {
    let millis = unix_nanos / 1_000_000;
    let mut bytes = [0u8; 16];
    bytes[..6].copy_from_slice(&millis.to_be_bytes()[2..]);
    bytes[6..].copy_from_slice(&random);
    bytes[6] = 0x70 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    dashed(&bytes)
}

/// The time of such an id, in nanoseconds since 1970; `None` for another one.
pub fn time_of(id: &str) -> Option<u64> {
    let bytes: [u8; 16] = unhex(&id.replace('-', ""))?.try_into().ok()?;
    let [a, b, c, d, e, f, version, ..] = bytes;
    (version >> 4 == 7).then(|| u64::from_be_bytes([0, 0, a, b, c, d, e, f]) * 1_000_000)
}

/// Sixteen bytes that an outsider cannot guess: SipHash under keys which the standard library draws from the
/// operating system. Good for identifiers and nonces, not for long-lived secret keys.
pub fn entropy() -> [u8; 16] {
    let state = RandomState::new();
    let mut bytes = [0u8; 16];
    bytes[..8].copy_from_slice(&state.hash_one(0u64).to_le_bytes());
    bytes[8..].copy_from_slice(&state.hash_one(1u64).to_le_bytes());
    bytes
}

/// Whether an id is among a share of all, by its random end.
pub fn is_drawn(id: &str, share: f64) -> bool {
    const DIGITS: usize = 6;
    let end = id.len().checked_sub(DIGITS).and_then(|start| id.get(start..));
    let drawn = end.and_then(|end| u32::from_str_radix(end, 16).ok());
    drawn.is_some_and(|drawn| f64::from(drawn) < share * f64::from(1u32 << (4 * DIGITS)))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

/// Bytes from hexadecimal. `None` where it is none.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some((digit(*high)? * 16 + digit(*low)?) as u8));
    rest.is_empty().then(|| bytes.collect())?
}

fn dashed(bytes: &[u8; 16]) -> String {
    let digits = hex(bytes);
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_order_is_time_order() {
        let early = sortable(1_700_000_000_000_000_000, [0xff; 10]);
        let late = sortable(1_700_000_000_001_000_000, [0; 10]);
        assert!(early < late);
        assert_eq!(early, "018bcfe5-6800-7fff-bfff-ffffffffffff");
        assert_eq!(time_of(&early), Some(1_700_000_000_000_000_000));
        assert!(
            [&early[1..], "", "018bcfe5-6800-4fff-bfff-ffffffffffff"].iter().all(|id| time_of(id).is_none())
        );
    }

    #[test]
    fn hexadecimal_is_read_back() {
        assert_eq!(unhex(&hex(&[0, 0x7f, 0xff])), Some(vec![0, 0x7f, 0xff]));
        assert_eq!((unhex("abc"), unhex("0g"), unhex("é")), (None, None, None));
    }

    #[test]
    fn entropy_differs_between_calls() {
        assert_ne!(entropy(), entropy());
    }

    #[test]
    fn a_share_of_ids_is_drawn() {
        let ids: Vec<String> = (0..2000)
            .map(|_| {
                let mut random = [0; 10];
                random.copy_from_slice(&entropy()[..10]);
                sortable(1, random)
            })
            .collect();
        let drawn = |share| ids.iter().filter(|id| is_drawn(id, share)).count();
        assert_eq!((drawn(0.0), drawn(1.0)), (0, ids.len()));
        assert!((100..=300).contains(&drawn(0.1)), "{}", drawn(0.1));
        assert!(!is_drawn("", 1.0) && !is_drawn("no hex", 1.0) && !is_drawn("é", 1.0));
    }
}
