//! What was recorded, for readers of the admin side. Reads are few at a time, and touch nothing that the recorder waits for.

use std::path::PathBuf;

use hyper::header::{ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_RANGE, ETAG, HeaderName, IF_RANGE, RANGE};
use hyper::{HeaderMap, StatusCode};
use serde_json::json;
use tokio::sync::Semaphore;

use super::answer::{Answer, BYTES, Refusal};
use super::range::{Part, part};
use super::routes::Given;
use crate::clock;
use crate::conversation::{Asked, Conversations, Error, Sessions};
use crate::journal::{self, Capture};
use crate::recorder::tenant::{DEFAULT, Tenant};

/// Conversations in one answer.
const LIMIT: usize = 100;
const MOST: usize = 1000;

/// Which body of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Request,
    Response,
}

pub struct Recordings {
    /// The default one comes first.
    tenants: Vec<Tenant>,
    readers: Semaphore,
    most: usize,
}

impl Recordings {
    /// With `readers` reads at the same time; others are asked to come back.
    pub fn new(tenants: Vec<Tenant>, readers: usize) -> Recordings {
        Recordings { tenants, readers: Semaphore::new(readers), most: readers }
    }

    /// Conversations, the one with the latest activity first.
    pub fn list(&self, given: &Given) -> Result<Answer, Refusal> {
        known(
            given,
            &[
                "since", "until", "model", "upstream", "flag", "verdict", "limit", "cursor", "tenant",
                "canary",
            ],
        )?;
        let limit = match given.query("limit") {
            None => LIMIT,
            Some(text) => text
                .parse()
                .ok()
                .filter(|limit| (1..=MOST).contains(limit))
                .ok_or_else(|| bad(format!("limit: {text:?} is no number from 1 to {MOST}")))?,
        };
        let asked = Asked {
            since: given.query("since"),
            until: given.query("until"),
            model: given.query("model"),
            upstream: given.query("upstream"),
            flags: given.all("flag"),
            verdicts: given.all("verdict"),
            cursor: given.query("cursor"),
            limit,
        };
        let filter = asked.filter(clock::unix_nanos()).map_err(bad)?;
        let page = self.look(given, |sessions| sessions.page(&filter))?;
        Ok(Answer::json(&json!({"sessions": page.lines, "cursor": page.cursor})))
    }

    /// One conversation, with what was said or without.
    pub fn session(&self, given: &Given, bodies: bool) -> Result<Answer, Refusal> {
        known(given, &["bodies", "tenant", "canary"])?;
        let id = given.path("id");
        match bodies {
            true => Ok(Answer::json(&self.look(given, |sessions| sessions.show(id))?)),
            false => Ok(Answer::json(&self.look(given, |sessions| sessions.outline(id))?)),
        }
    }

