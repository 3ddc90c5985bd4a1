//! The keys that frames are encrypted with: one for each epoch and run of the writer, kept beside its segments, wrapped
//! by a key that is kept elsewhere.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::cipher::Key;
use super::fs::Fs;
use super::{Error, Result};
use crate::ids;

/// Bytes of a wrapped key: a nonce, the key, a tag.
const WRAPPED: usize = 12 + 32 + 16;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("[record] key_file = {path:?}: {source}; name a file with 64 hexadecimal digits", path = .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("[record] key_file = {path:?} holds no key; it must be 64 hexadecimal digits, as `openssl rand -hex 32` makes them", path = .0.display())]
    Malformed(PathBuf),
    #[error(
        "{VARIABLE} holds no key; it must be 64 hexadecimal digits, as `openssl rand -hex 32` makes them"
    )]
    MalformedVariable,
    #[error("[record] key_file = {path:?} and {VARIABLE} are both set, and only one key can wrap; leave one out", path = .0.display())]
    Both(PathBuf),
}

/// The variable of the environment that holds the key where no file does.
pub const VARIABLE: &str = "SERIN_RECORD_KEY";

/// The keychain of a key file, or where that path is empty of [`VARIABLE`]; without either nothing is encrypted.
///
/// # Errors
/// [`KeyError`].
pub fn keychain(path: &Path) -> std::result::Result<Keychain, KeyError> {
    keychain_of(path, std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).as_deref())
}

/// The keychain of a key file, whatever the environment holds.
///
/// # Errors
/// [`KeyError`].
pub fn keychain_of_file(path: &Path) -> std::result::Result<Keychain, KeyError> {
    keychain_of(path, None)
}

fn keychain_of(path: &Path, variable: Option<&OsStr>) -> std::result::Result<Keychain, KeyError> {
    let secret = |text: &str| ids::unhex(text.trim()).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    let chain = |secret: [u8; 32]| Keychain::wrapping(&secret);
    match (path.as_os_str().is_empty(), variable) {
        (true, None) => Ok(Keychain::default()),
        (true, Some(text)) => text.to_str().and_then(secret).map(chain).ok_or(KeyError::MalformedVariable),
        (false, None) => {
            let text = std::fs::read_to_string(path)
                .map_err(|source| KeyError::Unreadable { path: path.to_owned(), source })?;
            secret(&text).map(chain).ok_or_else(|| KeyError::Malformed(path.to_owned()))
        }
        (false, Some(_)) => Err(KeyError::Both(path.to_owned())),
    }
}

/// Makes keys and finds them again. The default makes none: frames are plain then.
#[derive(Default)]
pub struct Keychain {
    wrapping: Option<LessSafeKey>,
    matching: Option<[u8; 32]>,
    /// Those in use, and those that were found.
    known: Mutex<HashMap<[u8; 16], Key>>,
}

impl fmt::Debug for Keychain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.wrapping.is_some() { "Keychain(a wrapping key)" } else { "Keychain(none)" })
    }
}

impl Keychain {
    /// Wraps keys with AES-256-GCM under a key of the operator's.
    pub fn wrapping(secret: &[u8; 32]) -> Keychain {
        let unbound = UnboundKey::new(&AES_256_GCM, secret).expect("32 bytes are the key's length");
        let matching = Some(blake3::derive_key("serin 2026 match key from the operator's key", secret));
        Keychain { wrapping: Some(LessSafeKey::new(unbound)), matching, known: Mutex::default() }
    }

    /// The same, with a secret for messages that no other tenant has.
    pub fn of_tenant(mut self, name: &str) -> Keychain {
        self.matching = self.matching.map(|secret| *blake3::keyed_hash(&secret, name.as_bytes()).as_bytes());
        self
    }

    pub fn encrypts(&self) -> bool {
        self.wrapping.is_some()
    }

    /// The secret under which messages are hashed for stitching, where frames are encrypted: made from the operator's key,
    /// so that it lies nowhere, and replicas that share that key have it in common.
    pub fn match_key(&self) -> Option<[u8; 32]> {
        self.matching
    }

