//! What lies on the disk, to the byte.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};

use serin::journal::frame::{Codec, HEAD};
use serin::journal::segment::{FRAMES_START, SegmentHeader};

/// All files below a folder.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("lists") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// The files that hold a word, as they are or in a frame.
pub fn files_with(dir: &Path, word: &str) -> Vec<PathBuf> {
    let has = |bytes: &[u8]| bytes.windows(word.len()).any(|window| window == word.as_bytes());
    let holds = |path: &PathBuf| {
        let bytes = std::fs::read(path).expect("reads");
        has(&bytes) || frames(&bytes).iter().any(|raw| has(raw))
    };
    files(dir).into_iter().filter(holds).collect()
}

fn frames(bytes: &[u8]) -> Vec<Vec<u8>> {
    let Some(header) = SegmentHeader::decode(bytes, 1) else { return Vec::new() };
    let codec = Codec::new(&header, None);
    let mut rest = &bytes[FRAMES_START as usize..];
    let mut found = Vec::new();
    while let Some(head) = codec.head(rest) {
        let (payload, after) = rest[HEAD..].split_at(head.stored_len as usize);
        found.extend(codec.raw(&head, rest, payload.to_vec()).map(|raw| raw.to_vec()));
        rest = after;
    }
    found
}
