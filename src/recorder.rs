//! Recording, off the path: exchanges that have ended are offered to a bounded queue, and one thread writes them.
//!
//! Nothing here can slow or change traffic. A full queue, a spent budget or a broken disk costs the record, never the
//! exchange, and every loss is counted by [`ledger::Ledger`] and written into the journal as a GAP.

mod config;
pub mod keeper;
mod lane;
pub mod ledger;
pub mod live;
pub mod mode;
pub mod passive;
pub mod queue;
pub mod room;
pub mod secrets;
pub mod state;
pub mod tap;
pub mod tenant;
pub mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::body::budget::{Budget, Lease};
use crate::body::pieces;
use crate::conversation::{self, Subject};
use crate::journal::erase::Erasure;
use crate::journal::record::{self, Flag, Origin};
pub use config::Config;
use ledger::{Bare, Ledger};
use live::{Begun, Live, Watch};
use mode::Mode;
use queue::{Door, Queued};
use state::State;
use tenant::Tenant;

/// An exchange that has ended, with the memory it holds.
pub struct Offered {
    pub exchange: record::Exchange,
    /// The answer's body, if it is not in there yet.
    pub pieces: Vec<Bytes>,
    /// How much of it may be kept.
    pub mode: Mode,
    pub leases: Vec<Lease>,
    /// Why it lacks what it lacks; and where the mode is the reason, what set that.
    pub why: Bare,
    pub asked: Bare,
    /// Whoever else wants to see it.
    pub after: Option<tap::After>,
}

impl Offered {
    /// Puts the answer's body together, which takes time that the path does not have.
    fn join(&mut self) {
        if !self.pieces.is_empty() {
            self.exchange.response_body = pieces::joined(std::mem::take(&mut self.pieces));
        }
    }

    /// Takes out what may not be kept.
    pub(crate) fn lower(&mut self, mode: Mode, why: Bare) {
        if mode.keeps_bodies() {
            return;
        }
        let exchange = &mut self.exchange;
        (exchange.request_body, exchange.response_body) = Default::default();
        (exchange.edge_lengths, exchange.edge_micros) = Default::default();
        if mode < Mode::Hash {
            (exchange.request_body_hash, exchange.response_body_hash) = Default::default();
        }
        exchange.set_request_capture(record::Capture::None);
        exchange.set_response_capture(record::Capture::None);
        exchange.set_record_level(record::Level::Meta);
        (self.mode, self.why) = (mode, why);
    }

    /// Shows the record to whoever else wants to see it; only the first call counts.
    pub fn show(&mut self) {
        if let Some(after) = self.after.take() {
            after(&self.exchange);
        }
    }
}

/// What the recorder's thread is asked to do.
#[expect(clippy::large_enum_variant, reason = "nearly all of it is records")]
pub enum Work {
    Record(Offered),
    /// Write down what was found about a turn.
    Flag(Origin, Flag),
    /// Write down that what belongs to a subject is to be erased, and tell what that is.
    Erase {
        origin: Origin,
        subject: Subject,
        reply: SyncSender<conversation::Result<Erasure>>,
    },
}

/// Why something cannot be erased.
#[derive(Debug, thiserror::Error)]
pub enum EraseError {
    #[error("nothing is recorded: [record] enabled = false")]
    Off,
    #[error("the recorder is busy; ask again")]
    Busy,
    #[error(transparent)]
    Failed(#[from] conversation::Error),
}

/// The path's end of the recorder, as one tenant has it. Cheap to clone.
#[derive(Clone)]
pub struct Recorder {
    all: Arc<Inner>,
    own: Arc<Own>,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Own { name, mode, .. } = &*self.own;
        out.debug_struct("Recorder").field("tenant", name).field("mode", mode).finish_non_exhaustive()
    }
}

struct Inner {
    /// In the order of [`Tenant::all`].
    tenants: Vec<Arc<Own>>,
    canaries: Option<Door>,
    begun: Option<Begun>,
    /// Live exchanges are being cut because the process stops, not because their clients left.
    stopping: AtomicBool,
}

/// What a tenant has to itself.
struct Own {
    name: String,
    door: Option<Door>,
    budget: Budget,
    ledger: Ledger,
    opt_out: bool,
    mode: Mode,
}

impl Recorder {
    /// The default tenant's, who comes first among `tenants`; their exchanges go through `doors`, which are in the same
    /// order, and the canaries' through one more, and those that run for long are watched by way of `begun`. Without doors
    /// nothing is recorded.
    fn new(
        tenants: &[Tenant],
        ledgers: &[Ledger],
        budget: &Budget,
        doors: Option<(Vec<Door>, Door)>,
        begun: Option<Begun>,
    ) -> Self {
        let several = tenants.len() > 1;
        let (doors, canaries) = doors.unzip();
        let mut doors = doors.into_iter().flatten();
        let own = |(tenant, ledger): (&Tenant, &Ledger)| {
            let config = &tenant.config;
            Arc::new(Own {
                name: tenant.name.clone(),
                door: doors.next(),
                budget: if several { budget.share(config.memory.0) } else { budget.clone() },
                ledger: ledger.clone(),
                opt_out: config.opt_out,
                mode: config.mode,
            })
        };
        let tenants: Vec<_> = tenants.iter().zip(ledgers).map(own).collect();
        let own = tenants[0].clone();
        let stopping = AtomicBool::new(false);
        Self { all: Arc::new(Inner { tenants, canaries, begun, stopping }), own }
    }

