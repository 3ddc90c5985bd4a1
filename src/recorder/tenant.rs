//! Tenants: groups of clients whose recordings have nothing in common, neither directory nor keys, memory nor rules.
//! Whoever belongs to none is [`DEFAULT`], of whom `[record]` speaks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::mode::Mode;
use crate::journal::keys::{KeyError, Keychain, keychain_of_files};
use crate::journal::{Options, segment};
use crate::units::{Size, Span};

/// The tenant of all clients that belong to no other.
pub const DEFAULT: &str = "default";
/// The folder in `[record] dir` that holds the tenants' journals.
pub const FOLDER: &str = "tenants";
/// The most tenants: each costs a journal, an index and a write of its own.
pub const MOST: usize = 64;
/// Bytes of a name, as many as a segment's header has room for.
const LONGEST: usize = 16;
/// Where there are several, one may take so much of the memory unless it is said otherwise: a quarter.
const SHARE: u64 = 4;

/// `[[tenant]]`: who belongs to it, and what is otherwise than in `[record]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub name: String,
    /// File of the API keys whose owners belong to it, one a line.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub keys_file: PathBuf,
    /// A header with that value makes one of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub header: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opt_out: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unstored: Option<Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample: Option<f64>,
    /// The most of `[record] memory` that it may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_streams: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_content: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_metadata: Option<Span>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep_bytes: Option<Size>,
    /// Its own key file and recipient; both empty for those of `[record]`.
    #[serde(default, skip_serializing_if = "is_unset")]
    pub key_file: PathBuf,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub recipient: String,
}

/// One tenant, with all that is in force for it.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub name: String,
    /// `[record]`, with what is otherwise for it.
    pub config: super::Config,
    /// How its journal is written and read.
    pub options: Options,
}

/// Why a tenant cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("[[tenant]] name = {0:?}: {1}")]
    OwnKey(String, String),
    #[error("there is no tenant {0:?}; there is {1}")]
    Unknown(String, String),
}

impl Config {
    /// What is wrong with it, as far as it alone can tell.
    ///
    /// # Errors
    /// One line that says what is wrong and how to mend it.
    pub fn check(&self, record: &super::Config) -> Result<(), String> {
        let name = &self.name;
        let letters = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        if name.is_empty() || name.len() > LONGEST || !name.bytes().all(letters) {
            return Err(format!(
                "[[tenant]] name = {name:?} is no name; it has 1 to {LONGEST} characters, of a-z, 0-9, - and _"
            ));
        }
        if name == DEFAULT {
            return Err(format!("[[tenant]] name = {DEFAULT:?} is reserved; [record] speaks of that one"));
        }
        if self.memory.is_some_and(|memory| memory > record.memory) {
            return Err(format!(
                "[[tenant]] name = {name:?}: memory is larger than [record] memory, of which it is a share"
            ));
        }
        let own = self.over(record, 1).check();
        own.map_err(|message| message.replacen("[record]", &format!("[[tenant]] name = {name:?}:"), 1))
    }

    /// `[record]`, with what is otherwise here. `tenants` is how many there are.
    fn over(&self, record: &super::Config, tenants: usize) -> super::Config {
        let memory = self.memory.unwrap_or(Size(record.memory.0 / SHARE));
        super::Config {
            dir: record.dir.join(FOLDER).join(&self.name),
            mode: self.mode.unwrap_or(record.mode),
            opt_out: self.opt_out.unwrap_or(record.opt_out),
            unstored: self.unstored.unwrap_or(record.unstored),
            sample: self.sample.unwrap_or(record.sample),
            memory,
            commit_bytes: record.commit_bytes.min(memory),
            keep_streams: self.keep_streams.unwrap_or(record.keep_streams),
            keep_content: self.keep_content.unwrap_or(record.keep_content),
            keep_metadata: self.keep_metadata.unwrap_or(record.keep_metadata),
            keep_bytes: self.keep_bytes.unwrap_or(record.keep_bytes),
            // All of them lie on one disk: together they set aside as much as the default one.
            ballast: Size(record.ballast.0 / tenants.max(1) as u64),
            key_file: if self.has_keys() { self.key_file.clone() } else { record.key_file.clone() },
            recipient: if self.has_keys() { self.recipient.clone() } else { record.recipient.clone() },
            ..record.clone()
        }
    }

    fn has_keys(&self) -> bool {
        !is_unset(&self.key_file) || !self.recipient.is_empty()
    }

    fn keys(&self, record: &super::Config) -> Result<Keychain, Error> {
        let keys = match self.has_keys() {
            false => record.keychain()?,
            true => keychain_of_files(&self.key_file, &self.recipient).map_err(|error| {
                let says = error.to_string();
                Error::OwnKey(self.name.clone(), says.trim_start_matches("[record] ").to_owned())
            })?,
        };
        // What two tenants have said must not look alike, whoever's key it is.
        Ok(keys.of_tenant(&self.name))
    }
}

impl Tenant {
    /// All of them, in the order of the file; the default one comes first.
    ///
    /// # Errors
    /// [`Error::Key`] and [`Error::OwnKey`].
    pub fn all(record: &super::Config, tenants: &[Config]) -> Result<Vec<Tenant>, Error> {
        let own = tenants.iter().map(|tenant| Self::one(record, tenants, &tenant.name));
        std::iter::once(Self::one(record, tenants, DEFAULT)).chain(own).collect()
    }

