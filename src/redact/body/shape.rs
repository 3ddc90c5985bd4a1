//! The mask itself: which characters are replaced, and by what.

/// Keeps these masks apart from other uses of the same key.
const PURPOSE: &[u8] = b"serin body mask v1";

/// Replaces every ASCII letter and digit of a secret by another of its class. What stands behind a backslash stays, so
/// that escapes of any depth do, and so does everything that is not ASCII. The mask depends on the replaced characters
/// alone: a secret with `\n` or `\/` in it has the mask it has without the escapes. A number stays one.
pub fn mask(key: &[u8; 32], secret: &mut [u8]) {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(PURPOSE);
    let (mut hexadecimal, mut digits, mut letters, mut exponents) = (true, false, 0, 0);
    each(secret, |byte| {
        hasher.update(&[*byte]);
        letters += usize::from(byte.is_ascii_alphabetic());
        exponents += usize::from(matches!(byte, b'e' | b'E'));
        hexadecimal &= byte.is_ascii_hexdigit();
        digits |= byte.is_ascii_digit();
    });
    // What could be hexadecimal stays so: its readers, and tokenizers, treat it otherwise than words.
    let range = if hexadecimal && digits { 6 } else { 26 };
    // So does what could be a number: outside of quotes JSON has no other secrets, and none that begin with a zero.
    let number = digits && letters == exponents && letters <= 1;
    let mut first = number;
    let mut stream = hasher.finalize_xof();
    let mut block = [0; 64];
    let mut used = block.len();
    each(secret, |byte| {
        if used == block.len() {
            stream.fill(&mut block);
            used = 0;
        }
        *byte = match *byte {
            b'e' | b'E' if number => *byte,
            b'1'..=b'9' if first => b'1' + (*byte - b'1' + 1 + block[used] % 8) % 9,
            byte => other(byte, block[used], range),
        };
        first = false;
        used += 1;
    });
}

/// Another character of the same class, never the same one.
fn other(byte: u8, draw: u8, letters: u8) -> u8 {
    let shifted = |first: u8, size: u8| first + (byte - first + 1 + draw % (size - 1)) % size;
    match byte {
        b'0'..=b'9' => shifted(b'0', 10),
        b'a'..=b'z' => shifted(b'a', letters),
        _ => shifted(b'A', letters),
    }
}

/// Calls `act` on each character that a mask replaces.
fn each(secret: &mut [u8], mut act: impl FnMut(&mut u8)) {
    let mut at = 0;
    while at < secret.len() {
        if matches!(secret[at], b'\\' | b'%') {
            at += escape(&secret[at..]);
            continue;
        }
        if secret[at].is_ascii_alphanumeric() {
            act(&mut secret[at]);
        }
        at += 1;
    }
}

/// The length of an escape that begins here: its backslashes, the character behind them, and four more behind a `u`; or a
/// percent sign and two hexadecimal digits.
fn escape(bytes: &[u8]) -> usize {
    if bytes[0] == b'%' {
        let encoded = bytes.get(1..3).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
        return if encoded { 3 } else { 1 };
    }
    let slashes = bytes.iter().take_while(|byte| **byte == b'\\').count();
    match bytes.get(slashes) {
        Some(b'u') => slashes + 5,
        _ => slashes + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(key: u8, secret: &str) -> String {
        let mut bytes = secret.as_bytes().to_vec();
        mask(&[key; 32], &mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_class_of_every_character_stays_and_no_character_does() {
        let secret = "aZ09-_.é/zA".repeat(40);
        let mask = masked(1, &secret);
        assert_eq!(mask.len(), secret.len());
        for (before, after) in secret.chars().zip(mask.chars()) {
            let class = |c: char| (c.is_ascii_digit(), c.is_ascii_lowercase(), c.is_ascii_uppercase());
            assert_eq!(class(before), class(after));
            assert_eq!(before == after, !before.is_ascii_alphanumeric(), "{before} {after}");
        }
    }

    #[test]
    fn a_mask_depends_on_key_and_secret_alone() {
        assert_eq!(masked(1, "abc123XYZ"), masked(1, "abc123XYZ"));
        assert_ne!(masked(1, "abc123XYZ"), masked(2, "abc123XYZ"));
        assert_ne!(masked(1, "abc123XYZ"), masked(1, "abc123XYW"));
    }

    #[test]
    fn escapes_of_any_depth_stay_and_do_not_change_the_mask() {
        let plain = masked(1, "abcd/efgh");
        assert_eq!(masked(1, r"abcd\/efgh").replace('\\', ""), plain);
        for (kept, secret) in [(r"\n", r"ab\ncd"), (r"\\n", r"ab\\ncd"), (r"\u0026", r"ab\u0026cd")] {
            let mask = masked(1, secret);
            assert_eq!(mask.replacen(kept, "", 1), masked(1, "abcd"), "{mask}");
        }
        assert_eq!(masked(1, r"\u00").len(), 4);
    }

    #[test]
    fn a_number_stays_a_number() {
        for key in 0..50 {
            for number in ["4111111111111111", "9e12", "1234567890E5", "1.5e+3"] {
                let mask = masked(key, number);
                assert!(mask.parse::<f64>().is_ok() && !mask.starts_with('0') && mask != number, "{mask}");
            }
        }
        assert!(!masked(1, "deadbeef12").contains("beef"));
    }

    #[test]
    fn hexadecimal_stays_hexadecimal() {
        assert!(masked(1, "0123456789abcdef-0af").chars().all(|c| c == '-' || c.is_ascii_hexdigit()));
        assert!(masked(1, &"deadbeef".repeat(9)).chars().any(|c| !c.is_ascii_hexdigit()));
    }
}
