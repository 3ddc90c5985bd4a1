//! Who answers a request: a member of its route's group, the engine in their place, or we ourselves.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};

use http_body::Body as _;
use hyper::Method;
use hyper::header::EXPECT;

use super::Parts;
use super::respond::{Form, Refusal, refuse};
use super::route::may_fall_back;
use crate::body::replay::Fate;
use crate::journal::record::End;
use crate::recorder::tap::{Cause as _, Exchange};
use crate::server::redirected::Redirected;
use crate::units::{Size, Span};
use crate::upstream::affinity::Preference;
use crate::upstream::affinity::keys::{self, Keys};
use crate::upstream::balance::{Choice, Group, Member, Ticket};
use crate::upstream::breaker::Outcome;
use crate::upstream::embedded::{self, Embedded};
use crate::upstream::original::Barred;
use crate::upstream::{Answer, Failed, Failure, Request, Response, Upstream as _};
use crate::{clock, ids};

/// The longest id of a worker that becomes a label.
const WORKER_LEN: usize = 64;

/// Calls an upstream. If it is down and the request is eligible, the engine answers instead, visibly; if nobody answers,
/// we do, and say how the exchange ended.
pub async fn answer(
    parts: &Parts,
    exchange: &mut Exchange,
    held: &Held,
    request: Request,
) -> (Response, Option<End>) {
    let form = Form::of(request.uri().path());
    if let Fate::TooLong { most, .. } = request.body().fate() {
        let cause = Failure::TooLarge(Size(most));
        return (refuse(&Refusal::Upstream { name: "", cause: &cause }, form), Some(cause.end()));
    }
    let original = match original(parts, exchange, &request) {
        Ok(original) => original,
        Err(barred) => return (refuse(&Refusal::Barred(barred), form), Some(End::ProxyRefused)),
    };
    let Some(group) = original.as_deref().or_else(|| parts.routes.choose(request.uri().path())) else {
        return match parts.embedded.as_ref().filter(|_| parts.routes.is_empty()) {
            Some(engine) => Box::pin(alone(engine, exchange, request)).await,
            None => (refuse(&Refusal::NoRoute, form), Some(End::ProxyRefused)),
        };
    };
    let eligible = may_fall_back(request.method(), request.uri().path());
    let Failed { cause, unsent } = match try_group(parts, group, exchange, held, request).await {
        Ok(response) => return (response, None),
        Err(failed) => failed,
    };
    if let (Some(engine), Some(request), Failure::Refused(_) | Failure::LeftAlone, true) =
        (&parts.embedded, unsent, &cause, eligible)
        && let Some(response) = Box::pin(engine.stand_in(*request)).await
    {
        let reason = if matches!(cause, Failure::LeftAlone) { "left_alone" } else { "refused" };
        parts.accounts.fell_back(exchange.origin(), reason);
        exchange.served_by(embedded::NAME);
        return (response, None);
    }
    let name = if exchange.who_served().is_empty() { group.name() } else { exchange.who_served() };
    (refuse(&Refusal::Upstream { name, cause: &cause }, form), Some(cause.end()))
}

/// In transparent mode, where the request's connection was going before it was redirected.
fn original(parts: &Parts, exchange: &mut Exchange, request: &Request) -> Result<Option<Arc<Group>>, Barred> {
    let redirected = request.extensions().get::<Redirected>().copied();
    let Some((originals, Redirected { from, to })) = parts.originals.as_ref().zip(redirected) else {
        return Ok(None);
    };
    exchange.label("destination", to.to_string().as_bytes());
    originals.group(from, to).map(Some)
}

/// Without any upstream the engine is the upstream.
async fn alone(engine: &Embedded, exchange: &mut Exchange, request: Request) -> (Response, Option<End>) {
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
    parts: &Parts,
    group: &Group,
    exchange: &mut Exchange,
    held: &Held,
    mut request: Request,
) -> Result<Response, Failed> {
    let mut tried: Option<Arc<Member>> = None;
    let conversation = Conversation::of(group, &mut request, parts.settings.idle).await;
    loop {
        let (not, preferred) = (tried.as_deref(), conversation.preferred);
        let choice = Choice { draw: draw(), not, preferred, now: clock::now() };
        let Some(ticket) = group.choose(choice) else {
            return Err(Failed { cause: Failure::LeftAlone, unsent: Some(Box::new(request)) });
        };
        let member = ticket.member().clone();
        exchange.sent_to(member.upstream().name());
        held.put(ticket);
        let call = Call { upstream: Some(member.upstream().call(request)), exchange };
        match call.await {
            Ok(response) => {
                conversation.went_to(group, &member, exchange);
                note_answer(group, &member, exchange, &response);
                if member.abort().is_some() {
                    let held = held.clone();
                    exchange.when_it_begins(Box::new(move |begin| held.note_id(begin)));
                }
                return Ok(response);
            }
            Err(Failed { cause: Failure::Refused(_), unsent: Some(unsent) })
                if tried.is_none() && group.has_another(&member) =>
            {
                held.settle(Outcome::Bad);
                (tried, request) = (Some(member), *unsent);
            }
            Err(failed) => {
                // Now, and not at the end: if the engine stands in, the end will be its own.
                held.settle(Outcome::heard(exchange.origin(), failed.cause.end(), 0));
                return Err(failed);
            }
        }
    }
}

