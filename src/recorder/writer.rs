//! The one thread that writes: it takes ended exchanges from the queue and commits them in groups.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::assemble::assemble;
use super::ledger::{Dropped, Ledger};
use super::{Config, Offered, Recorder};
use crate::body::budget::{Budget, Lease};
use crate::clock;
use crate::conversation::{self, Conversations};
use crate::journal::record::{Capture, End, Exchange, Level, Origin};

/// A group is committed when it is this old or this large, whichever comes first.
const COMMIT_AGE: Duration = Duration::from_millis(50);
const COMMIT_BYTES: u64 = 256 * 1024;

/// The writer's thread; it ends when the last [`Recorder`] is gone and everything queued is durable.
pub struct Writer(Option<JoinHandle<()>>);

/// Exchanges written but not yet durable.
#[derive(Default)]
struct Group {
    levels: Vec<Level>,
    leases: Vec<Lease>,
    bytes: u64,
    oldest: Option<Instant>,
}

/// Clients' journal and, in a directory of its own, the canaries'.
struct Journals {
    clients: Conversations,
    canaries: Conversations,
}

/// Why recording cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Journal(#[from] conversation::Error),
    #[error("its thread cannot be started: {0}")]
    Thread(io::Error),
}

/// Opens the journal and starts the writer; with recording switched off, nothing is opened.
pub fn start(config: &Config, ledger: Ledger) -> Result<(Recorder, Writer), Error> {
    let budget = Budget::new(config.memory.0);
    if !config.enabled {
        return Ok((Recorder::new(None, budget, ledger, config.opt_out), Writer(None)));
    }
    let journals = Journals {
        clients: Conversations::open(&config.dir)?,
        canaries: Conversations::open(&config.dir.join("canary"))?,
    };
    let (sender, receiver) = sync_channel(config.queue);
    let recorder = Recorder::new(Some(sender), budget.clone(), ledger.clone(), config.opt_out);
    let run =
        move || Loop { journals, ledger, budget, group: Group::default(), failing: false }.run(&receiver);
    let thread =
        std::thread::Builder::new().name("serin-recorder".into()).spawn(run).map_err(Error::Thread)?;
    Ok((recorder, Writer(Some(thread))))
}

impl Writer {
    /// Waits until everything offered so far is durable. Every [`Recorder`] must be gone, or this waits for ever.
    pub fn join(self) {
        if let Some(Err(_)) = self.0.map(JoinHandle::join) {
            tracing::error!(
                "the recorder's thread died; the journal on disk is intact up to its last commit"
            );
        }
    }
}

/// Adds what takes time to find out, and so is not found out on the path; says whether the answer failed inside its stream.
fn complete(exchange: &mut Exchange) -> bool {
    let hash = |body: &[u8]| Bytes::copy_from_slice(blake3::hash(body).as_bytes());
    if exchange.request_capture() == Capture::Whole {
        exchange.request_body_hash = hash(&exchange.request_body);
    }
    if exchange.response_capture() == Capture::Whole {
        exchange.response_body_hash = hash(&exchange.response_body);
    }
    let assembled = assemble(exchange);
    let failed_inside = assembled.end == End::StreamError && exchange.end() != End::StreamError;
    exchange.set_end(assembled.end);
    exchange.model = assembled.asked_model;
    failed_inside
}

struct Loop {
    journals: Journals,
    ledger: Ledger,
    budget: Budget,
    group: Group,
    failing: bool,
}

impl Loop {
    fn run(mut self, queue: &Receiver<Offered>) {
        loop {
            let patience = self.group.oldest.map_or(COMMIT_AGE * 10, |oldest| {
                COMMIT_AGE.saturating_sub(clock::now().duration_since(oldest))
            });
            let over = match queue.recv_timeout(patience) {
                Ok(offered) => {
                    self.take(offered);
                    false
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => true,
            };
            self.ledger.queue_bytes(self.budget.used());
            let old = self.group.oldest.is_some_and(|since| clock::now().duration_since(since) >= COMMIT_AGE);
            if over || old || self.group.bytes >= COMMIT_BYTES {
                self.commit();
            }
            if over {
                return;
            }
        }
    }

    fn take(&mut self, Offered { mut exchange, leases }: Offered) {
        if complete(&mut exchange) && exchange.origin() == Origin::Client {
            self.ledger.stream_error(&exchange.upstream);
        }
        let level = exchange.record_level();
        let bytes = (exchange.request_body.len() + exchange.response_body.len()) as u64 + 512;
        let journal = match exchange.origin() {
            Origin::Client => &mut self.journals.clients,
            Origin::Canary => &mut self.journals.canaries,
        };
        if let Err(error) = journal.record(exchange) {
            self.ledger.dropped(Dropped::IoError);
            return self.failed("record", &error);
        }
        self.group.levels.push(level);
        self.group.leases.extend(leases);
        self.group.bytes += bytes;
        self.group.oldest.get_or_insert_with(clock::now);
    }

    fn commit(&mut self) {
        let group = std::mem::take(&mut self.group);
        for gap in self.ledger.take_gaps() {
            if let Err(error) = self.journals.clients.gap(gap) {
                self.failed("gap", &error);
            }
        }
        let committed = self.journals.clients.commit().and_then(|_| self.journals.canaries.commit());
        match committed {
            Ok(_) => {
                group.levels.iter().for_each(|level| self.ledger.recorded(*level));
                self.ledger.wrote(group.bytes);
                let lag =
                    group.oldest.map_or(0.0, |oldest| clock::now().duration_since(oldest).as_secs_f64());
                self.ledger.durable_lag(lag);
                if std::mem::take(&mut self.failing) {
                    tracing::info!("recording works again");
                }
            }
            Err(error) => {
                group.levels.iter().for_each(|_| self.ledger.dropped(Dropped::IoError));
                self.failed("commit", &error);
            }
        }
    }

    /// Says once that recording fails; the counters say how much is lost.
    fn failed(&mut self, doing: &str, error: &conversation::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::error!(%error, doing, "recording fails, traffic goes on; look at the disk under [record] dir");
        }
    }
}