    /// The bytes of a body as they were recorded, or a part of them.
    pub fn body(&self, given: &Given, side: Side, headers: &HeaderMap) -> Result<Answer, Refusal> {
        known(given, &["tenant", "canary"])?;
        let id = given.path("id");
        let exchange = self.look(given, |sessions| sessions.exchange_of(id))?;
        let (body, capture, len, masked) = match side {
            Side::Request => (
                exchange.request_body.clone(),
                exchange.request_capture(),
                exchange.request_body_len,
                !exchange.request_kept_hash.is_empty(),
            ),
            Side::Response => (
                exchange.response_body.clone(),
                exchange.response_capture(),
                exchange.response_body_len,
                !exchange.response_kept_hash.is_empty(),
            ),
        };
        if capture == Capture::None {
            let remedy =
                "its hash and length are in the turn; [record] says what is kept, of whom, and for how long";
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                "this body was not kept, or no longer is",
                "turn",
                remedy,
            ));
        }
        let etag = format!("\"{}\"", &blake3::hash(&body).to_hex()[..32]);
        let fits = headers.get(IF_RANGE).is_none_or(|value| value.as_bytes() == etag.as_bytes());
        let range = headers.get(RANGE).filter(|_| fits).map(|value| value.as_bytes());
        let kept = body.len();
        let answer = match part(range, kept) {
            Part::Whole => Answer::new(BYTES, body),
            Part::Of(range) => {
                let place = format!("bytes {}-{}/{kept}", range.start, range.end - 1);
                let answer = Answer::new(BYTES, body.slice(range)).status(StatusCode::PARTIAL_CONTENT);
                answer.with(CONTENT_RANGE, place)
            }
            Part::None => {
                let message = format!("there are {kept} bytes, and none in that range");
                let status = StatusCode::RANGE_NOT_SATISFIABLE;
                let refusal = Refusal::new(status, message, "Range", "ask for bytes that are there");
                return Ok(Answer::from(refusal).with(CONTENT_RANGE, format!("bytes */{kept}")));
            }
        };
        let capture = if capture == Capture::Whole { "whole" } else { "truncated" };
        Ok(answer
            .with(ACCEPT_RANGES, "bytes")
            .with(ETAG, etag)
            .with(CONTENT_DISPOSITION, "attachment")
            .with(HeaderName::from_static("x-serin-capture"), capture)
            .with(HeaderName::from_static("x-serin-masked"), masked.to_string())
            .with(HeaderName::from_static("x-serin-body-length"), len.to_string()))
    }

    /// Whether a request concerns what canaries have recorded.
    pub fn is_canary(given: &Given) -> bool {
        given.is_set("canary")
    }

    /// Whose recordings a request concerns: the name in its path or query, else the default tenant's.
    pub fn whose(&self, given: &Given) -> Result<&Tenant, Refusal> {
        let named = Self::tenant(given);
        let default = &self.tenants[0].name;
        if Self::is_canary(given) && named != *default {
            return Err(bad(format!("canaries belong to no tenant; leave canary or {named:?} out")));
        }
        self.tenants.iter().find(|tenant| tenant.name == named).ok_or_else(|| {
            let known: Vec<&str> = self.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
            let message = format!("there is no tenant {named:?}; there is {}", known.join(", "));
            Refusal::new(StatusCode::NOT_FOUND, message, "tenant", "write the name of one of them")
        })
    }

    /// The name of a tenant that a request gives.
    pub fn tenant(given: &Given) -> String {
        match given.path("tenant") {
            "" => given.query("tenant").unwrap_or_else(|| DEFAULT.to_owned()),
            named => named.to_owned(),
        }
    }

    /// The journal's directory.
    pub fn dir(&self, given: &Given) -> Result<PathBuf, Refusal> {
        let dir = &self.whose(given)?.config.dir;
        Ok(if Self::is_canary(given) { dir.join("canary") } else { dir.clone() })
    }

    fn look<T>(&self, given: &Given, look: impl FnOnce(&Sessions) -> Result<T, Error>) -> Result<T, Refusal> {
        let _permit = self.readers.try_acquire().map_err(|_| {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            Refusal::new(
                status,
                format!("{} readers are being answered already ([admin] readers)", self.most),
                "here",
                "ask again in a second",
            )
        })?;
        let options = self.whose(given)?.options.clone();
        let sessions = Conversations::read_live(&self.dir(given)?, options).map_err(refusal)?;
        look(&sessions).map_err(refusal)
    }
}

/// A key that is not known could be a filter that was misspelt.
pub fn known(given: &Given, keys: &[&str]) -> Result<(), Refusal> {
    match given.unknown(keys) {
        None => Ok(()),
        Some(key) if keys.is_empty() => Err(bad(format!("{key:?} is no parameter; there is none"))),
        Some(key) => Err(bad(format!("{key:?} is no parameter; it is one of {}", keys.join(", ")))),
    }
}

pub fn bad(message: String) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        message,
        "query",
        "GET /api/v1/openapi.json describes every parameter",
    )
}

/// What is said of what went wrong with recordings.
pub fn refusal(error: Error) -> Refusal {
    let (status, place, remedy) = match &error {
        Error::Unknown(_) | Error::Near { .. } | Error::UnknownTurn { .. } => {
            (StatusCode::NOT_FOUND, "id", "GET /api/v1/sessions lists what there is")
        }
        Error::Ambiguous { .. } => (StatusCode::CONFLICT, "id", "send more of the id"),
        Error::Journal(journal::Error::Missing { .. }) => {
            (StatusCode::NOT_FOUND, "[record] dir", "nothing has been recorded there yet")
        }
        Error::Journal(journal::Error::KeyMissing { .. }) => {
            (StatusCode::CONFLICT, "[record] key_file", "give the opened key, or read where it is")
        }
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "[record] dir", "look at the log and at the disk"),
    };
    Refusal::new(status, error.to_string(), place, remedy)
}
