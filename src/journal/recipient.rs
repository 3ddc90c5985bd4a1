//! What is written for somebody who alone can read it: a file in the format age v1 (age-encryption.org/v1) for an X25519
//! recipient. Opening such a file is left to `age`: the identity that opens it has no business here.

use std::fmt;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::hmac;
use ring::rand::SystemRandom;

use super::cipher::random;

/// The most bytes that one chunk of age's payload holds; more is never written here.
const CHUNK: usize = 64 << 10;
/// What a recipient begins with, and how many characters it has.
const PREFIX: &str = "age1";
const LENGTH: usize = PREFIX.len() + 52 + CHECKSUM;
const CHECKSUM: usize = 6;
const ALPHABET: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

/// Why a text names nobody to write for. None of these repeats the text: it may be a secret that was put there by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipientError {
    #[error(
        "[record] recipient is an identity, which is secret and reads what was recorded; name its recipient, which begins \
         with age1, as `age-keygen -y FILE` prints it"
    )]
    Identity,
    #[error(
        "[record] recipient is no X25519 recipient of age (those of plugins and SSH keys are not supported); it is age1 and \
         58 small letters and digits, as `age-keygen -y FILE` prints it"
    )]
    Malformed,
    #[error(
        "[record] recipient has a checksum that does not fit: a character is missing or wrong; copy it again, as \
         `age-keygen -y FILE` prints it"
    )]
    Checksum,
    #[error(
        "[record] recipient is well written, and no key that anything can be encrypted to; make one with `age-keygen`"
    )]
    Useless,
}

/// Whom files are written for. It is no secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Recipient([u8; 32]);

impl fmt::Debug for Recipient {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Recipient")
    }
}

impl Recipient {
    /// Reads a recipient as age writes it.
    ///
    /// # Errors
    /// [`RecipientError`].
    pub fn parse(text: &str) -> Result<Recipient, RecipientError> {
        if text.to_ascii_lowercase().starts_with("age-") {
            return Err(RecipientError::Identity);
        }
        // BIP 173: what stands before the last 1 says what it is.
        if text.len() != LENGTH || !text.starts_with(PREFIX) {
            return Err(RecipientError::Malformed);
        }
        let value = |byte: &u8| ALPHABET.iter().position(|letter| letter == byte).map(|at| at as u8);
        let values: Option<Vec<u8>> = text.as_bytes()[PREFIX.len()..].iter().map(value).collect();
        let values = values.ok_or(RecipientError::Malformed)?;
        if checksum(&values) != 1 {
            return Err(RecipientError::Checksum);
        }
        let recipient =
            Recipient(bytes(&values[..values.len() - CHECKSUM]).ok_or(RecipientError::Malformed)?);
        // A point of low order agrees with nobody.
        agree(&recipient.0).map(|_| recipient).ok_or(RecipientError::Useless)
    }

    /// A whole file that holds `text`. `None` where that is more than a chunk.
    pub fn seal(&self, text: &[u8]) -> Option<Vec<u8>> {
        if text.len() > CHUNK {
            return None;
        }
        let file_key: [u8; 16] = random();
        let (share, secret) = agree(&self.0)?;
        let salt = [share.as_slice(), &self.0].concat();
        let wrapping = derive(&salt, &secret, b"age-encryption.org/v1/X25519");
        let wrapped = encrypt(&wrapping, [0; 12], &file_key);
        let mut header =
            format!("age-encryption.org/v1\n-> X25519 {}\n{}\n---", base64(&share), base64(&wrapped));
        let mac = hmac::Key::new(hmac::HMAC_SHA256, &derive(&[], &file_key, b"header"));
        let tag = hmac::sign(&mac, header.as_bytes());
        header.push_str(&format!(" {}\n", base64(tag.as_ref())));
        let nonce: [u8; 16] = random();
        // The first chunk, which is the last one.
        let counter = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let payload = encrypt(&derive(&nonce, &file_key, b"payload"), counter, text);
        Some([header.as_bytes(), &nonce, &payload].concat())
    }
}

/// A new key of ours, its public half, and what it has in common with theirs.
fn agree(theirs: &[u8; 32]) -> Option<(Vec<u8>, [u8; 32])> {
    let ours = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).ok()?;
    let share = ours.compute_public_key().ok()?.as_ref().to_vec();
    let common =
        agree_ephemeral(ours, &UnparsedPublicKey::new(&X25519, theirs), |common| common.try_into().ok());
    Some((share, common.ok()??))
}

/// HKDF with SHA-256.
fn derive(salt: &[u8], secret: &[u8], info: &[u8]) -> [u8; 32] {
    let mut key = [0; 32];
    let expanded = Salt::new(HKDF_SHA256, salt).extract(secret);
    let info = [info];
    let filled = expanded.expand(&info, HKDF_SHA256).and_then(|okm| okm.fill(&mut key));
    filled.expect("32 bytes are not too long");
    key
}

