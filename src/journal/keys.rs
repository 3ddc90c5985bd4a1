//! The keys that frames are encrypted with: one for each epoch and run of the writer, kept beside its segments. It is wrapped
//! by a key that is kept elsewhere, or written for a recipient of `age`, whom nothing here can stand in for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::cipher::{Key, random};
use super::fs::Fs;
use super::recipient::{Recipient, RecipientError};
use super::{Error, Result};
use crate::ids;

/// Bytes of a wrapped key: a nonce, the key, a tag.
const WRAPPED: usize = 12 + 32 + 16;
/// What the names of key files end in: of wrapped ones, and of those written for a recipient.
const KEY: &str = "key";
const AGE: &str = "age";
/// The endings of key files.
pub const ENDINGS: [&str; 2] = [KEY, AGE];

/// Why a key cannot be used. What a file or a variable holds is never repeated.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("[record] key_file = {path:?}: {source}; name a file with 64 hexadecimal digits, or with opened keys", path = .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("[record] key_file = {path:?} holds no key; it must be 64 hexadecimal digits, as `openssl rand -hex 32` makes them, or opened keys, as `age -d` prints them", path = .0.display())]
    Malformed(PathBuf),
    #[error("[record] key_file = {path:?} holds no opened key in line {line}; each is an id of 32 and a key of 64 hexadecimal digits, as `age -d` prints them", path = .path.display())]
    MalformedLine { path: PathBuf, line: usize },
    #[error(
        "{VARIABLE} holds no key; it must be 64 hexadecimal digits, as `openssl rand -hex 32` makes them"
    )]
    MalformedVariable,
    #[error("[record] key_file = {path:?} and {VARIABLE} are both set, and only one key can wrap; leave one out", path = .0.display())]
    Both(PathBuf),
    #[error(transparent)]
    Recipient(#[from] RecipientError),
    #[error(
        "[record] recipient is set, and {0} holds a key that wraps; keys are written for the recipient or wrapped, not both: \
         leave one out"
    )]
    BesideRecipient(String),
    #[error(
        "[record] key_file holds opened keys, which read and encrypt nothing; to record, name a [record] recipient as well, \
         or a key of 64 hexadecimal digits instead"
    )]
    OnlyReads,
}

/// The variable of the environment that holds the key where no file does.
pub const VARIABLE: &str = "SERIN_RECORD_KEY";

/// What a key file or the variable holds.
enum Given {
    Nothing,
    Wrapping([u8; 32]),
    Opened(HashMap<[u8; 16], Key>),
}

/// The keychain of a recipient and a key file, or where that path is empty of [`VARIABLE`]; without any of them nothing is
/// encrypted.
///
/// # Errors
/// [`KeyError`].
pub fn keychain(path: &Path, recipient: &str) -> std::result::Result<Keychain, KeyError> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty());
    keychain_of(path, recipient, variable.as_deref())
}

/// The keychain of a key file and a recipient, whatever the environment holds.
///
/// # Errors
/// [`KeyError`].
pub fn keychain_of_files(path: &Path, recipient: &str) -> std::result::Result<Keychain, KeyError> {
    keychain_of(path, recipient, None)
}

fn keychain_of(
    path: &Path,
    recipient: &str,
    variable: Option<&OsStr>,
) -> std::result::Result<Keychain, KeyError> {
    let recipient = Some(recipient).filter(|text| !text.is_empty()).map(Recipient::parse).transpose()?;
    match (recipient, given(path, variable)?) {
        (None, Given::Nothing) => Ok(Keychain::default()),
        (None, Given::Wrapping(secret)) => Ok(Keychain::wrapping(&secret)),
        (None, Given::Opened(known)) => Ok(Keychain::of(Way::None, known)),
        (Some(recipient), Given::Nothing) => Ok(Keychain::of(Way::For(recipient), HashMap::new())),
        (Some(recipient), Given::Opened(known)) => Ok(Keychain::of(Way::For(recipient), known)),
        (Some(_), Given::Wrapping(_)) => Err(KeyError::BesideRecipient(match variable {
            Some(_) => VARIABLE.to_owned(),
            None => format!("key_file = {:?}", path.display().to_string()),
        })),
    }
}

