//! Who has read, erased or held what: lines of JSON, each of which names the hash of the one before.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::clock;

/// Refusals that are written within a minute; of those beyond only the number is. Strangers must not be able to push out
/// what was written before.
const REFUSALS: u32 = 20;
const MINUTE: u64 = 60_000_000_000;
/// Stands before the first line.
const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// How much of it is kept.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// A file that has grown past so many bytes is put aside.
    pub bytes: u64,
    /// Files that are kept besides the one that is written.
    pub files: usize,
}

/// What is written down.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// A token's name, or how the reader was let in.
    pub who: &'a str,
    pub peer: &'a str,
    pub action: &'a str,
    pub id: &'a str,
    pub outcome: &'a str,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    time: String,
    who: &'a str,
    peer: &'a str,
    action: &'a str,
    id: &'a str,
    outcome: &'a str,
    /// Refusals before this one that were not written.
    #[serde(skip_serializing_if = "is_none")]
    unwritten: u32,
    /// BLAKE3 of the line before, without its end.
    prev: &'a str,
}

fn is_none(count: &u32) -> bool {
    *count == 0
}

/// The log of one process.
pub struct Audit {
    path: PathBuf,
    size: Size,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<File>,
    /// Hash of the last line; empty before the file was looked at.
    prev: String,
    len: u64,
    minute: u64,
    refusals: u32,
    unwritten: u32,
}

impl Audit {
    pub fn new(path: PathBuf, size: Size) -> Audit {
        Audit { path, size, state: Mutex::default() }
    }

    /// Writes a line down. It is durable when this returns.
    ///
    /// # Errors
    /// What the disk says: what was asked for must not be done then.
    pub fn write(&self, entry: &Entry<'_>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.append(&mut state, entry)
    }

    /// Writes a refusal down, unless there are too many.
    pub fn refused(&self, entry: &Entry<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = clock::unix_nanos() / MINUTE;
        if minute != state.minute {
            (state.minute, state.refusals) = (minute, 0);
        }
        state.refusals += 1;
        if state.refusals > REFUSALS {
            state.unwritten = state.unwritten.saturating_add(1);
            return;
        }
        if let Err(error) = self.append(&mut state, entry) {
            tracing::error!(%error, path = %self.path.display(), "a refusal is missing in the audit log");
        }
    }

    fn append(&self, state: &mut State, entry: &Entry<'_>) -> io::Result<()> {
        self.open(state)?;
        let Entry { who, peer, action, id, outcome } = *entry;
        let time = clock::rfc3339(clock::unix_nanos());
        let (unwritten, prev) = (state.unwritten, state.prev.as_str());
        let line = Line { time, who, peer, action, id, outcome, unwritten, prev };
        let mut bytes = serde_json::to_vec(&line).map_err(io::Error::other)?;
        let hash = hash(&bytes);
        bytes.push(b'\n');
        let written = match &mut state.file {
            Some(file) => file.write_all(&bytes).and_then(|()| file.sync_data()),
            None => Err(io::Error::other("it is not open")),
        };
        if let Err(error) = written {
            // What is there of it is found out at the next line.
            state.file = None;
            return Err(error);
        }
        (state.prev, state.unwritten) = (hash, 0);
        state.len += bytes.len() as u64;
        if state.len >= self.size.bytes {
            state.file = None;
            put_aside(&self.path, self.size.files)?;
        }
        Ok(())
    }

    /// Opens the file where it is not, or was taken away.
    fn open(&self, state: &mut State) -> io::Result<()> {
        let same = |file: &File| {
            let (open, there) = (file.metadata()?, fs::metadata(&self.path)?);
            io::Result::Ok((open.dev(), open.ino()) == (there.dev(), there.ino()))
        };
        if state.file.as_ref().is_some_and(|file| same(file).unwrap_or(false)) {
            return Ok(());
        }
        state.file = None;
        if let Some(folder) = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&self.path)?;
        let len = file.metadata()?.len();
        let last = last_line(&mut file, len)?;
        // A write that was cut off ends here; the next line names what there is of it.
        let torn = !last.is_empty() && !ends_with_line(&mut file)?;
        if torn {
            file.write_all(b"\n")?;
        }
        if !last.is_empty() {
            state.prev = hash(&last);
        } else if state.prev.is_empty() {
            state.prev = previous(&self.path)?;
        }
        (state.len, state.file) = (len + u64::from(torn), Some(file));
        Ok(())
    }
}

