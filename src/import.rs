//! Conversations that other tools have recorded, read into a journal.
//!
//! Each format has a reader: it takes the bytes of a file and yields exchanges one after another, in the order in which
//! their turns were taken. What it cannot use is a [`Bad`] in its place, and the reader goes on behind it.
//!
//! An exchange's id is made of its time and of what it holds, so what was imported before is known by its id. Formats
//! without times have their entries a second apart from 1970 on: an invented date would be believed by somebody.
//! Only turns of a conversation are taken; a browser's recording is full of pictures and scripts.

mod aiperf;
mod batch;
mod draft;
mod har;
mod sharegpt;
mod source;

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::path::PathBuf;

use bytes::Bytes;

use crate::clock;
use crate::conversation::reading::{is_turn, judge};
use crate::conversation::{Conversations, Error, Wish, render};
use crate::journal::{self, Exchange};
use crate::openai::outline::Outline;
use crate::recorder::secrets::Secrets;
pub use source::detect;

/// Bytes that are made durable at once.
const BATCH: usize = 4 << 20;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// HAR 1.2, as browsers and intercepting proxies write it.
    Har,
    /// The request and output files of OpenAI's batches.
    Batch,
    /// Lists of conversations between a human and a model.
    ShareGpt,
    /// AIPerf's payloads: `raw_payload` and `inputs_json`.
    AiPerf,
}

impl Format {
    /// All of them, in the order in which they are named to people.
    pub const ALL: [Format; 4] = [Format::Har, Format::Batch, Format::ShareGpt, Format::AiPerf];

    /// The name used on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Har => "har",
            Format::Batch => "batch",
            Format::ShareGpt => "sharegpt",
            Format::AiPerf => "aiperf",
        }
    }

    /// The format of that name.
    ///
    /// # Errors
    /// A sentence that names the formats there are.
    pub fn of_name(name: &str) -> Result<Format, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| format!("the formats are {}", Self::ALL.map(Format::name).join(", ")))
    }
}

/// A file that is to be imported.
#[derive(Clone, Debug)]
pub struct Input {
    /// As it is named to people.
    pub name: String,
    /// What sessions in it are named after: its name without folder and ending, or with its folder where the folder was
    /// what was asked for.
    pub stem: String,
    pub bytes: Bytes,
}

impl Input {
    fn bad(&self, place: Place, says: impl Into<String>) -> Bad {
        Bad { file: self.name.clone(), place, says: short(says.into()) }
    }
}

/// A complaint that somebody can read: a file may have put anything into it. Its beginning says what is wrong, its end how to
/// mend it.
fn short(says: String) -> String {
    const BEGINS: usize = 300;
    const ENDS: usize = 200;
    let Some((begins, _)) = says.char_indices().nth(BEGINS) else { return says };
    let Some((ends, _)) = says.char_indices().nth_back(ENDS - 1) else { return says };
    if ends <= begins { says } else { format!("{} … {}", &says[..begins], &says[ends..]) }
}

/// Something that could not be imported: what, where, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bad {
    pub file: String,
    pub place: Place,
    pub says: String,
}

/// Where in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// All of it.
    Whole,
    /// An entry of a list, from 1 on.
    Entry(usize),
    /// A line, from 1 on.
    Line(usize),
}

impl Place {
    /// The number of the entry or line; 0 for all of a file.
    fn number(self) -> usize {
        match self {
            Place::Whole => 0,
            Place::Entry(number) | Place::Line(number) => number,
        }
    }
}

impl fmt::Display for Bad {
    /// What a file says is hostile: nothing of it may steer the terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            Place::Whole => String::new(),
            Place::Entry(number) => format!(", entry {number}"),
            Place::Line(number) => format!(", line {number}"),
        };
        for character in format!("{}{place}: {}", self.file, self.says).chars() {
            match render::steers(character) {
                true => write!(f, "{}", character.escape_default())?,
                false => write!(f, "{character}")?,
            }
        }
        Ok(())
    }
}

/// What a reader yields for each entry.
pub type Outcome = Result<Exchange, Bad>;
/// The entries of a file, one after another.
pub type Outcomes = Box<dyn Iterator<Item = Outcome>>;

/// What has become of all entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub exchanges: u64,
    /// Conversations in which these are.
    pub conversations: u64,
    /// Exchanges that the journal had already.
    pub known: u64,
    /// Requests that are no turns of a conversation.
    pub others: u64,
    /// Entries that could not be used, in files that could.
    pub bad: u64,
    /// Files that could not be used at all.
    pub unusable: u64,
}

