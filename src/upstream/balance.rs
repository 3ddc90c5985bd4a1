//! Several upstreams for one route: the less busy of two drawn by weight, among those whose breaker lets a request pass.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::RETRY_AFTER;
use hyper::{HeaderMap, StatusCode};
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use super::affinity::{self, Table};
use super::breaker::{self, Breaker, Outcome, State};
use super::{Config, Upstream};
use crate::clock;
use crate::metrics::Metrics;

/// One upstream with what is known of it at this moment. Shared by every route that names it.
pub struct Member {
    upstream: Arc<dyn Upstream>,
    /// What the table of conversations knows it by: its name's hash, so that it means the same after a reload.
    id: u64,
    weight: u32,
    labels: Vec<(String, String)>,
    abort: Option<String>,
    in_flight: AtomicUsize,
    breaker: Mutex<Breaker>,
    /// What the last checkups said; true where there are none.
    well: AtomicBool,
    /// Another of its name has taken its place; what still runs on it is no news of that one.
    retired: AtomicBool,
    /// It has asked to be spared until then.
    spared: Mutex<Option<Instant>>,
    gauges: Gauges,
}

/// What a member shows.
struct Gauges {
    in_flight: IntGauge,
    well: IntGauge,
    states: Vec<(State, IntGauge)>,
    throttled: IntCounter,
}

/// The members a route may choose from.
pub struct Group {
    members: Vec<Arc<Member>>,
    balance: Arc<Balance>,
}

/// `[balance]` at work, the same for every route.
pub struct Balance {
    pub config: affinity::Config,
    pub table: Arc<Table>,
}

/// What a choice is made by.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    /// Sixty-four random bits.
    pub draw: u64,
    /// Has been tried already.
    pub not: Option<&'a Member>,
    /// Where the conversation went before, see [`Member::id`].
    pub preferred: Option<u64>,
    pub now: Instant,
}

/// A request on its way to a member; gives its place back when dropped.
pub struct Ticket(Arc<Member>);

/// The families members show themselves in.
pub struct Families {
    in_flight: IntGaugeVec,
    well: IntGaugeVec,
    states: IntGaugeVec,
    throttled: IntCounterVec,
    labels: IntGaugeVec,
}

impl Families {
    /// Shows nothing more of an upstream that is no longer configured: its last state would be taken for its present one.
    pub fn forget(&self, name: &str) {
        // An error says that there was no such series.
        let _ = self.in_flight.remove_label_values(&[name]);
        let _ = self.well.remove_label_values(&[name]);
        for state in State::ALL {
            let _ = self.states.remove_label_values(&[name, state.name()]);
        }
    }

    /// Shows the labels of these, and of those no more.
    pub fn relabel(&self, gone: &[Arc<Member>], kept: &[Arc<Member>]) {
        for member in gone {
            for (label, value) in &member.labels {
                let _ = self.labels.remove_label_values(&[member.upstream.name(), label, value]);
            }
        }
        kept.iter().for_each(|member| self.show_labels(member));
    }

    fn show_labels(&self, member: &Member) {
        for (label, value) in &member.labels {
            self.labels.with_label_values(&[member.upstream.name(), label, value]).set(1);
        }
    }

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
            throttled: metrics.counters(
                "serin_upstream_throttled_total",
                "Answers 429: the upstream asked for less. They are no failures to its breaker.",
                &["upstream"],
            ),
            labels: metrics.int_gauges(
                "serin_upstream_label_info",
                "Always 1; the labels that the configuration gives an upstream.",
                &["upstream", "label", "value"],
            ),
        }
    }
}

impl Member {
    /// `config` is what is said of it; its address is `upstream`'s affair.
    pub fn new(
        upstream: Arc<dyn Upstream>,
        config: &Config,
        breaker: breaker::Config,
        families: &Families,
    ) -> Self {
        let name = upstream.name();
        let id = affinity::keys::name(name);
        let gauge = |state: State| (state, families.states.with_label_values(&[name, state.name()]));
        let gauges = Gauges {
            in_flight: families.in_flight.with_label_values(&[name]),
            well: families.well.with_label_values(&[name]),
            states: State::ALL.map(gauge).into(),
            throttled: families.throttled.with_label_values(&[name]),
        };
        let breaker = Mutex::new(Breaker::new(breaker));
        let member = Self {
            upstream,
            id,
            weight: config.weight,
            labels: config.labels.clone().into_iter().collect(),
            abort: (!config.abort.is_empty()).then(|| config.abort.clone()),
            in_flight: AtomicUsize::new(0),
            breaker,
            well: AtomicBool::new(true),
            retired: AtomicBool::new(false),
            spared: Mutex::default(),
            gauges,
        };
        families.show_labels(&member);
        member.gauges.well.set(1);
        member.show(State::Closed);
        member
    }

