//! Files as they are found: which ones, how large, and what they hold.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::{Bad, Format, Input, Place};

/// The largest file that is read. It is held in memory as a whole.
pub const MOST_BYTES: u64 = 1 << 30;
/// The lines that are looked at to find out what a file holds; the first may be broken.
const LOOK_AT: usize = 100;
/// Endings of the files that are read out of a folder.
const ENDINGS: [&str; 3] = ["har", "json", "jsonl"];

/// A file to read, and the folder that was asked for in its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    path: PathBuf,
    folder: Option<String>,
}

/// The file of a path, or the files in a folder by their names. Folders within are left alone.
pub fn files(path: &Path) -> Vec<Result<Found, Bad>> {
    if !path.is_dir() {
        return vec![Ok(Found { path: path.to_owned(), folder: None })];
    }
    let bad = |says: String| Bad { file: path.display().to_string(), place: Place::Whole, says };
    let entries = match fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
        Ok(entries) => entries,
        Err(error) => return vec![Err(bad(format!("cannot be listed: {error}; check who may read it")))],
    };
    let wanted = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        ENDINGS.contains(&ending.to_ascii_lowercase().as_str()) && !path.is_dir()
    };
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).filter(wanted).collect();
    paths.sort();
    if paths.is_empty() {
        let says = "there is no .jsonl, .json or .har file in this folder; name the one that holds them";
        return vec![Err(bad(says.to_owned()))];
    }
    let folder = path.file_name().map(|name| name.to_string_lossy().into_owned());
    paths.into_iter().map(|path| Ok(Found { path, folder: folder.clone() })).collect()
}

/// Reads a file of at most so many bytes.
///
/// # Errors
/// Where it cannot be read, or is larger.
pub fn load(found: &Found, most: u64) -> Result<Input, Bad> {
    let name = found.path.display().to_string();
    let bad = |says: String| Bad { file: name.clone(), place: Place::Whole, says };
    let unreadable = |error| bad(format!("cannot be read: {error}; check the path and who may read it"));
    let too_large = || bad(format!("is larger than {most} bytes; split it into several files"));
    let file = File::open(&found.path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.len() > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    // A pipe has no length, and a file may grow.
    file.take(most + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > most {
        return Err(too_large());
    }
    let stem = found.path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = found.folder.as_ref().map_or(stem.clone(), |folder| format!("{folder}/{stem}"));
    let bytes = Bytes::from(bytes);
    // Some tools begin a file with a byte order mark, which is no JSON.
    let mark = b"\xef\xbb\xbf";
    let bytes = if bytes.starts_with(mark) { bytes.slice(mark.len()..) } else { bytes };
    Ok(Input { name, stem, bytes })
}

/// What tells the formats apart.
#[derive(Deserialize)]
struct Shape<'a> {
    log: Option<IgnoredAny>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    custom_id: Option<IgnoredAny>,
    conversations: Option<IgnoredAny>,
    messages: Option<IgnoredAny>,
    input: Option<IgnoredAny>,
    prompt: Option<IgnoredAny>,
    text: Option<IgnoredAny>,
    input_ids: Option<IgnoredAny>,
}

impl Shape<'_> {
    fn format(&self) -> Option<Format> {
        let body = [&self.messages, &self.input, &self.prompt, &self.text, &self.input_ids];
        match self {
            Shape { log: Some(_), .. } => Some(Format::Har),
            Shape { custom_id: Some(_), .. } => Some(Format::Batch),
            Shape { conversations: Some(_), .. } => Some(Format::ShareGpt),
            Shape { data: Some(list), .. } if list.get().starts_with('[') => Some(Format::AiPerf),
            _ => body.iter().any(|field| field.is_some()).then_some(Format::AiPerf),
        }
    }
}

/// What a file holds, by what stands in it; `None` where nothing is known of it.
pub fn detect(bytes: &Bytes) -> Option<Format> {
    let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace())?;
    if *start == b'[' {
        return Some(Format::ShareGpt);
    }
    let first = serde_json::Deserializer::from_slice(bytes).into_iter::<Shape<'_>>().next();
    let whole = first.and_then(Result::ok);
    whole.and_then(|shape| shape.format()).or_else(|| {
        let shapes = lines(bytes).take(LOOK_AT).filter_map(|(_, line)| {
            let shape: Shape<'_> = serde_json::from_slice(&line).ok()?;
            shape.format()
        });
        shapes.into_iter().next()
    })
}

/// Says of a file that nothing is known of what it holds.
pub fn unknown(input: &Input) -> Bad {
    let names = Format::ALL.map(Format::name).join(", ");
    let why = match serde_json::from_slice::<IgnoredAny>(&input.bytes) {
        Err(error) if !input.bytes.is_empty() => format!("; as JSON it is broken: {error}"),
        _ => String::new(),
    };
    let says = format!("holds none of {names}{why}; name what it is with --format, or leave it out");
    input.bad(Place::Whole, says)
}

