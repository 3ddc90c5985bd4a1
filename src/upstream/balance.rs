//! Several upstreams for one route: the less busy of two drawn by weight, among those whose breaker lets a request pass.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus::{IntGauge, IntGaugeVec};

use super::Upstream;
use super::breaker::{self, Breaker, Outcome, State};
use crate::clock;
use crate::metrics::Metrics;

/// One upstream with what is known of it at this moment. Shared by every route that names it.
pub struct Member {
    upstream: Arc<dyn Upstream>,
    weight: u32,
    in_flight: AtomicUsize,
    breaker: Mutex<Breaker>,
    /// What the last checkups said; true where there are none.
    well: AtomicBool,
    gauges: Gauges,
}

/// What a member shows.
struct Gauges {
    in_flight: IntGauge,
    well: IntGauge,
    states: Vec<(State, IntGauge)>,
}

/// The members a route may choose from.
pub struct Group(Vec<Arc<Member>>);

/// A request on its way to a member; gives its place back when dropped.
pub struct Ticket(Arc<Member>);

/// The families members show themselves in.
pub struct Families {
    in_flight: IntGaugeVec,
    well: IntGaugeVec,
    states: IntGaugeVec,
}

impl Families {
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            in_flight: metrics.int_gauges(
                "serin_upstream_in_flight",
                "Exchanges with the upstream that have begun and not ended.",
                &["upstream"],
            ),
            well: metrics.int_gauges(
                "serin_upstream_healthy",
                "Whether the upstream passes its health checks; 1 where it has none.",
                &["upstream"],
            ),
            states: metrics.int_gauges(
                "serin_upstream_breaker_state",
                "1 for the state the upstream's breaker is in, 0 for the others.",
                &["upstream", "state"],
            ),
        }
    }
}

impl Member {
    pub fn new(
        upstream: Arc<dyn Upstream>,
        weight: u32,
        breaker: breaker::Config,
        families: &Families,
    ) -> Self {
        let name = upstream.name();
        let gauge = |state: State| (state, families.states.with_label_values(&[name, state.name()]));
        let gauges = Gauges {
            in_flight: families.in_flight.with_label_values(&[name]),
            well: families.well.with_label_values(&[name]),
            states: State::ALL.map(gauge).into(),
        };
        let breaker = Mutex::new(Breaker::new(breaker));
        let member = Self {
            upstream,
            weight,
            in_flight: AtomicUsize::new(0),
            breaker,
            well: AtomicBool::new(true),
            gauges,
        };
        member.gauges.well.set(1);
        member.show(State::Closed);
        member
    }

    pub fn upstream(&self) -> &dyn Upstream {
        self.upstream.as_ref()
    }

    /// Takes the word of a checkup, and tells of a change.
    pub fn set_well(&self, well: bool) {
        self.gauges.well.set(well.into());
        let name = self.upstream.name();
        match (self.well.swap(well, Relaxed), well) {
            (true, false) => tracing::warn!("upstream {name:?} fails its health checks"),
            (false, true) => tracing::info!("upstream {name:?} passes its health checks again"),
            _ => {}
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, now: State) {
        for (state, gauge) in &self.gauges.states {
            gauge.set((*state == now).into());
        }
    }

    /// Busy by its weight: requests in flight for each unit of it.
    fn load(&self) -> f64 {
        self.in_flight.load(Relaxed) as f64 / f64::from(self.weight)
    }
}

impl Group {
    pub fn new(members: Vec<Arc<Member>>) -> Self {
        Self(members)
    }

    /// Chooses a member and takes a place with it; `None` if no breaker lets a request pass. `draw` is random; `not` has
    /// been tried already.
    pub fn choose(&self, draw: u64, not: Option<&Member>, now: Instant) -> Option<Ticket> {
        let able = |member: &&Arc<Member>| {
            not.is_none_or(|tried| !std::ptr::eq(tried, Arc::as_ptr(member)))
                && member.breaker().would_admit(now)
        };
        let mut able: Vec<&Arc<Member>> = self.0.iter().filter(able).collect();
        // Where all are ill the checks may be what is wrong: better an upstream in doubt than none.
        if able.iter().any(|member| member.well.load(Relaxed)) {
            able.retain(|member| member.well.load(Relaxed));
        }
        let first = take_by_weight(&mut able, draw as u32)?;
        let second = take_by_weight(&mut able, (draw >> 32) as u32);
        let chosen = second.filter(|second| second.load() < first.load()).unwrap_or(first);
        let mut breaker = chosen.breaker();
        breaker.sent(now);
        let state = breaker.state();
        drop(breaker);
        if state != State::Closed {
            chosen.show(state);
        }
        chosen.in_flight.fetch_add(1, Relaxed);
        chosen.gauges.in_flight.inc();
        Some(Ticket(chosen.clone()))
    }

