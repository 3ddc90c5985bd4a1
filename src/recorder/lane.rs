//! One journal and what waits for its next commit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Offered;
use super::keeper::Kept;
use super::ledger::{Bare, Dropped, Ledger};
use super::mode::Mode;
use super::room::{Gauge, Pressure};
use super::tenant::Tenant;
use crate::body::budget::Lease;
use crate::clock;
use crate::conversation::reading::Reading;
use crate::conversation::{self, Conversations, Lowered, Place, Subject, Wish};
use crate::journal::ballast::Ballast;
use crate::journal::erase::Erasure;
use crate::journal::fs::Fs;
use crate::journal::record::{Level, Origin};
use crate::journal::{Exchange, Flag, Keep, Options, Sync};
use crate::openai::outline::Outline;

/// How long a journal that failed is left alone.
const RETRY: Duration = Duration::from_secs(1);

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

/// One journal and what waits for its next commit.
pub struct Lane {
    /// None while a lost journal could not be begun anew.
    journal: Option<Conversations>,
    kept: Kept,
    options: Options,
    origin: Origin,
    ledger: Ledger,
    gauge: Gauge,
    ballast: Ballast,
    group: Group,
    terms: Terms,
    /// When the next commit is due: the group's age, or the end of the pause after a failure.
    pub due: Option<Instant>,
    failing: bool,
}

/// When a group is committed, what share of conversations is recorded whole, and how much of what is not to be stored.
struct Terms {
    age: Duration,
    bytes: u64,
    sample: f64,
    unstored: Mode,
}

/// Exchanges the journal holds in memory and has not made durable.
#[derive(Default)]
struct Group {
    records: Vec<(Level, Bare)>,
    leases: Vec<Arc<Vec<Lease>>>,
    bytes: u64,
    oldest: Option<Instant>,
}

impl Lane {
    /// Opens the journal of a tenant, or, among the default one's, that of the canaries.
    pub fn open(
        kept: Kept,
        origin: Origin,
        tenant: &Tenant,
        fs: Arc<dyn Fs>,
        ledger: Ledger,
        gauge: Gauge,
    ) -> conversation::Result<Self> {
        let (config, options) = (&tenant.config, Options { fs, ..tenant.options.clone() });
        let journal = open(&kept.dir, &options)?;
        let terms = Terms {
            age: if config.sync == Sync::Always { Duration::ZERO } else { config.commit_age.0 },
            bytes: config.commit_bytes.0,
            // Canaries are few, and evidence.
            sample: if origin == Origin::Canary { 1.0 } else { config.sample },
            unstored: config.unstored,
        };
        let ballast = Ballast::new(&kept.dir, config.ballast.0);
        // Opening may have found something to add.
        let due = (journal.pending_bytes() > 0).then(clock::now);
        let mut lane = Self {
            journal: Some(journal),
            kept,
            options,
            origin,
            ledger,
            gauge,
            ballast,
            group: Group::default(),
            terms,
            due,
            failing: false,
        };
        lane.trim();
        lane.tell();
        Ok(lane)
    }

    /// Begins anew where the journal was removed or moved under us. Looked for once a group: what was written in the
    /// same twentieth of a second is gone with the rest.
    ///
    /// Comes before an exchange is read: each journal has a key of its own, under which its exchanges are masked and read.
    pub fn come_back(&mut self) {
        if !self.group.records.is_empty() || self.journal.as_ref().is_some_and(|journal| !journal.is_gone()) {
            return;
        }
        if self.journal.take().is_some() {
            let dir = self.kept.dir.display();
            tracing::error!(%dir, "the journal was removed or moved while it was written; a new one begins");
        }
        // The old one is closed by now, and with it its lock.
        match open(&self.kept.dir, &self.options) {
            Ok(journal) => self.journal = Some(journal),
            Err(error) => self.failed("reopen", &error),
        }
    }

    /// Reads an exchange as a turn; `None` for one that is none.
    pub fn read(&mut self, exchange: &Exchange, outline: &Outline) -> Option<Reading> {
        match &mut self.journal {
            Some(journal) => journal.read(exchange, outline),
            None => conversation::read(exchange),
        }
    }