fn encrypt(key: &[u8; 32], nonce: [u8; 12], text: &[u8]) -> Vec<u8> {
    let key = UnboundKey::new(&CHACHA20_POLY1305, key).expect("32 bytes are the key's length");
    let mut sealed = text.to_vec();
    LessSafeKey::new(key)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)
        .expect("a chunk is not too long");
    sealed
}

/// As age writes it: without padding, and no line of ours is longer than the 64 characters it allows.
fn base64(bytes: &[u8]) -> String {
    base64::encode_config(bytes, base64::STANDARD_NO_PAD)
}

/// Bech32's checksum over the prefix `age` and all values; 1 where it is right.
fn checksum(values: &[u8]) -> u32 {
    const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    let name = PREFIX.trim_end_matches('1').bytes();
    let high = name.clone().map(|byte| byte >> 5);
    let low = name.map(|byte| byte & 31);
    high.chain([0]).chain(low).chain(values.iter().copied()).fold(1, |sum: u32, value| {
        let moved = (sum & 0x1ff_ffff) << 5 ^ u32::from(value);
        let taps = (0..5).filter(|bit| sum >> (25 + bit) & 1 == 1);
        taps.fold(moved, |moved, bit| moved ^ GENERATOR[bit as usize])
    })
}

/// The bytes of groups of five bits; the bits that are left over must be zeros.
fn bytes(values: &[u8]) -> Option<[u8; 32]> {
    let (mut bytes, mut held, mut bits) = (Vec::new(), 0u32, 0);
    for value in values {
        held = held << 5 | u32::from(*value);
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    bytes.try_into().ok().filter(|_| held == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of `age-keygen`; its identity was thrown away.
    const GOOD: &str = "age1wtwn8lrhax50yhh94ymw4q6vl3q85rmnwy8g8aypp37sa4l55eeqjq63mq";

    #[test]
    fn a_recipient_is_read_and_every_slip_is_found() {
        assert!(Recipient::parse(GOOD).is_ok());
        for at in PREFIX.len()..GOOD.len() {
            for letter in ALPHABET.iter().filter(|letter| **letter != GOOD.as_bytes()[at]) {
                let mut slip = GOOD.as_bytes().to_vec();
                slip[at] = *letter;
                let slip = String::from_utf8(slip).expect("letters");
                assert_eq!(Recipient::parse(&slip), Err(RecipientError::Checksum), "{slip}");
            }
        }
    }

    #[test]
    fn what_is_none_is_told_apart_and_never_repeated() {
        let secret = format!("AGE-SECRET-KEY-1{}", "Q".repeat(58));
        let mixed = GOOD.replacen('q', "Q", 1);
        assert_ne!(mixed, GOOD);
        let cases = [
            (secret.as_str(), RecipientError::Identity),
            ("age-plugin-x-1qqqq", RecipientError::Identity),
            ("", RecipientError::Malformed),
            ("age1", RecipientError::Malformed),
            (&GOOD.to_uppercase(), RecipientError::Malformed),
            (&mixed, RecipientError::Malformed),
            (&GOOD[..GOOD.len() - 1], RecipientError::Malformed),
            (&format!("{GOOD} "), RecipientError::Malformed),
            ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIiiiiiiiiiiiiiiiiiiiiiiiiii", RecipientError::Malformed),
            ("age1yubikey1qwertyuiopasdfghjklzxcvbnmqwertyuiopasdfghjklzxcvb", RecipientError::Malformed),
            (&"é".repeat(LENGTH / 2), RecipientError::Malformed),
        ];
        for (text, error) in cases {
            assert_eq!(Recipient::parse(text), Err(error), "{text}");
            assert!(text.len() < 8 || !error.to_string().contains(text));
        }
        // All zeros, with a checksum that fits: a point with which nothing can be agreed.
        let zeros = [0u8; 52];
        let sum = checksum(&[zeros.as_slice(), &[0; CHECKSUM]].concat()) ^ 1;
        let tail: String =
            (0..6).map(|at| char::from(ALPHABET[(sum >> (5 * (5 - at)) & 31) as usize])).collect();
        let low = format!("{PREFIX}{}{tail}", "q".repeat(52));
        assert_eq!(Recipient::parse(&low), Err(RecipientError::Useless));
    }

    #[test]
    fn no_two_files_are_alike_and_none_shows_its_text() {
        let recipient = Recipient::parse(GOOD).expect("a recipient");
        let files = [0; 2].map(|_| recipient.seal(b"what is to be kept\n").expect("is written"));
        assert_ne!(files[0], files[1]);
        for file in files {
            assert!(file.starts_with(b"age-encryption.org/v1\n-> X25519 "));
            assert!(!file.windows(7).any(|window| window == b"is to b"));
        }
    }
}
