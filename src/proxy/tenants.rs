//! Whose a request is, told by the key it brings or by a header that a front door sets. Keys are kept as keyed hashes
//! only, and are never a label or a line of the log.

use std::collections::HashMap;
use std::path::Path;

use hyper::HeaderMap;
use hyper::header::HeaderName;
use sha2::{Digest, Sha256};

use super::clients::{CREDENTIALS, secret};
use crate::ids;
use crate::recorder::tenant::Config;

/// Before the hexadecimal hash of a key, where the key itself is not in the file.
const HASHES: [&str; 2] = ["blake3:", "sha256:"];
/// The largest file of keys, and the most keys of all tenants together.
const LARGEST: u64 = 16 << 20;
const MOST: usize = 200_000;

/// Who belongs to which tenant. Tenants are counted from 1 in the order of the file; 0 is whoever belongs to none.
#[derive(Default)]
pub struct Tenants {
    /// Under which hashes of keys are hashed, in this process only.
    key: [u8; 32],
    tenants: usize,
    /// By the hash of a key, in the order of [`HASHES`].
    keys: [HashMap<[u8; 32], usize>; 2],
    doors: Vec<Door>,
}

/// A header that makes a request one of a tenant's.
struct Door {
    header: HeaderName,
    value: Vec<u8>,
    tenant: usize,
}

/// Why tenants cannot be told apart: one line that says what, where and what would do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("[[tenant]] name = {name:?}: keys_file {file}: {error}")]
    Unreadable { name: String, file: String, error: std::io::Error },
    #[error("[[tenant]] name = {name:?}: keys_file {file}: {says}")]
    Bad { name: String, file: String, says: String },
}

impl Tenants {
    /// Reads the files of keys. `key` is a secret of this process.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(tenants: &[Config], key: [u8; 32]) -> Result<Self, Error> {
        let mut all = Self { key, tenants: tenants.len(), ..Self::default() };
        for (tenant, config) in (1..).zip(tenants) {
            if !config.header.is_empty()
                && let Ok(header) = config.header.parse()
            {
                all.doors.push(Door { header, value: config.value.clone().into_bytes(), tenant });
            }
            if config.keys_file.as_os_str().is_empty() {
                continue;
            }
            let (name, file) = (config.name.clone(), config.keys_file.display().to_string());
            match text(&config.keys_file) {
                Ok(text) => {
                    all.add(&text, tenant, tenants).map_err(|says| Error::Bad { name, file, says })?;
                }
                Err(error) => return Err(Error::Unreadable { name, file, error }),
            }
        }
        Ok(all)
    }

    /// The files read again, under the same secret.
    ///
    /// # Errors
    /// [`Error`].
    pub fn again(&self, tenants: &[Config]) -> Result<Self, Error> {
        Self::read(tenants, self.key)
    }

    /// Whose a request with these headers is; where several tenants could be meant, the first.
    pub fn of(&self, headers: &HeaderMap) -> usize {
        if self.tenants == 0 {
            return 0;
        }
        // All that are sent count: a second key that means nothing must not lead out of a tenant.
        let credentials = CREDENTIALS.iter().flat_map(|name| headers.get_all(name).iter());
        let by_key = credentials.filter_map(|value| self.owner(secret(value.as_bytes())));
        let by_header = self.doors.iter().filter(|door| door.is_open(headers)).map(|door| door.tenant);
        by_key.chain(by_header).min().unwrap_or(0)
    }

    fn owner(&self, secret: &[u8]) -> Option<usize> {
        let owners = self.keys.iter().zip(hashes(secret));
        owners.filter_map(|(keys, hash)| keys.get(&self.hidden(&hash))).min().copied()
    }

    /// Takes the keys of a file: one a line, itself or as a hash; what begins with # is a note.
    fn add(&mut self, text: &str, tenant: usize, tenants: &[Config]) -> Result<(), String> {
        let lines = (1..).zip(text.lines().map(str::trim));
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let hashes = parse(line).map_err(|says| format!("line {number}: {says}"))?;
            for (kind, hash) in (0..).zip(hashes) {
                let Some(hash) = hash else { continue };
                let hidden = self.hidden(&hash);
                let owner = *self.keys[kind].entry(hidden).or_insert(tenant);
                if owner != tenant {
                    let other = &tenants[owner - 1].name;
                    return Err(format!(
                        "line {number}: this key is {other:?}'s as well; a key belongs to one tenant, so remove it from one"
                    ));
                }
            }
            if self.keys[0].len().max(self.keys[1].len()) > MOST {
                return Err(format!("line {number}: there are more than {MOST} keys of all tenants"));
            }
        }
        Ok(())
    }

    fn hidden(&self, hash: &[u8; 32]) -> [u8; 32] {
        *blake3::keyed_hash(&self.key, hash).as_bytes()
    }
}

