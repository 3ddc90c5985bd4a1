//! What Serin adds: the same traffic straight to a mock upstream, through Serin with recording and canaries on, through
//! Serin as a plain proxy, and through nginx, in interleaved rounds on one machine.
//!
//!     cargo bench --bench overhead                                       # about ten minutes
//!     cargo bench --bench overhead -- --quick                            # a first look, about two
//!     cargo bench --bench overhead -- --peers                            # other gateways too, installed below target/
//!     cargo bench --bench overhead -- --markdown docs/BENCHMARKS.md      # replaces the tables of the page
//!
//! Progress goes to stderr, the result as Markdown to stdout. Upstream and load generator are threads of this
//! process with one runtime each; every proxy is a process of its own with one worker thread. Trust the CPU
//! time and the paired ratios before requests per second and tails: they hold better on a busy machine.
#![expect(clippy::disallowed_methods, reason = "a benchmark measures wall time")]

use std::process::ExitCode;

#[path = "parts/address.rs"]
mod address;
#[path = "overhead/books.rs"]
mod books;
#[path = "overhead/cancel.rs"]
mod cancel;
#[path = "overhead/chunked.rs"]
mod chunked;
#[path = "overhead/client.rs"]
mod client;
#[path = "overhead/crowd.rs"]
mod crowd;
#[path = "overhead/goals.rs"]
mod goals;
#[path = "overhead/load.rs"]
mod load;
#[path = "overhead/machine.rs"]
mod machine;
#[path = "overhead/mock.rs"]
mod mock;
#[path = "overhead/options.rs"]
mod options;
#[path = "overhead/process.rs"]
mod process;
#[path = "overhead/report.rs"]
mod report;
#[path = "overhead/rounds.rs"]
mod rounds;
#[path = "overhead/stats.rs"]
mod stats;
#[path = "overhead/target.rs"]
mod target;
#[path = "overhead/traffic.rs"]
mod traffic;
#[path = "overhead/witness.rs"]
mod witness;
#[path = "overhead/workload.rs"]
mod workload;

use options::Options;
use report::Results;
use target::Role;

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

/// Fails when a target that must be there was not, when bytes or requests were lost, or when Serin lost a record's
/// entry, an open stream or a cancel. Other goals that are missed are named in the report and fail nothing: the machine
/// may be busy.
fn measure(options: &Options) -> Result<ExitCode, Error> {
    // Before the targets are started: they inherit the limit of files.
    let (streams, remark) = crowd::possible(options);
    let upstream = mock::start()?;
    let (targets, absent) = target::start_all(options, upstream);
    let workloads = workload::all(options);
    let cells = rounds::run(options, &targets, &workloads)?;
    let crowds = if options.wants(crowd::NAME) {
        crowd::run(options, upstream, streams, &targets)?
    } else {
        Vec::new()
    };
    let cancels = if options.wants(cancel::NAME) { cancel::run(options, &targets)? } else { Vec::new() };
    let results = Results {
        options,
        targets: &targets,
        absent: &absent,
        workloads: &workloads,
        cells: &cells,
        crowds: &crowds,
        cancels: &cancels,
        remarks: &remark.into_iter().collect::<Vec<_>>(),
    };
    let text = results.markdown();
    print!("{text}");
    if let Some(page) = &options.page {
        report::write(page, &text)?;
    }
    let role = |target: usize| targets[target].role;
    let lost = cells.iter().any(|cell| role(cell.target) != Role::Peer && cell.failed())
        || crowds.iter().any(|crowd| crowd.failed())
        // nginx has nothing to cancel while a request is being sent.
        || cancels.iter().any(|left| role(left.target).is_serin() && left.failures() > 0);
    let missing = absent.iter().any(|absent| absent.required);
    Ok(if lost || missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
