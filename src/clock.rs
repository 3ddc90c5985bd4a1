//! The one place where the wall clock and the monotonic clock are read.
#![allow(clippy::disallowed_methods, reason = "everything else calls this")]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock, for durations.
pub fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since 1970-01-01 UTC; 0 for a machine whose clock stands before that.
pub fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
