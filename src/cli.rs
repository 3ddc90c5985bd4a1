//! The command line: arguments, exit codes, output.

mod audit;
mod delete;
mod import;
mod journal;
mod lines;
pub mod model;
mod recordings;
pub mod serve;
pub mod sessions;
mod whose;

use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::app::{Fault, code};
use crate::config::{self, Config};

/// A transparent recording proxy for language-model inference, with live fidelity canaries.
#[derive(Parser)]
#[command(name = "serin", version, about, after_help = EXIT_CODES)]
struct Arguments {
    /// The configuration file; without this ./config.toml, and where there is none the defaults.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What is read where no file is named.
const USUAL: &str = "config.toml";

const EXIT_CODES: &str = "Exit codes: 0 fine, 1 a finding, 2 usage, 3 inconclusive, 64 bad config, 66 input \
unreadable, 69 address in use or upstream unreachable, 70 internal, 74 I/O.\n\nExample: serin --config config.toml";

#[derive(Subcommand)]
enum Command {
    /// Run the proxy (the default).
    #[command(after_help = "Example: serin serve --config /etc/serin/config.toml")]
    Serve,
    /// Read the configuration, print what it comes to and its hash.
    #[command(after_help = "Example: serin check-config --config config.toml")]
    CheckConfig,
    /// Look at recorded conversations.
    Sessions {
        #[command(subcommand)]
        command: sessions::Command,
    },
    /// Look after what was recorded.
    Journal {
        #[command(subcommand)]
        command: journal::Command,
    },
    /// Models for the embedded engine.
    Model {
        #[command(subcommand)]
        command: model::Command,
    },
}

/// Runs the command line and turns a fault into one line and its exit code.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { code::USAGE } else { 0 });
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            let _ = writeln!(io::stderr(), "serin: {fault}");
            ExitCode::from(fault.code)
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Fault> {
    let named = arguments.config.as_deref();
    let read = || read(named).map_err(fault);
    match &arguments.command {
        None | Some(Command::Serve) => serve::run(read()?, named.unwrap_or(Path::new(USUAL)).to_owned()),
        Some(Command::CheckConfig) => {
            let config = read()?;
            crate::app::check(&config)?;
            print(&format!("{}\n# hash {}\n", config.text(), config.hash()))
        }
        Some(Command::Sessions { command }) => sessions::run(command, &read()?),
        Some(Command::Journal { command }) => journal::run(command, &read()?),
        Some(Command::Model { command }) => model::run(command),
    }
}

/// A file that was named must be there. Where none was named and none lies there, every key has its default.
fn read(named: Option<&Path>) -> Result<Config, config::Error> {
    match (named, Config::read(named.unwrap_or(Path::new(USUAL)))) {
        (None, Err(config::Error::Unreadable { error, .. })) if error.kind() == ErrorKind::NotFound => {
            Ok(Config::default())
        }
        (_, read) => read,
    }
}

fn fault(error: config::Error) -> Fault {
    let code = match error {
        config::Error::Unreadable { .. } => code::UNREADABLE,
        config::Error::Bad(_) => code::CONFIG,
    };
    Fault::new(code, error.to_string())
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> Result<(), Fault> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Fault::new(code::IO, format!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Columns of the terminal that standard output goes to; where it goes elsewhere, as many as are easily read.
fn width() -> usize {
    const READABLE: usize = 100;
    rustix::termios::tcgetwinsize(io::stdout()).map_or(READABLE, |size| usize::from(size.ws_col).max(40))
}