    /// The one of that name.
    ///
    /// # Errors
    /// [`Error`].
    pub fn one(record: &super::Config, tenants: &[Config], name: &str) -> Result<Tenant, Error> {
        let (config, keys) = match tenants.iter().find(|tenant| tenant.name == name) {
            Some(tenant) => (tenant.over(record, tenants.len()), tenant.keys(record)?),
            None if name == DEFAULT => {
                let share = if tenants.is_empty() { record.memory } else { Size(record.memory.0 / SHARE) };
                let commit_bytes = record.commit_bytes.min(share);
                let config = super::Config { memory: share, commit_bytes, ..record.clone() };
                (config, record.keychain()?)
            }
            None => return Err(Error::Unknown(name.to_owned(), names(tenants))),
        };
        let options = Options { keys: Arc::new(keys), tenant: id(name), ..config.journal() };
        Ok(Tenant { name: name.to_owned(), config, options })
    }
}

impl Tenant {
    /// That new segments may be written with its keys.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub fn may_write(&self) -> Result<(), Error> {
        Ok(self.options.keys.may_write()?)
    }
}

/// The names of all tenants, for people.
fn names(tenants: &[Config]) -> String {
    let all: Vec<&str> =
        std::iter::once(DEFAULT).chain(tenants.iter().map(|tenant| tenant.name.as_str())).collect();
    all.join(", ")
}

/// The name as it stands in the headers of segments; the default one's is zeros.
fn id(name: &str) -> [u8; 16] {
    let mut id = [0; LONGEST];
    if name != DEFAULT {
        id.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
    }
    id
}

/// Journals below `dir` that belong to no tenant: nobody looks after them.
pub fn orphans(dir: &Path, tenants: &[Config]) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir.join(FOLDER)) else { return Vec::new() };
    let known = |path: &PathBuf| tenants.iter().any(|tenant| path.ends_with(&tenant.name));
    let paths = entries.flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = paths
        .filter(|path| !known(path) && segment::epochs(path).is_ok_and(|epochs| !epochs.is_empty()))
        .collect();
    found.sort();
    found
}

fn is_unset(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Config {
        Config { name: name.to_owned(), ..Config::default() }
    }

    #[test]
    fn a_tenant_may_have_a_recipient_of_its_own() {
        let recipient = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p".to_owned();
        let own = Config { recipient: recipient.clone(), ..tenant("a") };
        let all = Tenant::all(&super::super::Config::default(), &[own, tenant("b")]).expect("is one");
        let keys: Vec<_> = all.iter().map(|tenant| &tenant.options.keys).collect();
        assert_eq!(keys.iter().map(|keys| keys.forgets()).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(all[1].config.recipient, recipient);
        let record = super::super::Config { recipient, ..super::super::Config::default() };
        let all = Tenant::all(&record, &[tenant("b")]).expect("is one");
        assert!(all[1].options.keys.forgets(), "as in [record]");
    }

    #[test]
    fn what_a_tenant_does_not_say_is_as_in_record() {
        let record = super::super::Config::default();
        let own = Config {
            mode: Some(Mode::Hash),
            opt_out: Some(false),
            unstored: Some(Mode::Off),
            sample: Some(0.5),
            memory: Some(Size::mib(20)),
            keep_streams: Some(Span::seconds(1)),
            keep_content: Some(Span::seconds(2)),
            keep_metadata: Some(Span::seconds(3)),
            keep_bytes: Some(Size::mib(9)),
            ..tenant("b")
        };
        let all = Tenant::all(&record, &[tenant("a"), own]).expect("no keys");
        assert_eq!(all.iter().map(|tenant| tenant.name.as_str()).collect::<Vec<_>>(), ["default", "a", "b"]);
        let share = Size::mib(64);
        assert_eq!(all[0].config, super::super::Config { memory: share, ..record.clone() });
        let (dir, ballast) = (record.dir.join("tenants/a"), Size::mib(8));
        assert_eq!(all[1].config, super::super::Config { memory: share, dir, ballast, ..record.clone() });
        let b = &all[2].config;
        assert_eq!((b.mode, b.opt_out, b.unstored, b.sample), (Mode::Hash, false, Mode::Off, 0.5));
        assert_eq!((b.memory, b.keep_bytes), (Size::mib(20), Size::mib(9)));
        let terms = (b.keep_streams, b.keep_content, b.keep_metadata);
        assert_eq!(terms, (Span::seconds(1), Span::seconds(2), Span::seconds(3)));
        let header = |at: usize| all[at].options.tenant;
        assert_eq!((header(0), &header(1)[..2], &header(2)[..2]), ([0; 16], &b"a\0"[..], &b"b\0"[..]));
        let alone = Tenant::one(&record, &[], DEFAULT).expect("no keys");
        assert_eq!(alone.config, record, "without tenants nothing is otherwise");
    }

    #[test]
    fn a_key_that_tenants_share_makes_their_words_no_likeness() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = |name: &str, digits: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, digits.repeat(32)).expect("writes");
            path
        };
        let record = super::super::Config { key_file: file("key", "0f"), ..Default::default() };
        let own = Config { key_file: file("own", "1e"), ..tenant("c") };
        let all = Tenant::all(&record, &[tenant("a"), tenant("b"), own]).expect("keys");
        let matching: Vec<_> = all.iter().map(|tenant| tenant.options.keys.match_key()).collect();
        for (at, key) in matching.iter().enumerate() {
            assert!(key.is_some() && !matching[..at].contains(key), "of {at}");
        }
        let bad = Config { key_file: dir.path().join("none"), ..tenant("d") };
        let says = Tenant::all(&record, &[bad]).expect_err("no file").to_string();
        assert!(says.starts_with("[[tenant]] name = \"d\": key_file = "), "{says}");
    }

    #[test]
    fn a_name_nobody_has_is_answered_with_those_there_are() {
        let record = super::super::Config::default();
        let says = Tenant::one(&record, &[tenant("a"), tenant("b")], "c").expect_err("unknown").to_string();
        assert_eq!(says, "there is no tenant \"c\"; there is default, a, b");
    }
}
