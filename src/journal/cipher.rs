//! Encryption of frames at rest: AES-256-GCM (NIST SP 800-38D) under a key of each segment file.

use std::io;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

/// A key for the segments of one tenant and epoch, with its name.
#[derive(Clone)]
pub struct Key {
    id: [u8; 16],
    secret: [u8; 32],
}

/// Seals and opens the payloads of one segment file.
pub struct Cipher(LessSafeKey);

impl Key {
    /// `id` is random: zeros name no key.
    pub fn new(id: [u8; 16], secret: [u8; 32]) -> Key {
        Key { id, secret }
    }

    pub fn id(&self) -> [u8; 16] {
        self.id
    }

    pub fn secret(&self) -> &[u8; 32] {
        &self.secret
    }
}

impl Cipher {
    /// Bytes by which sealing makes a payload longer.
    pub const TAG: usize = 16;

    /// Every file has a key of its own, made from the epoch's key and the file's random id. So a frame's number within
    /// its file is a nonce that no other frame under that key has.
    pub fn new(key: &Key, segment: &[u8; 16]) -> Cipher {
        let mut hasher = blake3::Hasher::new_keyed(&key.secret);
        hasher.update(b"serin journal segment key 1").update(segment);
        let bytes = hasher.finalize();
        let unbound = UnboundKey::new(&AES_256_GCM, bytes.as_bytes()).expect("32 bytes are the key's length");
        Cipher(LessSafeKey::new(unbound))
    }

    /// Encrypts in place and appends the tag.
    ///
    /// # Errors
    /// Where the payload is longer than AES-GCM takes (64 GiB), which no frame is.
    pub fn seal(&self, sequence: u32, bound: &[u8], payload: &mut Vec<u8>) -> io::Result<()> {
        let sealed = self.0.seal_in_place_append_tag(nonce(sequence), Aad::from(bound), payload);
        sealed.map_err(|_| io::Error::other("the frame cannot be encrypted"))
    }

    /// Decrypts in place and takes the tag away. `None` where key, head or payload is another.
    pub fn open(&self, sequence: u32, bound: &[u8], payload: &mut Vec<u8>) -> Option<()> {
        let len = self.0.open_in_place(nonce(sequence), Aad::from(bound), payload).ok()?.len();
        payload.truncate(len);
        Some(())
    }
}

/// Random bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system has random numbers");
    bytes
}

fn nonce(sequence: u32) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&sequence.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}
