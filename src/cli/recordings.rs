//! What every command on recordings needs.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use crate::app::{Fault, code};
use crate::config::Config;
use crate::conversation::{Conversations, Error, Sessions};
use crate::journal::{self, Options};

/// Which journal, and how it is shown.
#[derive(clap::Args)]
pub struct How {
    /// Print JSON: one object a line for `list`, one object for `show`.
    #[arg(long)]
    pub json: bool,
    /// Read this journal instead of the configured one.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Canaries' conversations instead of clients'.
    #[arg(long)]
    pub canary: bool,
}

impl How {
    /// The journal's directory.
    pub fn dir(&self, config: &Config) -> PathBuf {
        let dir = self.dir.clone().unwrap_or_else(|| config.record.dir.clone());
        if self.canary { dir.join("canary") } else { dir }
    }
}

/// What was recorded, for reading; says so where parts of it are lost.
pub fn open(how: &How, config: &Config) -> Result<Sessions, Fault> {
    let dir = how.dir(config);
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
    if let Some(first) = sessions.first_locked() {
        let _ = writeln!(
            std::io::stderr(),
            "serin: {} segments in {} could not be read, and what is in them may not be listed: {first}",
            damage.locked_segments,
            dir.display()
        );
    }
    Ok(sessions)
}

/// How recordings are read and written outside of traffic.
pub fn options(config: &Config) -> Result<Options, Fault> {
    let keys = config.record.keychain();
    let keys = keys.map(Arc::new).map_err(|error| Fault::new(code::UNREADABLE, error.to_string()))?;
    // The memory for traffic's records has nothing to do with what may wait here.
    let pending_bytes = Options::default().pending_bytes;
    Ok(Options { keys, pending_bytes, ..config.record.journal() })
}

/// A value on one line.
pub fn json(value: &impl serde::Serialize) -> Result<String, Fault> {
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

/// What the command line says of a fault.
pub fn fault(error: Error) -> Fault {
    let code = match &error {
        Error::Unknown(_)
        | Error::Near { .. }
        | Error::Ambiguous { .. }
        | Error::UnknownTurn { .. }
        | Error::Journal(journal::Error::Missing { .. } | journal::Error::KeyMissing { .. }) => {
            code::UNREADABLE
        }
        _ => code::IO,
    };
    Fault::new(code, error.to_string())
}
