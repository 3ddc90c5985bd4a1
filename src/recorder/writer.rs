//! The one thread that writes: it takes ended exchanges from the queue and commits them in groups.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;

use super::keeper::{Keeper, Kept};
use super::lane::Lane;
use super::ledger::{Bare, Ledger};
use super::live::Watch;
use super::mode::Mode;
use super::passive::{Job, Passive, Seen, Skipped, Turn};
use super::queue::{self, Queued};
use super::room::Gauge;
use super::secrets::Secrets;
use super::tenant::{self, Tenant};
use super::{Config, Offered, Recorder, Work};
use crate::body::budget::{Budget, Lease};
use crate::clock;
use crate::conversation;
use crate::conversation::reading::{Reading, judge};
use crate::journal::fs::{Fs, Real};
use crate::journal::record::{Capture, End, Exchange, Origin};
use crate::openai::outline::Outline;

/// How often the thread looks around when nothing happens.
const IDLE: Duration = Duration::from_millis(500);
/// While a group waits for its commit anyway, the queue is looked at this often: a thread that slept on the queue would
/// have to be woken by the path for every exchange.
const NAP: Duration = Duration::from_millis(5);

/// The writer's thread; it ends when the last [`Recorder`] is gone and everything queued is durable. With it goes the
/// keeper's.
pub struct Writer {
    running: Option<(JoinHandle<Lanes>, Keeper)>,
    tenants: Vec<Tenant>,
}

/// Why recording cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Journal(#[from] conversation::Error),
    #[error("its thread cannot be started: {0}")]
    Thread(io::Error),
    #[error(transparent)]
    Tenant(#[from] tenant::Error),
}

/// Opens the journals: the default tenant's, and in directories of their own those of the other tenants and of the
/// canaries; and starts the writer. With recording switched off, nothing is opened. `passive` checks what was recorded.
pub fn start(
    config: &Config,
    tenants: &[tenant::Config],
    ledger: Ledger,
    passive: Option<Passive>,
) -> Result<(Recorder, Writer), Error> {
    start_on(config, tenants, ledger, passive, Arc::new(Real))
}

/// As [`start`], on a file system of the caller's.
pub fn start_on(
    config: &Config,
    tenants: &[tenant::Config],
    ledger: Ledger,
    passive: Option<Passive>,
    fs: Arc<dyn Fs>,
) -> Result<(Recorder, Writer), Error> {
    let budget = Budget::new(config.memory.0);
    let all = Tenant::all(config, tenants)?;
    let own = |tenant: &Tenant| match tenant.name.as_str() {
        tenant::DEFAULT => ledger.clone(),
        name => ledger.of_tenant(name),
    };
    let ledgers: Vec<Ledger> = all.iter().map(own).collect();
    if !config.enabled {
        let recorder = Recorder::new(&all, &ledgers, &budget, None, None);
        return Ok((recorder, Writer { running: None, tenants: all }));
    }
    all.iter().try_for_each(Tenant::may_write)?;
    for orphan in tenant::orphans(&config.dir, tenants) {
        let dir = orphan.display();
        tracing::warn!(%dir, "belongs to no [[tenant]]: what lies there is neither shown nor forgotten; name it again or remove it");
    }
    let gauge = Gauge::default();
    let (lanes, kept) = lanes(config, &all, &ledgers, &fs, &gauge)?;
    let keeper = Keeper::start(config, kept, fs, gauge, ledger.clone()).map_err(Error::Thread)?;
    let (doors, canaries, queue) = queue::bounded(config.queue, all.len());
    let (begun, watch) = Watch::new(config.queue, config.start_after.0, ledger.clone());
    let recorder = Recorder::new(&all, &ledgers, &budget, Some((doors, canaries)), Some(begun));
    let desk = Desk { secrets: Secrets::new(config.parts), ledger, budget, passive };
    let run = move || run(&queue, watch, lanes, desk);
    let thread =
        std::thread::Builder::new().name("serin-recorder".into()).spawn(run).map_err(Error::Thread)?;
    Ok((recorder, Writer { running: Some((thread, keeper)), tenants: all }))
}

