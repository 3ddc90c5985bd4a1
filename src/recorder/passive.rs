//! Checks of what clients were answered, off the path and off the recorder's thread: by what an exchange holds, without
//! asking anybody anything. `docs/fidelity.md` says what each means and what it cannot see.
//!
//! The recorder hands a copy of what it has read anyway to a bounded queue; what does not fit is counted and goes
//! unchecked. What is found is counted, and flagged: flags go back to the recorder, which writes them down.

mod accounting;
mod checks;
mod config;
mod finding;
mod limits;
mod metrics;
#[cfg(test)]
mod tests;
mod tokens;
mod turns;

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prometheus::IntCounter;

use crate::body::budget::Lease;
use crate::clock;
use crate::conversation::Place;
use crate::conversation::reading::{Reading, is_failed};
use crate::fidelity::dye::Registry;
use crate::journal::{Capture, Exchange, Flag};
use crate::openai::{Api, Ask, coding};
use checks::Checks;
pub use config::Config;
pub use finding::{Check, Finding};
pub use metrics::{Metrics, Skipped};

/// How long the end of the process waits for what is still to be checked.
const LAST: Duration = Duration::from_secs(2);
/// Flags that wait for the recorder.
const FLAGS: usize = 1024;

/// What the checks need of an exchange besides what was read of it.
pub struct Seen {
    pub id: String,
    pub api: Api,
    pub upstream: String,
    pub status: u32,
    /// It ended without its whole answer.
    pub failed: bool,
    request: Bytes,
    encoding: Option<Vec<u8>>,
    /// What a server said that has refused it.
    pub refusal: Bytes,
    /// The memory of its bodies.
    _leases: Arc<Vec<Lease>>,
}

/// An exchange to be checked.
pub struct Turn {
    /// Whose it is.
    pub tenant: usize,
    pub seen: Seen,
    pub reading: Reading,
    pub place: Place,
}

/// What the thread is asked to look at.
pub enum Job {
    Turn(Box<Turn>),
    /// A list of models, as a server has sent it, with the memory it takes.
    Models(Bytes, Arc<Vec<Lease>>),
}

impl Job {
    /// The list of models that an exchange has brought.
    pub fn models(exchange: &Exchange, leases: &Arc<Vec<Lease>>) -> Option<Job> {
        let listed = exchange.method == "GET" && exchange.path() == "/v1/models" && exchange.status == 200;
        let plain = exchange.response_header("content-encoding").is_none();
        (listed && plain).then(|| Job::Models(exchange.response_body.clone(), leases.clone()))
    }
}

impl Seen {
    /// Takes note of an exchange that was read, before anything of it is let go.
    pub fn of(exchange: &Exchange, leases: &Arc<Vec<Lease>>) -> Seen {
        let whole = exchange.request_capture() == Capture::Whole;
        let served = if exchange.served_by.is_empty() { &exchange.upstream } else { &exchange.served_by };
        Seen {
            id: exchange.id.clone(),
            api: Api::of_path(exchange.path()).unwrap_or(Api::Chat),
            upstream: served.clone(),
            status: exchange.status,
            failed: is_failed(exchange),
            request: if whole { exchange.request_body.clone() } else { Bytes::new() },
            encoding: exchange.request_header("content-encoding").map(<[u8]>::to_vec),
            refusal: match exchange.status {
                400..500 => exchange.response_body.clone(),
                _ => Bytes::new(),
            },
            _leases: leases.clone(),
        }
    }
}

impl Turn {
    /// Calls `look` with the request, where it can be read.
    pub fn ask<T>(&self, look: impl FnOnce(&Ask<'_>) -> T) -> Option<T> {
        let body = coding::decode(self.seen.encoding.as_deref(), &self.seen.request)?;
        Some(look(&Ask::parse(self.seen.api, &body)?))
    }
}

/// Whether what the configuration names can be read.
///
/// # Errors
/// One line that says what cannot.
pub fn check(config: &Config) -> Result<(), String> {
    tokens::Tokenizers::read(config).map(drop)
}

/// What the thread is given besides turns.
pub struct Parts {
    pub metrics: Metrics,
    /// The codes that canaries have planted, and where one that a client got is counted.
    pub dye: Arc<Registry>,
    pub crosstalk: IntCounter,
}

/// The recorder's end. Dropping it does not wait; [`Passive::end`] does.
pub struct Passive {
    queue: SyncSender<Job>,
    flags: Receiver<(usize, Flag)>,
    metrics: Metrics,
    /// When to stop, once the process ends.
    deadline: Arc<OnceLock<Instant>>,
    thread: JoinHandle<()>,
}

impl Passive {
    /// Starts the thread; `None` where nothing is to be checked.
    ///
    /// # Errors
    /// One line: where a tokenizer cannot be read, or the system gives no thread.
    pub fn start(config: &Config, parts: Parts) -> Result<Option<Passive>, String> {
        if !config.enabled {
            return Ok(None);
        }
        let (queue, jobs) = sync_channel(config.queue);
        let (found, flags) = sync_channel(FLAGS);
        let metrics = parts.metrics.clone();
        let checks = Checks::new(config, parts)?;
        let deadline = Arc::new(OnceLock::new());
        let until = deadline.clone();
        let run = move || run(&jobs, &found, &until, checks);
        let thread = std::thread::Builder::new().name("serin-passive".into()).spawn(run);
        let thread = thread.map_err(|error| format!("the thread of the passive checks: {error}"))?;
        Ok(Some(Passive { queue, flags, metrics, deadline, thread }))
    }

    /// Offers something to look at. Never waits; a turn that does not fit is counted.
    pub fn offer(&self, job: Job) {
        match self.queue.try_send(job) {
            Err(TrySendError::Full(Job::Turn(_))) => self.metrics.skipped(Skipped::QueueFull),
            Err(TrySendError::Disconnected(Job::Turn(_))) => self.metrics.skipped(Skipped::Stopped),
            _ => {}
        }
    }

    pub fn skipped(&self, why: Skipped) {
        self.metrics.skipped(why);
    }

    /// What was found since the last call, with whose turns they are.
    pub fn flags(&self) -> impl Iterator<Item = (usize, Flag)> + '_ {
        self.flags.try_iter()
    }

    /// Waits until everything offered so far is checked, but not for long; returns the last of what was found.
    pub fn end(self) -> Vec<(usize, Flag)> {
        self.deadline.get_or_init(|| clock::now() + LAST);
        drop(self.queue);
        let flags = self.flags.iter().collect();
        if self.thread.join().is_err() {
            tracing::error!("the thread of the passive checks died; what was recorded is whole");
        }
        flags
    }
}

fn run(
    jobs: &Receiver<Job>,
    found: &SyncSender<(usize, Flag)>,
    until: &OnceLock<Instant>,
    mut checks: Checks,
) {
    while let Ok(job) = jobs.recv() {
        let turn = match job {
            Job::Models(body, _leases) => {
                checks.models(&body);
                continue;
            }
            Job::Turn(_) if until.get().is_some_and(|until| clock::now() > *until) => {
                checks.metrics().skipped(Skipped::Stopped);
                continue;
            }
            Job::Turn(turn) => turn,
        };
        for finding in checks.look(&turn) {
            let Some(name) = finding.check.flag(finding.outcome) else { continue };
            let flag = Flag {
                turn: turn.seen.id.clone(),
                name: name.to_owned(),
                version: finding.check.version(),
                unix_nanos: clock::unix_nanos(),
            };
            // A recorder that does not keep up loses flags, and counts as it goes.
            if found.try_send((turn.tenant, flag)).is_err() {
                checks.metrics().lost_flag();
            }
        }
    }
}
