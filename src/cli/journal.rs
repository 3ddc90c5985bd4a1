//! `serin journal`

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use serde::Serialize;

use super::audit;
use super::recordings::{fault, json, options};
use crate::app::{Fault, code};
use crate::config::Config;
use crate::conversation::{Conversations, Restitched};
use crate::journal::verify::{self, Proof, verify};
use crate::journal::{self, Damage, Keychain, Options};

#[derive(Subcommand)]
pub enum Command {
    /// Read everything that was recorded and compare each body with the hash noted for it.
    #[command(
        after_help = "Exits with 1 where something is damaged, and with 66 where nothing is but parts could not be read for want of their keys. May run beside the process that records.\n\nExample: serin journal verify"
    )]
    Verify {
        /// Read this journal instead of the configured one.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// Print JSON, one object for each journal.
        #[arg(long)]
        json: bool,
    },
    /// Make the index anew, which `sessions` reads, from what was recorded.
    #[command(
        after_help = "The index is derived: nothing is lost by this. Stop the process that records first.\n\nExample: serin journal rebuild"
    )]
    Rebuild {
        /// Of this journal instead of the configured one.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Follow the chain of the audit log: who has read, erased or held what was recorded.
    #[command(
        after_help = "Exits with 1 where a line was changed or is missing. That the last lines were cut off, no chain can tell.\n\nExample: serin journal audit"
    )]
    Audit {
        /// This log instead of the configured one.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Find anew which turns belong together, by the rules of this version.
    #[command(
        after_help = "Nothing is removed: turns that belong elsewhere get a further link, which counts. A second run changes nothing. Stop the process that records first.\n\nExample: serin journal restitch"
    )]
    Restitch {
        /// In this journal instead of the configured one.
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// One journal's proof, as JSON has it.
#[derive(Serialize)]
struct Verified<'a> {
    dir: &'a Path,
    sound: bool,
    #[serde(flatten)]
    proof: &'a Proof,
}

pub fn run(command: &Command, config: &Config) -> Result<(), Fault> {
    let options = || options(config);
    match command {
        Command::Verify { dir, json } => prove(&journals(dir.as_deref(), config)?, &options()?.keys, *json),
        Command::Rebuild { dir } => {
            let options = options()?;
            journals(dir.as_deref(), config)?.iter().try_for_each(|dir| rebuild(dir, &options))
        }
        Command::Restitch { dir } => {
            let options = options()?;
            journals(dir.as_deref(), config)?.iter().try_for_each(|dir| restitch(dir, &options))
        }
        Command::Audit { file, json } => audit::run(file.as_ref().unwrap_or(&config.audit_file()), *json),
    }
}

/// Clients' journal, and the canaries' below it.
fn journals(dir: Option<&Path>, config: &Config) -> Result<Vec<PathBuf>, Fault> {
    let clients = dir.unwrap_or(&config.record.dir).to_owned();
    if !clients.is_dir() {
        return Err(fault(journal::Error::Missing(clients).into()));
    }
    let canaries = Some(clients.join("canary")).filter(|dir| dir.is_dir());
    Ok(std::iter::once(clients).chain(canaries).collect())
}

fn open(dir: &Path, options: &Options) -> Result<Conversations, Fault> {
    Conversations::open_with(dir, options.clone()).map_err(fault)
}

/// What is made of all that was recorded must not be made of a part of it.
fn need_keys(dir: &Path, options: &Options) -> Result<(), Fault> {
    match verify::locked(dir, &options.keys).map_err(|error| fault(error.into()))? {
        None => Ok(()),
        Some(missing) => {
            let fault = fault(missing.into());
            Err(Fault {
                message: format!("that takes all that was recorded, and {}", fault.message),
                ..fault
            })
        }
    }
}

