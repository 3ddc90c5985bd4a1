//! Traces: `traceparent` read and, where wanted, continued; one span for each sampled exchange, exported by OTLP over HTTP
//! from a thread of its own. Nothing here waits: a full queue costs the span and is counted.

pub mod export;
pub mod otlp;
pub mod parent;

use std::path::PathBuf;
use std::sync::Arc;

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue};
use prometheus::IntCounterVec;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::ids;
use crate::metrics::Metrics;
use crate::units::Span as Duration;
use otlp::Span;
use parent::Parent;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
/// The longest `tracestate` that is kept, as the recommendation asks for at least.
const STATE: usize = 512;

/// `[trace]`
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where spans are sent, `http://HOST:PORT[/PATH]`; empty for nowhere.
    pub endpoint: String,
    /// A file of header lines to send along, `name: value` each.
    pub headers_file: PathBuf,
    /// What the spans call this service.
    pub service: String,
    pub propagate: Propagate,
    /// The share of requests without a `traceparent` that is traced.
    pub ratio: f64,
    /// Spans that may wait.
    pub queue: usize,
    /// How long one attempt to send some may take.
    pub timeout: Duration,
}

/// What the upstream sees of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Propagate {
    /// The client's own `traceparent`, untouched, or none.
    Pass,
    /// Ours: what the upstream does is a part of what we did.
    Span,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            headers_file: PathBuf::new(),
            service: "serin".into(),
            propagate: Propagate::Pass,
            ratio: 1.0,
            queue: 4_096,
            timeout: Duration::seconds(10),
        }
    }
}

impl Config {
    /// What the types do not say.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.ratio) {
            return Err(format!("[trace] ratio = {} is no share; it goes from 0 to 1", self.ratio));
        }
        if self.timeout.0.is_zero() {
            return Err("[trace] timeout = \"0ms\" would send nothing; give it a length".into());
        }
        match self.endpoint.is_empty() {
            true => Ok(()),
            false => export::Target::read(self).map(drop),
        }
    }
}

/// Why a span came to nothing, or that it did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Exported,
    QueueFull,
    /// The collector could not be reached, or went on asking for later.
    Unreachable,
    /// The collector did not want it.
    Rejected,
}

/// The spans by their fate.
#[derive(Clone)]
pub struct Counts(IntCounterVec);

impl Counts {
    pub fn new(metrics: &Metrics) -> Self {
        let spans =
            metrics.counters("serin_trace_spans_total", "Spans by what became of them.", &["outcome"]);
        for fate in [Fate::Exported, Fate::QueueFull, Fate::Unreachable, Fate::Rejected] {
            spans.with_label_values(&[fate.name()]);
        }
        Self(spans)
    }

    pub fn count(&self, fate: Fate, spans: u64) {
        self.0.with_label_values(&[fate.name()]).inc_by(spans);
    }
}

impl Fate {
    fn name(self) -> &'static str {
        match self {
            Self::Exported => "exported",
            Self::QueueFull => "queue_full",
            Self::Unreachable => "unreachable",
            Self::Rejected => "rejected",
        }
    }
}

/// The path's end of tracing. Cheap to clone.
#[derive(Clone)]
pub struct Tracer(Arc<Inner>);

struct Inner {
    queue: mpsc::Sender<Span>,
    counts: Counts,
    propagate: Propagate,
    ratio: f64,
}

/// A span that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    /// The client's own span, where it sent one.
    pub parent: Option<[u8; 8]>,
    pub state: String,
}

impl Tracer {
    pub fn new(config: &Config, queue: mpsc::Sender<Span>, counts: Counts) -> Self {
        let Config { propagate, ratio, .. } = *config;
        Self(Arc::new(Inner { queue, counts, propagate, ratio }))
    }