/// Reads files, and folders of files, into a journal; calls `complain` with each thing that could not be used. `secrets`
/// masks what looks like one; without it bodies are taken as they are.
///
/// # Errors
/// What the journal says. What was imported until then stays, and importing again goes on behind it.
pub fn run(
    paths: &[PathBuf],
    format: Option<Format>,
    secrets: Option<&mut Secrets>,
    into: &mut Conversations,
    complain: &mut dyn FnMut(&Bad),
) -> Result<Counted, Error> {
    let mut importing = Importing {
        secrets,
        into,
        complain,
        counted: Counted::default(),
        conversations: BTreeSet::new(),
        taken: HashSet::new(),
        uncommitted: Vec::new(),
    };
    // Requests and their answers may be in different files.
    let mut batches = Vec::new();
    for file in paths.iter().flat_map(|path| source::files(path)) {
        match file.and_then(|file| source::load(&file, source::MOST_BYTES)) {
            Err(bad) => importing.refuse(&bad),
            Ok(input) => match format.or_else(|| source::detect(&input.bytes)) {
                Some(Format::Batch) => batches.push(input),
                Some(format) => importing.take_all(&input.name, open(format, &input))?,
                None => importing.refuse(&source::unknown(&input)),
            },
        }
    }
    importing.take_all("batch", Ok(batch::read(&batches)))?;
    importing.commit()?;
    importing.counted.conversations = importing.conversations.len() as u64;
    Ok(importing.counted)
}

/// The entries of a file that is complete by itself.
///
/// # Errors
/// Where it is no file of that format.
pub fn open(format: Format, input: &Input) -> Result<Outcomes, Bad> {
    match format {
        Format::Har => har::read(input),
        Format::Batch => Ok(batch::read(std::slice::from_ref(input))),
        Format::ShareGpt => sharegpt::read(input),
        Format::AiPerf => aiperf::read(input),
    }
}

/// An import under way.
struct Importing<'a> {
    secrets: Option<&'a mut Secrets>,
    into: &'a mut Conversations,
    complain: &'a mut dyn FnMut(&Bad),
    counted: Counted,
    conversations: BTreeSet<String>,
    /// What this import has taken; the index learns of it with each commit only.
    taken: HashSet<String>,
    uncommitted: Vec<String>,
}

impl Importing<'_> {
    /// Notes a file of which nothing can be used.
    fn refuse(&mut self, bad: &Bad) {
        self.counted.unusable += 1;
        (self.complain)(bad);
    }

    fn take_all(&mut self, file: &str, outcomes: Result<Outcomes, Bad>) -> Result<(), Error> {
        match outcomes {
            Ok(mut outcomes) => outcomes.try_for_each(|outcome| self.take(file, outcome)),
            Err(bad) => {
                self.refuse(&bad);
                Ok(())
            }
        }
    }

    fn take(&mut self, file: &str, outcome: Outcome) -> Result<(), Error> {
        match outcome {
            Err(bad) => {
                self.counted.bad += 1;
                (self.complain)(&bad);
            }
            Ok(exchange) if !is_turn(&exchange) => self.counted.others += 1,
            Ok(exchange) if self.has(&exchange.id)? => self.counted.known += 1,
            Ok(exchange) => self.record(file, exchange)?,
        }
        Ok(())
    }

    fn has(&self, id: &str) -> Result<bool, Error> {
        Ok(self.taken.contains(id) || self.into.conversation_of(id)?.is_some())
    }

    fn record(&mut self, file: &str, mut exchange: Exchange) -> Result<(), Error> {
        let (id, started) = (exchange.id.clone(), clock::rfc3339(exchange.started_unix_nanos));
        let key = self.into.mask_key();
        let outline = match &mut self.secrets {
            Some(secrets) => secrets.mask(&key, &mut exchange),
            None => Ok(Outline::of(&exchange.request_body)),
        };
        let Ok(outline) = outline else {
            let says = format!(
                "the exchange of {started} cannot be looked through for secrets; set [record] mode = \"full\" to take it as it is"
            );
            return self.leave_out(file, says);
        };
        let reading = self.into.read(&exchange, &outline);
        if let Some(reading) = &reading {
            let end = judge(&exchange, &reading.answer);
            exchange.set_end(end);
            exchange.model.clone_from(&reading.model);
        }
        match self.into.record_read(exchange, &outline, reading.as_ref(), Wish::ALL) {
            Err(Error::Journal(journal::Error::TooLarge { bytes, limit })) => {
                let says = format!(
                    "the exchange of {started} has {bytes} bytes, the limit is {limit}; leave it out"
                );
                return self.leave_out(file, says);
            }
            recorded => recorded?,
        };
        self.counted.exchanges += 1;
        self.uncommitted.push(id.clone());
        self.taken.insert(id);
        if self.into.pending_bytes() >= BATCH { self.commit() } else { Ok(()) }
    }

    fn leave_out(&mut self, file: &str, says: String) -> Result<(), Error> {
        self.counted.bad += 1;
        (self.complain)(&Bad { file: file.to_owned(), place: Place::Whole, says });
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        self.into.commit()?;
        for id in self.uncommitted.drain(..) {
            self.conversations.extend(self.into.conversation_of(&id)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
