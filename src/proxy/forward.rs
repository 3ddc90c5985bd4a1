//! One request from its arrival to the moment its answer's body starts to flow.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body::Body as _;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, COOKIE, HOST, HeaderName, HeaderValue};
use hyper::http::request;
use hyper::{HeaderMap, Method, StatusCode, Version};

use super::answer::{Held, answer};
use super::clients::Place;
use super::headers::{self, RECORD, REQUEST_ID, SERVED_BY};
use super::respond::{Form, Refusal, refuse};
use super::settle::{Permit, abort_id};
use super::upgrade::Wish;
use super::witness::Witness;
use super::{Parts, Response};
use crate::body::replay::{Copied, Fate, Replay};
use crate::body::unread::Unread;
use crate::fidelity::tag;
use crate::journal::record::{self, End, Origin};
use crate::recorder::Recorder;
use crate::recorder::ledger::{Bare, Off};
use crate::recorder::mode::Mode;
use crate::recorder::tap::{self, Exchange, Tap, Wanted};
use crate::server::Peer;
use crate::server::heads::Ambiguous;
use crate::units::Span;
use crate::upstream::breaker::Outcome;
use crate::upstream::{self, Body, embedded};
use crate::{clock, ids, redact};

/// Forwards `request`, or answers it from here when nothing else can.
pub async fn forward(parts: Arc<Parts>, request: hyper::Request<Incoming>) -> Result<Response, Infallible> {
    let parts = &*parts;
    let arrived = clock::now();
    let (mut head, body) = request.into_parts();
    let origin = origin(parts, &head.headers);
    let recorder = recorder(parts, &head.headers, origin);
    let mut wanted = wanted(&recorder, &head.headers, origin);
    let form = Form::of(head.uri.path());
    let malformed = malformed(&head);
    let closes = malformed.is_some();
    headers::strip_ours(&mut head.headers);
    let record = begin(&head, origin);
    let turn = (origin == Origin::Canary).then(|| record.id.clone());
    let peer = head.extensions.remove::<Peer>().map(|peer| peer.0);
    let unread = head.extensions.remove::<Unread>();
    let witness = parts.observers.begin(&mut head, origin, peer);
    let made_id = headers::ensure_id(&mut head.headers, &record.id);
    let wish = Wish::of(&mut head, &parts.settings.upgrades).filter(|_| body.is_end_stream());
    headers::end_hop(&mut head.headers);
    if let Some(wish) = &wish {
        wish.say(&mut head.headers);
    }
    if head.version == Version::HTTP_2 {
        join_cookies(&mut head.headers);
    }

    let admitted = admit(parts, &head.headers, origin, peer, &record);
    if admitted.is_err() {
        wanted = wanted.without_bodies();
    }
    let (permit, turned_away) =
        admitted.map_or_else(|refusal| (None, Some(refusal)), |permit| (Some(permit), None));
    let held = Held::default();
    let settle = settle(parts, &head.headers, held.clone(), origin, permit, witness);
    let body_copy = parts.settings.body_copy;
    let lease = recorder.budget().lease(body_copy);
    let mut exchange = Exchange::begin(recorder, wanted, record, arrived, body_copy, settle);
    let lease = exchange.wants_bodies().then_some(lease);
    let watched = exchange.watch(parts.settings.digest_sample);
    let body = Replay::live(body, lease, parts.settings.body).watched(watched).leaving(unread);
    let copy = body.copy();
    exchange.request_body(copy.clone());
    let to_head = head.method == Method::HEAD;

    let before = clock::now().duration_since(arrived);
    let (mut response, end) = match turned_away.or(malformed) {
        Some(refusal) => (refuse(&refusal, form), Some(End::ProxyRefused)),
        None => answer(parts, &mut exchange, &held, hyper::Request::from_parts(head, body)).await,
    };
    let answered = clock::now();
    if end.is_some() {
        exchange.give_up();
    }
    finish_head(response.headers_mut(), made_id, turn.as_deref(), exchange.who_served());
    if parts.settings.no_buffering {
        headers::ask_not_to_buffer(response.headers_mut());
    }
    if closes || response.status() == StatusCode::PAYLOAD_TOO_LARGE && note_too_large(parts, origin, &copy) {
        // Whoever sends this may mean something else by what follows it.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    *response.version_mut() = Version::HTTP_11;
    exchange.answered(response.status(), response.headers());
    if let Some(end) = end {
        exchange.finish(end);
    }
    let response = deliver(response, exchange, wish, parts.settings.idle, to_head);
    parts.accounts.overhead(origin, before + clock::now().duration_since(answered));
    Ok(response)
}

/// Whether the request was refused for its size.
fn note_too_large(parts: &Parts, origin: Origin, body: &Copied) -> bool {
    let Fate::TooLong { most, seen } = body.fate() else { return false };
    parts.accounts.too_large(origin);
    tracing::info!(bytes = seen, most, "a request was larger than [limits] body");
    true
}

/// The one callback that runs when an exchange ends, however it does.
fn settle(
    parts: &Parts,
    headers: &HeaderMap,
    held: Held,
    origin: Origin,
    permit: Option<(Permit, Option<Place>)>,
    witness: Option<Witness>,
) -> tap::OnEnd {
    let accounts = parts.accounts.clone();
    let aborts = parts.aborts.clone().map(|aborts| (aborts, headers.get(&REQUEST_ID).cloned()));
    Box::new(move |ended| {
        let member = held.settle(Outcome::heard(origin, ended.end, ended.status));
        accounts.settle(origin, ended);
        drop(permit);
        if let (Some((aborts, request_id)), Some(member)) = (aborts, member)
            && member.abort().is_some()
            && let Some(id) = abort_id(ended, held.answer_id(), request_id.as_ref())
        {
            aborts.tell(member, id);
        }
        witness.map(|witness| witness.ended(ended, held.attempts()))
    })
}

/// Hands the answer on: its body in a tap, or the connection itself where both sides agreed to another protocol.
fn deliver(
    response: upstream::Response,
    mut exchange: Exchange,
    wish: Option<Wish>,
    idle: Span,
    to_head: bool,
) -> Response {
    let (mut head, body) = response.into_parts();
    // Nobody asks for the body of these (RFC 9110, section 6.4.1), though over HTTP/2 its end may come later.
    let bodiless = to_head || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    match (body, wish) {
        (Body::Switched(far), Some(wish)) => {
            wish.say(&mut head.headers);
            exchange.switched();
            wish.grant(*far, exchange, idle);
            hyper::Response::from_parts(head, Tap::bare(Body::whole("")))
        }
        (body, _) => hyper::Response::from_parts(head, Tap::new(body, exchange, bodiless)),
    }
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

/// Lets a request in: first past its client's own limits, then past those of all. Canaries are no clients.
fn admit(
    parts: &Parts,
    headers: &HeaderMap,
    origin: Origin,
    peer: Option<SocketAddr>,
    record: &record::Exchange,
) -> Result<(Permit, Option<Place>), Refusal<'static>> {
    let place = match origin {
        Origin::Client => parts.clients.admit(&parts.settings.client_terms, headers, peer, clock::now()),
        Origin::Canary => Ok(None),
    };
    let place = place.map_err(Refusal::Limited)?;
    let permit = parts.accounts.admit(origin, record).ok_or(Refusal::Overloaded)?;
    Ok((permit, place))
}

/// What hyper lets pass and no proxy should.
pub fn malformed(head: &request::Parts) -> Option<Refusal<'static>> {
    let hosts = head.headers.get_all(HOST).iter().count();
    match head.version {
        _ if head.method == Method::CONNECT => Some(Refusal::Connect),
        _ if head.extensions.get::<Ambiguous>().is_some() => Some(Refusal::Framing),
        Version::HTTP_11 if hosts != 1 => Some(Refusal::Host),
        _ if hosts > 1 => Some(Refusal::Host),
        _ => None,
    }
}

