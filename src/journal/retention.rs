//! How long records are kept, by class: forgetting is an unlink, as nothing refers out of its epoch.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::fs::Fs;
use super::keys;
use super::segment::{self, Class, SegmentFile};
use super::{Error, Result};

const DAY_NANOS: u64 = 86_400_000_000_000;

/// For how long each class is kept after its day has ended, in nanoseconds, and how many bytes of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    pub stream: u64,
    pub content: u64,
    pub metadata: u64,
    /// The most bytes that sealed segments may take; 0 for any number.
    pub bytes: u64,
}

/// What was taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    pub files: u64,
    pub bytes: u64,
    /// Whether exchanges are gone, and not only their bodies.
    pub metadata: bool,
}

impl Terms {
    fn of(&self, class: Class) -> u64 {
        match class {
            Class::Stream => self.stream,
            Class::Metadata => self.metadata,
            // What cannot be sealed holds content as well, which is the promise that counts.
            Class::Content | Class::Mixed => self.content,
        }
    }
}

/// Unlinks what is past its time, and, the oldest first, what is past the bytes that may be taken: streams before content
/// before metadata. The epoch that is being written to stays whole, as its pieces are still referred to.
///
/// # Errors
/// [`Error::Io`] where a folder cannot be listed or a file not be removed; what was removed before stays removed.
pub fn forget(dir: &Path, fs: &dyn Fs, terms: &Terms, now_unix_nanos: u64) -> Result<Forgotten> {
    let today = segment::epoch_of(now_unix_nanos);
    let mut forgotten = Forgotten::default();
    let segments = segment::list(dir)?;
    let past = |file: &&SegmentFile| segment::epoch_named(&file.dir).is_some_and(|epoch| epoch < today);
    let old: Vec<&SegmentFile> = segments.iter().filter(past).collect();
    for file in &old {
        let epoch = segment::epoch_named(&file.dir).unwrap_or(today);
        let age = now_unix_nanos.saturating_sub((u64::from(epoch) + 1) * DAY_NANOS);
        for class in file.classes.iter().filter(|class| age > terms.of(**class)) {
            forgotten.take(fs, file, *class)?;
        }
    }
    if terms.bytes > 0 {
        make_room(fs, &segments, &old, terms.bytes, &mut forgotten)?;
    }
    let folders: std::collections::BTreeSet<&PathBuf> = old.iter().map(|file| &file.dir).collect();
    folders.into_iter().try_for_each(|folder| tidy(fs, folder))?;
    Ok(forgotten)
}

fn make_room(
    fs: &dyn Fs,
    all: &[SegmentFile],
    old: &[&SegmentFile],
    most: u64,
    forgotten: &mut Forgotten,
) -> Result<()> {
    let files = |file: &SegmentFile| file.classes.iter().map(|class| file.path(*class)).collect::<Vec<_>>();
    let mut taken: u64 = all.iter().flat_map(files).map(|path| size(&path)).sum();
    for class in [Class::Stream, Class::Content, Class::Mixed, Class::Metadata] {
        for file in old.iter().filter(|file| file.classes.contains(&class)) {
            if taken <= most {
                return Ok(());
            }
            taken = taken.saturating_sub(forgotten.take(fs, file, class)?);
        }
    }
    Ok(())
}

impl Forgotten {
    /// Removes a file; returns its bytes.
    fn take(&mut self, fs: &dyn Fs, file: &SegmentFile, class: Class) -> Result<u64> {
        let path = file.path(class);
        let bytes = size(&path);
        match fs.remove(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(source) => return Err(Error::io("remove", &path, source)),
        }
        self.files += 1;
        self.bytes += bytes;
        self.metadata |= matches!(class, Class::Metadata | Class::Mixed);
        Ok(bytes)
    }
}

/// Removes what belongs to no segment any more: sidecars, keys, quarantined bytes, and then the folder.
fn tidy(fs: &dyn Fs, folder: &Path) -> Result<()> {
    let io = |source| Error::io("list", folder, source);
    let names: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(io)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()
        .map_err(io)?;
    let ends = |path: &Path, ending: &str| path.extension().is_some_and(|extension| extension == ending);
    let has = |ending: &str| names.iter().any(|path| ends(path, ending));
    let content = has("seg") || has("content");
    let anything = content || has("meta") || has("stream");
    for path in &names {
        let quarantined =
            path.extension().is_some_and(|extension| extension.to_string_lossy().starts_with("damaged"));
        let stale = ends(path, "new")
            || !content && quarantined
            || !anything && ["idx"].iter().chain(&keys::ENDINGS).any(|ending| ends(path, ending));
        if stale {
            fs.remove(path).map_err(|source| Error::io("remove", path, source))?;
        }
    }
    if !anything {
        // What an operator put there stays, and the folder with it.
        let _ = fs::remove_dir(folder);
    }
    Ok(())
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}
