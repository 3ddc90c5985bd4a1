//! The only place that reads the clocks of the machine.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock.
pub fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since the Unix epoch; 0 if the wall clock stands before it.
pub fn unix_nanos() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
