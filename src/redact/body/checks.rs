//! What must hold for a find beyond its shape. Shapes alone would take identifiers, versions and prose for secrets.

use serde::Deserialize;

/// A condition on what was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    Random,
    Password,
    Armour,
    Card,
    Iban,
    Social,
    Address4,
    Address6,
    Phone,
}

/// Values that stand where a secret would, in parts or whole.
const PLACEHOLDERS: [&str; 16] = [
    "example",
    "your",
    "changeme",
    "placeholder",
    "redacted",
    "xxxx",
    "****",
    "....",
    "insert",
    "replace",
    "dummy",
    "getenv",
    "environ",
    "process.env",
    "undefined",
    "null",
];
/// Base64 letters in a row from which text between armour lines is a key.
const ARMOURED: usize = 32;

impl Check {
    /// Whether a capture stands the check; `whole` is the whole match.
    pub fn holds(self, captured: &[u8], whole: &[u8]) -> bool {
        match self {
            Check::Random => !is_placeholder(captured) && is_random(captured),
            Check::Password => !is_placeholder(captured) && is_password(captured),
            Check::Armour => {
                longest_run(captured, |byte| byte.is_ascii_alphanumeric() || b"+/".contains(&byte))
                    >= ARMOURED
            }
            Check::Card => is_card(captured),
            Check::Iban => is_iban(whole),
            Check::Social => is_social(captured),
            Check::Address4 => is_address4(captured),
            Check::Address6 => is_address6(captured),
            Check::Phone => (8..=15).contains(&digits(captured).count()),
        }
    }
}

fn is_placeholder(value: &[u8]) -> bool {
    let text = value.to_ascii_lowercase();
    let holds = |word: &str| memchr::memmem::find(&text, word.as_bytes()).is_some();
    let repeated = value.iter().all(|byte| byte.eq_ignore_ascii_case(&value[0]));
    repeated || b"<${%*[".contains(&value[0]) || PLACEHOLDERS.iter().any(|word| holds(word))
}

/// Letters and digits that change kind as often as chance makes them, unlike words joined to a name.
fn is_random(value: &[u8]) -> bool {
    let symbols: Vec<u8> = value.iter().copied().filter(u8::is_ascii_alphanumeric).collect();
    if symbols.len() < 10 {
        return false;
    }
    let has_digits = symbols.iter().any(u8::is_ascii_digit);
    let changes = changes(&symbols);
    let rarely = if has_digits { changes * 9 < symbols.len() * 2 } else { changes * 3 < symbols.len() };
    !rarely && entropy(&symbols) >= 2.7
}

/// How often one kind of character follows another. A capital that begins a word makes one change, not two.
fn changes(symbols: &[u8]) -> usize {
    let kind = |byte: u8| (byte.is_ascii_digit(), byte.is_ascii_uppercase());
    let hump = |at: usize| {
        symbols[at].is_ascii_uppercase()
            && symbols[at + 1].is_ascii_lowercase()
            && (at == 0 || !symbols[at - 1].is_ascii_uppercase())
    };
    (0..symbols.len() - 1).filter(|at| kind(symbols[*at]) != kind(symbols[at + 1]) && !hump(*at)).count()
}

/// Bits for each symbol.
fn entropy(symbols: &[u8]) -> f64 {
    let mut counts = [0u32; 256];
    symbols.iter().for_each(|symbol| counts[usize::from(*symbol)] += 1);
    let share = |count: u32| f64::from(count) / symbols.len() as f64;
    counts.into_iter().filter(|count| *count > 0).map(|count| -share(count) * share(count).log2()).sum()
}

/// Not a word, a path or a piece of a program: letters with digits or signs among them.
fn is_password(value: &[u8]) -> bool {
    let sign = |byte: &u8| byte.is_ascii_digit() || b"!@#$%^*+~?".contains(byte);
    let escaped = value.windows(2).any(|pair| pair == br"\u");
    let letters = value.iter().filter(|byte| byte.is_ascii_alphabetic()).count();
    let words = value.iter().all(|byte| byte.is_ascii_alphabetic() || b"._-".contains(byte));
    !words && letters >= 2 && (escaped || value.iter().any(sign)) && !matches!(value[0], b'/' | b'.' | b'~')
}