    /// Under which secrets are masked: the same secret has the same mask as long as the journal is the same.
    pub fn mask_key(&self) -> [u8; 32] {
        self.journal.as_ref().map_or([0; 32], Conversations::mask_key)
    }

    /// How much is kept of what is not to be stored.
    pub fn unstored(&self) -> Mode {
        self.terms.unstored
    }

    /// Takes an exchange; its memory is held until it is durable. Returns where it belongs, if it was taken and is a turn.
    pub fn take(
        &mut self,
        Offered { exchange, why, .. }: Offered,
        outline: &Outline,
        reading: Option<&Reading>,
        leases: Arc<Vec<Lease>>,
    ) -> Option<Place> {
        let bytes = (exchange.request_body.len() + exchange.response_body.len()) as u64 + 512;
        let now = clock::now();
        // Also after a failure: as long as something comes in, the journal is tried again.
        self.due.get_or_insert(now + if self.failing { RETRY } else { self.terms.age });
        let pressure = self.gauge.get();
        if pressure == Pressure::Stop {
            self.ledger.dropped(self.origin, Dropped::DiskFull);
            return None;
        }
        let keep = if self.origin == Origin::Canary { Keep::ALL } else { pressure.keep() };
        let wish = Wish { keep, sample: self.terms.sample };
        let record = |journal: &mut Conversations| journal.record_read(exchange, outline, reading, wish);
        let taken = match self.journal.as_mut().map(record) {
            Some(Ok(taken)) => taken,
            Some(Err(error)) => {
                self.ledger.dropped(self.origin, Dropped::IoError);
                self.failed("record", &error);
                return None;
            }
            None => {
                self.ledger.dropped(self.origin, Dropped::IoError);
                return None;
            }
        };
        let why = match (why, taken.lowered) {
            (why, None) => why,
            (_, Some(Lowered::Sampled)) => Bare::Sampled,
            (_, Some(Lowered::Keep)) => Bare::Disk,
        };
        self.group.records.push((taken.level, why));
        self.group.leases.push(leases);
        self.group.bytes += bytes;
        self.group.oldest.get_or_insert(now);
        if let (Some(place), Some(reading), Origin::Client) = (&taken.place, reading, self.origin) {
            self.ledger.placed(place, reading.answer.fold.usage);
        }
        taken.place
    }

    /// Writes down that an exchange has begun, with the next group.
    pub fn start(&mut self, exchange: Exchange) {
        let taken = self.note("note a beginning", |journal| journal.start(exchange).map(|()| true));
        self.ledger.started(taken);
    }

    /// Writes down what was found about a turn, with the next group.
    pub fn flag(&mut self, flag: Flag) {
        let taken = self.note("flag", |journal| journal.flag(flag));
        self.ledger.flagged(taken);
    }

    /// Adds something to the next group that nobody waits for. Returns whether it is in it.
    fn note(
        &mut self,
        doing: &str,
        note: impl FnOnce(&mut Conversations) -> conversation::Result<bool>,
    ) -> bool {
        let room = self.gauge.get() != Pressure::Stop;
        match self.journal.as_mut().filter(|_| room).map(note) {
            Some(Ok(true)) => {
                self.due.get_or_insert(clock::now() + self.terms.age);
                true
            }
            Some(Ok(false)) | None => false,
            Some(Err(error)) => {
                self.failed(doing, &error);
                false
            }
        }
    }

    /// Has what belongs to a subject erased: from here on it is not shown, and the keeper takes it out of the files.
    pub fn erase(&mut self, subject: &Subject) -> conversation::Result<Erasure> {
        self.commit();
        let Some(journal) = &mut self.journal else {
            return Err(conversation::Error::Unknown(subject.to_string()));
        };
        let erasure = journal.erase(subject)?;
        self.tell();
        Ok(erasure)
    }

    /// Whether it is time for a commit.
    pub fn is_due(&self, now: Instant) -> bool {
        let waiting = self.journal.as_ref().map_or(0, |journal| journal.pending_bytes() as u64);
        waiting >= self.terms.bytes && !self.failing || self.due.is_some_and(|due| due <= now)
    }

