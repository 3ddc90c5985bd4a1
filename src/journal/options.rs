//! How a journal is written, and how much is kept of it for whoever reads it.

use std::sync::Arc;

use super::fs::{Fs, Real};
use super::keys::Keychain;
use super::store::Cache;
use crate::clock;

/// When what was written is pressed onto the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// With every exchange.
    Always,
    /// With every group of them.
    Group,
    /// When the system likes, and at the end of a segment.
    Os,
}

/// How a journal is written.
#[derive(Clone, Debug)]
pub struct Options {
    /// A segment of this many bytes or more is followed by a new one.
    pub segment_bytes: u64,
    /// A segment this old is followed by a new one.
    pub segment_nanos: u64,
    /// A frame is closed once it holds this many bytes before compression.
    pub frame_bytes: usize,
    /// The most bytes that may wait for a commit.
    pub pending_bytes: usize,
    /// The pieces of bodies that are remembered, so that they are written once.
    pub pieces: usize,
    /// The turns, messages, and system prompts with tools that are remembered by whoever reads what is recorded.
    pub turns: usize,
    pub messages: usize,
    pub environments: usize,
    /// What a reader of sessions keeps: bytes of decoded frames, and open files.
    pub read_cache: usize,
    pub read_files: usize,
    pub sync: Sync,
    /// Whose records these are.
    pub tenant: [u8; 16],
    /// Nanoseconds since 1970; decides the epoch.
    pub unix_nanos: fn() -> u64,
    pub fs: Arc<dyn Fs>,
    pub keys: Arc<Keychain>,
}

impl Options {
    /// What a reader keeps.
    pub fn cache(&self) -> Cache {
        Cache { bytes: self.read_cache, files: self.read_files }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            segment_bytes: 64 << 20,
            segment_nanos: 300_000_000_000,
            frame_bytes: 256 << 10,
            pending_bytes: 512 << 20,
            pieces: 1 << 18,
            turns: 50_000,
            messages: 100_000,
            environments: 6_250,
            read_cache: 32 << 20,
            read_files: 256,
            sync: Sync::Group,
            tenant: [0; 16],
            unix_nanos: clock::unix_nanos,
            fs: Arc::new(Real),
            keys: Arc::default(),
        }
    }
}