impl Door {
    /// Only a header that stands there once: what a client has sent beside the front door's counts for nothing.
    fn is_open(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(&self.header).iter();
        values.next().is_some_and(|value| value.as_bytes() == self.value) && values.next().is_none()
    }
}

fn text(file: &Path) -> std::io::Result<String> {
    if std::fs::metadata(file)?.len() > LARGEST {
        return Err(std::io::Error::other(format!(
            "is larger than {LARGEST} bytes, which is beyond any use"
        )));
    }
    std::fs::read_to_string(file)
}

/// The hashes of a line's key, as far as they can be known.
fn parse(line: &str) -> Result<[Option<[u8; 32]>; 2], String> {
    if line.contains(char::is_whitespace) {
        return Err("a line is one key, without the word before it and without blanks".to_owned());
    }
    for (kind, start) in HASHES.iter().enumerate() {
        let Some(hex) = line.strip_prefix(start) else { continue };
        let hash = ids::unhex(hex).and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let hash =
            hash.ok_or_else(|| format!("{start} is followed by the 64 hexadecimal digits of a hash"))?;
        let mut found = [None; 2];
        found[kind] = Some(hash);
        return Ok(found);
    }
    Ok(hashes(line.as_bytes()).map(Some))
}

fn hashes(secret: &[u8]) -> [[u8; 32]; 2] {
    [*blake3::hash(secret).as_bytes(), Sha256::digest(secret).into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[&str]) -> Result<Tenants, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let tenants: Vec<Config> = (0..)
            .zip(files)
            .map(|(number, text)| {
                let keys_file = dir.path().join(format!("keys{number}"));
                std::fs::write(&keys_file, text).expect("writes");
                let value = format!("door-{number}");
                Config {
                    name: format!("t{number}"),
                    keys_file,
                    header: "x-tenant".into(),
                    value,
                    ..Config::default()
                }
            })
            .collect();
        Tenants::read(&tenants, [7; 32]).map_err(|error| error.to_string())
    }

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value"))
        };
        let mut all = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            all.append(name, value);
        }
        all
    }

    #[test]
    fn a_key_in_any_place_and_form_makes_one_of_its_tenant() {
        let hashed = ids::hex(blake3::hash(b"key-c").as_bytes());
        let summed = ids::hex(&Sha256::digest(b"key-d"));
        let second = format!("# ours\n\nkey-b\n blake3:{hashed} \nsha256:{summed}\n");
        let tenants = read(&["key-a\n", &second]).expect("reads");
        for (pairs, expected) in [
            (&[("authorization", "Bearer key-a")][..], 1),
            (&[("authorization", "bearer   key-b")], 2),
            (&[("x-api-key", "key-c")], 2),
            (&[("api-key", "key-d")], 2),
            (&[("authorization", "Bearer key-e")], 0),
            (&[("authorization", "")], 0),
            (&[("authorization", "Bearer # ours")], 0),
            (&[], 0),
            (&[("x-api-key", "nobody's"), ("authorization", "Bearer key-b")], 2),
            (&[("x-api-key", "key-b"), ("authorization", "Bearer key-a")], 1),
            (&[("x-tenant", "door-1")], 2),
            (&[("x-tenant", "door-1"), ("authorization", "Bearer key-a")], 1),
            (&[("x-tenant", "door-1"), ("x-tenant", "door-0")], 0),
            (&[("x-tenant", "door-12")], 0),
        ] {
            assert_eq!(tenants.of(&headers(pairs)), expected, "{pairs:?}");
        }
        assert_eq!(Tenants::default().of(&headers(&[("authorization", "Bearer key-a")])), 0);
    }

    #[test]
    fn no_key_is_shown_and_none_belongs_to_two() {
        let summed = format!("sha256:{}", ids::hex(&Sha256::digest(b"key-of-somebody")));
        for second in ["x\nkey-of-somebody\n", &format!("\n{summed}\n")] {
            let says = read(&["key-of-somebody", second]).err().expect("is refused");
            assert!(
                says.contains("line 2: this key is \"t0\"'s as well") && !says.contains("somebody"),
                "{says}"
            );
            assert!(says.starts_with("[[tenant]] name = \"t1\": keys_file "), "{says}");
        }
        assert!(read(&["twice\ntwice\n", "once"]).is_ok(), "twice in one file is once");
        for (text, expected) in [
            ("Bearer secret-key", "a line is one key"),
            ("sha256:secret-key", "64 hexadecimal digits"),
            ("blake3:0f", "64 hexadecimal digits"),
        ] {
            let says = read(&[text]).err().expect("is refused");
            assert!(says.contains(expected) && !says.contains("secret-key"), "{says}");
        }
    }
}
