//! When the next probe is due. Takes time as an argument and reads no clock.

use std::time::{Duration, Instant};

/// The longest wait after an upstream asked for less.
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// How soon the next probe should follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// At the next point of the grid.
    Steady,
    /// Four times as often: an alarm is waiting to be cleared.
    Quick,
    /// At once: a first loss is waiting to be confirmed.
    Burst,
}

/// A grid of due times, shifted by a hash so that replicas do not probe in step.
#[derive(Debug)]
pub struct Schedule {
    period: Duration,
    origin: Instant,
    next: Instant,
    refusals: u32,
}

impl Schedule {
    /// A schedule of one probe per `period`, the first within one period after `start`. The same
    /// `identity` gives the same offset.
    pub fn new(identity: &[u8], period: Duration, start: Instant) -> Self {
        let period = period.max(Duration::from_millis(1));
        let hash = blake3::hash(identity);
        let fraction = hash.as_bytes()[..4].iter().fold(0u32, |sum, byte| sum << 8 | u32::from(*byte));
        let origin = start + period.mul_f64(f64::from(fraction) / (f64::from(u32::MAX) + 1.0));
        Self { period, origin, next: origin, refusals: 0 }
    }

    /// When the next probe is due.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// Sets the next due time after a probe that ended at `now` and was not refused. Points of the
    /// grid that passed meanwhile are left out, not made up for.
    pub fn advance(&mut self, now: Instant, pace: Pace) {
        self.refusals = 0;
        self.next = match pace {
            Pace::Steady => self.after(now),
            Pace::Quick => self.after(now).min(now + self.period / 4),
            Pace::Burst => now,
        };
    }

    /// Sets the next due time after a refusal (429 or 503): at least as late as `retry_after` says
    /// and later with every refusal in a row, ten minutes at most or one period if that is longer.
    /// Returns how many points of the grid are passed over.
    pub fn back_off(&mut self, now: Instant, retry_after: Option<Duration>) -> u64 {
        self.refusals = (self.refusals + 1).min(16);
        let most = MAX_BACKOFF.max(self.period);
        let doubled = self.period.saturating_mul(1 << (self.refusals - 1)).min(most);
        let wait = doubled.max(retry_after.unwrap_or_default().min(most));
        let usual = self.after(now);
        self.next = self.after(now + wait);
        (self.next - usual)
            .as_nanos()
            .checked_div(self.period.as_nanos())
            .map_or(0, |n| u64::try_from(n).unwrap_or(u64::MAX))
    }

    /// The first point of the grid after `now`.
    fn after(&self, now: Instant) -> Instant {
        let Some(since) = now.checked_duration_since(self.origin) else { return self.origin };
        let past = since.as_nanos() % self.period.as_nanos();
        let left = self.period.as_nanos() - past;
        now + Duration::from_nanos(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn schedule() -> (Schedule, Instant) {
        let start = crate::clock::now();
        (Schedule::new(b"replica 1", MINUTE, start), start)
    }

    #[test]
    fn first_probe_falls_within_a_period_and_differs_by_identity() {
        let (first, start) = schedule();
        assert!(first.due() >= start && first.due() < start + MINUTE);
        assert_eq!(first.due(), Schedule::new(b"replica 1", MINUTE, start).due());
        assert_ne!(first.due(), Schedule::new(b"replica 2", MINUTE, start).due());
    }

    #[test]
    fn the_grid_is_kept_and_missed_points_are_left_out() {
        let (mut schedule, _) = schedule();
        let first = schedule.due();
        schedule.advance(first + Duration::from_secs(7), Pace::Steady);
        assert_eq!(schedule.due(), first + MINUTE);
        schedule.advance(first + Duration::from_secs(150), Pace::Steady);
        assert_eq!(schedule.due(), first + 3 * MINUTE);
        schedule.advance(first + 3 * MINUTE, Pace::Steady);
        assert_eq!(schedule.due(), first + 4 * MINUTE);
    }

    #[test]
    fn bursts_follow_at_once_and_recovery_is_quick() {
        let (mut schedule, _) = schedule();
        let now = schedule.due() + Duration::from_secs(3);
        schedule.advance(now, Pace::Burst);
        assert_eq!(schedule.due(), now);
        schedule.advance(now, Pace::Quick);
        assert_eq!(schedule.due(), now + MINUTE / 4);
    }

    #[test]
    fn refusals_double_the_wait_up_to_a_cap_and_an_answer_ends_it() {
        let (mut schedule, _) = schedule();
        let now = schedule.due();
        let waits: Vec<u64> = (0..8)
            .map(|_| {
                schedule.back_off(now, None);
                (schedule.due() - now).as_secs()
            })
            .collect();
        assert_eq!(waits, [120, 180, 300, 540, 660, 660, 660, 660]);
        assert_eq!(schedule.back_off(now, None), 10);
        schedule.advance(now, Pace::Steady);
        assert_eq!(schedule.due(), now + MINUTE);
        assert_eq!(schedule.back_off(now, Some(Duration::from_secs(200))), 3);
        assert_eq!(schedule.due(), now + 4 * MINUTE);
        schedule.back_off(now, Some(Duration::MAX));
        assert!(schedule.due() <= now + MAX_BACKOFF + MINUTE);
    }
}
