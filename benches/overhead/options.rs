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
    /// Small requests a second of the fixed-rate runs; a tenth as many large ones, a fifth as many bursts.
    pub rate: u32,
    /// Cancels in each phase.
    pub cancels: usize,
    /// Streams that are open at once.
    pub crowd: usize,
    /// Measure other gateways too.
    pub peers: bool,
    /// The binary under test.
    pub serin: PathBuf,
    /// Another build that records in the same rounds, to see what a change is worth.
    pub beside: Option<PathBuf>,
    /// Only the parts whose names contain this.
    pub only: String,
    /// A page whose tables are to be replaced.
    pub page: Option<PathBuf>,
}

const USAGE: &str = "usage: cargo bench --bench overhead -- [--quick] [--peers] [--markdown FILE] [--rounds N] \
     [--seconds S] [--rate N] [--only PART] [--serin PATH] [--beside PATH]";

impl Options {
    pub fn from_args(mut args: impl Iterator<Item = String>) -> Result<Options, Error> {
        let mut options = Options {
            rounds: 5,
            measure: Duration::from_millis(1600),
            warm_up: Duration::from_millis(300),
            rate: 2000,
            cancels: 1000,
            crowd: 9000,
            peers: false,
            serin: env!("CARGO_BIN_EXE_serin").into(),
            beside: None,
            only: String::new(),
            page: None,
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value\n{USAGE}"));
            match arg.as_str() {
                "--quick" => {
                    (options.rounds, options.measure) = (1, Duration::from_millis(1000));
                    (options.cancels, options.crowd) = (100, 1000);
                }
                "--peers" => options.peers = true,
                "--markdown" => options.page = Some(value()?.into()),
                "--rounds" => options.rounds = value()?.parse()?,
                "--seconds" => options.measure = Duration::try_from_secs_f64(value()?.parse()?)?,
                "--rate" => options.rate = value()?.parse()?,
                "--only" => options.only = value()?,
                "--serin" => options.serin = value()?.into(),
                "--beside" => options.beside = Some(value()?.into()),
                // What `cargo bench` itself passes.
                "--bench" => {}
                _ => return Err(format!("unknown argument {arg}\n{USAGE}").into()),
            }
        }
        if options.rounds == 0 || options.rate == 0 {
            return Err(format!("--rounds and --rate must be at least 1\n{USAGE}").into());
        }
        Ok(options)
    }

    /// Whether the part is wanted.
    pub fn wants(&self, part: &str) -> bool {
        part.to_lowercase().contains(&self.only.to_lowercase())
    }
}