/// The hash that a new file begins with: of the last line of the one before.
fn previous(path: &Path) -> io::Result<String> {
    let before = aside(path, 1);
    let mut file = match File::open(&before) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(NOTHING.to_owned()),
        Err(error) => return Err(error),
    };
    let len = file.metadata()?.len();
    let last = last_line(&mut file, len)?;
    Ok(if last.is_empty() { NOTHING.to_owned() } else { hash(&last) })
}

/// The last line, or what there is of it, without its end.
fn last_line(file: &mut File, len: u64) -> io::Result<Vec<u8>> {
    const LONGEST: u64 = 64 << 10;
    file.seek(SeekFrom::Start(len.saturating_sub(LONGEST)))?;
    let mut bytes = Vec::new();
    file.take(LONGEST).read_to_end(&mut bytes)?;
    let lines = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let start = lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Ok(lines[start..].to_vec())
}

fn ends_with_line(file: &mut File) -> io::Result<bool> {
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == [b'\n'])
}

fn aside(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

/// The numbers of the files that were put aside, the oldest first.
fn put_aside_before(path: &Path) -> io::Result<Vec<usize>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = path.file_name().and_then(OsStr::to_str) else { return Ok(Vec::new()) };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(folder)? {
        let other = entry?.file_name();
        let number =
            other.to_str().and_then(|other| other.strip_prefix(name)?.strip_prefix('.')?.parse().ok());
        // Only as it is written here: no sign, no zero before it.
        numbers.extend(number.filter(|number| aside(path, *number).file_name() == Some(&other)));
    }
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    Ok(numbers)
}

/// Makes room for a new file; of those that were put aside, `kept` stay.
fn put_aside(path: &Path, kept: usize) -> io::Result<()> {
    for number in put_aside_before(path)? {
        match number < kept {
            true => fs::rename(aside(path, number), aside(path, number + 1))?,
            false => fs::remove_file(aside(path, number))?,
        }
    }
    fs::rename(path, aside(path, 1))
}

fn hash(line: &[u8]) -> String {
    blake3::hash(line).to_hex().to_string()
}

/// What looking through a log has found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Chain {
    pub files: u64,
    pub lines: u64,
    /// Lines that a cut has left unfinished, which the line after them vouches for.
    pub torn: u64,
    /// The first line that is not what the one after it says, or does not name the one before it.
    pub broken: Option<Broken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Broken {
    pub file: PathBuf,
    pub line: u64,
    pub why: &'static str,
}