fn longest_run(bytes: &[u8], mut holds: impl FnMut(u8) -> bool) -> usize {
    let (mut longest, mut run) = (0, 0);
    for byte in bytes {
        run = if holds(*byte) { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

fn digits(bytes: &[u8]) -> impl DoubleEndedIterator<Item = u32> {
    bytes.iter().filter(|byte| byte.is_ascii_digit()).map(|byte| u32::from(byte - b'0'))
}

/// The length of a payment card's number, a first digit that cards have, and Luhn's sum.
fn is_card(value: &[u8]) -> bool {
    let doubled = |(at, digit): (usize, u32)| match at % 2 {
        0 => digit,
        _ => digit * 2 % 10 + digit / 5,
    };
    (13..=19).contains(&digits(value).count())
        && digits(value).next().is_some_and(|first| (2..=6).contains(&first))
        && digits(value).rev().enumerate().map(doubled).sum::<u32>().is_multiple_of(10)
}

/// ISO 13616: the country and check digits go to the end, letters count from ten, and the rest by 97 is one.
fn is_iban(whole: &[u8]) -> bool {
    let symbols: Vec<u8> = whole.iter().copied().filter(u8::is_ascii_alphanumeric).collect();
    if !(15..=34).contains(&symbols.len()) {
        return false;
    }
    let turned = symbols[4..].iter().chain(&symbols[..4]);
    let rest = turned.fold(0u32, |rest, symbol| match symbol {
        b'0'..=b'9' => (rest * 10 + u32::from(symbol - b'0')) % 97,
        letter => (rest * 100 + u32::from(letter - b'A') + 10) % 97,
    });
    rest == 1
}

/// Numbers the administration has never given out are none.
fn is_social(value: &[u8]) -> bool {
    let part = |range: std::ops::Range<usize>| digits(&value[range]).fold(0, |sum, digit| sum * 10 + digit);
    let (area, group, serial) = (part(0..3), part(4..6), part(7..11));
    area != 0 && area != 666 && area < 900 && group != 0 && serial != 0
}

/// Four numbers below 256, and an address that can be somebody's.
fn is_address4(value: &[u8]) -> bool {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.parse::<std::net::Ipv4Addr>()
        .is_ok_and(|address| !address.is_loopback() && !address.is_unspecified() && !address.is_broadcast())
}

/// An address that can be somebody's. Times and counters have colons too, but no letters and no `::`.
fn is_address6(value: &[u8]) -> bool {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let told = text.contains("::") || value.iter().any(u8::is_ascii_alphabetic);
    told && text.parse::<std::net::Ipv6Addr>().is_ok_and(|it| !it.is_loopback() && !it.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_their_standards() {
        let card = |text: &str| Check::Card.holds(text.as_bytes(), b"");
        // The numbers that payment networks publish for tests, and one digit off.
        assert!(card("4111 1111 1111 1111") && card("378282246310005") && card("5555-5555-5555-4444"));
        assert!(!card("4111 1111 1111 1112") && !card("411111111111") && !card("0000000000000000"));
        let iban = |text: &str| Check::Iban.holds(b"", text.as_bytes());
        assert!(iban("DE89 3704 0044 0532 0130 00") && iban("GB82WEST12345698765432"));
        assert!(!iban("DE88 3704 0044 0532 0130 00") && !iban("DE89"));
        let social = |text: &str| Check::Social.holds(text.as_bytes(), b"");
        assert!(
            social("123-45-6789")
                && !social("000-45-6789")
                && !social("666-45-6789")
                && !social("123-00-6789")
        );
    }

    #[test]
    fn words_are_not_random_and_keys_are() {
        let random = |text: &str| Check::Random.holds(text.as_bytes(), b"");
        for name in [
            "createTokenStreamV2",
            "Sha256WithRsaEncryption2048",
            "my_token_for_service_v2",
            "tokenizer.encode_plus",
            "0000000000000000",
            "required-for-every-call",
            "abcdefghijklmnopqrstuvwxyz",
        ] {
            assert!(!random(name), "{name}");
        }
        for key in [
            "9f86d081884c7d659a2feaa0c55ad015",
            "f3Kq9ZpW2xLrT7vB",
            "qWeRtYuIoPaSdFgHjKlZ",
            "k3v9-x2m8-p7q4-z6w1",
        ] {
            assert!(random(key), "{key}");
        }
    }

    #[test]
    fn passwords_are_told_from_code() {
        let password = |text: &str| Check::Password.holds(text.as_bytes(), b"");
        for code in [
            "self.password",
            "required",
            "os.environ",
            "$PASSWORD",
            "${DB_PASS}",
            "<password1>",
            "********",
            "./run1",
            "12345678",
        ] {
            assert!(!password(code), "{code}");
        }
        assert!(password("hunter2") && password("Winter2024!") && password(r"p\u0026ssw"));
    }
}
