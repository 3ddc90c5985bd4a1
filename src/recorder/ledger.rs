//! The ledger: every exchange ends in exactly one of its columns, so that
//! `proxied = full + shape + meta + off + dropped` holds whenever nothing is in flight. Canaries have a book of their own.

mod book;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge};

use super::room::Pressure;
use super::state::{Pulse, State};
use super::tenant;
use crate::clock;
use crate::conversation::Place;
use crate::journal::record::{Gap, Level, Origin};
use crate::metrics::Metrics;
use crate::openai::Usage;
use book::Book;
use turns::Turns;

/// Why an exchange was not recorded although it should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    QueueFull,
    IoError,
    Shutdown,
    DiskFull,
}

/// Why an exchange was not recorded, by decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    Disabled,
    OptOut,
    /// `[record] mode`.
    Policy,
}

/// Why a record lacks bodies or parts of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bare {
    /// It lacks nothing.
    No,
    /// The client asked for it.
    Asked,
    /// `[record] mode`.
    Policy,
    /// The client asked the server not to store it.
    Unstored,
    /// It could not be looked through for secrets.
    Opaque,
    /// Its bodies were not read: it was refused, or went over to another protocol.
    NoBody,
    /// The memory for copies was spent, or the body larger than any copy.
    Budget,
    /// The body itself never came whole.
    Unfinished,
    /// The disk is filling.
    Disk,
    /// Its conversation is not among those that are recorded whole.
    Sampled,
}

const DROPPED: [(Dropped, &str); 4] = [
    (Dropped::QueueFull, "queue_full"),
    (Dropped::IoError, "io_error"),
    (Dropped::Shutdown, "shutdown"),
    (Dropped::DiskFull, "disk_full"),
];

/// Columns as they are labelled: outcome and reason.
const COLUMNS: [(&str, &str); 18] = [
    ("full", ""),
    ("shape", "budget"),
    ("shape", "unfinished"),
    ("shape", "disk"),
    ("meta", "asked"),
    ("meta", "policy"),
    ("meta", "unstored"),
    ("meta", "opaque"),
    ("meta", "no_body"),
    ("meta", "disk"),
    ("meta", "sampled_out"),
    ("off", "disabled"),
    ("off", "opt_out"),
    ("off", "policy"),
    ("dropped", "queue_full"),
    ("dropped", "io_error"),
    ("dropped", "shutdown"),
    ("dropped", "disk_full"),
];

impl Dropped {
    pub fn name(self) -> &'static str {
        DROPPED.iter().find(|(reason, _)| *reason == self).map_or("", |(_, name)| name)
    }
}

/// Counters of the recorder, as one tenant's exchanges are entered in them. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    all: Arc<Books>,
    own: Arc<Book>,
}

struct Books {
    clients: IntCounterVec,
    tenants: IntCounterVec,
    canaries: IntCounterVec,
    stream_errors: IntCounterVec,
    bytes: IntCounter,
    gaps: IntCounter,
    flags: [IntCounter; 2],
    starts: [IntCounter; 2],
    turns: Turns,
    queue_bytes: IntGauge,
    durable_lag: Gauge,
    free: IntGauge,
    pressure: IntGauge,
    sealed: IntCounter,
    locked: IntGauge,
    forgotten: IntCounter,
    erased: IntCounter,
    pulse: Pulse,
}

/// Counts records that nobody waits for: those lost, and those taken.
fn notes(metrics: &Metrics, name: &str, help: &str) -> [IntCounter; 2] {
    let counts = metrics.counters(name, help, &["outcome"]);
    ["lost", "taken"].map(|outcome| counts.with_label_values(&[outcome]))
}

fn lag(metrics: &Metrics) -> Gauge {
    let lag = metrics.gauges(
        "serin_recorder_durable_lag_seconds",
        "Age that the oldest record of the last commit had reached when it was durable.",
        &[],
    );
    lag.with_label_values(&[] as &[&str])
}

