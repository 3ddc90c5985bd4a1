//! How the recorder does, as its thread leaves it behind for whoever asks: nobody waits for it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::room::Pressure;
use crate::clock;
use crate::journal::record::Origin;

/// A thread that has not come round for so long hangs: at rest it does twice a second.
const HANGS: Duration = Duration::from_secs(5);

/// How the recorder does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Recording,
    /// Less is recorded than should be.
    Degraded(String),
    Off,
}

impl State {
    /// A name, and a reason where there is one.
    pub fn told(self) -> (&'static str, Option<String>) {
        match self {
            State::Recording => ("recording", None),
            State::Degraded(why) => ("degraded", Some(why)),
            State::Off => ("off", None),
        }
    }
}

/// What its thread leaves behind.
pub struct Pulse {
    begun: Instant,
    /// Milliseconds since then.
    last: AtomicU64,
    /// Journals that do not take what they are given: clients', of which each tenant has one, and the canaries'.
    failing: [AtomicUsize; 2],
}

impl Default for Pulse {
    fn default() -> Self {
        Pulse { begun: clock::now(), last: AtomicU64::new(0), failing: Default::default() }
    }
}

impl Pulse {
    /// The thread has come round.
    pub fn beat(&self, now: Instant) {
        self.last.store(now.saturating_duration_since(self.begun).as_millis() as u64, Relaxed);
    }

    /// A journal has begun to fail, or ceased to.
    pub fn failing(&self, origin: Origin, failing: bool) {
        let count = &self.failing[usize::from(origin == Origin::Canary)];
        match failing {
            true => count.fetch_add(1, Relaxed),
            false => count.fetch_sub(1, Relaxed),
        };
    }

    pub fn state(&self, pressure: i64, now: Instant) -> State {
        let last = self.begun + Duration::from_millis(self.last.load(Relaxed));
        let silent = now.saturating_duration_since(last);
        let failing = |at: usize| self.failing[at].load(Relaxed) > 0;
        let less = |pressure: Pressure| pressure as i64;
        match pressure {
            _ if silent > HANGS => {
                State::Degraded(format!("its thread has done nothing for {} s", silent.as_secs()))
            }
            _ if failing(0) => State::Degraded("the journal cannot be written".to_owned()),
            stop if stop >= less(Pressure::Stop) => {
                State::Degraded("the disk is full: nothing is recorded".to_owned())
            }
            meta if meta >= less(Pressure::Meta) => {
                State::Degraded("the disk is filling: no bodies are recorded".to_owned())
            }
            shape if shape >= less(Pressure::Shape) => {
                State::Degraded("the disk is filling: no streams are recorded".to_owned())
            }
            _ if failing(1) => State::Degraded("the canaries' journal cannot be written".to_owned()),
            _ => State::Recording,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_worst_is_told() {
        let pulse = Pulse::default();
        let now = pulse.begun;
        let why = |pulse: &Pulse, pressure, now| pulse.state(pressure, now).told().1.unwrap_or_default();
        assert_eq!(pulse.state(0, now), State::Recording);
        pulse.failing(Origin::Canary, true);
        assert!(why(&pulse, 0, now).contains("canaries"));
        assert!(why(&pulse, 1, now).contains("no streams") && why(&pulse, 2, now).contains("no bodies"));
        assert!(why(&pulse, 3, now).contains("is full"));
        pulse.failing(Origin::Client, true);
        pulse.failing(Origin::Client, true);
        pulse.failing(Origin::Client, false);
        assert!(why(&pulse, 3, now).contains("cannot be written"), "of two one still fails");
        let later = now + Duration::from_secs(60);
        assert!(why(&pulse, 0, later).contains("for 60 s"));
        pulse.beat(later);
        assert!(why(&pulse, 0, later).contains("cannot be written"));
    }
}
