//! What the command line asks for.

use std::time::Duration;

use crate::Error;

/// How long, how much and from which seed.
#[derive(Clone, Debug)]
pub struct Options {
    pub seconds: u64,
    pub seed: u64,
    /// Clients at once; each goes from one exchange to the next.
    pub clients: usize,
    /// At most this many exchanges in all, so that a fast machine ends too.
    pub exchanges: u64,
    /// Change the configuration and send SIGHUP now and then.
    pub reloads: bool,
}

/// Load alternates with rest this many times; three thirds need a multiple of three.
pub const ROUNDS: u32 = 6;

impl Options {
    pub fn from_args(arguments: impl Iterator<Item = String>) -> Result<Options, Error> {
        let mut options = Options { seconds: 60, seed: 1, clients: 24, exchanges: 2_000_000, reloads: true };
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let mut number = |name: &str| -> Result<u64, Error> {
                let value = arguments.next().ok_or_else(|| format!("{name} needs a number"))?;
                Ok(value.parse().map_err(|_| format!("{name} {value}: not a number"))?)
            };
            match argument.as_str() {
                "--seconds" => options.seconds = number("--seconds")?,
                "--seed" => options.seed = number("--seed")?,
                "--clients" => options.clients = number("--clients")? as usize,
                "--exchanges" => options.exchanges = number("--exchanges")?,
                "--no-reloads" => options.reloads = false,
                // cargo adds this to every benchmark.
                "--bench" => {}
                other => {
                    return Err(format!(
                        "{other}: known are --seconds N, --seed N, --clients N, --exchanges N, --no-reloads"
                    )
                    .into());
                }
            }
        }
        Ok(options)
    }

    /// The length of one round of load.
    pub fn round(&self) -> Duration {
        Duration::from_millis(self.seconds * 1_000 / u64::from(ROUNDS))
    }
}