/// Follows the chain from the oldest line that is kept to the last. That lines were taken away at the end, or all of the
/// oldest files, no chain can tell.
///
/// # Errors
/// What the disk says.
pub fn verify(path: &Path) -> io::Result<Chain> {
    let mut chain = Chain::default();
    let mut expected: Option<String> = None;
    let before = match put_aside_before(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        found => found?,
    };
    for file in before.into_iter().map(|number| aside(path, number)).chain([path.to_owned()]) {
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        chain.files += 1;
        for (line, number) in text.strip_suffix(b"\n").unwrap_or(&text).split(|byte| *byte == b'\n').zip(1..)
        {
            if line.is_empty() && text.is_empty() {
                break;
            }
            chain.lines += 1;
            let prev = serde_json::from_slice::<serde_json::Value>(line).ok();
            let prev = prev.as_ref().and_then(|line| line["prev"].as_str());
            chain.torn += u64::from(prev.is_none());
            if let (Some(prev), Some(expected)) = (prev, &expected)
                && prev != expected
            {
                let why = "it does not name the line before it: one of both was changed, or lines are missing between them";
                chain.broken = Some(Broken { file, line: number, why });
                return Ok(chain);
            }
            expected = Some(hash(line));
        }
    }
    match chain.files {
        0 => Err(io::Error::new(io::ErrorKind::NotFound, "there is no audit log")),
        _ => Ok(chain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Size = Size { bytes: 8 << 20, files: 3 };

    fn entry(id: &str) -> Entry<'_> {
        Entry { who: "ann", peer: "127.0.0.1:9", action: "content", id, outcome: "given" }
    }

    fn written(dir: &Path, count: usize) -> PathBuf {
        let path = dir.join("audit.jsonl");
        let audit = Audit::new(path.clone(), SIZE);
        (0..count).for_each(|at| audit.write(&entry(&at.to_string())).expect("writes"));
        path
    }

    #[test]
    fn a_chain_goes_on_after_a_restart_and_is_private() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = written(dir.path(), 3);
        written(dir.path(), 2);
        let chain = verify(&path).expect("reads");
        assert_eq!((chain.lines, chain.torn, chain.broken), (5, 0, None));
        assert_eq!(fs::metadata(&path).expect("is there").mode() & 0o777, 0o600);
    }

    #[test]
    fn a_line_that_was_changed_or_removed_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = written(dir.path(), 5);
        let whole = fs::read_to_string(&path).expect("reads");
        let changed = whole.replacen("\"id\":\"1\"", "\"id\":\"7\"", 1);
        fs::write(&path, changed).expect("writes");
        assert_eq!(verify(&path).expect("reads").broken.map(|broken| broken.line), Some(3));
        let lines: Vec<&str> = whole.lines().collect();
        fs::write(&path, [&lines[..2], &lines[3..]].concat().join("\n")).expect("writes");
        assert_eq!(verify(&path).expect("reads").broken.map(|broken| broken.line), Some(3));
    }

    #[test]
    fn a_torn_line_is_vouched_for_by_the_next() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = written(dir.path(), 2);
        let whole = fs::read(&path).expect("reads");
        fs::write(&path, &whole[..whole.len() - 9]).expect("writes");
        written(dir.path(), 1);
        let chain = verify(&path).expect("reads");
        assert_eq!((chain.lines, chain.torn, chain.broken), (3, 1, None));
    }

    #[test]
    fn files_are_put_aside_and_the_chain_goes_through_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.jsonl");
        for round in 0..SIZE.files + 3 {
            let audit = Audit::new(path.clone(), SIZE);
            audit.write(&entry(&round.to_string())).expect("writes");
            drop(audit);
            put_aside(&path, SIZE.files).expect("is put aside");
        }
        written(dir.path(), 1);
        let chain = verify(&path).expect("reads");
        assert_eq!((chain.files, chain.lines, chain.broken), (4, 4, None));
        // What looks like one of them and is none is left alone, and is nobody's line.
        for name in ["audit.jsonl.04", "audit.jsonl.+4", "audit.jsonl.x"] {
            fs::write(dir.path().join(name), "no line").expect("writes");
        }
        put_aside(&path, 2).expect("is put aside where fewer are kept now");
        written(dir.path(), 1);
        let chain = verify(&path).expect("reads");
        assert_eq!((chain.files, chain.lines, chain.broken), (3, 3, None));
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 6);
        fs::remove_file(aside(&path, 1)).expect("removes");
        assert!(verify(&path).expect("reads").broken.is_some(), "a file is missing");
    }

    #[test]
    fn refusals_beyond_a_number_are_only_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("audit.jsonl");
        let audit = Audit::new(path.clone(), SIZE);
        for _ in 0..10 * REFUSALS {
            audit.refused(&Entry { outcome: "refused", ..entry("x") });
        }
        audit.write(&entry("y")).expect("writes");
        let text = fs::read_to_string(&path).expect("reads");
        let last = text.lines().next_back().expect("a line");
        // The minute may have passed once meanwhile.
        assert!(text.lines().count() <= 2 * REFUSALS as usize + 1, "{}", text.lines().count());
        assert!(last.contains("\"unwritten\":1"), "{last}");
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let audit = Audit::new(dir.path().join("audit.jsonl"), SIZE);
        fs::create_dir(dir.path().join("audit.jsonl")).expect("is made");
        assert!(audit.write(&entry("x")).is_err());
        fs::remove_dir(dir.path().join("audit.jsonl")).expect("removes");
        audit.write(&entry("x")).expect("and heals");
    }
}
