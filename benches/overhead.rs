//! What Serin adds: the same requests straight to a mock upstream, through Serin with recording on and off, and
//! through nginx, in interleaved rounds on one machine.
//!
//!     cargo bench --bench overhead                    # under four minutes
//!     cargo bench --bench overhead -- --quick         # one short round, under 40 seconds
//!
//! Progress goes to stderr, the result as Markdown to stdout. Upstream and load generator are threads of this
//! process with one runtime each; every proxy is a process of its own with one worker thread. Trust the CPU
//! time and the paired ratios before requests per second and tails: they hold better on a busy machine.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures wall time")]

use std::process::ExitCode;

#[path = "overhead/chunked.rs"]
mod chunked;
#[path = "overhead/client.rs"]
mod client;
#[path = "overhead/ledger.rs"]
mod ledger;
#[path = "overhead/load.rs"]
mod load;
#[path = "overhead/machine.rs"]
mod machine;
#[path = "overhead/mock.rs"]
mod mock;
#[path = "overhead/options.rs"]
mod options;
#[path = "overhead/report.rs"]
mod report;
#[path = "overhead/rounds.rs"]
mod rounds;
#[path = "overhead/target.rs"]
mod target;
#[path = "overhead/workload.rs"]
mod workload;

use options::Options;

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match Options::from_args(std::env::args().skip(1)).and_then(|options| measure(&options)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("overhead: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Fails when a target that must be there was not, or when bytes or requests were lost.
fn measure(options: &Options) -> Result<ExitCode, Error> {
    let upstream = mock::start()?;
    let (targets, absent) = target::start_all(options, upstream)?;
    let workloads = workload::all(options);
    let results = rounds::run(options, &targets, &workloads)?;
    print!("{}", report::markdown(options, &targets, &absent, &workloads, &results));
    let lost = results.iter().any(|cell| cell.errors() > 0 || !cell.bytes_equal);
    let serin_missing = absent.iter().any(|absent| absent.required);
    Ok(if lost || serin_missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