impl Ledger {
    /// That of the default tenant. `upstreams` are the names whose series begin at 0.
    pub fn new(metrics: &Metrics, upstreams: &[&str]) -> Self {
        let columns = ["outcome", "reason"];
        let clients = metrics.counters(
            "serin_recorder_turns_total",
            "Clients' exchanges by what was recorded of them; their sum is every one that has ended.",
            &columns,
        );
        let canaries = metrics.counters(
            "serin_canary_records_total",
            "Canaries' exchanges by what was recorded of them.",
            &columns,
        );
        for (outcome, reason) in COLUMNS {
            clients.with_label_values(&[outcome, reason]);
        }
        let stream_errors = metrics.counters(
            "serin_recorder_stream_errors_total",
            "Answers that were complete for HTTP and failed inside their stream: an error event, or no terminator.",
            &["upstream"],
        );
        let flags = notes(
            metrics,
            "serin_recorder_flags_total",
            "FLAG records, what was found about turns after they were recorded: taken, or lost with a turn or for want of room.",
        );
        let starts = notes(
            metrics,
            "serin_recorder_starts_total",
            "Exchanges that ran for long by whether that was noted while they did: taken, or lost for want of room.",
        );
        let bytes = "Bytes of exchanges written to the journal, before compression.";
        let erased = "Exchanges taken out of every file because somebody asked for it.";
        let tenants = book::register(metrics);
        let own = Arc::new(Book::new(&tenants, tenant::DEFAULT));
        let all = Arc::new(Books {
            tenants,
            erased: metrics.counter("serin_recorder_erased_exchanges_total", erased),
            clients,
            canaries,
            stream_errors,
            bytes: metrics.counter("serin_recorder_bytes_total", bytes),
            gaps: metrics
                .counter("serin_recorder_gaps_total", "GAP records written: stretches of time with losses."),
            flags,
            starts,
            turns: Turns::register(metrics),
            queue_bytes: metrics
                .gauge("serin_recorder_queue_bytes", "Memory held by copies of bodies, live and queued."),
            durable_lag: lag(metrics),
            free: metrics.gauge("serin_recorder_free_bytes", "Room left on the disk under [record] dir."),
            pressure: metrics.gauge(
                "serin_recorder_pressure",
                "How little is recorded for want of room: 0 all, 1 no streams, 2 no bodies, 3 nothing.",
            ),
            sealed: metrics.counter("serin_recorder_sealed_segments_total", "Segments sealed."),
            locked: metrics.gauge(
                "serin_recorder_locked_segments",
                "Segments that are not sealed because they are encrypted and their keys are not here.",
            ),
            forgotten: metrics.counter(
                "serin_recorder_forgotten_bytes_total",
                "Bytes removed because their time was over.",
            ),
            pulse: Pulse::default(),
        });
        let ledger = Self { all, own };
        ledger.expect(upstreams);
        ledger
    }

    /// The same ledger, where another tenant's exchanges are entered.
    pub fn of_tenant(&self, name: &str) -> Self {
        Self { all: self.all.clone(), own: Arc::new(Book::new(&self.all.tenants, name)) }
    }

    /// Lets the series of these upstreams begin at 0.
    pub fn expect(&self, upstreams: &[&str]) {
        for upstream in upstreams {
            self.all.stream_errors.with_label_values(&[upstream]);
        }
    }

    fn count(&self, origin: Origin, outcome: &str, reason: &str) {
        let book = match origin {
            Origin::Client => {
                self.own.count(outcome);
                &self.all.clients
            }
            Origin::Canary => &self.all.canaries,
        };
        book.with_label_values(&[outcome, reason]).inc();
    }

    /// An exchange is on disk.
    pub fn recorded(&self, origin: Origin, level: Level, why: Bare) {
        let (outcome, reason) = match (level, why) {
            (Level::Full, _) => ("full", ""),
            (Level::Shape, Bare::Unfinished) => ("shape", "unfinished"),
            (Level::Shape, Bare::Disk) => ("shape", "disk"),
            (Level::Shape, _) => ("shape", "budget"),
            (Level::Meta, Bare::Disk) => ("meta", "disk"),
            (Level::Meta, Bare::Sampled) => ("meta", "sampled_out"),
            (Level::Meta, Bare::Policy) => ("meta", "policy"),
            (Level::Meta, Bare::Unstored) => ("meta", "unstored"),
            (Level::Meta, Bare::Opaque) => ("meta", "opaque"),
            (Level::Meta, Bare::NoBody) => ("meta", "no_body"),
            (Level::Meta, _) => ("meta", "asked"),
        };
        self.count(origin, outcome, reason);
    }

    pub fn off(&self, origin: Origin, why: Off) {
        let reason = match why {
            Off::Disabled => "disabled",
            Off::OptOut => "opt_out",
            Off::Policy => "policy",
        };
        self.count(origin, "off", reason);
    }

    pub fn dropped(&self, origin: Origin, why: Dropped) {
        self.count(origin, "dropped", why.name());
        if origin == Origin::Client {
            self.own.lost(why as usize);
        }
    }

    /// Losses of this tenant since the last call, to be written into its journal.
    pub fn take_gaps(&self) -> Vec<Gap> {
        self.own.take_gaps()
    }

