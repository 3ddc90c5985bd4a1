//! How much may be recorded, by the room that is left on the disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use super::Config;
use crate::journal::Keep;
use crate::journal::fs::Room;

/// How far down the ladder recording has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Pressure {
    /// Everything is recorded.
    None = 0,
    /// Streams are not kept byte by byte.
    Shape = 1,
    /// Nor are bodies; of clients' exchanges the metadata is.
    Meta = 2,
    /// Only that something was lost is written down.
    Stop = 3,
}

/// The present pressure, set by one thread and read by others.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU8>);

/// Free room below which each step is taken.
#[derive(Clone, Copy, Debug)]
pub struct Marks {
    pub soft: u64,
    pub hard: u64,
    pub stop: u64,
}

/// Files that can still be made, below which each step is taken: a full table of inodes is a full disk too.
const FILES: Marks = Marks { soft: 4096, hard: 1024, stop: 64 };

impl Pressure {
    const ALL: [Pressure; 4] = [Pressure::None, Pressure::Shape, Pressure::Meta, Pressure::Stop];

    /// The pressure at that room. To go up a step again, some more must be free than where it was taken, so that it is
    /// not taken back and forth.
    pub fn at(room: Room, marks: Marks, before: Pressure) -> Pressure {
        let step = |free: u64, marks: Marks, slack: u64| {
            let below = |mark: u64, step: Pressure| {
                let mark = if before >= step { mark.saturating_add(mark / slack) } else { mark };
                free < mark
            };
            match () {
                () if below(marks.stop, Pressure::Stop) => Pressure::Stop,
                () if below(marks.hard, Pressure::Meta) => Pressure::Meta,
                () if below(marks.soft, Pressure::Shape) => Pressure::Shape,
                () => Pressure::None,
            }
        };
        step(room.free_bytes, marks, 8).max(step(room.free_files, FILES, 8))
    }

    /// What it lets be kept.
    pub fn keep(self) -> Keep {
        Keep { content: self < Pressure::Meta, stream: self < Pressure::Shape }
    }
}

impl Gauge {
    pub fn get(&self) -> Pressure {
        Pressure::ALL[usize::from(self.0.load(Relaxed)).min(3)]
    }

    /// Returns what it was before.
    pub fn set(&self, pressure: Pressure) -> Pressure {
        Pressure::ALL[usize::from(self.0.swap(pressure as u8, Relaxed)).min(3)]
    }
}

impl Marks {
    pub fn of(config: &Config) -> Marks {
        Marks { soft: config.disk_soft.0, hard: config.disk_hard.0, stop: config.disk_stop.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: Marks = Marks { soft: 2000, hard: 1000, stop: 500 };

    fn at(free_bytes: u64, before: Pressure) -> Pressure {
        Pressure::at(Room { free_bytes, total_bytes: 9000, free_files: u64::MAX }, MARKS, before)
    }

    #[test]
    fn each_step_is_taken_at_its_mark_and_left_a_little_above() {
        let down = [3000, 1999, 999, 499, 0].map(|free| at(free, Pressure::None));
        assert_eq!(down, [Pressure::None, Pressure::Shape, Pressure::Meta, Pressure::Stop, Pressure::Stop]);
        assert_eq!(
            [510, 562, 563].map(|free| at(free, Pressure::Stop)),
            [Pressure::Stop, Pressure::Meta, Pressure::Meta]
        );
        assert_eq!([2100, 2251].map(|free| at(free, Pressure::Shape)), [Pressure::Shape, Pressure::None]);
    }

    #[test]
    fn a_disk_without_files_is_full() {
        let room = Room { free_bytes: u64::MAX, total_bytes: u64::MAX, free_files: 10 };
        assert_eq!(Pressure::at(room, MARKS, Pressure::None), Pressure::Stop);
    }

    #[test]
    fn the_ladder_goes_down_step_by_step() {
        let keeps = Pressure::ALL.map(|pressure| (pressure.keep().content, pressure.keep().stream));
        assert_eq!(keeps, [(true, true), (true, false), (false, false), (false, false)]);
        let gauge = Gauge::default();
        assert_eq!((gauge.set(Pressure::Meta), gauge.get()), (Pressure::None, Pressure::Meta));
    }
}