fn restitch(dir: &Path, options: &Options) -> Result<(), Fault> {
    need_keys(dir, options)?;
    let Restitched { turns, kept, changed } = open(dir, options)?.restitch().map_err(fault)?;
    let kept =
        if kept > 0 { format!("; {kept} stay as they are, their bodies are gone") } else { String::new() };
    super::print(&format!("{}: {changed} of {turns} turns belong elsewhere now{kept}\n", dir.display()))
}

fn rebuild(dir: &Path, options: &Options) -> Result<(), Fault> {
    need_keys(dir, options)?;
    let mut conversations = open(dir, options)?;
    let found = conversations.reindex().map_err(fault)?;
    conversations.commit().map_err(fault)?;
    let damage = if found.damage.is_loss() { "; parts are damaged, see `serin journal verify`" } else { "" };
    super::print(&format!("{}: the index is made anew of {} records{damage}\n", dir.display(), found.records))
}

fn prove(dirs: &[PathBuf], keys: &Arc<Keychain>, as_json: bool) -> Result<(), Fault> {
    let (mut broken, mut locked) = (Vec::new(), None);
    for dir in dirs {
        let mut proof = verify(dir, keys).map_err(|error| fault(error.into()))?;
        let verified = Verified { dir, sound: proof.is_sound(), proof: &proof };
        super::print(&if as_json { json(&verified)? } else { text(dir, &proof) })?;
        if proof.is_damaged() {
            broken.push(dir.display().to_string());
        }
        locked = locked.or(proof.first_locked.take());
    }
    match (broken.is_empty(), locked) {
        (true, None) => Ok(()),
        (true, Some(first)) => Err(Fault::new(code::UNREADABLE, format!("not all could be read: {first}"))),
        (false, _) => Err(Fault::new(
            code::FINDING,
            format!(
                "damaged: {}; what can be read is still served, and what is whole can be copied away",
                broken.join(" and ")
            ),
        )),
    }
}

fn text(dir: &Path, proof: &Proof) -> String {
    let Proof { segments, exchanges, links, gaps, lost_exchanges, .. } = proof;
    let Damage { skipped_bytes, holes, unreadable_segments, locked_segments, undecodable_frames, torn_bytes } =
        proof.damage;
    let verdict = match (proof.is_damaged(), locked_segments) {
        (true, _) => "DAMAGED",
        (false, 0) => "sound",
        (false, _) => "sound as far as it could be read",
    };
    let mut text = format!("{}: {verdict}\n", dir.display());
    let _ = writeln!(text, "  holds    {exchanges} exchanges and {links} links in {segments} segments");
    let _ = writeln!(
        text,
        "  bodies   {} as recorded ({} bytes), {} not kept whole, {} kept for their time",
        proof.proven_bodies, proof.proven_bytes, proof.partial_bodies, proof.expired_bodies
    );
    if *gaps > 0 {
        let _ = writeln!(text, "  gaps     {gaps}, in which {lost_exchanges} exchanges went unrecorded");
    }
    if proof.flags > 0 {
        let _ = writeln!(text, "  flags    {}", proof.flags);
    }
    if proof.unknown > 0 {
        let _ = writeln!(text, "  later    {} records of a later version", proof.unknown);
    }
    if proof.damage.is_loss() {
        let _ = writeln!(
            text,
            "  unread   {skipped_bytes} bytes in {holes} holes, {unreadable_segments} segments, {undecodable_frames} frames"
        );
    }
    if locked_segments > 0 {
        let _ = writeln!(
            text,
            "  locked   {locked_segments} segments whose keys are not here; only their checksums were looked at"
        );
    }
    if torn_bytes > 0 {
        let _ = writeln!(text, "  end      {torn_bytes} bytes of an unfinished write");
    }
    for fault in &proof.first_faults {
        let _ =
            writeln!(text, "  fault    {} (record {}): {}", fault.id.escape_debug(), fault.lsn, fault.what);
    }
    if proof.faults > proof.first_faults.len() as u64 {
        let _ = writeln!(text, "  fault    and {} more", proof.faults - proof.first_faults.len() as u64);
    }
    text
}
