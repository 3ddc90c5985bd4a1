//! What is known of an upstream's liveness: told once when it changes, not with every request.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use prometheus::{IntCounterVec, IntGauge, IntGaugeVec};

use super::Failure;
use crate::metrics::Metrics;

/// One upstream's state.
pub struct Health {
    name: String,
    up: AtomicBool,
    gauge: IntGauge,
    repeated: IntCounterVec,
}

/// The families upstreams show themselves in.
#[derive(Clone)]
pub struct Families {
    up: IntGaugeVec,
    repeated: IntCounterVec,
}

impl Families {
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            up: metrics.int_gauges(
                "serin_upstream_up",
                "Whether the upstream's last connection attempt succeeded.",
                &["upstream"],
            ),
            repeated: metrics.counters(
                "serin_upstream_repeated_total",
                "Requests sent a second time because the first had not been worked on, by the sign of that.",
                &["upstream", "cause"],
            ),
        }
    }
}

impl Families {
    /// Shows nothing more of the liveness of an upstream that is no longer configured.
    pub fn forget(&self, name: &str) {
        // An error says that there was no such series.
        let _ = self.up.remove_label_values(&[name]);
    }
}

impl Health {
    /// An upstream is thought to be up until it is seen to be down.
    pub fn new(name: &str, families: &Families) -> Self {
        for cause in ["stale", "unprocessed"] {
            families.repeated.with_label_values(&[name, cause]);
        }
        let gauge = families.up.with_label_values(&[name]);
        gauge.set(1);
        let repeated = families.repeated.clone();
        Self { name: name.to_owned(), up: AtomicBool::new(true), gauge, repeated }
    }

    /// A request goes out once more.
    pub fn repeated(&self, cause: &str) {
        self.repeated.with_label_values(&[&self.name, cause]).inc();
    }

    /// Takes note of an attempt to reach it; `address` is asked for only to be told.
    pub fn note(&self, failure: Option<&Failure>, address: impl FnOnce() -> String) {
        // Anything but a refusal came over a connection: it is there, whatever it answers.
        let refused = match failure {
            Some(Failure::Refused(cause)) => Some(cause),
            _ => None,
        };
        self.gauge.set(i64::from(refused.is_none()));
        let was_up = self.up.swap(refused.is_none(), Relaxed);
        match refused {
            Some(cause) if was_up => tracing::warn!(
                "upstream {:?} at {} cannot be reached ({cause}); start it, or correct url in its \
                 [[upstream]] section",
                self.name,
                address()
            ),
            None if !was_up => {
                tracing::info!("upstream {:?} at {} can be reached again", self.name, address())
            }
            _ => {}
        }
    }
}