/// A call of which is known how long it takes to take it back.
struct Call<'a> {
    upstream: Option<Answer<'a>>,
    exchange: &'a mut Exchange,
}

impl Future for Call<'_> {
    type Output = Result<Response, Failed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(upstream) = &mut self.upstream else { return Poll::Pending };
        let answer = std::task::ready!(upstream.as_mut().poll(cx));
        self.upstream = None;
        Poll::Ready(answer)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Some(upstream) = self.upstream.take() {
            self.exchange.let_go(|| drop(upstream));
        }
    }
}

/// What the head of an answer says of whoever gave it.
fn note_answer(group: &Group, member: &Member, exchange: &mut Exchange, response: &Response) {
    let balance = &group.balance().config;
    member.heard(response.status(), response.headers(), balance.retry_after_max.0);
    for (name, value) in member.labels() {
        exchange.label(name, value.as_bytes());
    }
    let mut first = true;
    for name in &balance.worker_headers {
        let Some(value) = response.headers().get(name) else { continue };
        exchange.label(name, value.as_bytes());
        if std::mem::take(&mut first) {
            let worker = value.to_str().ok().filter(|worker| worker.len() <= WORKER_LEN).unwrap_or("other");
            exchange.worked_by(worker.to_owned());
        }
    }
}

/// What a request's conversation is known by, where there is a choice of upstreams to be made for it.
struct Conversation {
    keys: Keys,
    preferred: Option<u64>,
    /// Its answer has an id that a later request may go on from.
    goes_on: bool,
}

impl Conversation {
    /// The beginning of the body is waited for only where the client names no session and says how long the body is: who
    /// talks both ways at once does not. `patience` bounds the wait; then what is here must do.
    async fn of(group: &Group, request: &mut Request, patience: Span) -> Self {
        let mut conversation = Self { keys: Keys::default(), preferred: None, goes_on: false };
        if !group.remembers() {
            return conversation;
        }
        conversation.goes_on = request.uri().path().starts_with("/v1/responses");
        conversation.keys = match Keys::of_headers(request.headers()) {
            Some(keys) => keys,
            None if tells_its_length(request) => {
                let most = group.balance().config.affinity_prefix.0 as usize;
                let _ = tokio::time::timeout(patience.0, request.body_mut().begin(most)).await;
                Keys::of_body(&request.body().begun(most), most)
            }
            None => Keys::default(),
        };
        conversation.preferred = group.balance().table.find(&conversation.keys);
        conversation
    }

    fn went_to(&self, group: &Group, member: &Member, exchange: &mut Exchange) {
        if !group.remembers() {
            return;
        }
        let (table, id) = (&group.balance().table, member.id());
        table.count(match self.preferred {
            Some(preferred) if preferred == id => Preference::Kept,
            Some(_) => Preference::Given,
            None => Preference::New,
        });
        table.note(&self.keys, id);
        if self.goes_on {
            let balance = group.balance().clone();
            exchange.when_it_begins(Box::new(move |begin| {
                if let Some(answer) = keys::answer_id(begin) {
                    balance.table.note(&Keys::of_id(answer), id);
                }
            }));
        }
    }
}

/// Whether the body is there to be waited for. Who waits to be told to continue is told so by the upstream.
fn tells_its_length(request: &Request) -> bool {
    request.method() == Method::POST
        && !request.headers().contains_key(EXPECT)
        && request.body().size_hint().exact().is_some()
}

/// Sixty-four bits nobody can foresee.
fn draw() -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&ids::entropy()[..8]);
    u64::from_le_bytes(bytes)
}

/// The place with an upstream that an exchange holds until its end, when the breaker hears how it went.
#[derive(Clone, Default)]
pub struct Held(Arc<Places>);

#[derive(Default)]
struct Places {
    ticket: Mutex<Option<Ticket>>,
    /// How many upstreams it was sent to.
    taken: AtomicU32,
    /// The id its answer bears.
    answer_id: OnceLock<String>,
}

impl Held {
    fn put(&self, ticket: Ticket) {
        self.0.taken.fetch_add(1, Relaxed);
        *self.0.ticket.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
    }

    /// How many upstreams the exchange was sent to.
    pub fn attempts(&self) -> u32 {
        self.0.taken.load(Relaxed)
    }

    /// Looks for the id of the answer that begins like this.
    fn note_id(&self, begin: &[u8]) {
        if let Some(Ok(id)) = keys::answer_id(begin).map(std::str::from_utf8) {
            let _ = self.0.answer_id.set(id.to_owned());
        }
    }

    pub fn answer_id(&self) -> Option<String> {
        self.0.answer_id.get().cloned()
    }

    /// Gives the place back; yields who it was with.
    pub fn settle(&self, outcome: Outcome) -> Option<Arc<Member>> {
        let ticket = self.0.ticket.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        ticket.ended(outcome);
        Some(ticket.member().clone())
    }
}