/// The values of a file: itself where it is one, else one on each line.
pub fn values(bytes: &Bytes) -> Vec<(Place, Bytes)> {
    match serde_json::from_slice::<&RawValue>(bytes) {
        Ok(whole) => vec![(Place::Entry(1), bytes.slice_ref(whole.get().as_bytes()))],
        Err(_) => lines(bytes).map(|(number, line)| (Place::Line(number), line)).collect(),
    }
}

/// What is wrong with an entry, without the place in it: lines are counted in the file, not in the entry.
pub fn why(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).map(str::to_owned).unwrap_or(text)
}

/// The lines of a file that are not blank, with their numbers from 1 on.
pub fn lines(bytes: &Bytes) -> impl Iterator<Item = (usize, Bytes)> + use<> {
    let (bytes, mut from, mut number) = (bytes.clone(), 0, 0);
    let line = move || {
        let rest = bytes.get(from..).filter(|rest| !rest.is_empty())?;
        let len = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
        let line = bytes.slice_ref(rest[..len].trim_ascii());
        (from, number) = (from + len + 1, number + 1);
        Some((number, line))
    };
    std::iter::from_fn(line).filter(|(_, line)| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_by_what_stands_in_a_file() {
        for (text, format) in [
            ("\n {\"log\": {\n\"entries\": []\n}}", Some(Format::Har)),
            ("{\"custom_id\":\"a\",\"body\":{\"messages\":[]}}\n{", Some(Format::Batch)),
            (" [{\"conversations\":[]}]", Some(Format::ShareGpt)),
            ("{\"id\":1,\"conversations\":[]}\n{\"conversations\":[]}", Some(Format::ShareGpt)),
            ("{\"data\":[{\"session_id\":\"s\",\"payloads\":[]}]}", Some(Format::AiPerf)),
            ("{broken\n\n{\"model\":\"m\",\"messages\":[]}\n", Some(Format::AiPerf)),
            ("{\"prompt\":\"p\"}", Some(Format::AiPerf)),
            ("{\"data\":7}", None),
            ("words", None),
            ("{\"log\":", None),
            ("", None),
        ] {
            assert_eq!(detect(&Bytes::from(text)), format, "{text}");
        }
    }

    #[test]
    fn lines_have_numbers_and_blank_ones_are_left_out() {
        let found: Vec<_> = lines(&Bytes::from("a\n\n  \r\n b \r\nc")).collect();
        assert_eq!(found, [(1, Bytes::from("a")), (4, Bytes::from("b")), (5, Bytes::from("c"))]);
        assert_eq!(lines(&Bytes::new()).count(), 0);
    }

    #[test]
    fn a_file_is_one_value_or_has_one_on_each_line() {
        let whole = values(&Bytes::from("\n{\n\"a\": 1}\n"));
        assert_eq!(whole, [(Place::Entry(1), Bytes::from("{\n\"a\": 1}"))]);
        let lines = values(&Bytes::from("{}\n{\n"));
        assert_eq!(lines, [(Place::Line(1), Bytes::from("{}")), (Place::Line(2), Bytes::from("{"))]);
    }

    #[test]
    fn folders_give_their_files_by_name_and_large_files_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in [("b.jsonl", "12345"), ("a.JSON", "\u{feff}{}"), ("notes.txt", "")] {
            fs::write(dir.path().join(name), text).expect("writes");
        }
        fs::create_dir(dir.path().join("c.json")).expect("makes a folder");
        let found: Vec<Found> = files(dir.path()).into_iter().map(|file| file.expect("a file")).collect();
        let inputs: Vec<_> = found.iter().map(|file| load(file, 5)).collect();
        let [Ok(first), Ok(second)] = inputs.as_slice() else { panic!("{inputs:?}") };
        assert_eq!((first.bytes.as_ref(), second.bytes.as_ref()), (&b"{}"[..], &b"12345"[..]));
        let folder = dir.path().file_name().expect("a name").to_string_lossy().into_owned();
        assert_eq!(second.stem, format!("{folder}/b"));
        let bad = load(&found[1], 4).expect_err("is too large");
        assert!(bad.says.contains("larger than 4 bytes; split it"), "{bad}");
        let bad = load(&Found { path: dir.path().join("gone"), folder: None }, 4).expect_err("is not there");
        assert!(bad.says.contains("cannot be read"), "{bad}");
        let empty = tempfile::tempdir().expect("a directory");
        assert!(files(empty.path())[0].as_ref().is_err_and(|bad| bad.says.contains("no .jsonl")));
    }
}
