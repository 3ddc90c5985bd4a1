//! What the canaries export. Label values come from closed or bounded sets.

use std::sync::Arc;

use prometheus::{GaugeVec, Histogram, IntCounter, IntCounterVec, IntGaugeVec};

use super::alarm::State;
use crate::fidelity::judge::Verdict;
use crate::metrics::{self, Names};
use crate::stats::Interval;

/// Where one probe's outcome belongs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cell {
    pub upstream: String,
    pub model: String,
    pub kind: &'static str,
    pub length: &'static str,
}

/// Whose answer a foreign code was found in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Another probe's.
    Probe,
    /// A client's.
    Production,
}

/// Why a probe was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Skip {
    /// No model was served, or the list of models could not be read.
    NoModel,
    /// The API key file could not be read.
    ApiKey,
    /// The upstream asked for less (429 or 503) and the wait is not over.
    Backoff,
}

/// The canaries' metric families; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    probes: IntCounterVec,
    ratio: GaugeVec,
    lower: GaugeVec,
    upper: GaugeVec,
    evidence: GaugeVec,
    threshold: GaugeVec,
    last_conclusive: GaugeVec,
    alarm: IntGaugeVec,
    crosstalk: IntCounterVec,
    skipped: IntCounterVec,
    seconds: Histogram,
    upstreams: Arc<Names>,
    models: Arc<Names>,
}

impl Metrics {
    /// Creates the families in `registry`.
    pub fn new(registry: &metrics::Metrics) -> Self {
        const CELL: [&str; 4] = ["upstream", "model_name", "kind", "length"];
        let metrics = Self {
            probes: registry.counters(
                "serin_canary_probes_total",
                "Canary probes by verdict.",
                &["upstream", "model_name", "kind", "length", "thermal", "verdict"],
            ),
            ratio: registry.gauges(
                "serin_context_loss_ratio",
                "Share of losses among the last 200 conclusive probes; absent while there are none.",
                &CELL,
            ),
            lower: registry.gauges(
                "serin_context_loss_ratio_lower",
                "Lower end of the 95 % Wilson interval of serin_context_loss_ratio.",
                &CELL,
            ),
            upper: registry.gauges(
                "serin_context_loss_ratio_upper",
                "Upper end of the 95 % Wilson interval of serin_context_loss_ratio.",
                &CELL,
            ),
            evidence: registry.gauges(
                "serin_canary_evidence_nats",
                "Sequential evidence that losses exceed the baseline, ln M, 0 when below.",
                &["stream"],
            ),
            threshold: registry.gauges(
                "serin_canary_threshold_nats",
                "Evidence at which a stream pages.",
                &["stream"],
            ),
            last_conclusive: registry.gauges(
                "serin_canary_last_conclusive_timestamp_seconds",
                "Unix time of the last probe that passed or lost.",
                &["upstream", "kind"],
            ),
            alarm: registry.int_gauges(
                "serin_alarm_state",
                "1 for the state a stream's alarm is in, 0 for the others.",
                &["stream", "state"],
            ),
            crosstalk: registry.counters(
                "serin_crosstalk_total",
                "Answers that held the code of another request.",
                &["scope"],
            ),
            skipped: registry.counters(
                "serin_canary_skipped_total",
                "Canary probes that were due and not sent.",
                &["reason"],
            ),
            seconds: registry.histogram(
                "serin_canary_probe_seconds",
                "Time a probe took, retries included.",
                &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0],
            ),
            upstreams: Arc::default(),
            models: Arc::default(),
        };
        metrics.start_at_zero();
        metrics
    }

    /// Takes back what was said of the present: who begins anew, or stops, has no evidence. Counters stay.
    pub fn forget(&self) {
        for gauges in [&self.ratio, &self.lower, &self.upper, &self.evidence, &self.threshold] {
            gauges.reset();
        }
        self.alarm.reset();
    }

    /// Counters with closed label sets exist from the start, so that a rate can see the first count.
    fn start_at_zero(&self) {
        for scope in [Scope::Probe, Scope::Production] {
            self.crosstalk.with_label_values(&[scope.as_str()]);
        }
        for reason in [Skip::NoModel, Skip::ApiKey, Skip::Backoff] {
            self.skipped.with_label_values(&[reason.as_str()]);
        }
    }

    /// A cell with its names bounded: beyond 16 upstreams or models, `other`.
    pub fn cell(&self, upstream: &str, model: &str, kind: &'static str, length: &'static str) -> Cell {
        Cell { upstream: self.upstreams.bounded(upstream), model: self.models.bounded(model), kind, length }
    }

    /// Counts a probe.
    pub fn probe(&self, cell: &Cell, thermal: &str, verdict: Verdict, seconds: f64) {
        let labels = [&cell.upstream, &cell.model, cell.kind, cell.length, thermal, verdict.as_str()];
        self.probes.with_label_values(&labels).inc();
        self.seconds.observe(seconds);
    }

    /// Shows the loss ratio of a cell with its interval.
    pub fn loss_ratio(&self, cell: &Cell, ratio: f64, interval: Interval) {
        let labels = [&cell.upstream, &cell.model, cell.kind, cell.length];
        self.ratio.with_label_values(&labels).set(ratio);
        self.lower.with_label_values(&labels).set(interval.lower);
        self.upper.with_label_values(&labels).set(interval.upper);
    }

    /// Shows a stream's evidence, its threshold and the state of its alarm.
    pub fn stream(&self, stream: &str, evidence_nats: f64, threshold_nats: f64, state: State) {
        self.evidence.with_label_values(&[stream]).set(evidence_nats.max(0.0));
        self.threshold.with_label_values(&[stream]).set(threshold_nats);
        for each in State::ALL {
            self.alarm.with_label_values(&[stream, each.as_str()]).set(i64::from(each == state));
        }
    }

    /// Notes the time of a conclusive probe.
    pub fn conclusive(&self, cell: &Cell, unix_seconds: f64) {
        self.last_conclusive.with_label_values(&[&cell.upstream, cell.kind]).set(unix_seconds);
    }

    /// Counts a code found where it does not belong.
    pub fn crosstalk(&self, scope: Scope) {
        self.crosstalk.with_label_values(&[scope.as_str()]).inc();
    }

    /// What counts codes in clients' answers.
    pub fn production_crosstalk(&self) -> IntCounter {
        self.crosstalk.with_label_values(&[Scope::Production.as_str()])
    }

    /// Counts a probe that was due and not sent.
    pub fn skipped(&self, reason: Skip) {
        self.skipped.with_label_values(&[reason.as_str()]).inc();
    }
}

impl Cell {
    /// The name of the cell's stream.
    pub fn stream(&self) -> String {
        format!("{}/{}/{}/{}", self.upstream, self.model, self.kind, self.length)
    }
}

impl Scope {
    fn as_str(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Production => "production",
        }
    }
}

impl Skip {
    fn as_str(self) -> &'static str {
        match self {
            Self::NoModel => "no_model",
            Self::ApiKey => "api_key",
            Self::Backoff => "backoff",
        }
    }
}
