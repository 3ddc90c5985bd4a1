//! `[record]`

use std::fmt::Display;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::mode::Mode;
use crate::journal::keys::{KeyError, Keychain, keychain};
use crate::journal::recipient::Recipient;
use crate::journal::retention::Terms;
use crate::journal::{Options, Sync};
use crate::units::{Size, Span};

/// What is recorded, where, and for how long.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub enabled: bool,
    /// Where the journal lives.
    pub dir: PathBuf,
    /// Memory all copies and queued records share; past it exchanges are recorded without bodies.
    pub memory: Size,
    /// The age from which an exchange that still runs is noted.
    pub start_after: Span,
    /// Ended exchanges that may wait for the writer.
    pub queue: usize,
    /// Whether a client may ask to be left out (`x-serin-record`).
    pub opt_out: bool,
    /// How much is recorded.
    pub mode: Mode,
    /// How much of what clients ask not to be stored (`store: false` in the request).
    pub unstored: Mode,
    /// The share of conversations that are recorded with their bodies; of the others only the metadata is.
    pub sample: f64,
    pub sync: Sync,
    /// A group of records is made durable when it is this old or this large, whichever comes first.
    pub commit_age: Span,
    pub commit_bytes: Size,
    /// A segment is sealed when it has this many bytes or is this old.
    pub segment: Size,
    pub segment_age: Span,
    /// zstd's level for sealed segments.
    pub seal_level: i32,
    /// Pieces of bodies that are remembered, so that each is written once a day.
    pub pieces: usize,
    /// Turns that are remembered, so that the next one of their conversation finds its place.
    pub turns: usize,
    /// Messages, and system prompts with their tools, that are remembered, so that each is read once.
    pub messages: usize,
    pub environments: usize,
    /// What each reader of sessions keeps: bytes of decoded frames, and open files.
    pub read_cache: Size,
    pub read_files: usize,
    /// Parts of requests that are remembered as holding no secret, so that each is looked through once.
    pub parts: usize,
    /// For how long after their day each class of records is kept.
    pub keep_streams: Span,
    pub keep_content: Span,
    pub keep_metadata: Span,
    /// The most bytes that sealed segments may take; 0 for any number.
    pub keep_bytes: Size,
    /// Free room below which streams, then bodies, then exchanges are not recorded.
    pub disk_soft: Size,
    pub disk_hard: Size,
    pub disk_stop: Size,
    /// Room set aside for writing down what is lost on a full disk.
    pub ballast: Size,
    /// File with the key that the keys of encrypted segments are wrapped with, or with keys that were opened; empty for
    /// neither.
    pub key_file: PathBuf,
    /// Whom the keys of encrypted segments are written for, a recipient of `age`; empty for nobody.
    pub recipient: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            dir: "serin-data".into(),
            memory: Size::mib(256),
            start_after: Span::seconds(1),
            queue: 8192,
            opt_out: true,
            mode: Mode::Redacted,
            unstored: Mode::Meta,
            sample: 1.0,
            sync: Sync::Group,
            commit_age: Span(std::time::Duration::from_millis(50)),
            commit_bytes: Size(256 << 10),
            segment: Size::mib(64),
            segment_age: Span::seconds(300),
            seal_level: 9,
            pieces: 262_144,
            turns: 50_000,
            messages: 100_000,
            environments: 6_250,
            read_cache: Size::mib(32),
            read_files: 256,
            parts: 100_000,
            keep_streams: Span::seconds(2 * 86_400),
            keep_content: Span::seconds(7 * 86_400),
            keep_metadata: Span::seconds(90 * 86_400),
            keep_bytes: Size(0),
            disk_soft: Size::mib(2048),
            disk_hard: Size::mib(1024),
            disk_stop: Size::mib(512),
            ballast: Size::mib(16),
            key_file: PathBuf::new(),
            recipient: String::new(),
        }
    }
}

impl Config {
    /// What no single key can know.
    ///
    /// # Errors
    /// One line that says what is wrong and how to mend it.
    pub fn check(&self) -> Result<(), String> {
        if self.enabled && self.dir.as_os_str().is_empty() {
            return Err("[record] dir = \"\" names no directory; name one, or set enabled = false".into());
        }
        if !(0.0..=1.0).contains(&self.sample) {
            return Err(format!("[record] sample = {} is no share; it goes from 0 to 1", self.sample));
        }
        if !(1..=19).contains(&self.seal_level) {
            return Err(format!(
                "[record] seal_level = {} is none of zstd's; it goes from 1 to 19",
                self.seal_level
            ));
        }
        if !(self.disk_stop <= self.disk_hard && self.disk_hard <= self.disk_soft) {
            return Err("[record] disk_stop, disk_hard and disk_soft must not fall in this order".into());
        }
        if !(self.keep_streams <= self.keep_content && self.keep_content <= self.keep_metadata) {
            return Err(
                "[record] keep_streams, keep_content and keep_metadata must not fall in this order: what is kept \
                 refers to what is kept longer"
                    .into(),
            );
        }
        let beyond = [
            ("segment", self.segment, Size::mib(1), Size::mib(4096)),
            ("commit_bytes", self.commit_bytes, Size(1), self.memory),
            ("read_cache", self.read_cache, Size(64 << 10), Size::mib(4096)),
            ("ballast", self.ballast, Size(0), Size::mib(1024)),
        ];
        beyond.into_iter().try_for_each(|(key, value, least, most)| within(key, value, least, most))?;
        if !self.recipient.is_empty() {
            Recipient::parse(&self.recipient).map_err(|error| error.to_string())?;
        }
        self.check_memory()
    }

    /// What is remembered is never nothing, and never more than a process can hold.
    fn check_memory(&self) -> Result<(), String> {
        const MOST: usize = 1 << 26;
        let counts = [
            ("pieces", self.pieces),
            ("turns", self.turns),
            ("messages", self.messages),
            ("environments", self.environments),
            ("read_files", self.read_files),
            ("parts", self.parts),
        ];
        counts.into_iter().try_for_each(|(key, count)| within(key, count, 1, MOST))
    }

    /// The keys of encrypted segments.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn keychain(&self) -> Result<Keychain, KeyError> {
        keychain(&self.key_file, &self.recipient)
    }

    /// How the journal is written, without its keys.
    pub fn journal(&self) -> Options {
        Options {
            segment_bytes: self.segment.0,
            segment_nanos: nanos(self.segment_age),
            pending_bytes: self.memory.0 as usize,
            pieces: self.pieces,
            turns: self.turns,
            messages: self.messages,
            environments: self.environments,
            read_cache: usize::try_from(self.read_cache.0).unwrap_or(usize::MAX),
            read_files: self.read_files,
            sync: self.sync,
            ..Options::default()
        }
    }

    /// For how long records are kept.
    pub fn terms(&self) -> Terms {
        Terms {
            stream: nanos(self.keep_streams),
            content: nanos(self.keep_content),
            metadata: nanos(self.keep_metadata),
            bytes: self.keep_bytes.0,
        }
    }
}

fn nanos(span: Span) -> u64 {
    span.0.as_nanos() as u64
}

fn within<T: PartialOrd + Display>(key: &str, value: T, least: T, most: T) -> Result<(), String> {
    match (&least..=&most).contains(&&value) {
        true => Ok(()),
        false => Err(format!("[record] {key} is beyond any use; it goes from {least} to {most}")),
    }
}
