//! What the engine did, counted where its events pass.

use prometheus::{IntCounterVec, IntGauge};
use serin_engine::{Event, FinishReason};

use crate::metrics::Metrics;

/// The engine's families.
#[derive(Clone)]
pub struct Counts {
    tokens: IntCounterVec,
    requests: IntCounterVec,
    depth: IntGauge,
}

/// One request's share; dropped without an end, the request was cancelled, or refused if it never began.
pub struct Meter {
    counts: Counts,
    model: String,
    outcome: &'static str,
}

impl Counts {
    pub fn new(metrics: &Metrics) -> Self {
        let tokens =
            metrics.counters("serin_engine_tokens_total", "Tokens the embedded engine worked on.", &["kind"]);
        for kind in ["prompt", "cached", "completion"] {
            tokens.with_label_values(&[kind]);
        }
        let requests = metrics.counters(
            "serin_engine_requests_total",
            "Requests to the embedded engine by how they ended.",
            &["model_name", "outcome"],
        );
        for outcome in ["stop", "length", "failed", "cancelled", "refused"] {
            requests.with_label_values(&[serin_engine::REFERENCE, outcome]);
        }
        let depth =
            metrics.gauge("serin_engine_queue_depth", "Requests in the embedded engine, waiting or running.");
        Self { tokens, requests, depth }
    }

    pub fn meter(&self, model: &str) -> Meter {
        self.depth.inc();
        Meter { counts: self.clone(), model: model.to_owned(), outcome: "refused" }
    }
}

impl Meter {
    pub fn note(&mut self, event: &Event) {
        let tokens = &self.counts.tokens;
        match event {
            Event::Started { prompt_tokens, cached_tokens } => {
                tokens.with_label_values(&["prompt"]).inc_by(*prompt_tokens as u64);
                tokens.with_label_values(&["cached"]).inc_by(*cached_tokens as u64);
                self.outcome = "cancelled";
            }
            Event::Finished { reason, completion_tokens } => {
                tokens.with_label_values(&["completion"]).inc_by(*completion_tokens as u64);
                self.outcome = if *reason == FinishReason::Stop { "stop" } else { "length" };
            }
            Event::Failed(_) => self.outcome = "failed",
            Event::Text(_) | Event::Progress { .. } => {}
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.counts.requests.with_label_values(&[&self.model, self.outcome]).inc();
        self.counts.depth.dec();
    }
}
