//! The one thread that writes: it takes ended exchanges from the queue and commits them in groups.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::assemble::assemble;
use super::ledger::{Bare, Dropped, Ledger};
use super::{Config, Offered, Recorder};
use crate::body::budget::{Budget, Lease};
use crate::clock;
use crate::conversation::{self, Conversations};
use crate::journal::record::{Capture, End, Exchange, Level, Origin};
use crate::journal::{Keep, Options};

/// A group is committed when it is this old or this large, whichever comes first.
const COMMIT_AGE: Duration = Duration::from_millis(50);
const COMMIT_BYTES: u64 = 256 * 1024;
/// How long a journal that failed is left alone.
const RETRY: Duration = Duration::from_secs(1);
/// How often the thread looks around when nothing happens.
const IDLE: Duration = Duration::from_millis(500);
/// While a group waits for its commit anyway, the queue is looked at this often: a thread that slept on the queue would
/// have to be woken by the path for every exchange.
const NAP: Duration = Duration::from_millis(5);

/// The writer's thread; it ends when the last [`Recorder`] is gone and everything queued is durable.
pub struct Writer(Option<JoinHandle<()>>);

/// Why recording cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Journal(#[from] conversation::Error),
    #[error("its thread cannot be started: {0}")]
    Thread(io::Error),
}

