//! Accounts that are settled when an exchange ends: permits, counters and durations.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use dashmap::DashMap;
use hyper::header::HeaderValue;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge};

use crate::journal::record::{End, Exchange, Origin, Phase};
use crate::metrics::{FIRST_TOKEN_BUCKETS, Metrics, OVERHEAD_BUCKETS, REQUEST_BUCKETS};
use crate::openai::field;
use crate::recorder::tap::Ended;

/// Seconds from the request to the client's cancel.
const AGE_BUCKETS: &[f64] = &[0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];
/// Seconds from there to the upstream's release; 50 ms is the goal.
const CANCEL_BUCKETS: &[f64] =
    &[1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 1.0];

/// The proxy's counters, permits and list of live exchanges. Cheap to clone.
#[derive(Clone)]
pub struct Accounts(Arc<Books>);

struct Books {
    /// Exchanges that hold a permit, and how many may.
    taken: AtomicUsize,
    most: AtomicUsize,
    /// Live exchanges by id: when they began (Unix nanoseconds) and their path. As large as the permits allow.
    live: DashMap<String, (u64, String)>,
    requests: IntCounterVec,
    answers: IntCounterVec,
    canaries: IntCounterVec,
    duration: HistogramVec,
    first_byte: HistogramVec,
    overhead: Histogram,
    cancel: HistogramVec,
    cancelled_age: HistogramVec,
    in_flight: IntGauge,
    refused: Refused,
    fallback: IntCounterVec,
    bytes: IntCounterVec,
    workers: IntCounterVec,
    digests: IntCounterVec,
    /// The workers that have a label of their own, by upstream.
    named: DashMap<String, HashSet<String>>,
    most_workers: usize,
}

/// A permit to be in flight; given back when dropped.
pub struct Permit {
    books: Arc<Books>,
    id: String,
    client: bool,
}

impl Accounts {
    /// `upstreams` are the names whose series begin at 0; of each, `most_workers` get a label of their own.
    pub fn new(metrics: &Metrics, in_flight: usize, most_workers: usize, upstreams: &[&str]) -> Self {
        let books = Books::register(metrics, in_flight, most_workers);
        books.start_at_zero(upstreams);
        Self(Arc::new(books))
    }

    /// Takes a permit for the exchange; `None` when all are taken. Canaries need one too and are not counted here.
    pub fn admit(&self, origin: Origin, record: &Exchange) -> Option<Permit> {
        let client = origin == Origin::Client;
        if self.0.taken.fetch_add(1, Relaxed) >= self.0.most.load(Relaxed) {
            self.0.taken.fetch_sub(1, Relaxed);
            self.0.refused.shed.inc_by(client.into());
            return None;
        }
        self.0.in_flight.add(client.into());
        let path = record.path().to_owned();
        self.0.live.insert(record.id.clone(), (record.started_unix_nanos, path));
        Some(Permit { books: self.0.clone(), id: record.id.clone(), client })
    }

    /// From now on so many exchanges may be in flight; those that are go on.
    pub fn set_in_flight(&self, most: usize) {
        self.0.most.store(most, Relaxed);
    }

    /// Lets the series of these upstreams begin at 0.
    pub fn expect(&self, upstreams: &[&str]) {
        self.0.start_at_zero(upstreams);
    }

    /// What is in flight now: id, beginning in Unix nanoseconds, path.
    pub fn live(&self) -> Vec<(String, u64, String)> {
        let entries = self.0.live.iter();
        entries.map(|entry| (entry.key().clone(), entry.value().0, entry.value().1.clone())).collect()
    }

