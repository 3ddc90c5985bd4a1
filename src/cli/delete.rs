//! `serin sessions delete`

use std::io::Write;

use super::recordings::{How, fault, json};
use crate::admin::subjects::told;
use crate::app::{Fault, code};
use crate::clock;
use crate::config::Config;
use crate::conversation::{Conversations, Error, Subject};
use crate::journal::{self, erase, seal};
use crate::recorder::tenant::DEFAULT;

/// Erases what belongs to somebody where nobody records, and prints the receipt.
///
/// # Errors
/// A fault that says whom to ask where a process records there.
pub fn run(subject: &Subject, how: &How, config: &Config) -> Result<(), Fault> {
    let (dir, options) = how.journal(config)?;
    if !dir.is_dir() {
        return Err(fault(journal::Error::Missing(dir).into()));
    }
    let (fs, keys) = (options.fs.clone(), options.keys.clone());
    let mut journal = Conversations::open_with(&dir, options).map_err(|error| match error {
        Error::Journal(journal::Error::Locked(_)) => Fault::new(code::IO, ask_it(subject, how, config)),
        error => fault(error),
    })?;
    journal.erase(subject).map_err(fault)?;
    // No segment is written to from here on.
    drop(journal);
    let ways = seal::How::of_level(config.record.seal_level);
    for mut erasure in erase::pending(&dir).map_err(|error| fault(error.into()))? {
        let now = clock::unix_nanos();
        erase::carry_out(&dir, &*fs, &keys, ways, &mut erasure, now).map_err(not_yet)?;
        super::print(&if how.json { json(&told(&erasure))? } else { receipt(&erasure) })?;
    }
    let _ = writeln!(std::io::stderr(), "serin: copies that were made elsewhere are not known here");
    Ok(())
}

fn not_yet(error: journal::Error) -> Fault {
    let fault = fault(error.into());
    Fault { message: format!("no longer shown, and not erased yet: {}", fault.message), ..fault }
}

/// Whoever records holds the journal: the admin side of that process erases.
fn ask_it(subject: &Subject, how: &How, config: &Config) -> String {
    let (kind, id) = match subject {
        Subject::Conversation(id) => ("conv", id),
        Subject::Session(id) => ("session", id),
    };
    let query = if how.canary { "?canary=true" } else { "" };
    let tenant = how.whose.tenant.as_deref().unwrap_or(DEFAULT);
    format!(
        "a process records there, and erases while it does: send DELETE /api/v1/subjects/{tenant}/{kind}/{id}{query} to \
         its admin side (in this configuration {}), or stop it and ask again",
        config.admin.address
    )
}

fn receipt(erasure: &erase::Erasure) -> String {
    let done = erasure.receipt.unwrap_or_default();
    let damaged = match done.damaged_files {
        0 => String::new(),
        files => format!("; {files} with damaged bytes removed"),
    };
    format!(
        "erasure {}: {}, {} exchanges gone; {} files written anew, {} bytes before and {} after{damaged}\n",
        erasure.id, erasure.subject, done.exchanges, done.files, done.bytes_before, done.bytes_after
    )
}
