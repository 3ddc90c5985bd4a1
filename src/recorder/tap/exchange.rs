//! One exchange from its request to its end, and what is to be recorded of it.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::{HeaderMap, StatusCode};

use crate::body::digest::Digest;
use crate::body::pieces::Pieces;
use crate::body::replay::{Copied, Extent, Fate};
use crate::journal::record::{self, Capture, End, Header, Level, Origin, Phase};
use crate::recorder::ledger::{Bare, Off};
use crate::recorder::live::Live;
use crate::recorder::mode::Mode;
use crate::recorder::{Offered, Recorder};
use crate::{clock, ids, redact};

/// What the end of an exchange looked like, for the one callback that settles accounts.
#[derive(Debug)]
pub struct Ended<'a> {
    pub end: End,
    pub phase: Phase,
    pub status: u16,
    pub upstream: &'a str,
    /// The worker behind the upstream, as the answer named it; empty if it did not.
    pub worker: &'a str,
    /// The body of the request, as far as it was copied.
    pub request: Option<&'a Copied>,
    /// Seconds since the request arrived.
    pub elapsed: f64,
    /// Seconds until the first byte of the response body.
    pub first_byte: Option<f64>,
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// Whether the request and the answer have gone on as they came; `None` where nobody looked, or not to the end.
    pub as_it_came: [Option<bool>; 2],
    /// Seconds from noticing that the client had left to having closed the upstream's connection or reset its stream.
    pub let_go: Option<f64>,
}

/// Settles an exchange when it ends, once; may leave something to be done with its record.
pub type OnEnd = Box<dyn FnOnce(&Ended<'_>) -> Option<After> + Send>;
type OnBegin = Box<dyn FnOnce(&[u8]) + Send>;

/// Done with the record of an exchange that has ended: off the path, once its content was read, or here if it is not to be.
pub type After = Box<dyn FnOnce(&record::Exchange) + Send>;

/// How much of an exchange is to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Some(Mode, Bare),
    Off(Off),
}

impl Wanted {
    /// Whether bodies have to be copied.
    fn bodies(self) -> bool {
        matches!(self, Wanted::Some(mode, _) if mode.wants_bodies())
    }

    /// Of an exchange whose bodies nobody reads.
    pub fn without_bodies(self) -> Wanted {
        if self.bodies() { Wanted::Some(Mode::Meta, Bare::NoBody) } else { self }
    }
}

/// One request and its response while they live.
pub struct Exchange {
    recorder: Recorder,
    wanted: Wanted,
    record: record::Exchange,
    /// Where it is noted that it runs.
    live: Option<Arc<Live>>,
    /// The upstream that was chosen, and who answered in its place.
    upstream: String,
    stand_in: &'static str,
    worker: String,
    started: Instant,
    previous: Instant,
    first_byte: Option<f64>,
    request: Option<Copied>,
    response: Pieces,
    length: u64,
    /// Bytes that went up after the request, in another protocol.
    carried_up: u64,
    /// How far it had come when it was given up, where that was before its end.
    given_up: Option<Phase>,
    ended: bool,
    let_go: Option<f64>,
    /// Of the answer's body as it goes to the client, where that is watched; and as it came.
    went: Option<Digest>,
    came: Option<Digest>,
    on_begin: Vec<OnBegin>,
    on_end: Option<OnEnd>,
}

impl Exchange {
    /// Begins an exchange. `record` holds what is known of the request so far; `body_cap` bounds the response's copy.
    pub fn begin(
        recorder: Recorder,
        wanted: Wanted,
        record: record::Exchange,
        started: Instant,
        body_cap: u64,
        on_end: OnEnd,
    ) -> Self {
        let wanted = if recorder.is_on() { wanted } else { Wanted::Off(Off::Disabled) };
        let live = match wanted {
            Wanted::Some(..) => recorder.begin(&record, started),
            Wanted::Off(_) => None,
        };
        let response = Pieces::new(recorder.budget().lease(if wanted.bodies() { body_cap } else { 0 }));
        Self {
            recorder,
            wanted,
            record,
            live,
            upstream: String::new(),
            stand_in: "",
            worker: String::new(),
            started,
            previous: started,
            first_byte: None,
            request: None,
            response,
            length: 0,
            carried_up: 0,
            given_up: None,
            ended: false,
            let_go: None,
            went: None,
            came: None,
            on_begin: Vec::new(),
            on_end: Some(on_end),
        }
    }