    /// Settles an exchange that has ended.
    pub fn settle(&self, origin: Origin, ended: &Ended<'_>) {
        let upstream = if ended.upstream.is_empty() { "none" } else { ended.upstream };
        let labels = [upstream, ended.end.name()];
        for (direction, same) in DIRECTIONS.iter().zip(ended.as_it_came) {
            let outcome = same.map(|same| if same { "equal" } else { "different" });
            outcome
                .into_iter()
                .for_each(|outcome| self.0.digests.with_label_values(&[direction, outcome]).inc());
        }
        if origin == Origin::Canary {
            return self.0.canaries.with_label_values(&labels).inc();
        }
        self.0.requests.with_label_values(&labels).inc();
        self.0.duration.with_label_values(&[upstream]).observe(ended.elapsed);
        if let Some(first) = ended.first_byte {
            self.0.first_byte.with_label_values(&[upstream]).observe(first);
        }
        if ended.end == End::ClientCancelled {
            self.0.cancelled_age.with_label_values(&[phase(ended.phase)]).observe(ended.elapsed);
            if let Some(took) = ended.let_go {
                self.0.cancel.with_label_values(&[phase(ended.phase)]).observe(took);
            }
        }
        // What we answer ourselves ends otherwise.
        if let (End::Complete, Some(class)) =
            (ended.end, CLASSES.get(usize::from(ended.status / 100).wrapping_sub(1)))
        {
            self.0.answers.with_label_values(&[upstream, class]).inc();
        }
        if !ended.worker.is_empty() {
            self.0.worker(upstream, ended);
        }
        self.0.bytes.with_label_values(&["up"]).inc_by(ended.bytes_up);
        self.0.bytes.with_label_values(&["down"]).inc_by(ended.bytes_down);
    }

    pub fn overhead(&self, origin: Origin, spent: Duration) {
        if origin == Origin::Client {
            self.0.overhead.observe(spent.as_secs_f64());
        }
    }

    pub fn too_large(&self, origin: Origin) {
        self.0.refused.too_large.inc_by((origin == Origin::Client).into());
    }

    /// Counts connections that bring what is no request.
    pub fn bad_heads(&self) -> IntCounter {
        self.0.refused.bad_heads.clone()
    }

    pub fn forged_tag(&self) {
        self.0.refused.forged.inc();
    }

    pub fn fell_back(&self, origin: Origin, reason: &str) {
        if origin == Origin::Client {
            self.0.fallback.with_label_values(&[reason]).inc();
        }
    }
}

/// The id by which an upstream knows a request whose client has left: the one in its body, the one its answer bears, or the
/// header's. `None` if there is nothing to abort.
pub fn abort_id(
    ended: &Ended<'_>,
    answer_id: Option<String>,
    request_id: Option<&HeaderValue>,
) -> Option<String> {
    if ended.end != End::ClientCancelled || ended.phase == Phase::RequestBody {
        return None;
    }
    let text = |id: &[u8]| String::from_utf8(id.to_owned()).ok();
    let asked = ended.request.and_then(|body| body.look(|body| field::text(body, "rid").and_then(text)));
    asked.or(answer_id).or_else(|| request_id.and_then(|id| text(id.as_bytes())))
}

impl Books {
    /// Counts for the worker that answered. Names come from outside: past the bound they are `other`.
    fn worker(&self, upstream: &str, ended: &Ended<'_>) {
        let mut named = self.named.entry(upstream.to_owned()).or_default();
        let known = named.contains(ended.worker)
            || named.len() < self.most_workers && named.insert(ended.worker.to_owned());
        drop(named);
        let worker = if known { ended.worker } else { "other" };
        self.workers.with_label_values(&[upstream, worker, ended.end.name()]).inc();
    }