/// The recorder of the tenant whose request this is. Canaries are nobody's.
fn recorder(parts: &Parts, headers: &HeaderMap, origin: Origin) -> Recorder {
    match origin {
        Origin::Client => parts.recorder.of(parts.tenants.of(headers)),
        Origin::Canary => parts.recorder.clone(),
    }
}

/// What the operator and the client let us record: the least of it. Canaries' words are our own.
fn wanted(recorder: &Recorder, headers: &HeaderMap, origin: Origin) -> Wanted {
    if origin == Origin::Canary {
        return Wanted::Some(Mode::Full, Bare::No);
    }
    let policy = recorder.mode();
    let asked = if recorder.opt_out() { Mode::asked(headers, &RECORD) } else { Mode::Full };
    match policy.min(asked) {
        Mode::Off if asked == Mode::Off => Wanted::Off(Off::OptOut),
        Mode::Off => Wanted::Off(Off::Policy),
        mode => Wanted::Some(mode, if asked < policy { Bare::Asked } else { Bare::Policy }),
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

/// The few headers we may add to an answer.
fn finish_head(headers: &mut HeaderMap, made_id: Option<HeaderValue>, canary: Option<&str>, served_by: &str) {
    headers::end_hop(headers);
    if let (Some(id), false) = (made_id, headers.contains_key(&REQUEST_ID)) {
        headers.insert(REQUEST_ID, id);
    }
    if served_by == embedded::NAME {
        headers.insert(SERVED_BY, HeaderValue::from_static(embedded::NAME));
    }
    let told = canary.map(|turn| [(tag::UPSTREAM_HEADER, served_by), (tag::TURN_HEADER, turn)]);
    for (name, value) in told.into_iter().flatten() {
        if let Ok(value) = value.parse() {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}
