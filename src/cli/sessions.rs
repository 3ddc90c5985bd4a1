//! `serin sessions`

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;

use crate::app::{Fault, code};
use crate::config::Config;
use crate::conversation::{Conversations, Error, Filter, Sessions, render};
use crate::import::{self, Format};
use crate::journal::keys::keychain;
use crate::journal::{self, Options};
use crate::recorder::mode::Mode;
use crate::recorder::secrets::Secrets;

#[derive(Subcommand)]
pub enum Command {
    /// Recorded conversations, the latest first.
    #[command(after_help = "Example: serin sessions list --limit 5")]
    List {
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        how: How,
    },
    /// One conversation, turn by turn.
    #[command(after_help = "Example: serin sessions show 0193")]
    Show {
        /// Its id, or an unambiguous beginning of it.
        id: String,
        #[command(flatten)]
        how: How,
    },
    /// Take up conversations that other tools have recorded.
    #[command(after_help = IMPORT)]
    Import {
        /// Files, and folders of .jsonl, .json and .har files.
        #[arg(required = true, value_name = "PATH")]
        paths: Vec<PathBuf>,
        /// What they hold, where it is not to be found out: har, batch, sharegpt or aiperf.
        #[arg(long, value_name = "FORMAT", value_parser = Format::of_name)]
        format: Option<Format>,
        /// Into this journal instead of the configured one; it is made where there is none.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

const IMPORT: &str = "Reads HAR 1.2, requests and outputs of OpenAI's batches, ShareGPT and AIPerf's payloads. What was \
imported before is not imported again. Headers are kept as in what Serin records: credentials are withheld. Where a \
format has no times, turns are dated 1970. Stop the process that records first.\n\nExits with 1 where an entry could \
not be used and with 66 where a file could not; the others are imported all the same.\n\nExample: serin sessions \
import requests.jsonl output.jsonl";

#[derive(clap::Args)]
pub struct How {
    /// Print JSON: one object a line for `list`, one object for `show`.
    #[arg(long)]
    json: bool,
    /// Read this journal instead of the configured one.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Canaries' conversations instead of clients'.
    #[arg(long)]
    canary: bool,
}

pub fn run(command: &Command, config: &Config) -> Result<(), Fault> {
    let text = match command {
        Command::List { limit, how } => {
            let filter = Filter { limit: *limit, ..Filter::default() };
            let lines = open(how, config)?.list(&filter).map_err(fault)?;
            match how.json {
                true => lines.iter().map(json).collect::<Result<String, _>>()?,
                false => render::list(&lines),
            }
        }
        Command::Show { id, how } => {
            let session = open(how, config)?.show(id).map_err(fault)?;
            if how.json { json(&session)? } else { render::show(&session) }
        }
        Command::Import { paths, format, dir } => {
            return import(paths, *format, dir.as_ref().unwrap_or(&config.record.dir), config);
        }
    };
    super::print(&text)
}

/// What was recorded, for reading; says so where parts of it are lost.
fn open(how: &How, config: &Config) -> Result<Sessions, Fault> {
    let mut dir = how.dir.clone().unwrap_or_else(|| config.record.dir.clone());
    if how.canary {
        dir.push("canary");
    }
    let sessions = Conversations::read_with(&dir, options(config)?).map_err(fault)?;
    let damage = sessions.damage();
    if damage.is_loss() {
        let _ = writeln!(
            std::io::stderr(),
            "serin: the journal in {} is damaged ({} holes, {} unreadable segments); what could be read is shown",
            dir.display(),
            damage.holes,
            damage.unreadable_segments
        );
    }
    Ok(sessions)
}

fn import(paths: &[PathBuf], format: Option<Format>, dir: &Path, config: &Config) -> Result<(), Fault> {
    let mut into = Conversations::open_with(dir, options(config)?).map_err(fault)?;
    let mut secrets = (config.record.mode < Mode::Full).then(|| Secrets::new(config.record.parts));
    let mut complain = |bad: &import::Bad| drop(writeln!(std::io::stderr(), "serin: {bad}"));
    let counted = import::run(paths, format, secrets.as_mut(), &mut into, &mut complain).map_err(fault)?;
    super::print(&summary(dir, &counted))?;
    let left_out = |what: &str| format!("{what} could not be used, see above; what could be is imported");
    match (counted.unusable, counted.bad) {
        (0, 0) => Ok(()),
        (0, bad) => Err(Fault::new(code::FINDING, left_out(&count(bad, "entry", "entries")))),
        (files, _) => Err(Fault::new(code::UNREADABLE, left_out(&count(files, "file", "files")))),
    }
}

fn summary(dir: &Path, counted: &import::Counted) -> String {
    let exchanges = count(counted.exchanges, "exchange", "exchanges");
    let conversations = count(counted.conversations, "conversation", "conversations");
    let mut text = format!("{}: {exchanges} imported, in {conversations}", dir.display());
    if counted.known > 0 {
        text.push_str(&format!("; {} were there already", counted.known));
    }
    if counted.others > 0 {
        let others = count(counted.others, "request is no turn", "requests are no turns");
        text.push_str(&format!("; {others} of a conversation and left out"));
    }
    text + "\n"
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// How recordings are read and written outside of traffic.
pub(super) fn options(config: &Config) -> Result<Options, Fault> {
    let keys = keychain(&config.record.key_file);
    let keys = keys.map(Arc::new).map_err(|error| Fault::new(code::UNREADABLE, error.to_string()))?;
    // The memory for traffic's records has nothing to do with what may wait here.
    let pending_bytes = Options::default().pending_bytes;
    Ok(Options { keys, pending_bytes, ..config.record.journal() })
}

pub(super) fn json(value: &impl serde::Serialize) -> Result<String, Fault> {
    let line = serde_json::to_string(value);
    line.map(|line| escaped(&line) + "\n")
        .map_err(|error| Fault::new(code::INTERNAL, format!("cannot write JSON: {error}")))
}

/// JSON leaves DEL, the C1 controls and line separators as they are; a terminal does not.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            _ => out.push(character),
        }
    }
    out
}