fn given(path: &Path, variable: Option<&OsStr>) -> std::result::Result<Given, KeyError> {
    let secret = |text: &str| unhex::<32>(text.trim()).map(Given::Wrapping);
    match (path.as_os_str().is_empty(), variable) {
        (true, None) => Ok(Given::Nothing),
        (true, Some(text)) => text.to_str().and_then(secret).ok_or(KeyError::MalformedVariable),
        (false, None) => {
            let text = std::fs::read_to_string(path)
                .map_err(|source| KeyError::Unreadable { path: path.to_owned(), source })?;
            secret(&text).map_or_else(|| opened(path, &text), Ok)
        }
        (false, Some(_)) => Err(KeyError::Both(path.to_owned())),
    }
}

/// The keys that somebody has opened: an id and a key on each line.
fn opened(path: &Path, text: &str) -> std::result::Result<Given, KeyError> {
    let mut keys = HashMap::new();
    for (line, words) in (1..).zip(text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>())) {
        let key = match words[..] {
            [] => continue,
            [id, secret] => unhex(id).zip(unhex(secret)),
            // A single word would be a key that wraps, and is none.
            [_] if text.split_whitespace().count() == 1 => return Err(KeyError::Malformed(path.to_owned())),
            _ => None,
        };
        let (id, secret) = key.ok_or_else(|| KeyError::MalformedLine { path: path.to_owned(), line })?;
        keys.insert(id, Key::new(id, secret));
    }
    match keys.is_empty() {
        true => Err(KeyError::Malformed(path.to_owned())),
        false => Ok(Given::Opened(keys)),
    }
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    ids::unhex(text)?.try_into().ok()
}

/// Makes keys and finds them again. The default makes none: frames are plain then.
pub struct Keychain {
    way: Way,
    matching: Option<[u8; 32]>,
    /// Those in use, those that were found, and those that were given.
    known: Mutex<HashMap<[u8; 16], Key>>,
}

/// What becomes of a new key.
enum Way {
    /// There is none: frames are plain.
    Plain,
    /// There must be none: whoever has opened keys does not record in plain beside them.
    None,
    Wrapped(Box<LessSafeKey>),
    For(Recipient),
}

impl Default for Keychain {
    fn default() -> Self {
        Keychain::of(Way::Plain, HashMap::new())
    }
}

impl fmt::Debug for Keychain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.way {
            Way::Plain => "Keychain(none)",
            Way::None => "Keychain(opened keys)",
            Way::Wrapped(_) => "Keychain(a wrapping key)",
            Way::For(_) => "Keychain(a recipient)",
        })
    }
}

impl Keychain {
    fn of(way: Way, known: HashMap<[u8; 16], Key>) -> Keychain {
        Keychain { way, matching: None, known: Mutex::new(known) }
    }

    /// Wraps keys with AES-256-GCM under a key of the operator's.
    pub fn wrapping(secret: &[u8; 32]) -> Keychain {
        let unbound = UnboundKey::new(&AES_256_GCM, secret).expect("32 bytes are the key's length");
        let matching = Some(blake3::derive_key("serin 2026 match key from the operator's key", secret));
        let way = Way::Wrapped(Box::new(LessSafeKey::new(unbound)));
        Keychain { matching, ..Keychain::of(way, HashMap::new()) }
    }

    /// The same, with a secret for messages that no other tenant has.
    pub fn of_tenant(mut self, name: &str) -> Keychain {
        self.matching = self.matching.map(|secret| *blake3::keyed_hash(&secret, name.as_bytes()).as_bytes());
        self
    }

    /// Whether what is written from now on is encrypted.
    pub fn encrypts(&self) -> bool {
        matches!(self.way, Way::Wrapped(_) | Way::For(_))
    }