    fn register(metrics: &Metrics, in_flight: usize, most_workers: usize) -> Self {
        let (cancel, cancelled_age) = cancels(metrics);
        Self {
            taken: AtomicUsize::new(0),
            most: AtomicUsize::new(in_flight),
            live: DashMap::new(),
            requests: metrics.counters(
                "serin_proxy_requests_total",
                "Clients' requests by how their exchange ended.",
                &["upstream", "outcome"],
            ),
            canaries: metrics.counters(
                "serin_canary_requests_total",
                "Canaries' requests through the proxy; they are in no other counter of the proxy.",
                &["upstream", "outcome"],
            ),
            answers: metrics.counters(
                "serin_upstream_answers_total",
                "Whole answers of an upstream to clients, by the class of their status.",
                &["upstream", "status"],
            ),
            duration: metrics.histograms(
                "serin_proxy_request_seconds",
                "From the arrival of a request to the last byte of its answer.",
                &["upstream"],
                REQUEST_BUCKETS,
            ),
            first_byte: metrics.histograms(
                "serin_proxy_first_byte_seconds",
                "From the arrival of a request to the first byte of its answer's body.",
                &["upstream"],
                FIRST_TOKEN_BUCKETS,
            ),
            overhead: metrics.histogram(
                "serin_proxy_overhead_seconds",
                "Time the proxy itself spends on a request before it is sent on and after its answer's head is here.",
                OVERHEAD_BUCKETS,
            ),
            cancel,
            cancelled_age,
            in_flight: metrics.gauge("serin_proxy_in_flight", "Exchanges that have begun and not ended."),
            refused: Refused::register(metrics),
            fallback: metrics.counters(
                "serin_proxy_fallback_total",
                "Requests answered by the embedded engine in place of an upstream.",
                &["reason"],
            ),
            bytes: metrics.counters("serin_proxy_bytes_total", "Body bytes forwarded.", &["direction"]),
            workers: metrics.counters(
                "serin_worker_requests_total",
                "Clients' requests by the worker that the answer named in one of [balance] worker_headers.",
                &["upstream", "worker", "outcome"],
            ),
            digests: metrics.counters(
                "serin_passive_digests_total",
                "Bodies whose length and checksum were compared where they come in and where they go out.",
                &["direction", "outcome"],
            ),
            named: DashMap::new(),
            most_workers,
        }
    }

    fn start_at_zero(&self, upstreams: &[&str]) {
        for name in upstreams {
            for end in ends() {
                self.requests.with_label_values(&[name, end.name()]);
            }
            for class in CLASSES {
                self.answers.with_label_values(&[name, class]);
            }
            self.duration.with_label_values(&[name]);
            self.first_byte.with_label_values(&[name]);
        }
        for phase in ["request_body", "pre_first_byte", "response_body"] {
            self.cancel.with_label_values(&[phase]);
            self.cancelled_age.with_label_values(&[phase]);
        }
        for direction in DIRECTIONS {
            for outcome in ["equal", "different"] {
                self.digests.with_label_values(&[direction, outcome]);
            }
        }
        for reason in ["refused", "left_alone"] {
            self.fallback.with_label_values(&[reason]);
        }
        for direction in ["up", "down"] {
            self.bytes.with_label_values(&[direction]);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.books.live.remove(&self.id);
        self.books.taken.fetch_sub(1, Relaxed);
        self.books.in_flight.sub(self.client.into());
    }
}

/// What was not let through.
struct Refused {
    shed: IntCounter,
    too_large: IntCounter,
    bad_heads: IntCounter,
    forged: IntCounter,
}

impl Refused {
    fn register(metrics: &Metrics) -> Self {
        Self {
            shed: metrics.counter("serin_proxy_shed_total", "Requests refused because [limits] in_flight was reached."),
            too_large: metrics.counter("serin_proxy_too_large_total", "Requests refused for a body larger than [limits] body."),
            bad_heads: metrics.counter(
                "serin_proxy_bad_heads_total",
                "Requests answered with 400 or 431 because their head could not be read; they are in no other counter.",
            ),
            forged: metrics.counter("serin_proxy_forged_tags_total", "Canary tags that did not verify and were removed."),
        }
    }
}

/// How fast clients' cancels are passed on, and how old their exchanges were.
fn cancels(metrics: &Metrics) -> (HistogramVec, HistogramVec) {
    let cancel = metrics.histograms(
        "serin_proxy_cancel_seconds",
        "From noticing that a client has left to having closed the upstream's connection, or reset its stream.",
        &["phase"],
        CANCEL_BUCKETS,
    );
    let age = metrics.histograms(
        "serin_proxy_cancelled_age_seconds",
        "Age of an exchange when its client left.",
        &["phase"],
        AGE_BUCKETS,
    );
    (cancel, age)
}

/// Of bodies, in the order of [`Ended::as_it_came`].
const DIRECTIONS: [&str; 2] = ["request", "response"];

/// Classes of status, from 100 on.
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Ends the path can see: an error inside a stream is found by whoever reads it, off the path, and that a process died by
/// its successor.
fn ends() -> impl Iterator<Item = End> {
    End::ALL.into_iter().filter(|end| !matches!(end, End::StreamError | End::Interrupted))
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::RequestBody => "request_body",
        Phase::PreFirstByte => "pre_first_byte",
        Phase::ResponseBody | Phase::Done => "response_body",
    }
}
