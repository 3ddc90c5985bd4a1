//! `serin model`

use std::io::{IsTerminal, Write};
use std::sync::atomic::AtomicBool;

use clap::Subcommand;

use crate::app::chat_model::Bar;
use crate::app::{Fault, code};
use crate::upstream::fetch::{self, KNOWN, Source};

#[derive(Subcommand)]
pub enum Command {
    /// Models that have a name here, and whether they are cached.
    #[command(after_help = "Example: serin model list")]
    List {
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Bring a model into the cache and print where it is.
    #[command(after_help = "Example: serin model fetch smollm2-135m-instruct")]
    Fetch {
        /// A name from `model list`, or a URL.
        model: String,
        /// SHA-256 the file must have (named models carry their own).
        #[arg(long, default_value = "")]
        sha256: String,
    },
}

pub fn run(command: &Command) -> Result<(), Fault> {
    let cache = fetch::cache_dir().map_err(|error| Fault::new(code::IO, error.to_string()))?;
    match command {
        Command::List { json } => {
            let mut out = String::new();
            for known in &KNOWN {
                let file = cache.join(known.member.rsplit('/').next().unwrap_or(known.name));
                let cached = file.exists();
                if *json {
                    let line = serde_json::json!({"id": known.name, "licence": known.licence, "bytes": known.file_bytes,
                        "sha256": known.sha256, "cached": cached, "path": file});
                    out.push_str(&format!("{line}\n"));
                } else {
                    let state = if cached { "cached" } else { "not fetched" };
                    let mb = known.file_bytes / 1_000_000;
                    out.push_str(&format!(
                        "{}  {mb} MB  {}  {state}  {}\n",
                        known.name,
                        known.licence,
                        file.display()
                    ));
                }
            }
            super::print(&out)
        }
        Command::Fetch { model, sha256 } => {
            let source = Source::parse(model).map_err(|error| Fault::new(code::USAGE, error))?;
            let mut bar = Bar::new(model);
            // A bar is seen on a terminal only; a log of a build wants to know, too.
            let say = |text: String| {
                if !std::io::stderr().is_terminal() {
                    let _ = writeln!(std::io::stderr(), "serin: {text}");
                }
            };
            say(format!("fetching {model} into {}", cache.display()));
            let got = fetch::fetch(&source, sha256, &cache, &AtomicBool::new(false), &mut |done, total| {
                bar.show(done, total);
            });
            bar.end();
            let file = got.map_err(|error| Fault::new(code::UNAVAILABLE, error))?;
            let bytes = std::fs::metadata(&file).map_or(0, |file| file.len());
            say(format!("{model} is here, {} MB", bytes / 1_000_000));
            super::print(&format!("{}\n", file.display()))
        }
    }
}