pub(super) fn fault(error: Error) -> Fault {
    let code = match &error {
        Error::Unknown(_) | Error::Ambiguous { .. } | Error::Journal(journal::Error::Missing { .. }) => {
            code::UNREADABLE
        }
        _ => code::IO,
    };
    Fault::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_imported_is_summed_up_in_one_line() {
        let counted = import::Counted { exchanges: 3, conversations: 1, ..import::Counted::default() };
        assert_eq!(summary(Path::new("d"), &counted), "d: 3 exchanges imported, in 1 conversation\n");
        let counted = import::Counted { exchanges: 1, known: 2, others: 1, ..import::Counted::default() };
        assert_eq!(
            summary(Path::new("d"), &counted),
            "d: 1 exchange imported, in 0 conversations; 2 were there already; 1 request is no turn of a conversation and left out\n"
        );
    }

    #[test]
    fn some_of_it_missing_is_an_exit_code_and_the_rest_is_imported() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, journal) = (dir.path().join("a.json"), dir.path().join("journal"));
        let good = r#"{"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]}"#;
        let config = Config::default();
        let import = |text: &str| {
            std::fs::write(&file, text).expect("writes");
            let paths = [file.clone(), file.clone()];
            import(&paths, None, &journal, &config).map_err(|fault| (fault.code, fault.message))
        };
        assert_eq!(import(good), Ok(()));
        let (found, says) = import(&format!("{good}\n7")).expect_err("an entry is bad");
        assert_eq!(found, code::FINDING);
        assert!(says.starts_with("2 entries could not be used, see above"), "{says}");
        assert_eq!(import("words").expect_err("no format").0, code::UNREADABLE);
        let sessions = Conversations::read_only(&journal).expect("opens");
        assert_eq!(sessions.list(&Filter::default()).expect("lists").len(), 1);
    }
}
