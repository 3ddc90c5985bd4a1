//! The only file that reads the machine's clocks. Everything else is handed a time, so that tests can choose it.

#![expect(clippy::disallowed_methods, reason = "this is the file that may read the clocks")]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time, for durations.
pub fn now() -> Instant {
    Instant::now()
}

/// A time as logs write it: RFC 3339, in UTC, to the microsecond; empty for one that no calendar holds.
pub fn rfc3339(unix_nanos: u64) -> String {
    let moment = jiff::Timestamp::from_nanosecond(unix_nanos.into());
    moment.map_or_else(|_| String::new(), |moment| format!("{moment:.6}"))
}

/// Nanoseconds since the Unix epoch (UTC); 0 if the machine's clock stands before 1970.
pub fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