    /// Whether the keys of this run are found by nobody here once it is over.
    pub fn forgets(&self) -> bool {
        matches!(self.way, Way::For(_))
    }

    /// That new segments may be written.
    ///
    /// # Errors
    /// [`KeyError::OnlyReads`].
    pub fn may_write(&self) -> std::result::Result<(), KeyError> {
        if matches!(self.way, Way::None) { Err(KeyError::OnlyReads) } else { Ok(()) }
    }

    /// The secret under which messages are hashed for stitching, where keys are wrapped: made from the operator's key, so
    /// that it lies nowhere, and replicas that share that key have it in common.
    pub fn match_key(&self) -> Option<[u8; 32]> {
        self.matching
    }

    /// A new key for the segments in that folder, written there wrapped or for the recipient. `None` where frames are to be
    /// plain.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn fresh(&self, fs: &dyn Fs, epoch: &Path) -> Result<Option<Key>> {
        let (id, secret) = (random::<16>(), random::<32>());
        let (ending, bytes) = match &self.way {
            Way::Plain => return Ok(None),
            Way::None => (AGE, None),
            Way::Wrapped(wrapping) => (KEY, Some(wrap(wrapping, &id, &secret))),
            Way::For(recipient) => {
                (AGE, recipient.seal(format!("{} {}\n", ids::hex(&id), ids::hex(&secret)).as_bytes()))
            }
        };
        let path = path_of(epoch, &id, ending);
        let io = |source| Error::io("write", &path, source);
        let bytes =
            bytes.ok_or_else(|| io(std::io::Error::other("nothing may be written with opened keys")))?;
        let blob = fs.create(&path).map_err(io)?;
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
        let Way::Wrapped(wrapping) = &self.way else { return None };
        let bytes = std::fs::read(path_of(segment.parent()?, id, KEY)).ok()?;
        let (nonce, wrapped) = bytes.split_first_chunk::<12>().filter(|_| bytes.len() == WRAPPED)?;
        let mut secret = wrapped.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let opened = wrapping.open_in_place(nonce, Aad::from(*id), &mut secret).ok()?;
        let key = Key::new(*id, (&*opened).try_into().ok()?);
        self.known().insert(*id, key.clone());
        Some(key)
    }

    /// What is said of a segment file whose key is not to be had.
    pub fn missing(segment: &Path, id: &[u8; 16]) -> Error {
        let path = |ending| path_of(segment.parent().unwrap_or(segment), id, ending);
        let (sealed, wrapped) = (path(AGE), path(KEY));
        let remedy = match (sealed.exists(), wrapped.exists()) {
            (true, _) => format!(
                "`age -d -i IDENTITY {}` opens it; name a file of such lines as [record] key_file",
                sealed.display()
            ),
            (_, true) => format!(
                "another key than [record] key_file or {VARIABLE} gives has wrapped {}",
                wrapped.display()
            ),
            _ => format!("there is neither {} nor {}", sealed.display(), wrapped.display()),
        };
        Error::KeyMissing { segment: segment.to_owned(), remedy }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 16], Key>> {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn wrap(wrapping: &LessSafeKey, id: &[u8; 16], secret: &[u8; 32]) -> Vec<u8> {
    let (nonce, mut wrapped) = (random::<12>(), secret.to_vec());
    wrapping
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(*id), &mut wrapped)
        .expect("32 bytes are not too long");
    [nonce.as_slice(), &wrapped].concat()
}