    pub fn origin(&self) -> Origin {
        self.record.origin()
    }

    pub fn wants_bodies(&self) -> bool {
        self.wanted.bodies()
    }

    /// The request body's copy, read when the exchange ends.
    pub fn request_body(&mut self, copy: Copied) {
        self.request = Some(copy);
    }

    /// Draws whether it is looked at that its bodies go on as they come, and tells.
    pub fn watch(&mut self, share: f64) -> bool {
        self.went = ids::is_drawn(&self.record.id, share).then(Digest::default);
        self.is_watched()
    }

    pub fn is_watched(&self) -> bool {
        self.went.is_some()
    }

    /// What has come of the answer's body, at its end.
    pub(super) fn came(&mut self, received: Option<Digest>) {
        self.came = received;
    }

    /// The upstream that was chosen.
    pub fn sent_to(&mut self, upstream: &str) {
        upstream.clone_into(&mut self.upstream);
        if let Some(live) = &self.live {
            live.sent_to(upstream);
        }
    }

    /// Another answers in the upstream's place.
    pub fn served_by(&mut self, name: &'static str) {
        self.stand_in = name;
    }

    /// Who answers: the stand-in if there is one, else the upstream.
    pub fn who_served(&self) -> &str {
        if self.stand_in.is_empty() { &self.upstream } else { self.stand_in }
    }

    /// No answer will come; ours follows. Remembers how far the exchange had come.
    pub fn give_up(&mut self) {
        self.given_up = Some(self.phase());
    }

    /// A fact about who answers, for the record.
    pub fn label(&mut self, name: &str, value: &[u8]) {
        if !matches!(self.wanted, Wanted::Off(_)) {
            self.record.labels.push(Header { name: name.to_owned(), value: Bytes::copy_from_slice(value) });
        }
    }

    /// The worker behind the upstream that answers.
    pub fn worked_by(&mut self, worker: String) {
        self.worker = worker;
    }

    /// Lets go of the upstream because the client has left, and notes how long that took.
    pub fn let_go(&mut self, act: impl FnOnce()) {
        if !self.ended {
            let noticed = clock::now();
            act();
            self.let_go = Some(noticed.elapsed().as_secs_f64());
        }
    }

    /// Called with the first bytes of the answer's body.
    pub fn when_it_begins(&mut self, look: OnBegin) {
        self.on_begin.push(look);
    }

    /// From here on the connection carries another protocol, whose bytes are counted and not kept.
    pub fn switched(&mut self) {
        self.wanted = self.wanted.without_bodies();
    }

    /// Bytes of that protocol that have passed.
    pub fn carried(&mut self, up: u64, down: u64) {
        if down > 0 {
            self.first_byte();
        }
        self.carried_up += up;
        self.length += down;
    }

    fn first_byte(&mut self) {
        if self.first_byte.is_none() {
            self.first_byte = Some(self.started.elapsed().as_secs_f64());
            if let Some(live) = &self.live {
                live.answering();
            }
        }
    }