/// Opens every journal, for writing and for the keeper.
fn lanes(
    config: &Config,
    tenants: &[Tenant],
    ledgers: &[Ledger],
    fs: &Arc<dyn Fs>,
    gauge: &Gauge,
) -> Result<(Lanes, Vec<Kept>), Error> {
    let mut all = Vec::new();
    let mut open = |dir, origin, tenant: &Tenant, ledger: &Ledger| {
        let kept = Kept::new(dir, tenant);
        all.push(kept.clone());
        Lane::open(kept, origin, tenant, fs.clone(), ledger.clone(), gauge.clone())
    };
    let canaries = open(config.dir.join("canary"), Origin::Canary, &tenants[0], &ledgers[0])?;
    let own = tenants.iter().zip(ledgers);
    let tenants = own.map(|(tenant, ledger)| open(tenant.config.dir.clone(), Origin::Client, tenant, ledger));
    let tenants = tenants.collect::<Result<_, _>>()?;
    Ok((Lanes { tenants, canaries }, all))
}

/// The journals that are written to.
struct Lanes {
    /// In the order of [`Tenant::all`].
    tenants: Vec<Lane>,
    canaries: Lane,
}

impl Lanes {
    fn of(&mut self, origin: Origin, tenant: usize) -> &mut Lane {
        match origin {
            Origin::Client => &mut self.tenants[tenant],
            Origin::Canary => &mut self.canaries,
        }
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.tenants.iter_mut().chain(std::iter::once(&mut self.canaries))
    }
}

impl Writer {
    /// Waits until everything offered so far is durable. Every [`Recorder`] must be gone, or this waits for ever.
    pub fn join(self) {
        let Some((thread, keeper)) = self.running else { return };
        let lanes = thread.join();
        if lanes.is_err() {
            tracing::error!(
                "the recorder's thread died; the journal on disk is intact up to its last commit"
            );
        }
        // What it does last, it does while the journals are still ours.
        drop(keeper);
        drop(lanes);
    }

    /// Who is recorded, with the keys of this run.
    pub fn tenants(&self) -> Vec<Tenant> {
        self.tenants.clone()
    }
}

