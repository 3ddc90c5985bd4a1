//! Outcomes become evidence: one stream per upstream, model, kind and length class.

use std::collections::HashMap;
use std::time::Instant;

use crate::fidelity::judge::{Judgement, Verdict, Weight};
use crate::stats::detector::{DEFAULT_THRESHOLD_NATS, UNCALIBRATED_P0};
use crate::stats::{Detector, Window, interval, wilson};

use super::alarm::{Alarm, Change, State};
use super::metrics::{Cell, Metrics, Scope};

/// The most streams kept; outcomes beyond them share one stream named `other`.
const MAX_STREAMS: usize = 256;
/// Conclusive outcomes behind the loss ratio.
const WINDOW: usize = 200;

/// One probe's outcome.
#[derive(Debug, Clone)]
pub struct Report {
    pub probe_id: String,
    /// The record of its last exchange, by which `sessions show --canary` finds it; empty where it has none.
    pub turn: String,
    pub cell: Cell,
    /// `cold` or `hot`, as observed.
    pub thermal: &'static str,
    pub judgement: Judgement,
    /// Time the probe took.
    pub seconds: f64,
    /// Monotonic and Unix time of its end.
    pub now: Instant,
    pub unix_seconds: f64,
}

/// What the outcome asks of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Advice {
    /// Probes like this one to send at once.
    pub burst: u32,
    /// The stream is breached or recovering, to be probed more often.
    pub hurry: bool,
}

/// All streams with their evidence.
#[derive(Debug)]
pub struct Scoreboard {
    metrics: Metrics,
    streams: HashMap<String, Stream>,
}

#[derive(Debug)]
struct Stream {
    detector: Detector,
    window: Window,
    alarm: Alarm,
    /// Whether the last answer of the stream was empty.
    empty_before: bool,
}

impl Scoreboard {
    /// A scoreboard that shows itself in `metrics`.
    pub fn new(metrics: Metrics) -> Self {
        Self { metrics, streams: HashMap::new() }
    }

    /// The state of a stream's alarm; quiet for one not seen yet.
    pub fn state(&self, stream: &str) -> State {
        self.streams.get(stream).map_or(State::Quiet, |stream| stream.alarm.state())
    }

    /// Takes an outcome into its stream and the metrics.
    pub fn record(&mut self, report: &Report) -> Advice {
        let cell = &report.cell;
        self.metrics.probe(cell, report.thermal, report.judgement.verdict, report.seconds);
        if report.judgement.verdict == Verdict::Crosstalk {
            self.metrics.crosstalk(Scope::Probe);
            let stranger = report.judgement.stranger.as_deref().unwrap_or_default();
            tracing::error!(
                probe = report.probe_id,
                turn = report.turn,
                of = stranger,
                stream = cell.stream(),
                "answer holds the code of another request"
            );
        }
        let name = self.name_of(cell);
        let stream = self.streams.entry(name.clone()).or_insert_with(Stream::new);
        let advice = match stream.conclude(report.judgement.base) {
            Some(lost) => stream.take(lost, report, &name, &self.metrics),
            None => stream.look_again(report),
        };
        self.metrics.stream(
            &name,
            stream.detector.evidence_nats(),
            DEFAULT_THRESHOLD_NATS,
            stream.alarm.state(),
        );
        advice
    }

    fn name_of(&self, cell: &Cell) -> String {
        let name = cell.stream();
        let known = self.streams.len() < MAX_STREAMS || self.streams.contains_key(&name);
        if known { name } else { "other".to_owned() }
    }
}

impl Stream {
    fn new() -> Self {
        Self {
            detector: Detector::new(UNCALIBRATED_P0),
            window: Window::new(WINDOW),
            alarm: Alarm::default(),
            empty_before: false,
        }
    }

    /// Whether a verdict passes or loses; `None` when it says nothing. An empty answer says nothing
    /// once, and is a loss when the answer before it was empty too.
    fn conclude(&mut self, verdict: Verdict) -> Option<bool> {
        let repeated = std::mem::replace(&mut self.empty_before, verdict == Verdict::Empty);
        match verdict.weight() {
            Weight::Pass => Some(false),
            Weight::Loss => Some(true),
            Weight::Inconclusive if verdict == Verdict::Empty && repeated => Some(true),
            Weight::Inconclusive | Weight::Critical => None,
        }
    }

    fn take(&mut self, lost: bool, report: &Report, name: &str, metrics: &Metrics) -> Advice {
        self.window.push(lost);
        let evidence = self.detector.observe(lost);
        let change = self.alarm.observe(lost, evidence >= DEFAULT_THRESHOLD_NATS, report.now);
        if change.from == State::Recovering && change.to == State::Quiet {
            self.detector.reset();
        }
        metrics.conclusive(&report.cell, report.unix_seconds);
        if let (Some(ratio), Some(range)) =
            (self.window.ratio(), wilson(self.window.losses(), self.window.len(), interval::Z95))
        {
            metrics.loss_ratio(&report.cell, ratio, range);
        }
        tell(lost, report, name, evidence, change);
        Advice { burst: change.burst, hurry: self.is_breached() }
    }

    fn look_again(&mut self, report: &Report) -> Advice {
        let burst =
            if report.judgement.base == Verdict::Empty { self.alarm.request_burst(report.now) } else { 0 };
        Advice { burst, hurry: self.is_breached() }
    }

    fn is_breached(&self) -> bool {
        matches!(self.alarm.state(), State::Breached | State::Recovering)
    }
}

/// One line per loss and one per change of an alarm, without any text of an answer.
fn tell(lost: bool, report: &Report, stream: &str, evidence: f64, change: Change) {
    let (probe, verdict) = (report.probe_id.as_str(), report.judgement.base.as_str());
    if lost {
        let turn = report.turn.as_str();
        tracing::warn!(probe, turn, stream, verdict, evidence_nats = evidence, "canary lost its context");
    }
    if change.from != change.to {
        let (from, to) = (change.from.as_str(), change.to.as_str());
        match change.to {
            State::Breached => {
                tracing::error!(stream, from, to, evidence_nats = evidence, "canary alarm changed")
            }
            _ => tracing::warn!(stream, from, to, evidence_nats = evidence, "canary alarm changed"),
        }
    }
}

#[cfg(test)]
mod tests;
