//! One stream's alarm: quiet, suspicious, breached, recovering. No clock of its own.

use std::time::{Duration, Instant};

/// Probes of a confirm burst.
pub const BURST: u32 = 4;
/// Losses among them that confirm.
const CONFIRM: u32 = 2;
/// Clean probes in a row that clear a breach: they rule out a loss rate above 10 % at the 5 % level
/// (0.9^29 < 0.05).
const CLEAR: u32 = 29;
/// A stream asks for no second burst within this time.
const BURST_PAUSE: Duration = Duration::from_secs(15 * 60);

/// What a stream's alarm says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing is known against the stream.
    Quiet,
    /// A loss waits to be confirmed.
    Suspect,
    /// Losses beyond the baseline are established; stays until cleared.
    Breached,
    /// Breached, and clean since some probes.
    Recovering,
}

/// The alarm of one stream.
#[derive(Debug, Clone)]
pub struct Alarm {
    state: State,
    /// Outcomes and losses since the suspicion; clean outcomes while recovering.
    seen: u32,
    losses: u32,
    last_burst: Option<Instant>,
}

/// What an outcome did to an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    pub from: State,
    pub to: State,
    /// Probes to send at once to confirm a first loss.
    pub burst: u32,
}

impl Default for Alarm {
    fn default() -> Self {
        Self { state: State::Quiet, seen: 0, losses: 0, last_burst: None }
    }
}

impl Alarm {
    /// The present state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Takes a conclusive outcome; `over` says whether the evidence has reached its threshold.
    ///
    /// When the change goes to [`State::Quiet`] from [`State::Recovering`], the caller forgets the
    /// evidence, which would page again at once otherwise.
    pub fn observe(&mut self, lost: bool, over: bool, now: Instant) -> Change {
        let from = self.state;
        let burst = match from {
            State::Quiet | State::Suspect if over => self.enter(State::Breached),
            State::Quiet if lost => self.suspect(now),
            State::Quiet => 0,
            State::Suspect => self.confirm(lost),
            State::Breached | State::Recovering => self.recover(lost),
        };
        Change { from, to: self.state, burst }
    }

    /// Asks for a burst without a loss, where an outcome calls for a second look.
    pub fn request_burst(&mut self, now: Instant) -> u32 {
        let rested = self.last_burst.is_none_or(|last| now.saturating_duration_since(last) >= BURST_PAUSE);
        if !rested {
            return 0;
        }
        self.last_burst = Some(now);
        BURST
    }

    fn suspect(&mut self, now: Instant) -> u32 {
        self.enter(State::Suspect);
        self.request_burst(now)
    }

    fn confirm(&mut self, lost: bool) -> u32 {
        self.seen += 1;
        self.losses += u32::from(lost);
        if self.losses >= CONFIRM {
            self.enter(State::Breached);
        } else if self.seen >= BURST {
            self.enter(State::Quiet);
        }
        0
    }

    fn recover(&mut self, lost: bool) -> u32 {
        if lost {
            return self.enter(State::Breached);
        }
        if self.state == State::Breached {
            self.enter(State::Recovering);
        }
        self.seen += 1;
        if self.seen >= CLEAR {
            self.enter(State::Quiet);
        }
        0
    }

    fn enter(&mut self, state: State) -> u32 {
        (self.state, self.seen, self.losses) = (state, 0, 0);
        0
    }
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Quiet, Self::Suspect, Self::Breached, Self::Recovering];

    /// The name as a label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Suspect => "suspect",
            Self::Breached => "breached",
            Self::Recovering => "recovering",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(alarm: &mut Alarm, outcomes: &[bool]) -> State {
        let now = crate::clock::now();
        outcomes.iter().for_each(|&lost| {
            alarm.observe(lost, false, now);
        });
        alarm.state()
    }

    #[test]
    fn one_loss_is_suspected_and_dropped_when_not_confirmed() {
        let mut alarm = Alarm::default();
        assert_eq!(run(&mut alarm, &[false, true]), State::Suspect);
        assert_eq!(run(&mut alarm, &[false, true, false]), State::Suspect);
        assert_eq!(run(&mut alarm, &[false]), State::Quiet);
    }

    #[test]
    fn two_of_four_confirm() {
        assert_eq!(run(&mut Alarm::default(), &[true, true, false, true]), State::Breached);
        assert_eq!(run(&mut Alarm::default(), &[true, false, true, true]), State::Breached);
    }

    #[test]
    fn evidence_breaches_without_a_burst() {
        let now = crate::clock::now();
        let mut alarm = Alarm::default();
        let change = alarm.observe(true, true, now);
        assert_eq!(change, Change { from: State::Quiet, to: State::Breached, burst: 0 });
        let mut alarm = Alarm::default();
        alarm.observe(true, false, now);
        assert_eq!(alarm.observe(true, true, now).to, State::Breached);
    }

    #[test]
    fn a_breach_is_latched_until_29_clean_probes_in_a_row() {
        let mut alarm = Alarm::default();
        run(&mut alarm, &[true, true, true]);
        assert_eq!(run(&mut alarm, &[false; 28]), State::Recovering);
        assert_eq!(run(&mut alarm, &[true]), State::Breached);
        assert_eq!(run(&mut alarm, &[false; 28]), State::Recovering);
        assert_eq!(run(&mut alarm, &[false]), State::Quiet);
    }

    #[test]
    fn bursts_keep_a_distance() {
        let start = crate::clock::now();
        let mut alarm = Alarm::default();
        assert_eq!(alarm.observe(true, false, start).burst, BURST);
        (0..4).for_each(|_| {
            alarm.observe(false, false, start);
        });
        assert_eq!(alarm.state(), State::Quiet);
        assert_eq!(alarm.observe(true, false, start + BURST_PAUSE / 2).burst, 0);
        (0..4).for_each(|_| {
            alarm.observe(false, false, start);
        });
        assert_eq!(alarm.observe(true, false, start + BURST_PAUSE).burst, BURST);
    }
}