    pub fn upstream(&self) -> &dyn Upstream {
        self.upstream.as_ref()
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// What the configuration calls it beside its name.
    pub fn labels(&self) -> &[(String, String)] {
        &self.labels
    }

    /// The path that ends a request there, if it has one.
    pub fn abort(&self) -> Option<&str> {
        self.abort.as_deref()
    }

    /// Takes note of an answer that asks for less: others are preferred until `Retry-After` is over, or `most`.
    pub fn heard(&self, status: StatusCode, headers: &HeaderMap, most: Duration) {
        if status == StatusCode::TOO_MANY_REQUESTS {
            self.gauges.throttled.inc();
        } else if status != StatusCode::SERVICE_UNAVAILABLE {
            return;
        }
        if let Some(wait) = headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?)) {
            *self.spared() = Some(clock::now() + wait.min(most));
        }
    }

    fn spared(&self) -> MutexGuard<'_, Option<Instant>> {
        self.spared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_spared(&self, now: Instant) -> bool {
        self.spared().is_some_and(|until| now < until)
    }

    /// Takes the word of a checkup, and tells of a change.
    pub fn set_well(&self, well: bool) {
        if self.retired.load(Relaxed) {
            return;
        }
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

    /// From now on it shows nothing of its state.
    pub fn retire(&self) {
        self.retired.store(true, Relaxed);
    }

    fn show(&self, now: State) {
        if self.retired.load(Relaxed) {
            return;
        }
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
    pub fn new(members: Vec<Arc<Member>>, balance: Arc<Balance>) -> Self {
        Self { members, balance }
    }

    pub fn balance(&self) -> &Arc<Balance> {
        &self.balance
    }

    /// Whether it matters which conversation a request belongs to.
    pub fn remembers(&self) -> bool {
        self.members.len() > 1 && self.balance.config.affinity
    }

    /// Chooses a member and takes a place with it; `None` if no breaker lets a request pass.
    pub fn choose(&self, choice: Choice<'_>) -> Option<Ticket> {
        let able = |member: &&Arc<Member>| {
            choice.not.is_none_or(|tried| !std::ptr::eq(tried, Arc::as_ptr(member)))
                && member.breaker().would_admit(choice.now)
        };
        if let [only] = self.members.as_slice() {
            return able(&only).then(|| self.ticket(only, choice.now));
        }
        let mut able: Vec<&Arc<Member>> = self.members.iter().filter(able).collect();
        // Where all are ill the checks may be what is wrong, and where all ask to be spared the client must hear it: better
        // an upstream in doubt than none.
        keep_if_any(&mut able, |member| member.well.load(Relaxed));
        keep_if_any(&mut able, |member| !member.is_spared(choice.now));
        let chosen = match choice.preferred.and_then(|preferred| self.favourite(&able, preferred)) {
            Some(favourite) => favourite,
            None => less_busy_of_two(&mut able, choice.draw)?,
        };
        Some(self.ticket(chosen, choice.now))
    }

    fn ticket(&self, chosen: &Arc<Member>, now: Instant) -> Ticket {
        let mut breaker = chosen.breaker();
        breaker.sent(now);
        let state = breaker.state();
        drop(breaker);
        if state != State::Closed {
            chosen.show(state);
        }
        chosen.in_flight.fetch_add(1, Relaxed);
        chosen.gauges.in_flight.inc();
        Ticket(chosen.clone())
    }

    /// The member a conversation went to, unless it is much busier than another.
    fn favourite<'a>(&self, able: &[&'a Arc<Member>], preferred: u64) -> Option<&'a Arc<Member>> {
        let member = able.iter().find(|member| member.id == preferred)?;
        let least = able.iter().map(|member| member.load()).fold(f64::INFINITY, f64::min);
        let slack = f64::from(self.balance.config.affinity_slack);
        (member.load() <= least + slack).then_some(*member)
    }

    pub fn has_another(&self, than: &Arc<Member>) -> bool {
        self.members.iter().any(|member| !Arc::ptr_eq(member, than))
    }

    /// The first member's name, for messages when none can be chosen.
    pub fn name(&self) -> &str {
        self.members.first().map_or("", |member| member.upstream.name())
    }
}

/// Leaves those that pass the test, if any do.
fn keep_if_any(members: &mut Vec<&Arc<Member>>, test: impl Fn(&Member) -> bool) {
    if members.iter().any(|member| test(member)) {
        members.retain(|member| test(member));
    }
}

fn less_busy_of_two<'a>(able: &mut Vec<&'a Arc<Member>>, draw: u64) -> Option<&'a Arc<Member>> {
    let first = take_by_weight(able, draw as u32)?;
    let second = take_by_weight(able, (draw >> 32) as u32);
    Some(second.filter(|second| second.load() < first.load()).unwrap_or(first))
}

