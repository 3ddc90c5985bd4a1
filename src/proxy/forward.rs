//! One request from its arrival to the moment its answer's body starts to flow.

use std::time::Instant;

use hyper::body::Incoming;
use hyper::http::request;
use hyper::{HeaderMap, Version};

use super::headers::{self, CANARY, RECORD, REQUEST_ID, SERVED_BY, UPSTREAM};
use super::respond::{Refusal, refuse};
use super::route::Api;
use super::{Parts, Response};
use crate::body::replay::Replay;
use crate::journal::record::{self, End, Origin};
use crate::recorder::ledger::Off;
use crate::recorder::tap::{self, Cause as _, Exchange, Tap, Wanted};
use crate::upstream::{self, Failed, Failure, embedded};
use crate::{clock, ids, redact};

/// Forwards `request`, or answers it from here when nothing else can.
pub async fn forward(parts: &Parts, request: hyper::Request<Incoming>) -> Response {
    let arrived = clock::now();
    let (mut head, body) = request.into_parts();
    let api = Api::of(&head.method, head.uri.path());
    let origin = origin(parts, &head.headers);
    let wanted = wanted(parts, &head.headers);
    headers::strip_ours(&mut head.headers);
    let record = begin(&head, origin);
    let made_id = headers::ensure_id(&mut head.headers, &record.id);
    headers::end_hop(&mut head.headers);

    let Some(mut exchange) = admit(parts, record, origin, wanted, arrived) else {
        return shed(parts, &head, origin, arrived);
    };
    let lease = exchange.wants_bodies().then(|| parts.recorder.budget().lease(parts.body_copy));
    let body = Replay::live(body, lease);
    exchange.request_body(body.copy());
    let path = head.uri.path().to_owned();
    let before = clock::now().duration_since(arrived);
    let mut response = answer(parts, &mut exchange, api, &path, hyper::Request::from_parts(head, body)).await;

    let answered = clock::now();
    finish_head(response.headers_mut(), made_id, origin, &exchange);
    *response.version_mut() = Version::HTTP_11;
    exchange.answered(response.status(), response.headers());
    let response = response.map(|body| Tap::new(body, exchange));
    parts.accounts.overhead((before + clock::now().duration_since(answered)).as_secs_f64());
    response
}

/// Who sent this. A tag that does not verify makes nobody a canary.
fn origin(parts: &Parts, headers: &HeaderMap) -> Origin {
    let Some(tag) = headers.get(CANARY) else { return Origin::Client };
    match tag.to_str().ok().and_then(|tag| parts.tag_key.verify(tag)) {
        Some(_) => Origin::Canary,
        None => {
            parts.accounts.forged_tag();
            Origin::Client
        }
    }
}

/// What the client lets us record. A value we do not know can only have been meant to lower it.
fn wanted(parts: &Parts, headers: &HeaderMap) -> Wanted {
    let asked = headers.get(RECORD).filter(|_| parts.recorder.opt_out());
    match asked.map(|value| value.as_bytes()) {
        None | Some(b"full") => Wanted::Full,
        Some(b"off") => Wanted::Off(Off::OptOut),
        Some(_) => Wanted::Meta,
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

fn admit(
    parts: &Parts,
    record: record::Exchange,
    origin: Origin,
    wanted: Wanted,
    arrived: Instant,
) -> Option<Exchange> {
    let path = record.target.split('?').next().unwrap_or_default();
    let permit = parts.accounts.admit(&record.id, record.started_unix_nanos, path)?;
    let accounts = parts.accounts.clone();
    let settle = move |ended: &tap::Ended<'_>| {
        accounts.settle(origin, ended);
        drop(permit);
    };
    Some(Exchange::begin(parts.recorder.clone(), wanted, record, arrived, parts.body_copy, Box::new(settle)))
}

/// The answer when every permit is taken; it is counted and recorded like any other, without its body.
fn shed(parts: &Parts, head: &request::Parts, origin: Origin, arrived: Instant) -> Response {
    let accounts = parts.accounts.clone();
    let settle = move |ended: &tap::Ended<'_>| accounts.settle(origin, ended);
    let record = begin(head, origin);
    let mut exchange =
        Exchange::begin(parts.recorder.clone(), Wanted::Meta, record, arrived, 0, Box::new(settle));
    let response = refuse(&Refusal::Overloaded);
    exchange.answered(response.status(), response.headers());
    exchange.finish(End::ProxyRefused);
    response.map(|body| Tap::new(body, exchange))
}

/// Calls the upstream; if it is down and the request is eligible, the engine answers instead, visibly.
async fn answer(
    parts: &Parts,
    exchange: &mut Exchange,
    api: Api,
    path: &str,
    request: upstream::Request,
) -> upstream::Response {
    let Some(chosen) = parts.choose(path) else {
        exchange.finish(End::ProxyRefused);
        return refuse(&Refusal::NoRoute);
    };
    exchange.sent_to(chosen.name());
    if chosen.name() == embedded::NAME {
        exchange.served_by(embedded::NAME);
    }
    let Failed { cause, unsent } = match chosen.call(request).await {
        Ok(response) => return response,
        Err(failed) => failed,
    };
    if let (Some(engine), Some(request), Failure::Refused(_), true) =
        (&parts.embedded, unsent, &cause, api.may_fall_back())
        && let Ok(response) = engine.stand_in(*request).await
    {
        parts.accounts.fell_back("refused");
        exchange.served_by(embedded::NAME);
        return response;
    }
    let response = refuse(&Refusal::Upstream { name: chosen.name(), cause: &cause });
    exchange.answered(response.status(), response.headers());
    exchange.finish(cause.end());
    response
}

/// The few headers we may add to an answer.
fn finish_head(
    headers: &mut HeaderMap,
    made_id: Option<hyper::header::HeaderValue>,
    origin: Origin,
    exchange: &Exchange,
) {
    headers::end_hop(headers);
    if let (Some(id), false) = (made_id, headers.contains_key(&REQUEST_ID)) {
        headers.insert(REQUEST_ID, id);
    }
    let served_by = exchange.who_served();
    if served_by == embedded::NAME {
        headers.insert(SERVED_BY, hyper::header::HeaderValue::from_static(embedded::NAME));
    }
    if origin == Origin::Canary
        && let Ok(name) = served_by.parse()
    {
        headers.insert(UPSTREAM, name);
    }
}
