//! Whether everything is given back: the real program between an upstream and clients that both misbehave, for a while,
//! and then a look at what is left.
//!
//!     cargo bench --bench soak                                  # a minute
//!     cargo bench --bench soak -- --seconds 3600 --seed 7       # longer, otherwise
//!
//! Clients leave in every phase, read slowly, send nonsense or half of something; the upstream breaks off, is restarted
//! and answers with anything from one byte to megabytes; the disk under the recorder refuses and comes back. Every
//! answer that ends as whole is compared by digest with what the upstream was told to send, and every request body with
//! what the upstream received. Progress goes to stderr, one table to stdout; a finding is exit code 1.
#![expect(clippy::disallowed_methods, reason = "a soak runs by the wall clock")]

use std::process::ExitCode;

#[path = "parts/address.rs"]
mod address;
#[path = "soak/clients.rs"]
mod clients;
#[path = "soak/dice.rs"]
mod dice;
#[path = "soak/h2.rs"]
mod h2;
#[path = "soak/options.rs"]
mod options;
#[path = "soak/plan.rs"]
mod plan;
#[path = "soak/process.rs"]
mod process;
#[path = "soak/raw.rs"]
mod raw;
#[path = "soak/report.rs"]
mod report;
#[path = "soak/rounds.rs"]
mod rounds;
#[path = "soak/tally.rs"]
mod tally;
#[path = "soak/upstream.rs"]
mod upstream;
#[path = "soak/weather.rs"]
mod weather;

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let soaked =
        options::Options::from_args(std::env::args().skip(1)).and_then(|options| rounds::run(&options));
    match soaked {
        Ok(outcome) => {
            print!("{}", report::table(&outcome));
            let findings = report::findings(&outcome);
            findings.iter().for_each(|finding| println!("FINDING: {finding}"));
            if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::FAILURE
        }
    }
}