/// How long `Retry-After` asks to wait: seconds or a date (RFC 9110 section 10.2.3).
fn retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(value).ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(at.saturating_sub(Duration::from_nanos(clock::unix_nanos())))
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
            let about = Config { weight: *weight, ..Config::named(name, "http://h") };
            Arc::new(Member::new(Arc::new(Nobody(name)), &about, config, &families))
        };
        let balance = affinity::Config { affinity_slack: 3, ..affinity::Config::default() };
        let balance = Balance { table: Arc::new(Table::new(64, &Metrics::default())), config: balance };
        Group::new(weights.iter().map(member).collect(), Arc::new(balance))
    }

    fn choose(group: &Group, draw: u64, not: Option<&Member>) -> Option<Ticket> {
        group.choose(Choice { draw, not, preferred: None, now: clock::now() })
    }

    fn prefer(group: &Group, draw: u64, preferred: u64) -> Ticket {
        group.choose(Choice { draw, not: None, preferred: Some(preferred), now: clock::now() }).unwrap()
    }

    /// A fixed sequence of draws.
    fn draws() -> impl Iterator<Item = u64> {
        (0..).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 17))
    }

    #[test]
    fn load_evens_out_by_weight() {
        let group = group(&[("a", 1), ("b", 1), ("c", 2)]);
        let tickets: Vec<_> = draws().take(400).map(|draw| choose(&group, draw, None).unwrap()).collect();
        let held = |at: usize| group.members[at].in_flight.load(Relaxed) as i64;
        assert!((held(0) - 100).abs() < 10 && (held(1) - 100).abs() < 10 && (held(2) - 200).abs() < 15);
        drop(tickets);
        assert_eq!(held(0) + held(1) + held(2), 0);
    }

    #[test]
    fn one_that_is_replaced_says_no_more_of_its_name_s_state() {
        let group = group(&[("a", 1)]);
        let last = choose(&group, 0, None).unwrap();
        let open =
            || last.member().gauges.states.iter().find(|(state, _)| *state == State::Open).unwrap().1.get();
        last.ended(Outcome::Bad);
        assert_eq!(open(), 1);
        last.ended(Outcome::Good);
        last.member().retire();
        last.ended(Outcome::Bad);
        assert_eq!(open(), 0);
    }

    #[test]
    fn one_that_fails_is_left_alone_and_all_that_fail_are_none() {
        let group = group(&[("a", 1), ("b", 1)]);
        let failing = choose(&group, 0, None).unwrap();
        failing.ended(Outcome::Bad);
        for draw in draws().take(50) {
            let ticket = choose(&group, draw, None).unwrap();
            assert!(!Arc::ptr_eq(ticket.member(), failing.member()));
        }
        let other = choose(&group, 0, None).unwrap().member().clone();
        assert!(choose(&group, 7, Some(&other)).is_none());
        choose(&group, 0, None).unwrap().ended(Outcome::Bad);
        assert!(choose(&group, 0, None).is_none());
    }

    #[test]
    fn a_conversation_stays_where_it_was_until_that_is_much_busier() {
        let group = group(&[("a", 1), ("b", 1)]);
        let wanted = group.members[1].id();
        let tickets: Vec<_> = draws().take(4).map(|draw| prefer(&group, draw, wanted)).collect();
        assert!(tickets.iter().all(|ticket| ticket.member().id() == wanted));
        assert_ne!(
            prefer(&group, 0, wanted).member().id(),
            wanted,
            "4 more than the other is beyond the slack"
        );
        drop(tickets);
        assert_eq!(prefer(&group, 1, wanted).member().id(), wanted);
    }

    #[test]
    fn one_that_asks_to_be_spared_is_unless_all_do() {
        let group = group(&[("a", 1), ("b", 1)]);
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "30".parse().unwrap());
        let (busy, other) = (&group.members[0], &group.members[1]);
        let most = Duration::from_secs(60);
        busy.heard(StatusCode::OK, &headers, most);
        assert!(!busy.is_spared(clock::now()));
        busy.heard(StatusCode::TOO_MANY_REQUESTS, &headers, most);
        assert!(draws().take(20).all(|draw| choose(&group, draw, None).unwrap().member().id() == other.id()));
        assert_eq!(prefer(&group, 0, busy.id()).member().id(), other.id());
        other.heard(StatusCode::SERVICE_UNAVAILABLE, &headers, most);
        assert!(choose(&group, 0, None).is_some());
        assert!(!busy.is_spared(clock::now() + Duration::from_secs(31)));
    }

    #[test]
    fn a_wait_is_seconds_or_a_date() {
        assert_eq!(retry_after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        let far = std::time::UNIX_EPOCH + Duration::from_secs(40_000_000_000);
        assert!(retry_after(&httpdate::fmt_http_date(far)).unwrap() > Duration::from_secs(1_000_000));
        assert_eq!((retry_after("soon"), retry_after("-1")), (None, None));
    }
}
