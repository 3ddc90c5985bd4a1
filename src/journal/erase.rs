//! Erasing: what belongs to somebody who asked for it is taken out of every file, and a receipt says what was done.
//!
//! An erasure is written down before anything is taken away. From then on readers pass over its exchanges, and whoever
//! looks after the journal rewrites the files of each epoch that held one: exchanges and their links go, and so do
//! pieces, streams and answers that no other exchange of the epoch refers to.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::exchange::{Exchange, Part};
use super::fs::Fs;
use super::keys::Keychain;
use super::record::Record;
use super::scan::{self, Scan};
use super::seal::{How, describe, rewrite, whole_file};
use super::segment::{self, Class, SegmentFile};
use super::{Error, Lsn, Result};
use crate::ids;

/// The folder of erasures in a journal's directory.
const FOLDER: &str = "erasures";
/// What the names of those end in that are not carried out yet, and of those that are.
const WAITING: &str = "waiting";
const DONE: &str = "json";

/// Exchanges to be taken away, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erasure {
    /// Sortable by time.
    pub id: String,
    /// What was asked for, without its text.
    pub subject: String,
    pub requested_unix_nanos: u64,
    /// The exchanges: their ids and numbers. Emptied when they are gone.
    pub turns: Vec<(String, Lsn)>,
    pub receipt: Option<Receipt>,
}

/// What was taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    pub done_unix_nanos: u64,
    pub exchanges: u64,
    /// Files that were written anew.
    pub files: u64,
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// Files with damaged bytes that were removed, as nobody can say what is in them.
    pub damaged_files: u64,
}

/// The exchanges that readers pass over.
#[derive(Clone, Debug, Default)]
pub struct Erased {
    numbers: HashSet<Lsn>,
    ids: HashSet<String>,
}

impl Erased {
    /// Those of all erasures that are not carried out yet.
    ///
    /// # Errors
    /// As [`pending`].
    pub fn of(dir: &Path) -> Result<Erased> {
        let mut erased = Erased::default();
        for (id, lsn) in pending(dir)?.into_iter().flat_map(|erasure| erasure.turns) {
            erased.numbers.insert(lsn);
            erased.ids.insert(id);
        }
        Ok(erased)
    }

    /// Whether a record is one of them, or tells of one.
    pub fn holds(&self, lsn: Lsn, record: &Record) -> bool {
        match record {
            Record::Exchange(exchange) => self.numbers.contains(&lsn) || self.ids.contains(&exchange.id),
            Record::Start(exchange) => self.ids.contains(&exchange.id),
            Record::Link(link) => self.ids.contains(&link.turn),
            Record::Flag(flag) => self.ids.contains(&flag.turn),
            _ => false,
        }
    }
}

/// Writes an erasure down, or what has become of it. It is durable when this returns.
///
/// # Errors
/// [`Error::Io`].
pub fn note(dir: &Path, fs: &dyn Fs, erasure: &Erasure) -> Result<()> {
    let folder = dir.join(FOLDER);
    let waiting = path_of(dir, &erasure.id, WAITING);
    let path = if erasure.receipt.is_some() { path_of(dir, &erasure.id, DONE) } else { waiting.clone() };
    let io = |source| Error::io("write", &path, source);
    let json = serde_json::to_vec_pretty(erasure).map_err(io::Error::other).map_err(io)?;
    fs.make_dir(&folder).map_err(io)?;
    whole_file(fs, &path, &json)
        .and_then(|()| fs.sync_dir(&folder))
        .and_then(|()| fs.sync_dir(dir))
        .map_err(io)?;
    if path != waiting && waiting.exists() {
        fs.remove(&waiting).and_then(|()| fs.sync_dir(&folder)).map_err(io)?;
    }
    Ok(())
}

/// One erasure, by its id.
pub fn find(dir: &Path, id: &str) -> Option<Erasure> {
    let known = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let read = |ending| fs::read(path_of(dir, id, ending)).ok().filter(|_| known);
    serde_json::from_slice(&read(DONE).or_else(|| read(WAITING))?).ok()
}

