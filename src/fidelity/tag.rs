//! The mark by which the front door knows a canary: a keyed secret in a request header.
//!
//! The value is `<probe id>.<mac>`, the MAC a keyed BLAKE3 hash of the id in hex. The proxy verifies
//! and removes it; nothing recognisable goes to the upstream, so nothing can treat a canary better
//! than a client.

use std::fmt;

/// The request header that carries a tag.
pub const HEADER: &str = "x-serin-canary";

/// The response header in which the proxy tells a verified canary, and nobody else, who answered.
pub const UPSTREAM_HEADER: &str = "x-serin-upstream";

/// The response header in which it is told the id of the record that is made of its exchange.
pub const TURN_HEADER: &str = "x-serin-turn";

/// The longest probe id that is sealed or accepted, in bytes.
pub const MAX_ID: usize = 64;

/// The secret that canary and proxy of one process share.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// A key of 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The header value for `probe_id`. `None` unless the id is 1 to 64 of `a-z`, `0-9` and `-`.
    pub fn seal(&self, probe_id: &str) -> Option<String> {
        is_id(probe_id).then(|| format!("{probe_id}.{}", self.mac(probe_id).to_hex()))
    }

    /// The probe id of a header value sealed under this key, `None` for any other value.
    ///
    /// The comparison takes the same time wherever the values differ.
    pub fn verify<'a>(&self, value: &'a str) -> Option<&'a str> {
        let (probe_id, mac) = value.split_once('.')?;
        if !is_id(probe_id) {
            return None;
        }
        let claimed = blake3::Hash::from_hex(mac).ok()?;
        (claimed == self.mac(probe_id)).then_some(probe_id)
    }

    /// A key for another purpose, derived so that neither tells anything of the other.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(&format!("serin 2026 {purpose}"), &self.0)
    }

    fn mac(&self, probe_id: &str) -> blake3::Hash {
        blake3::keyed_hash(&self.0, probe_id.as_bytes())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

fn is_id(text: &str) -> bool {
    (1..=MAX_ID).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_own_seal_opens() {
        let key = Key::new([7; 32]);
        let sealed = key.seal("probe-1").expect("a lawful id");
        assert_eq!(key.verify(&sealed), Some("probe-1"));
        assert_eq!(Key::new([8; 32]).verify(&sealed), None);
        assert_eq!(key.verify(&sealed.replace("probe-1", "probe-2")), None);
        assert_eq!(key.verify(&sealed[..sealed.len() - 1]), None);
        assert_eq!(key.verify("probe-1"), None);
        assert_eq!(key.verify("probe-1."), None);
    }

    #[test]
    fn ids_are_bounded() {
        let key = Key::new([7; 32]);
        for id in ["", "Probe", "a.b", "a b", &"a".repeat(65)] {
            assert_eq!(key.seal(id), None, "{id:?}");
        }
        assert!(key.seal(&"a".repeat(64)).is_some());
    }

    #[test]
    fn derived_keys_differ_by_purpose() {
        let key = Key::new([7; 32]);
        assert_ne!(key.derive("recall codes"), key.derive("probe ids"));
        assert_eq!(format!("{key:?}"), "Key(..)");
    }

    proptest! {
        #[test]
        fn any_value_is_refused_without_panic(value in ".*") {
            prop_assert_eq!(Key::new([7; 32]).verify(&value), None);
        }

        #[test]
        fn one_flipped_character_is_noticed(id in "[a-z0-9-]{1,64}", at: prop::sample::Index) {
            let key = Key::new([9; 32]);
            let sealed = key.seal(&id).expect("a lawful id");
            let at = at.index(sealed.len());
            let mut bytes = sealed.into_bytes();
            bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
            prop_assert_eq!(key.verify(std::str::from_utf8(&bytes).expect("ASCII")), None);
        }
    }
}
