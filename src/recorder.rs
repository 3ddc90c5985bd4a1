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
pub mod room;
pub mod secrets;
pub mod state;
pub mod tap;
pub mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::body::budget::{Budget, Lease};
use crate::body::pieces;
use crate::conversation::{self, Subject};
use crate::journal::erase::Erasure;
use crate::journal::record::{self, Flag, Origin};
pub use config::Config;
use ledger::{Bare, Dropped, Ledger};
use live::{Begun, Live};
use mode::Mode;
use state::State;

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

/// The path's end of the recorder. Cheap to clone.
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

impl std::fmt::Debug for Recorder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Recorder").field("mode", &self.0.mode).finish_non_exhaustive()
    }
}

struct Inner {
    queue: Option<SyncSender<Work>>,
    begun: Option<Begun>,
    budget: Budget,
    ledger: Ledger,
    opt_out: bool,
    mode: Mode,
    /// Live exchanges are being cut because the process stops, not because their clients left.
    stopping: AtomicBool,
}

impl Recorder {
    /// A recorder that offers to `queue`; `None` records nothing.
    pub fn new(queue: Option<SyncSender<Work>>, budget: Budget, ledger: Ledger, config: &Config) -> Self {
        let (opt_out, mode) = (config.opt_out, config.mode);
        let stopping = AtomicBool::new(false);
        Self(Arc::new(Inner { queue, begun: None, budget, ledger, opt_out, mode, stopping }))
    }

    /// This one, which also has noted what runs for long.
    pub fn noting(self, begun: Begun) -> Self {
        match Arc::try_unwrap(self.0) {
            Ok(inner) => Self(Arc::new(Inner { begun: Some(begun), ..inner })),
            Err(shared) => Self(shared),
        }
    }

    pub fn is_on(&self) -> bool {
        self.0.queue.is_some()
    }

    /// How it does. Never waits.
    pub fn state(&self) -> State {
        match self.0.queue {
            Some(_) => self.0.ledger.state(),
            None => State::Off,
        }
    }

    pub fn opt_out(&self) -> bool {
        self.0.opt_out
    }

    /// How much of clients' exchanges may be recorded.
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// From here on a dropped exchange was cut by us.
    pub fn stopping(&self) {
        self.0.stopping.store(true, Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.0.stopping.load(Relaxed)
    }

    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// Has an exchange watched that has begun. Never waits: where there is no room it is counted and not watched.
    pub fn begin(&self, record: &record::Exchange, begun: Instant) -> Option<Arc<Live>> {
        let live = Arc::new(Live::new(record, begun));
        let taken = self.0.begun.as_ref()?.try_send(live.clone());
        if taken.is_err() {
            self.0.ledger.started(false);
        }
        taken.is_ok().then_some(live)
    }

    /// Offers an ended exchange. Never waits: what does not fit is counted and gone.
    pub fn offer(&self, offered: Offered) {
        let Some(queue) = &self.0.queue else { return };
        let origin = offered.exchange.origin();
        let (mut lost, why) = match queue.try_send(Work::Record(offered)) {
            Ok(()) => return,
            Err(TrySendError::Full(lost)) => (lost, Dropped::QueueFull),
            Err(TrySendError::Disconnected(lost)) => (lost, Dropped::Shutdown),
        };
        self.0.ledger.dropped(origin, why);
        if let Work::Record(lost) = &mut lost {
            lost.show();
        }
    }

    /// Has written down what was found about a turn that was offered before. Never waits: what does not fit is counted and
    /// gone.
    pub fn flag(&self, origin: Origin, flag: Flag) {
        let Some(queue) = &self.0.queue else { return };
        if queue.try_send(Work::Flag(origin, flag)).is_err() {
            self.0.ledger.flagged(false);
        }
    }

    /// Has what belongs to a subject erased. When this returns it is no longer shown; its bytes are gone once the erasure
    /// has a receipt. Waits for the recorder's thread: not to be called on the path.
    ///
    /// # Errors
    /// [`EraseError`].
    pub fn erase(&self, origin: Origin, subject: Subject) -> Result<Erasure, EraseError> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let queue = self.0.queue.as_ref().ok_or(EraseError::Off)?;
        let (reply, answer) = sync_channel(1);
        queue.try_send(Work::Erase { origin, subject, reply }).map_err(|_| EraseError::Busy)?;
        Ok(answer.recv_timeout(PATIENCE).map_err(|_| EraseError::Busy)??)
    }
}