/// Returns the lanes, as whoever has them has the journals' locks.
fn run(queue: &Receiver<Queued>, mut watch: Watch, mut lanes: Lanes, mut desk: Desk) -> Lanes {
    let mut idle_at = clock::now();
    loop {
        let now = clock::now();
        desk.ledger.pulse().beat(now);
        let due = lanes.all().filter_map(|lane| lane.due).min();
        let patience = due.map_or(IDLE, |due| due.saturating_duration_since(now)).min(IDLE);
        let over = match next(queue, due.is_some(), patience) {
            Ok(Queued { tenant, work, .. }) => {
                do_it(work, tenant, &mut lanes, &mut desk);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        desk.ledger.queue_bytes(desk.budget.used());
        desk.flag(&mut lanes, over);
        let now = clock::now();
        watch.gather();
        while let Some((live, exchange)) = watch.next(now) {
            lanes.of(exchange.origin(), live.tenant()).start(exchange);
        }
        let idle = now >= idle_at;
        if idle {
            idle_at = now + IDLE;
        }
        for lane in lanes.all() {
            if over || lane.is_due(now) {
                lane.commit();
            } else if idle && lane.due.is_none() {
                lane.idle();
            }
        }
        if over {
            lanes.all().for_each(Lane::give_up);
            return lanes;
        }
    }
}

fn do_it(work: Work, tenant: usize, lanes: &mut Lanes, desk: &mut Desk) {
    match work {
        Work::Record(mut offered) => {
            let lane = lanes.of(offered.exchange.origin(), tenant);
            lane.come_back();
            let leases = Arc::new(std::mem::take(&mut offered.leases));
            let Looked { outline, reading, seen } = desk.look(lane, &mut offered, &leases);
            offered.show();
            let place = lane.take(offered, &outline, reading.as_ref(), leases);
            if let (Some(seen), Some(reading), Some(place), Some(passive)) =
                (seen, reading, place, &desk.passive)
            {
                passive.offer(Job::Turn(Box::new(Turn { tenant, seen, reading, place })));
            }
        }
        Work::Flag(origin, flag) => lanes.of(origin, tenant).flag(flag),
        // Who asked may have gone away since.
        Work::Erase { origin, subject, reply } => {
            drop(reply.try_send(lanes.of(origin, tenant).erase(&subject)));
        }
    }
}

/// The next thing to do, or [`RecvTimeoutError::Timeout`] when it is time to look around.
fn next(queue: &Receiver<Queued>, pending: bool, patience: Duration) -> Result<Queued, RecvTimeoutError> {
    if !pending {
        return queue.recv_timeout(patience);
    }
    match queue.try_recv() {
        Ok(work) => Ok(work),
        Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
        Err(TryRecvError::Empty) => {
            std::thread::park_timeout(patience.min(NAP));
            Err(RecvTimeoutError::Timeout)
        }
    }
}

/// What is done with every exchange, whoever's it is.
struct Desk {
    secrets: Secrets,
    ledger: Ledger,
    budget: Budget,
    passive: Option<Passive>,
}

/// What was read of an exchange, and what is to be checked of it.
struct Looked {
    /// Of the request's body, as far as it is kept.
    outline: Outline,
    reading: Option<Reading>,
    seen: Option<Seen>,
}

impl Desk {
    /// Writes down what the checks have found; at the end, all that they still find.
    fn flag(&mut self, lanes: &mut Lanes, over: bool) {
        let mut flag = |(tenant, flag)| lanes.of(Origin::Client, tenant).flag(flag);
        self.passive.iter().flat_map(Passive::flags).for_each(&mut flag);
        if over && let Some(passive) = self.passive.take() {
            passive.end().into_iter().for_each(flag);
        }
    }

    /// Hashes, masks and reads an exchange, and takes out of it what may not be kept. Masks come
    /// before reading: so a conversation is found by the same words now and whenever it is stitched again.
    fn look(&mut self, lane: &mut Lane, offered: &mut Offered, leases: &Arc<Vec<Lease>>) -> Looked {
        offered.join();
        hash(&mut offered.exchange);
        let masks = offered.mode < Mode::Full;
        let outline = match masks {
            true => self.secrets.mask(&lane.mask_key(), &mut offered.exchange),
            false => Ok(Outline::of(&offered.exchange.request_body)),
        };
        let opaque = outline.is_err();
        let outline = outline.unwrap_or_default();
        let reading = lane.read(&offered.exchange, &outline);
        let unstored = reading.as_ref().is_some_and(|reading| reading.store == Some(false));
        if let Some(reading) = &reading {
            complete(&mut offered.exchange, reading, &self.ledger);
        }
        let (mode, why) = match (opaque, unstored) {
            (_, true) if lane.unstored() < offered.mode => (lane.unstored(), Bare::Unstored),
            (true, _) if offered.mode.keeps_bodies() => (Mode::Hash, Bare::Opaque),
            _ => (offered.mode, offered.asked),
        };
        if let (Some(passive), Some(models)) = (&self.passive, Job::models(&offered.exchange, leases)) {
            passive.offer(models);
        }
        let seen = reading.as_ref().and_then(|_| self.checked(mode, &offered.exchange, leases));
        offered.lower(mode, why);
        let outline = if mode.keeps_bodies() { outline } else { Outline::default() };
        let reading = match mode {
            // Where it belongs is told by what was said.
            Mode::Off | Mode::Meta => lane.read(&offered.exchange, &outline),
            _ => reading,
        };
        Looked { outline, reading, seen }
    }

    /// What is to be checked of a turn: nothing where nothing may be kept that is made of what was said.
    fn checked(&self, mode: Mode, exchange: &Exchange, leases: &Arc<Vec<Lease>>) -> Option<Seen> {
        let passive = self.passive.as_ref().filter(|_| exchange.origin() == Origin::Client)?;
        let why = match mode < Mode::Hash {
            true => Skipped::Mode,
            false if self.budget.is_scarce() => Skipped::Memory,
            false => return Some(Seen::of(exchange, leases)),
        };
        passive.skipped(why);
        None
    }
}

/// Hashes bodies, which takes time that the path does not have.
fn hash(exchange: &mut Exchange) {
    let hash = |body: &[u8]| Bytes::copy_from_slice(blake3::hash(body).as_bytes());
    if exchange.request_capture() == Capture::Whole {
        exchange.request_body_hash = hash(&exchange.request_body);
    }
    if exchange.response_capture() == Capture::Whole {
        exchange.response_body_hash = hash(&exchange.response_body);
    }
}

/// Adds what only reading the bodies has shown.
fn complete(exchange: &mut Exchange, reading: &Reading, ledger: &Ledger) {
    let end = judge(exchange, &reading.answer);
    if end == End::StreamError && exchange.end() != end && exchange.origin() == Origin::Client {
        ledger.stream_error(&exchange.upstream);
    }
    exchange.set_end(end);
    exchange.model.clone_from(&reading.model);
}
