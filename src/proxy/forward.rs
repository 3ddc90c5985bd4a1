//! One request from its arrival to the moment its answer's body starts to flow.

use std::sync::{Arc, Mutex, PoisonError};

use hyper::body::Incoming;
use hyper::header::{CONNECTION, COOKIE, HOST, HeaderValue};
use hyper::http::request;
use hyper::{HeaderMap, Method, Version};

use super::headers::{self, RECORD, REQUEST_ID, SERVED_BY};
use super::respond::{Form, Refusal, refuse};
use super::route::may_fall_back;
use super::{Parts, Response};
use crate::body::replay::Replay;
use crate::fidelity::tag;
use crate::journal::record::{self, End, Origin};
use crate::recorder::ledger::Off;
use crate::recorder::tap::{self, Cause as _, Exchange, Tap, Wanted};
use crate::upstream::balance::{Group, Member, Ticket};
use crate::upstream::breaker::Outcome;
use crate::upstream::embedded::{self, Embedded};
use crate::upstream::{self, Failed, Failure, Upstream as _};
use crate::{clock, ids, redact};

/// Forwards `request`, or answers it from here when nothing else can.
pub async fn forward(parts: &Parts, request: hyper::Request<Incoming>) -> Response {
    let arrived = clock::now();
    let (mut head, body) = request.into_parts();
    let origin = origin(parts, &head.headers);
    let mut wanted = wanted(parts, &head.headers);
    let form = Form::of(head.uri.path());
    let malformed = malformed(&head);
    let closes = malformed.is_some();
    headers::strip_ours(&mut head.headers);
    let record = begin(&head, origin);
    let made_id = headers::ensure_id(&mut head.headers, &record.id);
    headers::end_hop(&mut head.headers);
    if head.version == Version::HTTP_2 {
        join_cookies(&mut head.headers);
    }

    let permit = parts.accounts.admit(origin, &record);
    let shed = permit.is_none();
    if shed && wanted == Wanted::Full {
        wanted = Wanted::Meta;
    }
    let accounts = parts.accounts.clone();
    let held = Held::default();
    let place = held.clone();
    let settle = move |ended: &tap::Ended<'_>| {
        place.settle(Outcome::of(ended.end, ended.status));
        accounts.settle(origin, ended);
        drop(permit);
    };
    let recorder = parts.recorder.clone();
    let mut exchange = Exchange::begin(recorder, wanted, record, arrived, parts.body_copy, Box::new(settle));
    let lease = exchange.wants_bodies().then(|| parts.recorder.budget().lease(parts.body_copy));
    let body = Replay::live(body, lease);
    exchange.request_body(body.copy());
    let bodiless = head.method == Method::HEAD;

    let before = clock::now().duration_since(arrived);
    let refusal = if shed { Some(Refusal::Overloaded) } else { malformed };
    let (mut response, end) = match refusal {
        Some(refusal) => (refuse(&refusal, form), Some(End::ProxyRefused)),
        None => answer(parts, &mut exchange, &held, hyper::Request::from_parts(head, body)).await,
    };
    let answered = clock::now();
    if end.is_some() {
        exchange.give_up();
    }
    finish_head(response.headers_mut(), made_id, origin, exchange.who_served());
    if closes {
        // Whoever sends this may mean something else by what follows it.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    *response.version_mut() = Version::HTTP_11;
    exchange.answered(response.status(), response.headers());
    if let Some(end) = end {
        exchange.finish(end);
    }
    let response = response.map(|body| Tap::new(body, exchange, bodiless));
    parts.accounts.overhead(origin, before + clock::now().duration_since(answered));
    response
}

/// Who sent this. A tag that does not verify makes nobody a canary.
fn origin(parts: &Parts, headers: &HeaderMap) -> Origin {
    let Some(tag) = headers.get(tag::HEADER) else { return Origin::Client };
    match tag.to_str().ok().and_then(|tag| parts.tag_key.verify(tag)) {
        Some(_) => Origin::Canary,
        None => {
            parts.accounts.forged_tag();
            Origin::Client
        }
    }
}

/// What hyper lets pass and no proxy should.
fn malformed(head: &request::Parts) -> Option<Refusal<'static>> {
    let hosts = head.headers.get_all(HOST).iter().count();
    match head.version {
        _ if head.method == Method::CONNECT => Some(Refusal::Connect),
        Version::HTTP_11 if hosts != 1 => Some(Refusal::Host),
        _ if hosts > 1 => Some(Refusal::Host),
        _ => None,
    }
}

/// What the client lets us record; said more than once, the least counts. A value we do not know can only have been
/// meant to lower it.
fn wanted(parts: &Parts, headers: &HeaderMap) -> Wanted {
    if !parts.recorder.opt_out() {
        return Wanted::Full;
    }
    let asked: Vec<&[u8]> = headers.get_all(RECORD).iter().map(HeaderValue::as_bytes).collect();
    if asked.contains(&b"off".as_slice()) {
        Wanted::Off(Off::OptOut)
    } else if asked.iter().all(|value| *value == b"full") {
        Wanted::Full
    } else {
        Wanted::Meta
    }
}

