//! Log sequence numbers: the addresses of records.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a record. It grows from record to record over the whole journal, stays when a segment is sealed or
/// rewritten, and is never given again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The least number that the records of a new segment may have. Because it follows from the segment's number, a
    /// writer that cannot read the segments before never gives a number twice.
    pub fn first_of(segment: u64) -> Lsn {
        Lsn(segment << 32)
    }

    /// The segment it was first written to.
    pub fn segment(self) -> u64 {
        self.0 >> 32
    }

    /// The number `steps` records on.
    pub fn after(self, steps: u64) -> Lsn {
        Lsn(self.0.saturating_add(steps))
    }

    /// How far back another number is; `None` where it is not smaller.
    pub fn back_to(self, earlier: Lsn) -> Option<u64> {
        self.0.checked_sub(earlier.0).filter(|back| *back > 0)
    }

    /// The number that far back.
    pub fn back(self, steps: u64) -> Option<Lsn> {
        self.0.checked_sub(steps).map(Lsn)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.0 >> 32, self.0 & u64::from(u32::MAX))
    }
}