    /// Makes the group durable. Where that fails the journal keeps it, and so does the group: it is counted once, when
    /// it is known what became of it.
    pub fn commit(&mut self) {
        self.trim();
        self.write();
        self.tell();
    }

    fn write(&mut self) {
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
        let mut written = noted.and_then(|()| journal.commit());
        if written.as_ref().is_err_and(conversation::Error::is_full)
            && self.ballast.release(&*self.options.fs)
        {
            written = journal.commit();
        }
        if let Err(error) = written {
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
            self.ledger.pulse().failing(self.origin, false);
            tracing::info!("recording works again");
        }
    }

    /// Looks after the journal while nothing comes in.
    pub fn idle(&mut self) {
        let Some(journal) = &mut self.journal else { return };
        if let Err(error) = journal.roll_when_due() {
            tracing::error!(%error, "a segment could not be ended");
        }
        self.trim();
        self.tell();
    }

    /// Sets room aside while there is some, and gives it up when there is none.
    fn trim(&mut self) {
        let fs = &*self.options.fs;
        match self.gauge.get() {
            Pressure::None | Pressure::Shape if !self.failing => {
                let _ = self.ballast.take(fs);
            }
            Pressure::Stop => drop(self.ballast.release(fs)),
            _ => {}
        }
        if self.kept.forgotten.swap(false, Relaxed)
            && let Some(Err(error)) = self.journal.as_mut().map(Conversations::forget_expired)
        {
            tracing::error!(%error, "the index still lists what is no longer kept");
        }
    }

    /// Tells the keeper which segments are no longer written to.
    fn tell(&self) {
        let writing = self.journal.as_ref().map_or(0, Conversations::writing);
        self.kept.writing.store(writing, Relaxed);
    }

    /// The process ends: what could not be written is lost, and counted.
    pub fn give_up(&mut self) {
        let lost = std::mem::take(&mut self.group).records.len();
        (0..lost).for_each(|_| self.ledger.dropped(self.origin, Dropped::IoError));
        if lost > 0 {
            tracing::error!(lost, "records could not be written before the end");
        }
        // Only this run can seal what it has written for a recipient.
        if self.options.keys.forgets() {
            if let Some(Err(error)) = self.journal.as_mut().map(Conversations::roll) {
                tracing::error!(%error, "the last segment could not be ended, and will not be sealed");
            }
            self.tell();
        }
    }

    /// Says once that recording fails; the counters say how much is lost.
    fn failed(&mut self, doing: &str, error: &conversation::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            self.ledger.pulse().failing(self.origin, true);
            tracing::error!(%error, doing, "recording fails, traffic goes on; look at the disk under [record] dir");
        }
    }
}

/// Opens a journal and says what opening it has shown.
fn open(dir: &Path, options: &Options) -> conversation::Result<Conversations> {
    let journal = Conversations::open_with(dir, options.clone())?;
    let (torn, found) = (journal.torn_bytes(), journal.opened());
    if torn > 0 {
        tracing::warn!(dir = %dir.display(), bytes = torn, "cut off an unfinished write at the journal's end");
    }
    let damage = &found.damage;
    if found.interrupted > 0 {
        tracing::warn!(
            dir = %dir.display(), exchanges = found.interrupted,
            "the process that recorded here last died while exchanges ran; they are recorded as interrupted"
        );
    }
    if damage.is_loss() {
        tracing::error!(
            dir = %dir.display(), holes = damage.holes, skipped_bytes = damage.skipped_bytes,
            unreadable_segments = damage.unreadable_segments, undecodable_frames = damage.undecodable_frames,
            "the journal is damaged; what could be read is there"
        );
    }
    if damage.locked_segments > 0 {
        tracing::warn!(
            dir = %dir.display(), segments = damage.locked_segments, first = ?found.first_locked,
            "encrypted segments could not be read, and the index may lack what is in them; with their keys opened \
             `serin journal rebuild` adds it"
        );
    }
    Ok(journal)
}
