//! What the metrics say of configurations: which one is in force, since when, and whether the last attempt to change it worked.

use prometheus::{Gauge, IntCounterVec, IntGauge, IntGaugeVec};

use crate::clock;
use crate::config::Config;
use crate::metrics::Metrics;

/// The families of it.
pub struct Shown {
    hash: IntGaugeVec,
    reloads: IntCounterVec,
    successful: IntGauge,
    since: Gauge,
}

impl Shown {
    /// The one the process starts with has been read successfully.
    pub fn new(metrics: &Metrics, config: &Config) -> Self {
        let since = metrics.gauges(
            "serin_config_last_reload_success_timestamp_seconds",
            "Unix time at which the configuration in force was read.",
            &[],
        );
        let shown = Self {
            hash: metrics.int_gauges(
                "serin_config_info",
                "Always 1; the effective configuration's hash is in the label.",
                &["hash"],
            ),
            reloads: metrics.counters(
                "serin_config_reloads_total",
                "Attempts to put a new configuration in force.",
                &["outcome"],
            ),
            successful: metrics.gauge(
                "serin_config_last_reload_successful",
                "Whether the last attempt to read the configuration succeeded.",
            ),
            since: since.with_label_values(&[] as &[&str]),
        };
        for outcome in ["success", "failure"] {
            shown.reloads.with_label_values(&[outcome]);
        }
        shown.in_force(config);
        shown
    }

    /// Another one is in force.
    pub fn reloaded(&self, config: &Config) {
        self.in_force(config);
        self.reloads.with_label_values(&["success"]).inc();
    }

    /// It could not be put in force; the one before it still is.
    pub fn failed(&self) {
        self.successful.set(0);
        self.reloads.with_label_values(&["failure"]).inc();
    }

    fn in_force(&self, config: &Config) {
        self.hash.reset();
        self.hash.with_label_values(&[&config.hash()]).set(1);
        self.successful.set(1);
        self.since.set(clock::unix_nanos() as f64 / 1e9);
    }
}
