//! `serin journal audit`

use std::path::Path;

use super::recordings::json;
use crate::admin::audit::{Broken, Chain, verify};
use crate::app::{Fault, code};

/// Follows the chain of the audit log and says whether it holds.
///
/// # Errors
/// A finding where it does not.
pub fn run(file: &Path, as_json: bool) -> Result<(), Fault> {
    let chain = verify(file).map_err(|error| {
        let remedy = "name the log with --file, or set [admin] audit_file";
        Fault::new(code::UNREADABLE, format!("the audit log {}: {error}; {remedy}", file.display()))
    })?;
    super::print(&if as_json { json(&chain)? } else { text(file, &chain) })?;
    match &chain.broken {
        None => Ok(()),
        Some(broken) => Err(Fault::new(code::FINDING, place(broken))),
    }
}

fn text(file: &Path, chain: &Chain) -> String {
    let Chain { files, lines, torn, broken } = chain;
    let state = if broken.is_none() { "sound" } else { "BROKEN" };
    let torn = if *torn > 0 { format!(", {torn} cut off by a crash") } else { String::new() };
    format!("{}: {state}\n  holds    {lines} lines in {files} files{torn}\n", file.display())
}

fn place(broken: &Broken) -> String {
    let Broken { file, line, why } = broken;
    format!("{} line {line}: {why}", file.display())
}
