//! `serin sessions`

use std::io::Write;
use std::path::PathBuf;

use clap::Subcommand;

use super::recordings::{How, fault, json, open};
use super::whose::Whose;
use super::{delete, import};
use crate::app::{Fault, code};
use crate::clock;
use crate::config::Config;
use crate::conversation::render::{self, Look};
use crate::conversation::{Asked, Error, Filter, Session, Subject};
use crate::import::Format;

#[derive(Subcommand)]
pub enum Command {
    /// Recorded conversations, the latest first.
    #[command(
        after_help = "Bodies are not read. Filters that are given all have to hold.\n\nExample: serin sessions list --since 2h --flag error --model 'qwen*'"
    )]
    List {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        how: How,
    },
    /// One conversation as a tree of turns.
    #[command(
        after_help = "What goes on stands below, what forks off or asks again stands to the right.\n\nExample: serin sessions show 0193 --turn 2 --full"
    )]
    Show {
        /// Its id, an unambiguous beginning of it, or the id of one of its turns.
        id: String,
        /// Only this turn: its number, or its id or the beginning of that.
        #[arg(long, value_name = "TURN")]
        turn: Option<String>,
        /// Long messages whole.
        #[arg(long)]
        full: bool,
        #[command(flatten)]
        how: How,
    },
    /// Erase what belongs to somebody: it is taken out of every file, and a receipt says what was done.
    #[command(
        after_help = "Where a process records, its admin side erases: DELETE /api/v1/subjects/default/conv/ID.\n\nExample: serin sessions delete conversation/0193e0c8-1f2a-7c3b-9d4e-5f60718293a4"
    )]
    Delete {
        /// conversation/ID, or session/ID for every conversation that carried that session id.
        subject: Subject,
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
        #[command(flatten)]
        whose: Whose,
    },
}

const IMPORT: &str = "Reads HAR 1.2, requests and outputs of OpenAI's batches, ShareGPT and AIPerf's payloads. What was \
imported before is not imported again. Headers are kept as in what Serin records: credentials are withheld. Where a \
format has no times, turns are dated 1970. Stop the process that records first.\n\nExits with 1 where an entry could \
not be used and with 66 where a file could not; the others are imported all the same.\n\nExample: serin sessions \
import requests.jsonl output.jsonl";

/// Which conversations to list.
#[derive(clap::Args)]
pub struct Which {
    /// Active at this time or later: RFC 3339, or a span before now such as 2h or 3d.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Begun before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Some turn asked for this model; a * at the end stands for any ending.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Some turn went to this upstream.
    #[arg(long, value_name = "NAME")]
    upstream: Option<String>,
    /// Some turn has this flag, such as error or masked; may be given again.
    #[arg(long = "flag", value_name = "NAME")]
    flags: Vec<String>,
    /// A canary got this verdict; may be given again.
    #[arg(long = "verdict", value_name = "NAME")]
    verdicts: Vec<String>,
    /// At most this many.
    #[arg(long, default_value_t = 50)]
    limit: usize,
}

impl Which {
    fn filter(&self) -> Result<Filter, Fault> {
        let asked = Asked {
            since: self.since.clone(),
            until: self.until.clone(),
            model: self.model.clone(),
            upstream: self.upstream.clone(),
            flags: self.flags.clone(),
            verdicts: self.verdicts.clone(),
            cursor: None,
            limit: self.limit,
        };
        asked.filter(clock::unix_nanos()).map_err(|error| Fault::new(code::USAGE, format!("--{error}")))
    }
}

/// What `show` is to show: a client's conversation, else, where none has that id, a canary's.
fn find(id: &str, turn: Option<&str>, how: &How, config: &Config) -> Result<Session, Fault> {
    let look = |how: &How| {
        let sessions = open(how, config)?;
        Ok(match turn {
            Some(turn) => sessions.show_turn(id, turn),
            None => sessions.show(id),
        })
    };
    let unknown = match look(how)? {
        Err(error @ Error::Unknown(_)) if !how.canary && how.whose.tenant.is_none() => error,
        found => return found.map_err(fault),
    };
    let of_canaries =
        How { canary: true, whose: Whose { tenant: None }, dir: how.dir.clone(), json: how.json };
    match of_canaries.journal(config)?.0.is_dir() {
        true => look(&of_canaries)?.map_err(fault),
        false => Err(fault(unknown)),
    }
}

pub fn run(command: &Command, config: &Config) -> Result<(), Fault> {
    let text = match command {
        Command::List { which, how } => {
            let filter = which.filter()?;
            let lines = open(how, config)?.list(&filter).map_err(fault)?;
            match how.json {
                true => lines.iter().map(json).collect::<Result<String, _>>()?,
                false => render::list(&lines),
            }
        }
        Command::Show { id, turn, full, how } => {
            let session = find(id, turn.as_deref(), how, config)?;
            if let Some(locked) = &session.locked {
                let _ = writeln!(std::io::stderr(), "serin: {locked}");
            }
            match how.json {
                true => json(&session)?,
                false => render::show(&session, Look { width: super::width(), full: *full }),
            }
        }
        Command::Delete { subject, how } => return delete::run(subject, how, config),
        Command::Import { paths, format, dir, whose } => {
            return import::run(paths, *format, whose.one(dir.as_deref(), config)?);
        }
    };
    super::print(&text)
}