/// The erasures that are not carried out yet.
///
/// # Errors
/// [`Error::Io`] where they cannot be read: what is to be erased must not be shown by mistake.
pub fn pending(dir: &Path) -> Result<Vec<Erasure>> {
    let folder = dir.join(FOLDER);
    let io = |source| Error::io("read", &folder, source);
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(io(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if path.extension().is_none_or(|extension| extension != WAITING) {
            continue;
        }
        let bytes = fs::read(&path).map_err(io)?;
        let erasure: Erasure = serde_json::from_slice(&bytes).map_err(io::Error::other).map_err(io)?;
        found.push(erasure);
    }
    found.sort_by(|left, right| left.id.cmp(&right.id));
    Ok(found)
}

/// Carries an erasure out, and notes its receipt. No segment that is written to may hold anything of it. Interrupted, it is
/// begun again.
///
/// No run of the writer refers to what came before an encrypted segment of another. So of what was written before the exchanges,
/// the last segment that cannot be read and those before it are passed over.
///
/// # Errors
/// [`Error::KeyMissing`] where something else cannot be read for want of its key, and [`Error::Io`]; what is left is done by
/// the next try.
pub fn carry_out(
    dir: &Path,
    fs: &dyn Fs,
    keys: &Keychain,
    how: How,
    erasure: &mut Erasure,
    now_unix_nanos: u64,
) -> Result<Receipt> {
    let segments = segment::list(dir)?;
    let numbers: HashSet<Lsn> = erasure.turns.iter().map(|(_, lsn)| *lsn).collect();
    let mut erased = Erased { numbers, ids: HashSet::new() };
    erased.ids.extend(erasure.turns.iter().map(|(id, _)| id.clone()));
    let first = erased.numbers.iter().map(|lsn| lsn.segment()).min().unwrap_or(u64::MAX);
    let (before, after): (Vec<_>, Vec<_>) = segments.iter().partition(|file| file.number < first);
    if let Some(missing) = scan::locked(after, keys)? {
        return Err(missing);
    }
    let touched = touched(&segments, keys, &erased)?;
    let mut receipt = Receipt { exchanges: erasure.turns.len() as u64, ..Receipt::default() };
    for folder in touched {
        let mut locked = 0;
        for file in before.iter().rev().filter(|file| file.dir == *folder) {
            if scan::locked([*file], keys)?.is_some() {
                locked = file.number;
                break;
            }
        }
        let within = |file: &&SegmentFile| file.dir == *folder && file.number > locked;
        let files: Vec<&SegmentFile> = segments.iter().filter(within).collect();
        let work = Epoch { files: &files, fs, keys, how, erased: &erased };
        work.erase(&mut receipt)?;
    }
    receipt.done_unix_nanos = now_unix_nanos;
    erasure.turns.clear();
    erasure.receipt = Some(receipt);
    note(dir, fs, erasure)?;
    Ok(receipt)
}

/// The folders of the days that hold one of the exchanges, and of those that tell of one: a flag or a further link may be of
/// a later day than its turn, and the note that it has begun of an earlier one. Who noted that had its own keys.
fn touched<'a>(
    segments: &'a [SegmentFile],
    keys: &Keychain,
    erased: &Erased,
) -> Result<BTreeSet<&'a PathBuf>> {
    let first = erased.numbers.iter().map(|lsn| lsn.segment()).min().unwrap_or(u64::MAX);
    let begun = erased.ids.iter().filter_map(|id| ids::time_of(id)).map(segment::epoch_of).min();
    let since = |file: &SegmentFile| {
        segment::epoch_named(&file.dir).zip(begun).is_some_and(|(day, begun)| day >= begun)
    };
    let mut folders = BTreeSet::new();
    for file in segments.iter().filter(|file| file.number >= first || since(file)) {
        if file.number < first && scan::locked([file], keys)?.is_some() {
            continue;
        }
        let mut holds = erased.numbers.iter().any(|lsn| lsn.segment() == file.number);
        if let Some(path) = file.holding(Class::Metadata).filter(|_| !holds && !folders.contains(&file.dir)) {
            each(&path, file.number, keys, &mut |lsn, record| holds |= erased.holds(lsn, &record))?;
        }
        if holds {
            folders.insert(&file.dir);
        }
    }
    Ok(folders)
}

struct Epoch<'a> {
    files: &'a [&'a SegmentFile],
    fs: &'a dyn Fs,
    keys: &'a Keychain,
    how: How,
    erased: &'a Erased,
}

