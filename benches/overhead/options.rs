//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::Error;

pub struct Options {
    pub rounds: usize,
    /// How long one closed-loop measurement lasts.
    pub measure: Duration,
    /// The same load before it, not counted.
    pub warm_up: Duration,
    /// The binary under test.
    pub serin: PathBuf,
}

const USAGE: &str =
    "usage: cargo bench --bench overhead -- [--quick] [--rounds N] [--seconds S] [--serin PATH]";

impl Options {
    pub fn from_args(mut args: impl Iterator<Item = String>) -> Result<Options, Error> {
        let mut options = Options {
            rounds: 5,
            measure: Duration::from_millis(1600),
            warm_up: Duration::from_millis(300),
            serin: env!("CARGO_BIN_EXE_serin").into(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n{USAGE}"));
            match arg.as_str() {
                "--quick" => (options.rounds, options.measure) = (1, Duration::from_millis(1200)),
                "--rounds" => options.rounds = value()?.parse()?,
                "--seconds" => options.measure = Duration::try_from_secs_f64(value()?.parse()?)?,
                "--serin" => options.serin = value()?.into(),
                // What `cargo bench` itself passes.
                "--bench" => {}
                _ => return Err(format!("unknown argument {arg}\n{USAGE}").into()),
            }
        }
        if options.rounds == 0 {
            return Err(format!("--rounds must be at least 1\n{USAGE}").into());
        }
        Ok(options)
    }
}
