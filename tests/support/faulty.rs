//! A file system that fails when it is told to.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

use serin::journal::fs::{Blob, Fs, Real, Room};

/// What to do at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Work,
    /// Fails, having done nothing.
    Fail(io::ErrorKind),
    /// Writes only so many bytes, and fails.
    Tear(usize),
}

#[derive(Debug, Default)]
pub struct Plan {
    pub writes: VecDeque<Act>,
    pub syncs: VecDeque<Act>,
    pub creates: VecDeque<Act>,
    pub cuts: VecDeque<Act>,
    pub removes: VecDeque<Act>,
    /// Once the plan is at its end.
    pub writes_then: Option<Act>,
    pub syncs_then: Option<Act>,
    pub creates_then: Option<Act>,
    pub room: Option<Room>,
    /// Syncs wait until this is false again.
    pub frozen: bool,
    /// How often each was called.
    pub wrote: u64,
    pub synced: u64,
}

/// The real file system, with a plan. Clones share the plan.
#[derive(Clone, Debug, Default)]
pub struct Faulty(pub Arc<Mutex<Plan>>, Arc<Condvar>);

#[derive(Debug)]
struct FaultyBlob(Box<dyn Blob>, Faulty);

impl Faulty {
    pub fn plan(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.0.lock().expect("the plan"));
        self.1.notify_all();
    }

    fn next(&self, of: impl Fn(&mut Plan) -> (&mut VecDeque<Act>, Option<Act>)) -> Act {
        let mut plan = self.0.lock().expect("the plan");
        let (acts, then) = of(&mut plan);
        acts.pop_front().or(then).unwrap_or(Act::Work)
    }
}

fn plain(act: Act, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match act {
        Act::Work => work(),
        Act::Fail(kind) => Err(kind.into()),
        Act::Tear(_) => Err(io::ErrorKind::StorageFull.into()),
    }
}

impl Fs for Faulty {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        Real.make_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn Blob>> {
        let act = self.next(|plan| {
            let then = plan.creates_then;
            (&mut plan.creates, then)
        });
        plain(act, || Ok(()))?;
        Ok(Box::new(FaultyBlob(Real.create(path)?, self.clone())))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Blob>> {
        Ok(Box::new(FaultyBlob(Real.open(path)?, self.clone())))
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        Real.sync_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Real.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        plain(self.next(|plan| (&mut plan.removes, None)), || Real.remove(path))
    }

    fn room(&self, path: &Path) -> io::Result<Room> {
        let room = self.0.lock().expect("the plan").room;
        room.map_or_else(|| Real.room(path), Ok)
    }
}

impl Blob for FaultyBlob {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let act = self.1.next(|plan| {
            plan.wrote += 1;
            let then = plan.writes_then;
            (&mut plan.writes, then)
        });
        if let Act::Tear(count) = act {
            self.0.write_all_at(&bytes[..count.min(bytes.len())], offset)?;
        }
        plain(act, || self.0.write_all_at(bytes, offset))
    }

    fn sync(&self) -> io::Result<()> {
        let plan = self.1.0.lock().expect("the plan");
        drop(self.1.1.wait_while(plan, |plan| plan.frozen).expect("the plan"));
        let act = self.1.next(|plan| {
            plan.synced += 1;
            let then = plan.syncs_then;
            (&mut plan.syncs, then)
        });
        plain(act, || self.0.sync())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        plain(self.1.next(|plan| (&mut plan.cuts, None)), || self.0.set_len(len))
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let act = self.1.next(|plan| {
            let then = plan.writes_then;
            (&mut plan.writes, then)
        });
        plain(act, || self.0.reserve(len))
    }

    fn is_at(&self, path: &Path) -> bool {
        self.0.is_at(path)
    }
}
