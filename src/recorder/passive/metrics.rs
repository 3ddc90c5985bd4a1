//! What the passive checks export. Labels are closed, or bounded where they come from outside.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{IntCounter, IntCounterVec};

use super::{Check, Finding};
use crate::metrics::{self, Names};

/// Why a turn was not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// `[passive] queue` turns waited already.
    QueueFull,
    /// More than half of the memory for copies is taken: it is for recording.
    Memory,
    /// Nothing that is made of what was said may be kept of it.
    Mode,
    /// Its answer could not be read, or not all of it.
    Unread,
    /// It has no answer: it failed or was refused.
    NoAnswer,
    /// The process ended first, or the thread of the checks has died.
    Stopped,
}

impl Skipped {
    const ALL: [Skipped; 6] = [
        Skipped::QueueFull,
        Skipped::Memory,
        Skipped::Mode,
        Skipped::Unread,
        Skipped::NoAnswer,
        Skipped::Stopped,
    ];

    fn name(self) -> &'static str {
        match self {
            Skipped::QueueFull => "queue_full",
            Skipped::Memory => "memory",
            Skipped::Mode => "mode",
            Skipped::Unread => "unread",
            Skipped::NoAnswer => "no_answer",
            Skipped::Stopped => "stopped",
        }
    }
}

/// The families; clones share them.
#[derive(Clone)]
pub struct Metrics {
    checks: IntCounterVec,
    skipped: IntCounterVec,
    lost_flags: IntCounter,
    reasoning_dropped: IntCounter,
    upstreams: Arc<Names>,
    models: Arc<Names>,
    /// Pairs of upstream and model whose series exist.
    known: Arc<Mutex<HashSet<(String, String)>>>,
}

impl Metrics {
    pub fn new(registry: &metrics::Metrics) -> Self {
        let metrics = Self {
            checks: registry.counters(
                "serin_passive_checks_total",
                "Checks of clients' turns by what they came to; a check counts a turn that it applies to once.",
                &["check", "model_name", "upstream", "outcome"],
            ),
            skipped: registry.counters(
                "serin_passive_skipped_total",
                "Clients' turns that were not checked.",
                &["reason"],
            ),
            lost_flags: registry.counter(
                "serin_passive_lost_flags_total",
                "Findings that are counted and were not written down, as the recorder did not keep up.",
            ),
            reasoning_dropped: registry.counter(
                "serin_passive_history_reasoning_dropped_total",
                "Turns whose client has sent the answer before back without the reasoning it came with.",
            ),
            upstreams: Arc::default(),
            models: Arc::default(),
            known: Arc::default(),
        };
        for reason in Skipped::ALL {
            metrics.skipped.with_label_values(&[reason.name()]);
        }
        metrics
    }

    pub fn skipped(&self, why: Skipped) {
        self.skipped.with_label_values(&[why.name()]).inc();
    }

    pub(super) fn reasoning_dropped(&self, dropped: bool) {
        self.reasoning_dropped.inc_by(dropped.into());
    }

    pub(super) fn lost_flag(&self) {
        self.lost_flags.inc();
    }

    /// Counts what the checks of one turn came to. The first turn of a model at an upstream makes all their series.
    pub(super) fn count(&self, upstream: &str, model: &str, findings: &[Finding]) {
        let (upstream, model) = (self.upstreams.bounded(upstream), self.models.bounded(model));
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.insert((upstream.clone(), model.clone())) {
            for check in Check::ALL {
                for outcome in check.outcomes() {
                    self.checks.with_label_values(&[check.name(), &model, &upstream, outcome]);
                }
            }
        }
        drop(known);
        for finding in findings {
            let labels = [finding.check.name(), &model, &upstream, finding.outcome];
            self.checks.with_label_values(&labels).inc();
        }
    }
}
