//! What recording takes of the threads that clients wait for: the same exchange through the tap, recorded and not.
//!
//! Nothing else runs meanwhile, so that the difference is the work itself and not what a busy machine makes of it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serin::body::Edges;
use serin::body::kept::Kept;
use serin::journal::record::{self, End};
use serin::metrics::Metrics;
use serin::recorder::ledger::{Bare, Ledger, Off};
use serin::recorder::mode::Mode;
use serin::recorder::tap::{Cause, Exchange, Tap, Wanted, recorded};
use serin::recorder::tenant::{DEFAULT, Tenant};
use serin::recorder::{Config, Recorder};
use serin::units::Span;

const EVENTS: usize = 200;
const REQUEST: usize = 35_000;
/// As large as what a connection reads at once.
const READ: usize = 16 << 10;
const AT_ONCE: usize = 64;
const ROUNDS: usize = 200;

/// An answer of which each event comes by itself.
struct Events(VecDeque<Bytes>);

#[derive(Debug, thiserror::Error)]
#[error("never")]
struct Never(Infallible);

impl Cause for Never {
    fn end(&self) -> End {
        End::UpstreamCut
    }
}

impl Edges for Events {
    fn edges(&self) -> &[u32] {
        &[]
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Never;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Never>>> {
        Poll::Ready(self.0.pop_front().map(|event| Ok(Frame::data(event))))
    }
}

/// Microseconds that recording adds to one exchange.
pub fn micros() -> f64 {
    let (head, request) = (headers(), Bytes::from(vec![b'x'; REQUEST]));
    let events: VecDeque<Bytes> = (0..EVENTS).map(|at| Bytes::from(event(at))).collect();
    let config = Config { start_after: Span::seconds(3600), ..Config::default() };
    let tenant = Tenant::one(&config, &[], DEFAULT).expect("needs no key");
    let (recorder, ended, mut watch) = Recorder::unattended(&tenant, Ledger::new(&Metrics::default(), &[]));
    let mut batch = |wanted: Wanted| {
        let bodies: Vec<Events> = (0..AT_ONCE).map(|_| Events(events.clone())).collect();
        let begun = Instant::now();
        for body in bodies {
            one(&recorder, wanted, &head, &request, body);
        }
        let took = begun.elapsed().as_secs_f64() * 1e6 / AT_ONCE as f64;
        // What the recorder's thread would have done.
        watch.gather();
        ended.try_iter().for_each(drop);
        took
    };
    let (mut with, mut without): (Vec<f64>, Vec<f64>) = (0..ROUNDS)
        .map(|_| (batch(Wanted::Some(Mode::Redacted, Bare::No)), batch(Wanted::Off(Off::Policy))))
        .unzip();
    // What else runs on the machine only ever adds: the quickest tenth is nearest to the work itself.
    [&mut with, &mut without].into_iter().for_each(|all| all.sort_by(f64::total_cmp));
    with[ROUNDS / 10] - without[ROUNDS / 10]
}

/// From the request's head to the answer's end, as the path does it.
fn one(recorder: &Recorder, wanted: Wanted, head: &HeaderMap, request: &Bytes, body: Events) {
    let record = record::Exchange {
        id: "01890000-0000-7000-8000-000000000000".into(),
        method: "POST".into(),
        target: "/v1/chat/completions".into(),
        request_headers: recorded(head),
        ..record::Exchange::default()
    };
    let most = 16 << 20;
    let settle = Box::new(|ended: &serin::recorder::tap::Ended<'_>| {
        black_box(ended.elapsed);
        None
    });
    let mut exchange = Exchange::begin(recorder.clone(), wanted, record, Instant::now(), most, settle);
    let mut copy = exchange.wants_bodies().then(|| Kept::new(recorder.budget().lease(most)));
    let mut left = request.clone();
    while !left.is_empty() {
        let piece = left.split_to(READ.min(left.len()));
        if let Some(copy) = &mut copy {
            copy.push(&piece, left.len() as u64);
        }
        black_box(piece);
    }
    exchange.sent_to("router");
    exchange.answered(StatusCode::OK, head);
    let mut tap = Tap::new(body, exchange, false);
    let mut context = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(frame)) = Pin::new(&mut tap).poll_frame(&mut context) {
        black_box(frame.ok());
    }
    black_box(copy);
}

fn headers() -> HeaderMap {
    [
        ("host", "127.0.0.1:8080"),
        ("content-type", "application/json"),
        ("accept", "application/json"),
        ("user-agent", "OpenAI/Python 2.3.0"),
        ("authorization", "Bearer sk-0123456789abcdef"),
        ("x-session-id", "0123456789"),
        ("x-stainless-lang", "python"),
        ("x-stainless-os", "Linux"),
        ("x-stainless-runtime", "CPython"),
        ("content-length", "35000"),
    ]
    .into_iter()
    .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
    .collect()
}

fn event(at: usize) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{at:032x}\",\"object\":\"chat.completion.chunk\",\"created\":1764633600,\"model\":\"some-model\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"word\"}},\"logprobs\":null,\"finish_reason\":null}}],\"usage\":null}}\n\n"
    )
}