/// The record of a request as it arrived.
fn begin(head: &request::Parts, origin: Origin) -> record::Exchange {
    let begun = clock::unix_nanos();
    let mut random = [0; 10];
    random.copy_from_slice(&ids::entropy()[..10]);
    record::Exchange {
        id: ids::sortable(begun, random),
        started_unix_nanos: begun,
        origin: origin.into(),
        method: head.method.as_str().to_owned(),
        target: redact::target(head.uri.path_and_query().map_or("/", |target| target.as_str())),
        request_headers: tap::recorded(&head.headers),
        ..Default::default()
    }
}

/// HTTP/2 clients may send a cookie in pieces; HTTP/1.1 knows one field (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let pieces: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if pieces.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&pieces.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// Calls an upstream. If it is down and the request is eligible, the engine answers instead, visibly; if nobody answers,
/// we do, and say how the exchange ended.
async fn answer(
    parts: &Parts,
    exchange: &mut Exchange,
    held: &Held,
    request: upstream::Request,
) -> (upstream::Response, Option<End>) {
    let form = Form::of(request.uri().path());
    let Some(group) = parts.routes.choose(request.uri().path()) else {
        return match parts.embedded.as_ref().filter(|_| parts.routes.is_empty()) {
            Some(engine) => alone(engine, exchange, request).await,
            None => (refuse(&Refusal::NoRoute, form), Some(End::ProxyRefused)),
        };
    };
    let eligible = may_fall_back(request.method(), request.uri().path());
    let Failed { cause, unsent } = match try_group(group, exchange, held, request).await {
        Ok(response) => return (response, None),
        Err(failed) => failed,
    };
    if let (Some(engine), Some(request), Failure::Refused(_) | Failure::LeftAlone, true) =
        (&parts.embedded, unsent, &cause, eligible)
        && let Some(response) = engine.stand_in(*request).await
    {
        let reason = if matches!(cause, Failure::LeftAlone) { "left_alone" } else { "refused" };
        parts.accounts.fell_back(exchange.origin(), reason);
        exchange.served_by(embedded::NAME);
        return (response, None);
    }
    let name = if exchange.who_served().is_empty() { group.name() } else { exchange.who_served() };
    (refuse(&Refusal::Upstream { name, cause: &cause }, form), Some(cause.end()))
}

/// Without any upstream the engine is the upstream.
async fn alone(
    engine: &Embedded,
    exchange: &mut Exchange,
    request: upstream::Request,
) -> (upstream::Response, Option<End>) {
    let form = Form::of(request.uri().path());
    exchange.sent_to(embedded::NAME);
    exchange.served_by(embedded::NAME);
    match engine.call(request).await {
        Ok(response) => (response, None),
        Err(Failed { cause, .. }) => {
            (refuse(&Refusal::Upstream { name: embedded::NAME, cause: &cause }, form), Some(cause.end()))
        }
    }
}

/// Sends the request to a member of the group. One that cannot be reached has seen nothing of it: then another is tried,
/// once.
async fn try_group(
    group: &Group,
    exchange: &mut Exchange,
    held: &Held,
    mut request: upstream::Request,
) -> Result<upstream::Response, Failed> {
    let mut tried: Option<Arc<Member>> = None;
    loop {
        let Some(ticket) = group.choose(draw(), tried.as_deref(), clock::now()) else {
            return Err(Failed { cause: Failure::LeftAlone, unsent: Some(Box::new(request)) });
        };
        let member = ticket.member().clone();
        exchange.sent_to(member.upstream().name());
        held.put(ticket);
        match member.upstream().call(request).await {
            Ok(response) => return Ok(response),
            Err(Failed { cause: Failure::Refused(_), unsent: Some(unsent) })
                if tried.is_none() && group.has_another(&member) =>
            {
                held.settle(Outcome::Bad);
                (tried, request) = (Some(member), *unsent);
            }
            Err(failed) => {
                // Now, and not at the end: if the engine stands in, the end will be its own.
                held.settle(Outcome::of(failed.cause.end(), 0));
                return Err(failed);
            }
        }
    }
}

/// Sixty-four bits nobody can foresee.
fn draw() -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&ids::entropy()[..8]);
    u64::from_le_bytes(bytes)
}

/// The place with an upstream that an exchange holds until its end, when the breaker hears how it went.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Option<Ticket>>>);

impl Held {
    fn put(&self, ticket: Ticket) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
    }

    fn settle(&self, outcome: Outcome) {
        if let Some(ticket) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            ticket.ended(outcome);
        }
    }
}

/// The few headers we may add to an answer.
fn finish_head(headers: &mut HeaderMap, made_id: Option<HeaderValue>, origin: Origin, served_by: &str) {
    headers::end_hop(headers);
    if let (Some(id), false) = (made_id, headers.contains_key(&REQUEST_ID)) {
        headers.insert(REQUEST_ID, id);
    }
    if served_by == embedded::NAME {
        headers.insert(SERVED_BY, HeaderValue::from_static(embedded::NAME));
    }
    if origin == Origin::Canary
        && let Ok(name) = served_by.parse()
    {
        headers.insert(tag::UPSTREAM_HEADER, name);
    }
}
