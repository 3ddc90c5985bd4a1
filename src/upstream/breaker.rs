//! A circuit breaker: after failures in a row an upstream is left alone for a while, then tried with one request at a time.
//!
//! No clock and no I/O: time is an argument. Closed means traffic flows, open means it does not.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::journal::record::{End, Origin};
use crate::units::Span;

/// `[breaker]`
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open, and how far apart the trials after that are.
    pub open: Span,
    /// How often an upstream with a `health` path is checked, and how long it may take to answer.
    pub health_every: Span,
}

impl Default for Config {
    fn default() -> Self {
        Self { failures: 5, open: Span::seconds(2), health_every: Span::seconds(5) }
    }
}

/// What the end of an exchange says of the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Good,
    Bad,
    /// Says nothing: the client left, or was told to slow down.
    Neutral,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    Open,
    HalfOpen,
}

/// One upstream's breaker.
#[derive(Debug)]
pub struct Breaker {
    config: Config,
    state: State,
    failures: u32,
    /// Open: when it ends. Half-open: when the next trial may go.
    next: Option<Instant>,
}

impl Outcome {
    /// Fed at the end of the body: a 200 that is cut in the middle is bad. A client error is no fault of the upstream's,
    /// and 429 is a request for less, not a failure.
    pub fn of(end: End, status: u16) -> Self {
        match (end, status) {
            (End::ClientCancelled | End::Shutdown | End::ProxyRefused, _)
            | (End::Complete, 429)
            // Nobody had anything to say on a connection that went on in another protocol.
            | (End::TimeoutIdle, 101) => Self::Neutral,
            (End::Complete, status) if status < 500 => Self::Good,
            _ => Self::Bad,
        }
    }

    /// What a breaker hears of an exchange. A canary that fails or takes too long is no evidence against a worker, and
    /// must not take it from the clients it serves well; that nobody listens there is true whoever finds it out.
    pub fn heard(origin: Origin, end: End, status: u16) -> Self {
        match Self::of(end, status) {
            Self::Bad if origin == Origin::Canary && end != End::UpstreamRefused => Self::Neutral,
            outcome => outcome,
        }
    }
}

impl State {
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::HalfOpen];

    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

impl Breaker {
    pub fn new(config: Config) -> Self {
        Self { config, state: State::Closed, failures: 0, next: None }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Whether a request could be sent now; asking changes nothing.
    pub fn would_admit(&self, now: Instant) -> bool {
        self.state == State::Closed || self.next.is_none_or(|next| now >= next)
    }

    /// A request is sent. When the breaker is not closed it is a trial, and the next one waits its time: a trial may be a
    /// stream of many minutes, whose end nobody should have to wait for.
    pub fn sent(&mut self, now: Instant) {
        if self.state != State::Closed {
            self.state = State::HalfOpen;
            self.next = Some(now + self.pause());
        }
    }

    /// An exchange has ended, or its head has shown enough.
    pub fn ended(&mut self, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Neutral => {}
            Outcome::Good => (self.state, self.failures, self.next) = (State::Closed, 0, None),
            Outcome::Bad => {
                self.failures = self.failures.saturating_add(1);
                if self.state != State::Closed || self.failures >= self.config.failures {
                    self.state = State::Open;
                    self.next = Some(now + self.pause());
                }
            }
        }
    }

    fn pause(&self) -> Duration {
        self.config.open.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: Config = Config { failures: 3, open: Span::seconds(2), health_every: Span::seconds(5) };

    fn later(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_after_a_good_trial() {
        let start = crate::clock::now();
        let mut breaker = Breaker::new(CONFIG);
        for outcome in [Outcome::Bad, Outcome::Bad, Outcome::Good, Outcome::Bad, Outcome::Bad] {
            breaker.ended(outcome, start);
        }
        assert_eq!(breaker.state(), State::Closed, "a success between them begins the count anew");
        breaker.ended(Outcome::Bad, start);
        assert_eq!((breaker.state(), breaker.would_admit(later(start, 1_999))), (State::Open, false));
        assert!(breaker.would_admit(later(start, 2_000)));
        breaker.sent(later(start, 2_000));
        assert_eq!((breaker.state(), breaker.would_admit(later(start, 2_001))), (State::HalfOpen, false));
        breaker.ended(Outcome::Good, later(start, 2_100));
        assert_eq!((breaker.state(), breaker.would_admit(later(start, 2_100))), (State::Closed, true));
    }

    #[test]
    fn a_bad_trial_opens_it_again_and_a_trial_without_end_is_not_waited_for() {
        let start = crate::clock::now();
        let mut breaker = Breaker::new(CONFIG);
        (0..3).for_each(|_| breaker.ended(Outcome::Bad, start));
        breaker.sent(later(start, 2_000));
        breaker.ended(Outcome::Bad, later(start, 2_010));
        assert!(!breaker.would_admit(later(start, 4_009)) && breaker.would_admit(later(start, 4_010)));
        breaker.sent(later(start, 4_010));
        assert!(breaker.would_admit(later(start, 6_010)), "another trial, although the first has not ended");
    }

    #[test]
    fn only_what_is_the_upstream_s_fault_counts() {
        for (end, status, outcome) in [
            (End::Complete, 200, Outcome::Good),
            (End::Complete, 404, Outcome::Good),
            (End::Complete, 429, Outcome::Neutral),
            (End::Complete, 500, Outcome::Bad),
            (End::Complete, 503, Outcome::Bad),
            (End::UpstreamCut, 200, Outcome::Bad),
            (End::TimeoutHead, 504, Outcome::Bad),
            (End::TimeoutIdle, 200, Outcome::Bad),
            (End::TimeoutIdle, 101, Outcome::Neutral),
            (End::UpstreamRefused, 502, Outcome::Bad),
            (End::ClientCancelled, 200, Outcome::Neutral),
            (End::Shutdown, 200, Outcome::Neutral),
        ] {
            assert_eq!(Outcome::of(end, status), outcome, "{end:?} {status}");
            assert_eq!(Outcome::heard(Origin::Client, end, status), outcome);
            let weak = outcome == Outcome::Bad && end != End::UpstreamRefused;
            let canary = if weak { Outcome::Neutral } else { outcome };
            assert_eq!(Outcome::heard(Origin::Canary, end, status), canary, "a canary's {end:?} {status}");
        }
    }
}