    pub fn has_another(&self, than: &Arc<Member>) -> bool {
        self.0.iter().any(|member| !Arc::ptr_eq(member, than))
    }

    /// The first member's name, for messages when none can be chosen.
    pub fn name(&self) -> &str {
        self.0.first().map_or("", |member| member.upstream.name())
    }
}

/// Takes one out, each as likely as its weight.
fn take_by_weight<'a>(members: &mut Vec<&'a Arc<Member>>, draw: u32) -> Option<&'a Arc<Member>> {
    let total: u64 = members.iter().map(|member| u64::from(member.weight)).sum();
    let mut mark = u64::from(draw).checked_rem(total)?;
    let at = members.iter().position(|member| {
        let here = mark < u64::from(member.weight);
        mark = mark.saturating_sub(member.weight.into());
        here
    })?;
    Some(members.swap_remove(at))
}

impl Ticket {
    pub fn member(&self) -> &Arc<Member> {
        &self.0
    }

    /// Tells the breaker what came of it.
    pub fn ended(&self, outcome: Outcome) {
        if outcome == Outcome::Neutral {
            return;
        }
        let mut breaker = self.0.breaker();
        let before = breaker.state();
        breaker.ended(outcome, clock::now());
        let after = breaker.state();
        drop(breaker);
        if before != after {
            self.0.show(after);
            match after {
                State::Open => tracing::warn!(
                    "upstream {:?} fails and is left alone for a while",
                    self.0.upstream.name()
                ),
                _ => tracing::info!("upstream {:?} works again", self.0.upstream.name()),
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
        self.0.gauges.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{Answer, Failed, Failure, Request};

    struct Nobody(&'static str);

    impl Upstream for Nobody {
        fn name(&self) -> &str {
            self.0
        }

        fn call(&self, _: Request) -> Answer<'_> {
            Box::pin(async { Err(Failed { cause: Failure::Cut(String::new()), unsent: None }) })
        }
    }

    fn group(weights: &[(&'static str, u32)]) -> Group {
        let families = Families::new(&Metrics::default());
        let config = breaker::Config { failures: 1, ..breaker::Config::default() };
        let member = |(name, weight): &(&'static str, u32)| {
            Arc::new(Member::new(Arc::new(Nobody(name)), *weight, config, &families))
        };
        Group::new(weights.iter().map(member).collect())
    }

    /// A fixed sequence of draws.
    fn draws() -> impl Iterator<Item = u64> {
        (0..).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 17))
    }

    #[test]
    fn load_evens_out_by_weight() {
        let group = group(&[("a", 1), ("b", 1), ("c", 2)]);
        let now = clock::now();
        let tickets: Vec<_> = draws().take(400).map(|draw| group.choose(draw, None, now).unwrap()).collect();
        let held = |at: usize| group.0[at].in_flight.load(Relaxed) as i64;
        assert!((held(0) - 100).abs() < 10 && (held(1) - 100).abs() < 10 && (held(2) - 200).abs() < 15);
        drop(tickets);
        assert_eq!(held(0) + held(1) + held(2), 0);
    }

    #[test]
    fn one_that_fails_is_left_alone_and_all_that_fail_are_none() {
        let group = group(&[("a", 1), ("b", 1)]);
        let now = clock::now();
        let failing = group.choose(0, None, now).unwrap();
        failing.ended(Outcome::Bad);
        for draw in draws().take(50) {
            let ticket = group.choose(draw, None, now).unwrap();
            assert!(!Arc::ptr_eq(ticket.member(), failing.member()));
        }
        assert!(group.choose(7, Some(&group.choose(0, None, now).unwrap().member().clone()), now).is_none());
        group.choose(0, None, now).unwrap().ended(Outcome::Bad);
        assert!(group.choose(0, None, now).is_none());
    }
}