    /// For one tenant, with the ends that its thread would have: for whoever takes what is offered in that thread's place.
    pub fn unattended(tenant: &Tenant, ledger: Ledger) -> (Self, Receiver<Queued>, Watch) {
        let config = &tenant.config;
        let (doors, canaries, queue) = queue::bounded(config.queue, 1);
        let (begun, watch) = Watch::new(config.queue, config.start_after.0, ledger.clone());
        let (tenants, doors) = (std::slice::from_ref(tenant), Some((doors, canaries)));
        let recorder = Self::new(tenants, &[ledger], &Budget::new(config.memory.0), doors, Some(begun));
        (recorder, queue, watch)
    }

    /// As the tenant at that place has it, 0 for the default one; where there is none, as the default one has it.
    pub fn of(&self, tenant: usize) -> Self {
        let own = self.all.tenants.get(tenant).unwrap_or(&self.all.tenants[0]);
        Self { all: self.all.clone(), own: own.clone() }
    }

    /// As the tenant of that name has it.
    pub fn named(&self, tenant: &str) -> Option<Self> {
        let own = self.all.tenants.iter().find(|own| own.name == tenant)?;
        Some(Self { all: self.all.clone(), own: own.clone() })
    }

    pub fn is_on(&self) -> bool {
        self.own.door.is_some()
    }

    /// How it does. Never waits.
    pub fn state(&self) -> State {
        if self.is_on() { self.own.ledger.state() } else { State::Off }
    }

    pub fn opt_out(&self) -> bool {
        self.own.opt_out
    }

    /// How much of clients' exchanges may be recorded.
    pub fn mode(&self) -> Mode {
        self.own.mode
    }

    /// From here on a dropped exchange was cut by us.
    pub fn stopping(&self) {
        self.all.stopping.store(true, Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.all.stopping.load(Relaxed)
    }

    /// The memory for copies: this tenant's share of it, where there are several.
    pub fn budget(&self) -> &Budget {
        &self.own.budget
    }

    pub fn ledger(&self) -> &Ledger {
        &self.own.ledger
    }

    /// The way of what was sent by whom.
    fn door(&self, origin: Origin) -> Option<&Door> {
        match origin {
            Origin::Client => self.own.door.as_ref(),
            Origin::Canary => self.all.canaries.as_ref(),
        }
    }

    /// Has an exchange watched that has begun. Never waits: where there is no room it is counted and not watched.
    pub fn begin(&self, record: &record::Exchange, begun: Instant) -> Option<Arc<Live>> {
        let (queue, door) = (self.all.begun.as_ref()?, self.door(record.origin())?);
        let live = Arc::new(Live::new(record, begun, door.tenant()));
        let taken = queue.try_send(live.clone());
        if taken.is_err() {
            self.own.ledger.started(false);
        }
        taken.is_ok().then_some(live)
    }

    /// Offers an ended exchange. Never waits: what does not fit is counted and gone.
    pub fn offer(&self, offered: Offered) {
        let origin = offered.exchange.origin();
        let Some(door) = self.door(origin) else { return };
        let Err((mut lost, why)) = door.offer(Work::Record(offered)) else { return };
        self.own.ledger.dropped(origin, why);
        if let Work::Record(lost) = &mut lost {
            lost.show();
        }
    }

    /// Has written down what was found about a turn that was offered before. Never waits: what does not fit is counted and
    /// gone.
    pub fn flag(&self, origin: Origin, flag: Flag) {
        let Some(door) = self.door(origin) else { return };
        if door.offer(Work::Flag(origin, flag)).is_err() {
            self.own.ledger.flagged(false);
        }
    }

    /// Has what belongs to a subject of this tenant erased. When this returns it is no longer shown; its bytes are gone once the erasure
    /// has a receipt. Waits for the recorder's thread: not to be called on the path.
    ///
    /// # Errors
    /// [`EraseError`].
    pub fn erase(&self, origin: Origin, subject: Subject) -> Result<Erasure, EraseError> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let door = self.door(origin).ok_or(EraseError::Off)?;
        let (reply, answer) = sync_channel(1);
        door.offer(Work::Erase { origin, subject, reply }).map_err(|_| EraseError::Busy)?;
        Ok(answer.recv_timeout(PATIENCE).map_err(|_| EraseError::Busy)??)
    }
}