    /// Begins a span if this request is one of those traced: the client's flag decides, or the ratio where it sent none.
    pub fn begin(&self, headers: &mut HeaderMap) -> Option<Begun> {
        let parent = parent(headers);
        let fresh = ids::entropy();
        let sampled = match &parent {
            Some(parent) => parent.sampled(),
            None => drawn(fresh, self.0.ratio),
        };
        if !sampled {
            return None;
        }
        let mut span = [0; 8];
        span.copy_from_slice(&ids::entropy()[..8]);
        let begun = Begun {
            trace: parent.as_ref().map_or(fresh, |parent| parent.trace),
            span,
            state: parent.as_ref().map_or_else(String::new, |_| state(headers)),
            parent: parent.map(|parent| parent.span),
        };
        if self.0.propagate == Propagate::Span
            && let Ok(value) = HeaderValue::try_from(Parent::sampled_of(begun.trace, begun.span).to_string())
        {
            headers.insert(TRACEPARENT, value);
        }
        Some(begun)
    }

    /// Hands a finished span on. Never waits.
    pub fn end(&self, span: Span) {
        if self.0.queue.try_send(span).is_err() {
            self.0.counts.count(Fate::QueueFull, 1);
        }
    }
}

/// The trace a request belongs to. Two of them are as good as none.
pub fn parent(headers: &HeaderMap) -> Option<Parent> {
    let mut all = headers.get_all(TRACEPARENT).iter();
    match (all.next(), all.next()) {
        (Some(only), None) => Parent::read(only.to_str().ok()?),
        _ => None,
    }
}

/// The lines of `tracestate`, joined; one that is too long is left out as a whole.
fn state(headers: &HeaderMap) -> String {
    let lines: Vec<&str> =
        headers.get_all(TRACESTATE).iter().filter_map(|value| value.to_str().ok()).collect();
    let joined = lines.join(",");
    if joined.len() > STATE { String::new() } else { joined }
}

/// Whether a new trace is one of the `ratio` that are traced; the id decides, so that everybody who sees it could agree.
fn drawn(id: [u8; 16], ratio: f64) -> bool {
    let mut low = [0; 8];
    low.copy_from_slice(&id[8..]);
    // A float holds 53 bits exactly.
    ((u64::from_be_bytes(low) >> 11) as f64) < ratio * (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn tracer(propagate: Propagate, ratio: f64) -> (Tracer, mpsc::Receiver<Span>) {
        let (sender, receiver) = mpsc::channel(1);
        let config = Config { propagate, ratio, ..Config::default() };
        (Tracer::new(&config, sender, Counts::new(&Metrics::default())), receiver)
    }

    fn headers(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_client_s_flag_decides_and_the_header_is_untouched() {
        let (tracer, _spans) = tracer(Propagate::Pass, 0.0);
        let mut sampled = headers(&[PARENT]);
        let begun = tracer.begin(&mut sampled).unwrap();
        assert_eq!(sampled, headers(&[PARENT]));
        assert_eq!(begun.parent, Some([0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]));
        assert_eq!((begun.trace[0], begun.span == begun.parent.unwrap()), (0x4b, false));
        let unsampled = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";
        assert_eq!(tracer.begin(&mut headers(&[unsampled])), None);
        assert_eq!(tracer.begin(&mut headers(&[PARENT, PARENT])), None, "two are none, and none are traced");
    }

    #[test]
    fn a_span_of_ours_is_passed_on_only_where_that_is_wanted() {
        let (passing, _spans) = tracer(Propagate::Pass, 1.0);
        let mut none = HeaderMap::new();
        assert_eq!(passing.begin(&mut none).unwrap().parent, None);
        assert!(none.is_empty());
        let (ours, _more) = tracer(Propagate::Span, 1.0);
        let mut given = headers(&[PARENT]);
        let begun = ours.begin(&mut given).unwrap();
        let seen = parent(&given).unwrap();
        assert_eq!((seen.trace, seen.span), (begun.trace, begun.span));
        ours.begin(&mut none).unwrap();
        assert!(parent(&none).unwrap().sampled());
    }

    #[test]
    fn the_ratio_is_kept_and_a_full_queue_is_counted() {
        let (tracer, _spans) = tracer(Propagate::Pass, 0.25);
        let traced = (0..4_000).filter(|_| tracer.begin(&mut HeaderMap::new()).is_some()).count();
        assert!((800..1_200).contains(&traced), "{traced}");
        tracer.end(Span::default());
        tracer.end(Span::default());
        assert_eq!(tracer.0.counts.0.with_label_values(&["queue_full"]).get(), 1);
    }
}