impl Epoch<'_> {
    fn erase(&self, receipt: &mut Receipt) -> Result<()> {
        let referred = self.referred()?;
        for file in self.files {
            let classes: Vec<Class> = file.classes.clone();
            for class in classes {
                let path = file.path(class);
                if self.is_clean(&path, file.number, &referred)? {
                    continue;
                }
                receipt.files += 1;
                receipt.bytes_before += size(&path);
                let wanted = |lsn, kind, payload: &bytes::Bytes| {
                    Record::decode(kind, payload.clone())
                        .is_ok_and(|record| self.stays(lsn, &record, &referred))
                };
                rewrite(file, class, self.fs, self.keys, self.how, &wanted)?;
                receipt.bytes_after += size(&path);
            }
            if !file.is_open() {
                describe(file, self.fs, self.keys)?;
            }
            receipt.damaged_files += self.remove_damaged(file)?;
        }
        Ok(())
    }

    /// Whether a file holds nothing that must go.
    fn is_clean(&self, path: &Path, number: u64, referred: &HashSet<Lsn>) -> Result<bool> {
        let mut clean = true;
        each(path, number, self.keys, &mut |lsn, record| clean &= self.stays(lsn, &record, referred))?;
        Ok(clean)
    }

    fn stays(&self, lsn: Lsn, record: &Record, referred: &HashSet<Lsn>) -> bool {
        match Record::class_of(record.kind()) {
            Class::Content | Class::Stream => referred.contains(&lsn),
            _ => !self.erased.holds(lsn, record),
        }
    }

    /// The numbers of all pieces, lists, streams and answers that the exchanges which stay refer to.
    fn referred(&self) -> Result<HashSet<Lsn>> {
        let mut referred = HashSet::new();
        for file in self.files {
            let Some(path) = file.holding(Class::Metadata) else { continue };
            each(&path, file.number, self.keys, &mut |lsn, record| match record {
                Record::Exchange(exchange) if !self.erased.numbers.contains(&lsn) => {
                    referred.extend(references(&exchange, lsn));
                }
                _ => {}
            })?;
        }
        // A list refers to records before it: from the last segment to the first, each is known before it is looked at.
        for file in self.files.iter().rev() {
            let Some(path) = file.holding(Class::Content) else { continue };
            let mut lists = Vec::new();
            each(&path, file.number, self.keys, &mut |lsn, record| {
                if let Record::List(list) = record {
                    lists.push((lsn, list));
                }
            })?;
            for (lsn, list) in lists.into_iter().rev() {
                if referred.contains(&lsn) {
                    let inside = list.parts.iter().filter(|part| part.back > 0);
                    referred.extend(inside.filter_map(|part| lsn.back(part.back)));
                }
            }
        }
        Ok(referred)
    }

    fn remove_damaged(&self, file: &SegmentFile) -> Result<u64> {
        let io = |source| Error::io("remove damaged bytes in", &file.dir, source);
        let start = format!("{:06}.damaged", file.number);
        let mut removed = 0;
        for entry in fs::read_dir(&file.dir).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.file_name().to_string_lossy().starts_with(&start) {
                self.fs.remove(&entry.path()).map_err(io)?;
                removed += 1;
            }
        }
        Ok(removed)
    }
}

/// The numbers that an exchange refers to.
fn references(exchange: &Exchange, own: Lsn) -> impl Iterator<Item = Lsn> {
    let parts =
        [&exchange.request_parts, &exchange.response_parts, &exchange.answer_parts].into_iter().flatten();
    let backs = parts.map(|part: &Part| part.back).chain([exchange.stream_back]);
    let backs: Vec<u64> = backs.filter(|back| *back > 0).collect();
    backs.into_iter().filter_map(move |back| own.back(back))
}

/// Calls `visit` with every record of a file.
fn each(path: &Path, number: u64, keys: &Keychain, visit: &mut dyn FnMut(Lsn, Record)) -> Result<()> {
    let io = |source| Error::io("read", path, source);
    let mut scan = Scan::open(path, number, keys).map_err(io)?;
    if let Some(missing) = scan.missing(path) {
        return Err(missing);
    }
    while let Some(frame) = scan.next_frame().map_err(io)? {
        scan.records(&frame).unwrap_or_default().into_iter().for_each(|(lsn, record)| visit(lsn, record));
    }
    Ok(())
}

fn path_of(dir: &Path, id: &str, ending: &str) -> PathBuf {
    dir.join(FOLDER).join(format!("{id}.{ending}"))
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| found.len())
}