/// Opens the journals, the clients' and in a directory of its own the canaries', and starts the writer. With recording
/// switched off, nothing is opened.
pub fn start(config: &Config, ledger: Ledger) -> Result<(Recorder, Writer), Error> {
    let budget = Budget::new(config.memory.0);
    if !config.enabled {
        return Ok((Recorder::new(None, budget, ledger, config.opt_out), Writer(None)));
    }
    let lane = |dir: &Path, origin| Lane::open(dir, origin, config, ledger.clone());
    let lanes = [lane(&config.dir, Origin::Client)?, lane(&config.dir.join("canary"), Origin::Canary)?];
    let (sender, receiver) = sync_channel(config.queue);
    let recorder = Recorder::new(Some(sender), budget.clone(), ledger.clone(), config.opt_out);
    let run = move || run(&receiver, lanes, &ledger, &budget);
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

fn run(queue: &Receiver<Offered>, mut lanes: [Lane; 2], ledger: &Ledger, budget: &Budget) {
    loop {
        let now = clock::now();
        let due = lanes.iter().filter_map(|lane| lane.due).min();
        let patience = due.map_or(IDLE, |due| due.saturating_duration_since(now)).min(IDLE);
        let over = match next(queue, due.is_some(), patience) {
            Ok(mut offered) => {
                let [clients, canaries] = &mut lanes;
                let lane = if offered.exchange.origin() == Origin::Client { clients } else { canaries };
                complete(&mut offered.exchange, ledger);
                offered.show();
                lane.take(offered);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        ledger.queue_bytes(budget.used());
        let now = clock::now();
        for lane in &mut lanes {
            if over
                || lane.group.bytes >= COMMIT_BYTES && !lane.failing
                || lane.due.is_some_and(|due| due <= now)
            {
                lane.commit();
            }
        }
        if over {
            return lanes.iter_mut().for_each(Lane::give_up);
        }
    }
}

/// Writes down what was lost since the last time. What cannot be written is not forgotten.
fn note_losses(journal: &mut Conversations, ledger: &Ledger) -> conversation::Result<()> {
    let mut written = Ok(());
    for gap in ledger.take_gaps() {
        match journal.gap(gap.clone()) {
            Ok(()) => ledger.gap_written(),
            Err(error) => {
                ledger.gap_not_written(&gap);
                written = Err(error);
            }
        }
    }
    written
}

/// The next exchange, or [`RecvTimeoutError::Timeout`] when it is time to look around.
fn next(queue: &Receiver<Offered>, pending: bool, patience: Duration) -> Result<Offered, RecvTimeoutError> {
    if !pending {
        return queue.recv_timeout(patience);
    }
    match queue.try_recv() {
        Ok(offered) => Ok(offered),
        Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
        Err(TryRecvError::Empty) => {
            std::thread::park_timeout(patience.min(NAP));
            Err(RecvTimeoutError::Timeout)
        }
    }
}

/// Adds what takes time to find out, and so is not found out on the path.
fn complete(exchange: &mut Exchange, ledger: &Ledger) {
    let hash = |body: &[u8]| Bytes::copy_from_slice(blake3::hash(body).as_bytes());
    if exchange.request_capture() == Capture::Whole {
        exchange.request_body_hash = hash(&exchange.request_body);
    }
    if exchange.response_capture() == Capture::Whole {
        exchange.response_body_hash = hash(&exchange.response_body);
    }
    let assembled = assemble(exchange);
    if assembled.end == End::StreamError && exchange.origin() == Origin::Client {
        ledger.stream_error(&exchange.upstream);
    }
    exchange.set_end(assembled.end);
    exchange.model = assembled.asked_model;
}

/// Opens a journal and says what opening it has shown.
fn open(dir: &Path, options: &Options) -> conversation::Result<Conversations> {
    let journal = Conversations::open_with(dir, options.clone())?;
    let (torn, found) = (journal.torn_bytes(), journal.opened());
    if torn > 0 {
        tracing::warn!(dir = %dir.display(), bytes = torn, "cut off an unfinished write at the journal's end");
    }
    let damage = &found.damage;
    if damage.is_loss() {
        tracing::error!(
            dir = %dir.display(), holes = damage.holes, skipped_bytes = damage.skipped_bytes,
            unreadable_segments = damage.unreadable_segments, undecodable_frames = damage.undecodable_frames,
            "the journal is damaged; what could be read is there"
        );
    }
    Ok(journal)
}

/// One journal and what waits for its next commit.
struct Lane {
    /// None while a lost journal could not be begun anew.
    journal: Option<Conversations>,
    dir: PathBuf,
    options: Options,
    origin: Origin,
    ledger: Ledger,
    group: Group,
    /// When the next commit is due: the group's age, or the end of the pause after a failure.
    due: Option<Instant>,
    failing: bool,
}

/// Exchanges the journal holds in memory and has not made durable.
#[derive(Default)]
struct Group {
    records: Vec<(Level, Bare)>,
    leases: Vec<Lease>,
    bytes: u64,
    oldest: Option<Instant>,
}

impl Lane {
    fn open(dir: &Path, origin: Origin, config: &Config, ledger: Ledger) -> Result<Self, Error> {
        let options = Options { pending_bytes: config.memory.0 as usize, ..Options::default() };
        let journal = Some(open(dir, &options)?);
        let dir = dir.to_owned();
        Ok(Self { journal, dir, options, origin, ledger, group: Group::default(), due: None, failing: false })
    }

    /// Begins anew where the journal was removed or moved under us. Looked for once a group: what was written in the
    /// same twentieth of a second is gone with the rest.
    fn come_back(&mut self) {
        if !self.group.records.is_empty() || self.journal.as_ref().is_some_and(|journal| !journal.is_gone()) {
            return;
        }
        if self.journal.take().is_some() {
            let dir = self.dir.display();
            tracing::error!(%dir, "the journal was removed or moved while it was written; a new one begins");
        }
        // The old one is closed by now, and with it its lock.
        match open(&self.dir, &self.options) {
            Ok(journal) => self.journal = Some(journal),
            Err(error) => self.failed("reopen", &error),
        }
    }

    fn take(&mut self, Offered { exchange, leases, why, .. }: Offered) {
        self.come_back();
        let level = exchange.record_level();
        let bytes = (exchange.request_body.len() + exchange.response_body.len()) as u64 + 512;
        let now = clock::now();
        // Also after a failure: as long as something comes in, the journal is tried again.
        self.due.get_or_insert(now + if self.failing { RETRY } else { COMMIT_AGE });
        match self.journal.as_mut().map(|journal| journal.record(exchange, Keep::ALL)) {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.ledger.dropped(self.origin, Dropped::IoError);
                return self.failed("record", &error);
            }
            None => return self.ledger.dropped(self.origin, Dropped::IoError),
        }
        self.group.records.push((level, why));
        self.group.leases.extend(leases);
        self.group.bytes += bytes;
        self.group.oldest.get_or_insert(now);
    }

    /// Makes the group durable. Where that fails the journal keeps it, and so does the group: it is counted once, when
    /// it is known what became of it.
    fn commit(&mut self) {
        let Some(journal) = &mut self.journal else {
            self.due = None;
            return;
        };
        // After a failure the journal may be too full even for a note of what was lost: what waits goes first.
        let room = if self.failing { journal.commit().map(drop) } else { Ok(()) };
        let noted = room.and_then(|()| match self.origin {
            Origin::Client => note_losses(journal, &self.ledger),
            Origin::Canary => Ok(()),
        });
        if let Err(error) = noted.and_then(|()| journal.commit()) {
            self.due = Some(clock::now() + RETRY);
            return self.failed("commit", &error);
        }
        self.due = None;
        let group = std::mem::take(&mut self.group);
        for (level, why) in &group.records {
            self.ledger.recorded(self.origin, *level, *why);
        }
        self.ledger.wrote(group.bytes);
        if let Some(oldest) = group.oldest {
            self.ledger.durable_lag(clock::now().duration_since(oldest).as_secs_f64());
        }
        if std::mem::take(&mut self.failing) {
            tracing::info!("recording works again");
        }
    }

    /// The process ends: what could not be written is lost, and counted.
    fn give_up(&mut self) {
        let lost = std::mem::take(&mut self.group).records.len();
        (0..lost).for_each(|_| self.ledger.dropped(self.origin, Dropped::IoError));
        if lost > 0 {
            tracing::error!(lost, "records could not be written before the end");
        }
    }

    /// Says once that recording fails; the counters say how much is lost.
    fn failed(&mut self, doing: &str, error: &conversation::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            tracing::error!(%error, doing, "recording fails, traffic goes on; look at the disk under [record] dir");
        }
    }
}
