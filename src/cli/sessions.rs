//! `serin sessions`

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Subcommand;

use crate::app::{Fault, code};
use crate::config::Config;
use crate::conversation::{Conversations, Error, Filter, render};
use crate::journal::keys::keychain;
use crate::journal::{self, Keychain};

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
}

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
    let (Command::List { how, .. } | Command::Show { how, .. }) = command;
    let mut dir = how.dir.clone().unwrap_or_else(|| config.record.dir.clone());
    if how.canary {
        dir.push("canary");
    }
    let sessions = Conversations::read_with(&dir, &keys(config)?).map_err(fault)?;
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
    let text = match command {
        Command::List { limit, .. } => {
            let lines = sessions.list(&Filter { limit: *limit, ..Filter::default() }).map_err(fault)?;
            match how.json {
                true => lines.iter().map(json).collect::<Result<String, _>>()?,
                false => render::list(&lines),
            }
        }
        Command::Show { id, .. } => {
            let session = sessions.show(id).map_err(fault)?;
            if how.json { json(&session)? } else { render::show(&session) }
        }
    };
    super::print(&text)
}

/// The keys for what is encrypted.
pub(super) fn keys(config: &Config) -> Result<Arc<Keychain>, Fault> {
    let keys = keychain(&config.record.key_file);
    keys.map(Arc::new).map_err(|error| Fault::new(code::UNREADABLE, error.to_string()))
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