    /// A new key for the segments in that folder, written there wrapped. `None` where frames are to be plain.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn fresh(&self, fs: &dyn Fs, epoch: &Path) -> Result<Option<Key>> {
        let Some(wrapping) = &self.wrapping else { return Ok(None) };
        let (id, secret, nonce) = (random::<16>(), random::<32>(), random::<12>());
        let mut wrapped = secret.to_vec();
        wrapping
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(id), &mut wrapped)
            .expect("32 bytes are not too long");
        let path = path_of(epoch, &id);
        let io = |source| Error::io("write", &path, source);
        let blob = fs.create(&path).map_err(io)?;
        let bytes = [nonce.as_slice(), &wrapped].concat();
        blob.write_all_at(&bytes, 0)
            .and_then(|()| blob.sync())
            .and_then(|()| fs.sync_dir(epoch))
            .map_err(io)?;
        let key = Key::new(id, secret);
        self.known().insert(id, key.clone());
        Ok(Some(key))
    }

    /// The key of that name for a segment file, where it can be had.
    pub fn find(&self, segment: &Path, id: &[u8; 16]) -> Option<Key> {
        if let Some(key) = self.known().get(id) {
            return Some(key.clone());
        }
        let wrapping = self.wrapping.as_ref()?;
        let bytes = std::fs::read(path_of(segment.parent()?, id)).ok()?;
        let (nonce, wrapped) = bytes.split_first_chunk::<12>().filter(|_| bytes.len() == WRAPPED)?;
        let mut secret = wrapped.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = wrapping.open_in_place(nonce, Aad::from(*id), &mut secret).ok()?;
        let key = Key::new(*id, (&*opened).try_into().ok()?);
        self.known().insert(*id, key.clone());
        Some(key)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 16], Key>> {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn path_of(epoch: &Path, id: &[u8; 16]) -> PathBuf {
    epoch.join(format!("{}.key", ids::hex(id)))
}

/// Random bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).expect("the operating system has random numbers");
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::fs::Real;
    use super::*;

    #[test]
    fn a_key_comes_from_a_file_or_from_the_environment_and_not_from_both() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, none) = (dir.path().join("key"), Path::new(""));
        let digits = "0f".repeat(32);
        std::fs::write(&file, format!("{digits}\n")).expect("writes");
        let of = |path: &Path, variable: Option<&str>| keychain_of(path, variable.map(OsStr::new));
        let matching = |chain: Keychain| chain.match_key();
        let from_file = of(&file, None).map(matching).expect("is a key");
        assert!(from_file.is_some());
        assert_eq!(of(none, Some(&digits)).map(matching).expect("is a key"), from_file);
        assert!(!of(none, None).expect("is no key").encrypts());
        assert!(matches!(of(none, Some("0f")), Err(KeyError::MalformedVariable)));
        assert!(matches!(of(&file, Some(&digits)), Err(KeyError::Both(_))));
        let says = KeyError::MalformedVariable.to_string();
        assert!(says.contains(VARIABLE) && !says.contains("0f"), "{says}");
    }

    #[test]
    fn a_key_is_found_again_by_who_has_the_wrapping_key_only() {
        let dir = tempfile::tempdir().expect("a folder");
        let segment = dir.path().join("000001.seg");
        let key = Keychain::wrapping(&[7; 32]).fresh(&Real, dir.path()).expect("writes").expect("encrypts");
        let found = Keychain::wrapping(&[7; 32]).find(&segment, &key.id()).expect("is found");
        assert_eq!((found.id(), found.secret()), (key.id(), key.secret()));
        assert!(Keychain::wrapping(&[8; 32]).find(&segment, &key.id()).is_none());
        assert!(Keychain::default().find(&segment, &key.id()).is_none());
        assert!(Keychain::default().fresh(&Real, dir.path()).expect("writes").is_none());
        let stored = std::fs::read(path_of(dir.path(), &key.id())).expect("is there");
        assert!(!stored.windows(32).any(|window| window == key.secret()));
    }
}
