//! The ledger: every exchange ends in exactly one of its columns, so that
//! `proxied = full + shape + meta + off + dropped` holds whenever nothing is in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus::{Gauge, IntCounter, IntCounterVec, IntGauge};

use crate::clock;
use crate::journal::record::{Gap, Level};
use crate::metrics::Metrics;

/// Why an exchange was not recorded although it should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    QueueFull,
    IoError,
    Shutdown,
}

/// Why an exchange was not recorded, by decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Off {
    Disabled,
    OptOut,
}

const DROPPED: [(Dropped, &str); 3] =
    [(Dropped::QueueFull, "queue_full"), (Dropped::IoError, "io_error"), (Dropped::Shutdown, "shutdown")];

impl Dropped {
    pub fn name(self) -> &'static str {
        DROPPED.iter().find(|(reason, _)| *reason == self).map_or("", |(_, name)| name)
    }
}

/// Counters of the recorder. Cheap to clone.
#[derive(Clone)]
pub struct Ledger(Arc<Columns>);

struct Columns {
    turns: IntCounterVec,
    stream_errors: IntCounterVec,
    bytes: IntCounter,
    gaps: IntCounter,
    queue_bytes: IntGauge,
    durable_lag: Gauge,
    /// Losses not yet written into the journal, by [`DROPPED`]'s order: count and time of the first.
    pending: [(AtomicU64, AtomicU64); DROPPED.len()],
}

impl Ledger {
    /// `upstreams` are the names whose series begin at 0.
    pub fn new(metrics: &Metrics, upstreams: &[&str]) -> Self {
        let turns = metrics.counters(
            "serin_recorder_turns_total",
            "Exchanges by what was recorded of them; their sum is every exchange that has ended.",
            &["outcome", "reason"],
        );
        let all =
            [("full", ""), ("shape", "budget"), ("meta", "asked"), ("off", "disabled"), ("off", "opt_out")];
        for (outcome, reason) in all.into_iter().chain(DROPPED.map(|(_, name)| ("dropped", name))) {
            turns.with_label_values(&[outcome, reason]);
        }
        let lag = metrics.gauges(
            "serin_recorder_durable_lag_seconds",
            "Age of the oldest record not yet on disk at the last commit.",
            &[],
        );
        let stream_errors = metrics.counters(
            "serin_recorder_stream_errors_total",
            "Answers that were complete for HTTP and failed inside their stream: an error event, or no terminator.",
            &["upstream"],
        );
        for upstream in upstreams {
            stream_errors.with_label_values(&[upstream]);
        }
        Self(Arc::new(Columns {
            turns,
            stream_errors,
            bytes: metrics.counter(
                "serin_recorder_bytes_total",
                "Bytes of exchanges written to the journal, before compression.",
            ),
            gaps: metrics
                .counter("serin_recorder_gaps_total", "GAP records written: stretches of time with losses."),
            queue_bytes: metrics
                .gauge("serin_recorder_queue_bytes", "Memory held by copies of bodies, live and queued."),
            durable_lag: lag.with_label_values(&[] as &[&str]),
            pending: Default::default(),
        }))
    }

    /// An exchange is on disk: whole, without parts of its bodies because the memory for copies was spent (`shape`),
    /// or without bodies because the client asked for that (`meta`).
    pub fn recorded(&self, level: Level) {
        let (outcome, reason) = match level {
            Level::Full => ("full", ""),
            Level::Shape => ("shape", "budget"),
            Level::Meta => ("meta", "asked"),
        };
        self.0.turns.with_label_values(&[outcome, reason]).inc();
    }

    pub fn off(&self, why: Off) {
        let reason = match why {
            Off::Disabled => "disabled",
            Off::OptOut => "opt_out",
        };
        self.0.turns.with_label_values(&["off", reason]).inc();
    }

    pub fn dropped(&self, why: Dropped) {
        self.0.turns.with_label_values(&["dropped", why.name()]).inc();
        let (count, since) = &self.0.pending[why as usize];
        if count.fetch_add(1, Relaxed) == 0 {
            since.store(clock::unix_nanos(), Relaxed);
        }
    }

    /// Losses since the last call, to be written into the journal.
    pub fn take_gaps(&self) -> Vec<Gap> {
        let now = clock::unix_nanos();
        let pending = DROPPED.iter().zip(&self.0.pending);
        pending
            .filter_map(|((_, name), (count, since))| {
                let lost = count.swap(0, Relaxed);
                (lost > 0).then(|| Gap {
                    from_unix_nanos: since.load(Relaxed),
                    to_unix_nanos: now,
                    reason: (*name).to_owned(),
                    count: lost,
                })
            })
            .inspect(|_| self.0.gaps.inc())
            .collect()
    }

    /// An answer failed inside its stream, as only its content tells.
    pub fn stream_error(&self, upstream: &str) {
        self.0.stream_errors.with_label_values(&[upstream]).inc();
    }

    pub fn wrote(&self, bytes: u64) {
        self.0.bytes.inc_by(bytes);
    }

    pub fn durable_lag(&self, seconds: f64) {
        self.0.durable_lag.set(seconds);
    }

    pub fn queue_bytes(&self, bytes: u64) {
        self.0.queue_bytes.set(bytes as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_become_gaps_once() {
        let ledger = Ledger::new(&Metrics::default(), &[]);
        ledger.dropped(Dropped::IoError);
        ledger.dropped(Dropped::IoError);
        let gaps = ledger.take_gaps();
        assert_eq!((gaps.len(), gaps[0].count, gaps[0].reason.as_str()), (1, 2, "io_error"));
        assert!(ledger.take_gaps().is_empty());
    }

    #[test]
    fn every_reason_has_its_own_slot() {
        for (at, (reason, _)) in DROPPED.iter().enumerate() {
            assert_eq!(*reason as usize, at);
        }
    }
}
