//! The only file that reads the machine's clocks. Everything else is handed a time, so that tests can choose it.

#![expect(clippy::disallowed_methods, reason = "this is the file that may read the clocks")]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time, for durations.
pub fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since the Unix epoch (UTC); 0 if the machine's clock stands before 1970.
pub fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
