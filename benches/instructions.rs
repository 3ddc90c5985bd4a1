//! Instructions that the path spends on a request and on an event, counted by callgrind: the number that holds still
//! on a busy machine. CI fails when one of them grows by more than the tolerance in `benches/instructions.toml`.
//!
//!     cargo bench --bench instructions                  # counts and compares
//!     cargo bench --bench instructions -- --update      # writes what was counted into the file
//!     cargo bench --bench instructions -- --keep /tmp/x # leaves callgrind's files there, for callgrind_annotate
//!
//! Serin runs under valgrind with one path thread and recording on, before an upstream that writes prepared bytes. One
//! client sends one request after the other, or takes one event after the other. Each case is counted with n units
//! and with 2n; the difference is what n units cost, without start and stop. Only the path thread counts: what the
//! recorder's thread does depends on when it wakes up.
#![expect(clippy::disallowed_methods, reason = "a benchmark waits for a process it has started")]

use std::path::PathBuf;
use std::process::ExitCode;

#[path = "parts/address.rs"]
mod address;
#[path = "instructions/cases.rs"]
mod cases;
#[path = "instructions/counted.rs"]
mod counted;
#[path = "instructions/limits.rs"]
mod limits;

use cases::CASES;
use limits::Limits;

type Error = Box<dyn std::error::Error>;

/// What the command line asks for.
struct Options {
    update: bool,
    keep: Option<PathBuf>,
    /// The binary under test.
    serin: PathBuf,
}

const USAGE: &str = "usage: cargo bench --bench instructions -- [--update] [--keep FOLDER] [--serin PATH]";

fn main() -> ExitCode {
    match compare() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compare() -> Result<ExitCode, Error> {
    let Options { update, keep, serin } = Options::from_args(std::env::args().skip(1))?;
    let mut limits = Limits::read()?;
    let mut grown = false;
    println!("{:<28} {:>12} {:>12} {:>8}", "path instructions", "counted", "committed", "change");
    for case in CASES {
        let once = counted::path_instructions(&serin, case, case.units, None)?;
        let twice = counted::path_instructions(&serin, case, 2 * case.units, keep.as_deref())?;
        let each = twice.saturating_sub(once) as f64 / case.units as f64;
        let Some(known) = limits.of(case.name) else {
            println!("{:<28} {each:>12.0} {:>12} {:>8}", case.name, "–", "new");
            grown |= !update;
            limits.set(case.name, each);
            continue;
        };
        let change = each / known - 1.0;
        println!("{:<28} {each:>12.0} {known:>12.0} {:>+7.1} %", case.name, change * 100.0);
        grown |= change > limits.tolerance;
        limits.set(case.name, each);
    }
    if update {
        limits.write()?;
        println!("written to {}", limits::FILE);
        return Ok(ExitCode::SUCCESS);
    }
    if grown {
        println!(
            "\nA case costs more than {:.0} % above {}, or is new. Find out why (--keep FOLDER, then callgrind_annotate); if it is meant, run\n\
             `cargo bench --bench instructions -- --update`, commit the file and say in the message what the cost buys.",
            limits.tolerance * 100.0,
            limits::FILE
        );
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

impl Options {
    fn from_args(mut arguments: impl Iterator<Item = String>) -> Result<Options, Error> {
        let mut options = Options { update: false, keep: None, serin: env!("CARGO_BIN_EXE_serin").into() };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--update" => options.update = true,
                "--keep" => {
                    let folder = arguments.next().ok_or_else(|| format!("--keep needs a folder\n{USAGE}"))?;
                    options.keep = Some(folder.into());
                }
                "--serin" => {
                    let path = arguments.next().ok_or_else(|| format!("--serin needs a path\n{USAGE}"))?;
                    options.serin = path.into();
                }
                // What `cargo bench` itself passes.
                "--bench" => {}
                _ => return Err(format!("unknown argument {argument}\n{USAGE}").into()),
            }
        }
        Ok(options)
    }
}
