//! A journal's directory, with the key of its messages and how much is remembered of it.

use std::path::{Path, PathBuf};

use super::Result;
use super::projection::{Key, Memo};
use super::stitch::Stitcher;
use crate::journal::{Lsn, Options, Reader, token};

/// A journal, and what it takes to read it.
pub struct Source {
    pub dir: PathBuf,
    /// Its keys, and how much is remembered of it.
    pub options: Options,
    /// Under which its messages are hashed.
    pub key: Key,
}

impl Source {
    /// For reading. Where no key was ever made, it is one that anybody could guess.
    pub fn open(dir: &Path, options: Options) -> Source {
        let secret = token::read(dir, token::MATCH_KEY).or_else(|| options.keys.match_key());
        let key = secret.map_or_else(|| Key::of_tenant("default"), |secret| Key::of_secret(&secret));
        Source { dir: dir.to_owned(), options, key }
    }

    /// For writing: makes a key where there is none.
    ///
    /// # Errors
    /// [`crate::journal::Error::Io`].
    pub fn create(dir: &Path, options: Options) -> Result<Source> {
        if options.keys.match_key().is_none() {
            token::take::<32>(dir, token::MATCH_KEY)?;
        }
        Ok(Source::open(dir, options))
    }

    pub fn stitcher(&self) -> Stitcher {
        Stitcher::new(self.key.clone(), self.options.turns)
    }

    pub fn memo(&self) -> Memo {
        Memo::new(self.options.messages, self.options.environments)
    }

    /// The journal's records from a number on, without bodies.
    pub fn read_from(&self, from: Lsn) -> Result<Reader> {
        Ok(Reader::open_at(&self.dir, from, self.options.keys.clone())?.bare())
    }
}