    /// Where the recorder's thread leaves behind how it does.
    pub fn pulse(&self) -> &Pulse {
        &self.all.pulse
    }

    pub fn state(&self) -> State {
        self.all.pulse.state(self.all.pressure.get(), clock::now())
    }

    /// Clients' exchanges by outcome.
    pub fn summary(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for (outcome, reason) in COLUMNS {
            *sums.entry(outcome).or_default() += self.all.clients.with_label_values(&[outcome, reason]).get();
        }
        sums
    }

    /// A client's turn has its place, and its answer says what it took.
    pub fn placed(&self, place: &Place, usage: Option<Usage>) {
        self.all.turns.placed(place, usage);
    }

    /// Whether what was found about a turn goes into the journal.
    pub fn flagged(&self, taken: bool) {
        self.all.flags[usize::from(taken)].inc();
    }

    /// Whether it goes into the journal that an exchange has begun.
    pub fn started(&self, taken: bool) {
        self.all.starts[usize::from(taken)].inc();
    }

    pub fn gap_written(&self) {
        self.all.gaps.inc();
    }

    /// A gap that was taken and could not be written: it counts as not taken.
    pub fn gap_not_written(&self, gap: &Gap) {
        self.own.gap_not_written(gap);
    }

    /// An answer failed inside its stream, as only its content tells.
    pub fn stream_error(&self, upstream: &str) {
        self.all.stream_errors.with_label_values(&[upstream]).inc();
    }

    pub fn wrote(&self, bytes: u64) {
        self.all.bytes.inc_by(bytes);
    }

    pub fn room(&self, free: u64) {
        self.all.free.set(i64::try_from(free).unwrap_or(i64::MAX));
    }

    pub fn pressure(&self, pressure: Pressure) {
        self.all.pressure.set(pressure as i64);
    }

    pub fn sealed(&self) {
        self.all.sealed.inc();
    }

    /// So many segments cannot be sealed for want of their keys.
    pub fn locked(&self, segments: usize) {
        self.all.locked.set(i64::try_from(segments).unwrap_or(i64::MAX));
    }

    pub fn erased(&self, exchanges: u64) {
        self.all.erased.inc_by(exchanges);
    }

    pub fn forgot(&self, bytes: u64) {
        self.all.forgotten.inc_by(bytes);
    }

    pub fn durable_lag(&self, seconds: f64) {
        self.all.durable_lag.set(seconds);
    }

    pub fn queue_bytes(&self, bytes: u64) {
        self.all.queue_bytes.set(bytes as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_become_gaps_once() {
        let ledger = Ledger::new(&Metrics::default(), &[]);
        ledger.dropped(Origin::Client, Dropped::IoError);
        ledger.dropped(Origin::Client, Dropped::IoError);
        ledger.dropped(Origin::Canary, Dropped::IoError);
        let gaps = ledger.take_gaps();
        assert_eq!((gaps.len(), gaps[0].count, gaps[0].reason.as_str()), (1, 2, "io_error"));
        assert!(ledger.take_gaps().is_empty());
        ledger.gap_not_written(&gaps[0]);
        ledger.dropped(Origin::Client, Dropped::IoError);
        let again = ledger.take_gaps();
        assert_eq!((again.len(), again[0].count), (1, 3));
        assert_eq!(again[0].from_unix_nanos, gaps[0].from_unix_nanos, "it begins with the first loss");
    }

    #[test]
    fn each_tenant_has_its_own_losses_and_together_they_are_all() {
        let metrics = Metrics::default();
        let default = Ledger::new(&metrics, &[]);
        let own = default.of_tenant("a");
        own.dropped(Origin::Client, Dropped::QueueFull);
        own.recorded(Origin::Client, Level::Meta, Bare::Asked);
        own.recorded(Origin::Canary, Level::Full, Bare::No);
        default.off(Origin::Client, Off::OptOut);
        assert!(default.take_gaps().is_empty());
        assert_eq!(own.take_gaps().len(), 1);
        let text = String::from_utf8(metrics.text().expect("encodes")).expect("is text");
        for (outcome, tenant, count) in
            [("dropped", "a", 1), ("meta", "a", 1), ("full", "a", 0), ("off", "a", 0), ("off", "default", 1)]
        {
            let line = format!(
                "serin_recorder_tenant_turns_total{{outcome=\"{outcome}\",tenant=\"{tenant}\"}} {count}"
            );
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert_eq!(default.summary().values().sum::<u64>(), 3);
    }

    #[test]
    fn every_reason_has_its_own_slot() {
        for (at, (reason, _)) in DROPPED.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
    }
}