    /// The head of the answer is here.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.record.status = status.as_u16().into();
        if !matches!(self.wanted, Wanted::Off(_)) {
            self.record.response_headers = recorded(headers);
        }
    }

    /// Counts and keeps one frame that is on its way to the client.
    pub(super) fn frame(&mut self, data: &Bytes, edges: &[u32], to_come: u64) {
        self.first_byte();
        self.on_begin.drain(..).for_each(|look| look(data));
        self.length += data.len() as u64;
        if let Some(digest) = &mut self.went {
            digest.add(data);
        }
        if !self.wanted.bodies() || !self.response.push(data, to_come) {
            return;
        }
        let pieces = edges.len().max(1);
        // Each edge is two numbers of four bytes, in vectors that may be half empty.
        if !self.response.account(16 * pieces as u64) {
            return;
        }
        let now = clock::now();
        let micros = now.duration_since(self.previous).as_micros().min(u32::MAX.into()) as u32;
        self.previous = now;
        let lengths = &mut self.record.edge_lengths;
        match edges {
            [] => lengths.push(data.len() as u32),
            many => lengths.extend_from_slice(many),
        }
        self.record.edge_micros.push(micros);
        // Pieces that arrived together are 0 apart.
        self.record.edge_micros.resize(lengths.len(), 0);
    }

    pub(super) fn trailers(&mut self, trailers: &HeaderMap) {
        if !matches!(self.wanted, Wanted::Off(_)) {
            self.record.trailers = recorded(trailers);
        }
    }

    fn phase(&self) -> Phase {
        let sending = |copy: &Copied| copy.fate() != Fate::Whole;
        match self.given_up {
            Some(phase) => phase,
            None if self.first_byte.is_some() => Phase::ResponseBody,
            None if self.record.status == 0 && self.request.as_ref().is_some_and(sending) => {
                Phase::RequestBody
            }
            None => Phase::PreFirstByte,
        }
    }

    /// Ends the exchange; only the first call counts.
    pub fn finish(&mut self, end: End) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(live) = self.live.take() {
            live.over();
        }
        let phase = if end == End::Complete { Phase::Done } else { self.phase() };
        let elapsed = self.started.elapsed();
        let after = self.on_end.take().and_then(|settle| {
            settle(&Ended {
                end,
                phase,
                status: self.record.status as u16,
                upstream: if self.stand_in.is_empty() { &self.upstream } else { self.stand_in },
                worker: &self.worker,
                request: self.request.as_ref(),
                elapsed: elapsed.as_secs_f64(),
                first_byte: self.first_byte,
                bytes_up: self.request.as_ref().map_or(0, Copied::length) + self.carried_up,
                bytes_down: self.length,
                as_it_came: [
                    self.request.as_ref().and_then(Copied::went_as_it_came),
                    self.came.zip(self.went).map(|(came, went)| came == went),
                ],
                let_go: self.let_go,
            })
        });
        self.record.end = end.into();
        self.record.phase = phase.into();
        self.record.end_micros = elapsed.as_micros() as u64;
        self.record.first_byte_micros = self.first_byte.map_or(0, |seconds| (seconds * 1e6) as u64);
        self.record.upstream.clone_from(&self.upstream);
        self.stand_in.clone_into(&mut self.record.served_by);
        match self.wanted {
            Wanted::Off(why) => {
                self.recorder.ledger().off(self.record.origin(), why);
                after.into_iter().for_each(|after| after(&self.record));
            }
            Wanted::Some(mode, why) => self.offer(mode, why, after),
        }
    }

    fn offer(&mut self, mode: Mode, asked: Bare, after: Option<After>) {
        let mut exchange = std::mem::take(&mut self.record);
        let full = mode.wants_bodies();
        let none = Pieces::new(self.recorder.budget().lease(0));
        let response = std::mem::replace(&mut self.response, none);
        let mut cut = if full && response.overrun() { Some(Bare::Budget) } else { None };
        exchange.response_body_len = self.length;
        exchange.set_response_capture(Capture::of(full, response.overrun()));
        let (pieces, lease) = response.into_parts();
        let mut leases = vec![lease];
        if let Some(copy) = self.request.take() {
            let extent = copy.extent();
            exchange.request_body_len = copy.length() + self.carried_up;
            exchange.set_request_capture(Capture::of(full, extent != Extent::Whole));
            let (body, lease) = copy.take();
            exchange.request_body = body;
            leases.extend(lease);
            cut = match extent {
                Extent::Truncated if full => Some(Bare::Budget),
                Extent::Open | Extent::Broken if full => cut.or(Some(Bare::Unfinished)),
                _ => cut,
            };
        }
        let (level, why) = match (full, cut) {
            (true, None) => (Level::Full, Bare::No),
            (true, Some(why)) => (Level::Shape, why),
            (false, _) => (Level::Meta, asked),
        };
        exchange.record_level = level.into();
        // Counted as recorded only once it is durable; the writer does that.
        self.recorder.offer(Offered { exchange, pieces, mode, leases, why, asked, after });
    }
}

/// Headers as they may be stored.
pub fn recorded(headers: &HeaderMap) -> Vec<Header> {
    redact::headers(headers).into_iter().map(|(name, value)| Header { name, value: value.into() }).collect()
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // hyper tells of a vanished client in one way only: it drops what it was polling.
        self.finish(if self.recorder.is_stopping() { End::Shutdown } else { End::ClientCancelled });
    }
}
