//! The thread that looks after what was written: it seals segments, forgets what is past its time, and watches the room
//! that is left. What it does takes as long as it takes; nobody waits for it.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Config;
use super::ledger::Ledger;
use super::room::{Gauge, Marks, Pressure};
use crate::clock;
use crate::journal::fs::Fs;
use crate::journal::keys::Keychain;
use crate::journal::retention::{Terms, forget};
use crate::journal::seal::{How, Outcome, seal};
use crate::journal::segment::{self, Class};
use crate::journal::{self, erase};

/// How often it looks at the disk.
const LOOK: Duration = Duration::from_millis(500);
/// How often it looks for what is past its time.
const FORGET: Duration = Duration::from_secs(60);
/// How long sealing that failed is left alone.
const RETRY: Duration = Duration::from_secs(30);

/// One journal, as the keeper knows it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Kept {
    pub dir: PathBuf,
    /// The segment that is written to; those before it can be sealed.
    pub writing: Arc<AtomicU64>,
    /// Whether exchanges were forgotten since the index was last told.
    pub forgotten: Arc<AtomicBool>,
}

impl Kept {
    pub fn new(dir: PathBuf) -> Kept {
        Kept { dir, writing: Arc::default(), forgotten: Arc::default() }
    }
}

/// The keeper's thread; dropping it stops it after what it is doing.
pub struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Keeping {
    journals: Vec<Kept>,
    fs: Arc<dyn Fs>,
    keys: Arc<Keychain>,
    how: How,
    terms: Terms,
    marks: Marks,
    gauge: Gauge,
    ledger: Ledger,
    /// When each task is due.
    forget_at: Instant,
    seal_at: Instant,
    /// Segments that cannot be sealed, and erasures that cannot be carried out, with the keys of this run.
    left: HashMap<PathBuf, Outcome>,
    waiting: HashSet<String>,
}

impl Keeper {
    /// Starts the thread. The room is looked at before this returns.
    pub fn start(
        config: &Config,
        journals: Vec<Kept>,
        fs: Arc<dyn Fs>,
        keys: Arc<Keychain>,
        gauge: Gauge,
        ledger: Ledger,
    ) -> io::Result<Keeper> {
        let now = clock::now();
        let mut keeping = Keeping {
            journals,
            fs,
            keys,
            how: How::of_level(config.seal_level),
            terms: config.terms(),
            marks: Marks::of(config),
            gauge,
            ledger,
            forget_at: now,
            seal_at: now,
            left: HashMap::new(),
            waiting: HashSet::new(),
        };
        keeping.look();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            while !stopped.load(Relaxed) {
                keeping.turn();
                std::thread::park_timeout(LOOK);
            }
            if keeping.keys.forgets() {
                let _ = keeping.seal() && keeping.erase();
            }
        };
        let thread = std::thread::Builder::new().name("serin-keeper".into()).spawn(run)?;
        Ok(Keeper { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        if thread.join().is_err() {
            tracing::error!(
                "the keeper's thread died; segments are sealed and forgotten after the next start"
            );
        }
    }
}

impl Keeping {
    fn turn(&mut self) {
        let now = clock::now();
        self.look();
        if now >= self.seal_at && !(self.seal() && self.erase()) {
            self.seal_at = now + RETRY;
        }
        if now >= self.forget_at {
            self.forget_at = now + FORGET;
            self.forget();
        }
    }

    /// Sets the pressure by the room that is left where there is least.
    fn look(&self) {
        let before = self.gauge.get();
        let rooms = self.journals.iter().filter_map(|kept| self.fs.room(&kept.dir).ok());
        let Some(room) = rooms.min_by_key(|room| room.free_bytes) else { return };
        self.ledger.room(room.free_bytes);
        let pressure = Pressure::at(room, self.marks, before);
        self.ledger.pressure(pressure);
        if self.gauge.set(pressure) != pressure {
            let (free, files) = (room.free_bytes, room.free_files);
            match pressure {
                Pressure::None => tracing::info!(free, "there is room again, everything is recorded"),
                _ => tracing::error!(
                    ?pressure,
                    free,
                    files,
                    "the disk under [record] dir is filling; less is recorded"
                ),
            }
        }
    }

    /// Returns whether all went well.
    fn seal(&mut self) -> bool {
        let (mut well, mut left) = (true, HashMap::new());
        for kept in &self.journals {
            let before = kept.writing.load(Relaxed);
            let Ok(files) = segment::list(&kept.dir) else { continue };
            for file in files.iter().filter(|file| file.is_open() && file.number < before) {
                let path = file.path(Class::Mixed);
                if let Some(outcome) = self.left.get(&path) {
                    left.insert(path, *outcome);
                    continue;
                }
                match seal(file, &*self.fs, &self.keys, self.how) {
                    Ok(Outcome::Sealed) => self.ledger.sealed(),
                    Ok(outcome) => drop(left.insert(path, outcome)),
                    Err(error) => {
                        tracing::error!(%error, "a segment could not be sealed; it stays as it is");
                        well = false;
                    }
                }
            }
        }
        self.leave(left);
        well
    }

    /// Says once of each segment that it stays as it is.
    fn leave(&mut self, left: HashMap<PathBuf, Outcome>) {
        let locked = |outcome: &Outcome| matches!(outcome, Outcome::Locked);
        let mut new = left.iter().filter(|(path, outcome)| locked(outcome) && !self.left.contains_key(*path));
        if let Some((first, _)) = new.next() {
            tracing::warn!(
                segments = 1 + new.count(), first = %first.display(),
                "segments of an earlier run stay as they are: they are encrypted and their keys are not here"
            );
        }
        self.ledger.locked(left.values().filter(|outcome| locked(outcome)).count());
        self.left = left;
    }

    /// Carries out what was asked to be erased. Returns whether all went well.
    fn erase(&mut self) -> bool {
        let (mut well, mut waiting) = (true, HashSet::new());
        for kept in &self.journals {
            let writing = kept.writing.load(Relaxed);
            for mut erasure in erase::pending(&kept.dir).unwrap_or_default() {
                if erasure.turns.iter().any(|(_, lsn)| lsn.segment() >= writing) {
                    continue;
                }
                if self.waiting.contains(&erasure.id) {
                    waiting.insert(erasure.id);
                    continue;
                }
                let now = clock::unix_nanos();
                match erase::carry_out(&kept.dir, &*self.fs, &self.keys, self.how, &mut erasure, now) {
                    Ok(receipt) => {
                        self.ledger.erased(receipt.exchanges);
                        tracing::info!(id = erasure.id, exchanges = receipt.exchanges, "erased");
                    }
                    Err(error) => {
                        tracing::error!(%error, id = erasure.id, "not erased yet; nothing of it is shown");
                        match error {
                            journal::Error::KeyMissing { .. } => drop(waiting.insert(erasure.id)),
                            _ => well = false,
                        }
                    }
                }
            }
        }
        self.waiting = waiting;
        well
    }

    fn forget(&self) {
        for kept in &self.journals {
            match forget(&kept.dir, &*self.fs, &self.terms, clock::unix_nanos()) {
                Ok(forgotten) => {
                    self.ledger.forgot(forgotten.bytes);
                    if forgotten.metadata {
                        kept.forgotten.store(true, Relaxed);
                    }
                }
                Err(error) => tracing::error!(%error, "what is past its time could not be removed"),
            }
        }
    }
}