fn path_of(epoch: &Path, id: &[u8; 16], ending: &str) -> PathBuf {
    epoch.join(format!("{}.{ending}", ids::hex(id)))
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
        let of = |path: &Path, variable: Option<&str>| keychain_of(path, "", variable.map(OsStr::new));
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
        let stored = std::fs::read(path_of(dir.path(), &key.id(), KEY)).expect("is there");
        assert!(!stored.windows(32).any(|window| window == key.secret()));
    }

    const RECIPIENT: &str = "age1wtwn8lrhax50yhh94ymw4q6vl3q85rmnwy8g8aypp37sa4l55eeqjq63mq";

    /// A line as `age -d` prints it.
    fn line(key: &Key) -> String {
        format!("{} {}\n", ids::hex(&key.id()), ids::hex(key.secret()))
    }

    #[test]
    fn a_key_for_a_recipient_is_found_by_its_own_run_and_by_who_was_given_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let (segment, file) = (dir.path().join("000001.seg"), dir.path().join("opened"));
        let chain = |path: &Path, recipient: &str| keychain_of(path, recipient, None).expect("keys");
        let writer = chain(Path::new(""), RECIPIENT);
        let key = writer.fresh(&Real, dir.path()).expect("writes").expect("encrypts");
        let other = writer.fresh(&Real, dir.path()).expect("writes").expect("encrypts");
        assert!(writer.encrypts() && writer.forgets() && writer.match_key().is_none());
        assert!(writer.find(&segment, &key.id()).is_some());
        let later = chain(Path::new(""), RECIPIENT);
        assert!(later.find(&segment, &key.id()).is_none());
        let says = Keychain::missing(&segment, &key.id()).to_string();
        let stored = path_of(dir.path(), &key.id(), AGE);
        assert!(says.contains(&format!("age -d -i IDENTITY {}", stored.display())), "{says}");
        let bytes = std::fs::read(&stored).expect("is there");
        let digits = ids::hex(key.secret());
        for secret in [key.secret().as_slice(), digits.as_bytes()] {
            assert!(!bytes.windows(secret.len()).any(|window| window == secret));
        }
        std::fs::write(&file, format!("\n{}\n", line(&key))).expect("writes");
        for recipient in ["", RECIPIENT] {
            let given = chain(&file, recipient);
            let found = given.find(&segment, &key.id()).expect("was given");
            assert_eq!(found.secret(), key.secret());
            assert!(given.find(&segment, &other.id()).is_none());
            assert_eq!(given.may_write().is_ok(), !recipient.is_empty());
            assert_eq!(given.fresh(&Real, dir.path()).is_ok(), !recipient.is_empty());
            assert!(!format!("{given:?}").contains(&digits));
        }
    }

    #[test]
    fn what_wraps_is_not_beside_a_recipient_and_what_is_malformed_is_not_repeated() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file, none) = (dir.path().join("keys"), Path::new(""));
        let secret = "0f".repeat(32);
        let refused = |path: &Path, recipient: &str, variable: Option<&str>| {
            let error = keychain_of(path, recipient, variable.map(OsStr::new)).expect_err("is refused");
            let says = error.to_string();
            assert!(!says.contains("0f0f") && !says.contains('\n'), "{says}");
            says
        };
        std::fs::write(&file, &secret).expect("writes");
        assert!(refused(&file, RECIPIENT, None).contains("key_file = "));
        assert!(refused(none, RECIPIENT, Some(&secret)).contains(VARIABLE));
        assert!(refused(none, &RECIPIENT[1..], None).contains("age-keygen -y"));
        let good = line(&Key::new([0x0f; 16], [0x0f; 32]));
        let cases = [
            (String::new(), "holds no key"),
            (" \n\n".to_owned(), "holds no key"),
            (secret[1..].to_owned(), "64 hexadecimal digits"),
            (format!("{good}{secret}\n"), "line 2"),
            (format!("{good}\n{}", &good[2..]), "line 3"),
            (format!("{} more", good.trim()), "line 1"),
            (format!("{good}# 0f0f\n"), "line 2"),
            (good.replacen('0', "g", 1), "line 1"),
        ];
        for (text, part) in cases {
            std::fs::write(&file, &text).expect("writes");
            let says = refused(&file, "", None);
            assert!(says.contains(part) && says.contains("key_file"), "{text:?}: {says}");
        }
    }
}
