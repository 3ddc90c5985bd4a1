//! One registry, passed in: every family is made here, so that its name, help and labels can be listed in `docs/metrics.md`.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use prometheus::core::Collector;
use prometheus::{
    Encoder, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

/// Seconds; the edges vLLM uses for time to first token, so that quantiles of both compare.
pub const FIRST_TOKEN_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Seconds; the edges vLLM uses for whole requests, with finer ones below because a proxy also sees short ones.
pub const REQUEST_BUCKETS: &[f64] = &[
    0.001, 0.005, 0.02, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0,
    60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
];
/// Seconds; microsecond edges for what the proxy itself adds.
pub const OVERHEAD_BUCKETS: &[f64] =
    &[5e-6, 1e-5, 2e-5, 4e-5, 6e-5, 8e-5, 1e-4, 1.5e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.25];

/// The registry and the list of what was registered.
pub struct Metrics {
    registry: Registry,
    families: Mutex<Vec<Family>>,
}

/// One documented metric family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Family {
    pub name: String,
    pub kind: &'static str,
    pub labels: Vec<String>,
    pub help: String,
}

/// Distinct values of one label that comes from outside; further ones are reported as `other`.
const MAX_NAMES: usize = 16;

/// A bounded set of values of one label.
#[derive(Debug, Default)]
pub struct Names(Mutex<HashSet<String>>);

impl Names {
    /// The value for a name from outside.
    pub fn bounded(&self, name: &str) -> String {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
        if !names.contains(&name) {
            if names.len() >= MAX_NAMES {
                return "other".to_owned();
            }
            names.insert(name.clone());
        }
        name
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { registry: Registry::new(), families: Mutex::new(Vec::new()) }
    }
}

impl Metrics {
    fn add<C: Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<C>,
        name: &str,
        kind: &'static str,
        labels: &[&str],
        help: &str,
    ) -> C {
        // Names are constants of this program: a bad or doubled one is caught by the first test that builds the app.
        let family = made.unwrap_or_else(|error| panic!("metric {name}: {error}"));
        self.registry
            .register(Box::new(family.clone()))
            .unwrap_or_else(|error| panic!("metric {name}: {error}"));
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        let entry = Family { name: name.to_owned(), kind, labels, help: help.to_owned() };
        self.families.lock().unwrap_or_else(|poison| poison.into_inner()).push(entry);
        family
    }

    pub fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::new(name, help), name, "counter", &[], help)
    }

    pub fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(Opts::new(name, help), labels), name, "counter", labels, help)
    }

    pub fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::new(name, help), name, "gauge", &[], help)
    }

    pub fn int_gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.add(IntGaugeVec::new(Opts::new(name, help), labels), name, "gauge", labels, help)
    }

    pub fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
        self.add(GaugeVec::new(Opts::new(name, help), labels), name, "gauge", labels, help)
    }

    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts), name, "histogram", &[], help)
    }

    pub fn histograms(&self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.add(HistogramVec::new(opts, labels), name, "histogram", labels, help)
    }

    /// The whole registry in Prometheus' text format 0.0.4.
    pub fn text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let mut text = Vec::with_capacity(16 * 1024);
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }

    /// Every family registered so far, sorted by name.
    pub fn families(&self) -> Vec<Family> {
        let mut families = self.families.lock().unwrap_or_else(|poison| poison.into_inner()).clone();
        families.sort();
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_registered_is_listed_and_exposed() {
        let metrics = Metrics::default();
        metrics.counters("serin_test_things_total", "Things.", &["kind"]).with_label_values(&["a"]).inc();
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        assert!(text.contains("serin_test_things_total{kind=\"a\"} 1"), "{text}");
        assert_eq!(metrics.families()[0].labels, ["kind"]);
    }
}
