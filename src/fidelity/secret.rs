//! Recall codes: `word-word-1234-c`, unguessable, easy to copy, easy to score.
//!
//! A code carries 22 bits in two different words of a list of at least 2,048, 13.3 bits in four digits and 5
//! bits in a check character of a 32-letter alphabet. All of it comes from a keyed hash of the
//! probe's id, and the check character from a second keyed hash over the parts, so a code cannot be
//! guessed (over 40 bits) and one that was made up or misread carries a wrong check character with
//! probability 31/32. Letters and digits are both there because real faults have damaged only one
//! of the two.

use std::fmt;
use std::sync::LazyLock;

/// Characters a check character is taken from.
const CHECK_ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The words of codes, one per line: lower-case ASCII, three to eight letters, sorted, none of which
/// is a word of the filler.
static WORDS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| include_str!("secret/words.txt").lines().collect());

/// A recall code in its one written form.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Secret {
    text: String,
}

/// Derives codes under a key. The same key, probe id and slot always give the same code.
#[derive(Clone)]
pub struct Minter {
    key: [u8; 32],
}

impl Minter {
    /// A minter under `key`, which must be random and stay within the process.
    pub fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// The code number `slot` of the probe `probe_id`.
    pub fn mint(&self, probe_id: &str, slot: u32) -> Secret {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"serin recall code");
        hasher.update(&slot.to_le_bytes());
        hasher.update(probe_id.as_bytes());
        let mut draw = [0u8; 24];
        hasher.finalize_xof().fill(&mut draw);
        let number = |at: usize, bound: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|i| draw[at + i]);
            ((u128::from(u64::from_le_bytes(bytes)) * bound as u128) >> 64) as usize
        };
        let first = number(0, WORDS.len());
        // Another word than the first: a word that stands twice is gone on from as the first time it stood.
        let second = (first + 1 + number(8, WORDS.len() - 1)) % WORDS.len();
        let body = format!("{}-{}-{:04}", WORDS[first], WORDS[second], number(16, 10_000));
        let check = self.check(&body);
        Secret { text: format!("{body}-{check}") }
    }

    /// Whether `text` is a code of this key: well formed, with the right check character.
    pub fn genuine(&self, text: &str) -> bool {
        Secret::parse(text).is_some_and(|secret| {
            let (body, check) = secret.text.rsplit_once('-').unwrap_or_default();
            check.chars().eq([self.check(body)])
        })
    }

    fn check(&self, body: &str) -> char {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"serin check character");
        hasher.update(body.as_bytes());
        char::from(CHECK_ALPHABET[usize::from(hasher.finalize().as_bytes()[0] & 31)])
    }
}

impl fmt::Debug for Minter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Minter(..)")
    }
}

impl Secret {
    /// Takes a code as written. `None` unless it has the exact shape `word-word-1234-c`; the words
    /// need not be of the list and the check character is not verified (see [`Minter::genuine`]).
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let [first, second, digits, check] = parts[..] else { return None };
        is_code([first, second, digits, check]).then(|| Self { text: text.to_owned() })
    }

    /// The code as it is planted and expected back.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The four segments: two words, the digits, the check character.
    pub fn segments(&self) -> [&str; 4] {
        let mut parts = self.text.split('-');
        std::array::from_fn(|_| parts.next().unwrap_or_default())
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether four tokens have the shape of a code's segments.
pub fn is_code(segments: [&str; 4]) -> bool {
    let [first, second, digits, check] = segments;
    let word = |text: &str| (3..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase());
    word(first)
        && word(second)
        && digits.len() == 4
        && digits.bytes().all(|b| b.is_ascii_digit())
        && check.len() == 1
        && check.bytes().all(|b| CHECK_ALPHABET.contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::haystack::Haystack;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn list_is_large_clean_and_distinct() {
        assert!(WORDS.len() >= 2_048, "{} words", WORDS.len());
        assert_eq!(WORDS.iter().collect::<HashSet<_>>().len(), WORDS.len());
        assert!(WORDS.iter().all(|word| is_code([word, word, "0000", "a"])));
        let bits = 2.0 * (WORDS.len() as f64).log2() + 10_000f64.log2() + 5.0;
        assert!(bits >= 40.0, "{bits} bits");
    }

    #[test]
    fn no_word_of_a_code_stands_in_filler() {
        // Else what follows that word in the filler is a second, wrong, way to go on with the code.
        let text = Haystack::new(1).words(100_000).to_ascii_lowercase();
        let filler: HashSet<&str> = text.split(|c: char| !c.is_ascii_alphabetic()).collect();
        let shared: Vec<_> = WORDS.iter().filter(|word| filler.contains(**word)).collect();
        assert!(shared.is_empty(), "{shared:?}");
    }

    #[test]
    fn codes_depend_on_key_probe_and_slot() {
        let minter = Minter::new([1; 32]);
        let codes = [
            minter.mint("a", 0),
            minter.mint("a", 1),
            minter.mint("b", 0),
            Minter::new([2; 32]).mint("a", 0),
        ];
        assert_eq!(codes.iter().collect::<HashSet<_>>().len(), 4);
        assert_eq!(minter.mint("a", 0), codes[0]);
    }

    #[test]
    fn ten_thousand_codes_are_distinct_and_genuine() {
        let minter = Minter::new([3; 32]);
        let codes: HashSet<Secret> = (0..10_000).map(|i| minter.mint("probe", i)).collect();
        assert_eq!(codes.len(), 10_000);
        assert!(codes.iter().map(Secret::segments).all(|[first, second, ..]| first != second));
        assert!(codes.iter().all(|code| minter.genuine(code.as_str())));
        let strangers = codes.iter().filter(|code| Minter::new([4; 32]).genuine(code.as_str())).count();
        assert!((200..450).contains(&strangers), "about 1 in 32 passes by chance, found {strangers}");
    }

    #[test]
    fn shape_is_exact() {
        assert!(Secret::parse("amber-river-4821-k").is_some());
        for wrong in [
            "",
            "amber-river-4821",
            "amber-river-4821-k-z",
            "Amber-river-4821-k",
            "amber-river-482-k",
            "amber-river-4821-1",
            "am-river-4821-k",
        ] {
            assert_eq!(Secret::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn written_form_round_trips(probe in ".*", slot: u32, key: [u8; 32]) {
            let secret = Minter::new(key).mint(&probe, slot);
            prop_assert_eq!(Secret::parse(secret.as_str()), Some(secret.clone()));
            prop_assert_eq!(secret.segments().join("-"), secret.as_str());
        }

        #[test]
        fn any_text_is_parsed_without_panic(text in ".*") {
            let minter = Minter::new([0; 32]);
            prop_assert!(!minter.genuine(&text) || Secret::parse(&text).is_some());
        }
    }
}
