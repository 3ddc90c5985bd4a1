//! A token bucket as one number: the moment at which it will be full again. No clock; time is an argument.

use std::time::Duration;

const SECOND: f64 = 1e9;

/// How fast a bucket fills and how much it holds; `None` of it where nothing is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Nanoseconds in which one token comes.
    interval: u64,
    /// Nanoseconds in which an empty bucket fills.
    depth: u64,
}

/// One client's bucket; a new one is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Nanoseconds since an epoch of the caller's.
    full_at: u64,
}

impl Pace {
    /// `rate` tokens a second, of which `burst` are kept; `None` for a rate of 0.
    pub fn new(rate: f64, burst: u32) -> Option<Self> {
        let interval = ((SECOND / rate) as u64).max(1);
        (rate > 0.0).then(|| Self { interval, depth: interval.saturating_mul(burst.max(1).into()) })
    }
}

impl Bucket {
    /// The bucket with one token less, or how long it takes until there is one.
    pub fn take(self, pace: Pace, now: u64) -> Result<Self, Duration> {
        let full_at = self.full_at.max(now).saturating_add(pace.interval);
        match (full_at - now).checked_sub(pace.depth) {
            None | Some(0) => Ok(Self { full_at }),
            Some(wait) => Err(Duration::from_nanos(wait)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// In every stretch of time no more passes than the burst and what came in meanwhile, and no less than that is let
        /// pass to whoever asks often enough.
        #[test]
        fn no_more_and_no_less_than_the_pace(
            rate in 0.5f64..5_000.0,
            burst in 1u32..50,
            pauses in prop::collection::vec(0u64..2_000_000_000, 1..200),
        ) {
            let pace = Pace::new(rate, burst).unwrap();
            let (mut bucket, mut now) = (Bucket::default(), 0u64);
            let mut passed: Vec<u64> = Vec::new();
            for pause in pauses {
                now += pause;
                match bucket.take(pace, now) {
                    Ok(next) => {
                        bucket = next;
                        passed.push(now);
                    }
                    Err(wait) => {
                        let then = now + wait.as_nanos() as u64;
                        prop_assert!(bucket.take(pace, then).is_ok(), "the wait that was named is enough");
                        prop_assert!(bucket.take(pace, then - 1).is_err(), "and not longer than needed");
                    }
                }
            }
            for (at, first) in passed.iter().enumerate() {
                for (count, last) in passed[at..].iter().enumerate() {
                    let room = u64::from(burst) + (last - first) / pace.interval;
                    prop_assert!((count as u64) < room, "{} passed in {} ns", count + 1, last - first);
                }
            }
        }

        #[test]
        fn a_full_bucket_lets_its_burst_pass_at_once(rate in 0.001f64..1e9, burst in 1u32..1_000, now in any::<u32>()) {
            let pace = Pace::new(rate, burst).unwrap();
            let mut bucket = Bucket::default();
            for _ in 0..burst {
                bucket = bucket.take(pace, now.into()).unwrap();
            }
            prop_assert!(bucket.take(pace, now.into()).is_err());
        }
    }

    #[test]
    fn no_rate_is_no_limit() {
        assert_eq!(Pace::new(0.0, 10), None);
        assert!(Pace::new(f64::MIN_POSITIVE, u32::MAX).is_some());
    }
}
