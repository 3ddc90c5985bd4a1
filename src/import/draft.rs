//! An exchange in the making, as all formats have it.

use std::collections::HashMap;

use bytes::Bytes;

use super::{Format, Input};
use crate::journal::{Capture, End, Exchange, Header, Level, Phase};
use crate::openai::Api;
use crate::{ids, redact};

/// Who answered, as far as is known.
const UPSTREAM: &str = "imported";
/// The header that tells stitching which session an entry is of, where its format says so outside the request.
const SESSION: &str = "x-session-id";
const MILLISECOND: u64 = 1_000_000;

/// What a format says of an exchange.
#[derive(Debug, Default)]
pub struct Draft {
    /// What its source calls it.
    pub name: String,
    /// The session it belongs to, where the source says so outside the request.
    pub session: Option<String>,
    pub started_unix_nanos: u64,
    pub method: String,
    /// See [`target`].
    pub target: String,
    pub request_headers: Vec<Header>,
    pub request_body: Bytes,
    pub reply: Option<Reply>,
}

/// What was answered.
#[derive(Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<Header>,
    /// `None` where it was not kept.
    pub body: Option<Bytes>,
    /// How long the body was, kept or not.
    pub len: u64,
    /// Microseconds from the start of the request to its end, and to the first byte of the body.
    pub end_micros: u64,
    pub first_byte_micros: u64,
    pub edge_lengths: Vec<u32>,
    pub edge_micros: Vec<u32>,
    /// What the answer was taken from, where nobody has recorded it.
    pub taken_from: Option<&'static str>,
}

impl Draft {
    /// Whether this is a turn of a conversation.
    pub fn is_turn(&self) -> bool {
        let path = self.target.split('?').next().unwrap_or_default();
        self.method == "POST" && Api::of_path(path).is_some()
    }
}

impl Reply {
    /// JSON, with a status.
    pub fn json(status: u16, body: Bytes) -> Reply {
        let len = body.len() as u64;
        Reply { status, headers: vec![json()], body: Some(body), len, ..Reply::default() }
    }
}

/// Makes exchanges of one format, each with an id of its own that is the same the next time.
pub struct Making {
    format: Format,
    /// How often the same was there before in this file: a request may really have been made twice.
    seen: HashMap<[u8; 16], u32>,
}

impl Making {
    pub fn new(format: Format) -> Making {
        Making { format, seen: HashMap::new() }
    }

    pub fn exchange(&mut self, draft: Draft) -> Exchange {
        let id = self.id(&draft);
        let label = |name: &str, value: String| Header { name: name.into(), value: value.into() };
        let mut labels = vec![label("imported-from", self.format.name().into())];
        if !draft.name.is_empty() {
            labels.push(label("imported-name", draft.name));
        }
        let mut exchange = Exchange {
            id,
            started_unix_nanos: draft.started_unix_nanos,
            method: draft.method,
            target: draft.target,
            request_headers: draft.request_headers,
            request_body_hash: hash(&draft.request_body),
            request_body_len: draft.request_body.len() as u64,
            request_body: draft.request_body,
            request_capture: Capture::Whole.into(),
            response_capture: Capture::None.into(),
            record_level: Level::Shape.into(),
            end: End::Complete.into(),
            phase: Phase::Done.into(),
            upstream: UPSTREAM.into(),
            ..Exchange::default()
        };
        let session = draft.session.map(|session| Header { name: SESSION.into(), value: session.into() });
        exchange.request_headers.extend(session);
        if let Some(reply) = draft.reply {
            labels.extend(reply.taken_from.map(|from| label("answer-taken-from", from.into())));
            answer(&mut exchange, reply);
        }
        exchange.labels = labels;
        exchange
    }

    fn id(&mut self, draft: &Draft) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(b"serin import 1");
        part(self.format.name().as_bytes());
        part(draft.name.as_bytes());
        part(draft.method.as_bytes());
        part(draft.target.as_bytes());
        part(&draft.request_body);
        if let Some(reply) = &draft.reply {
            part(&reply.status.to_le_bytes());
            part(reply.body.as_deref().unwrap_or_default());
        }
        let mut same = [0; 16];
        same.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let times = self.seen.entry(same).or_default();
        hasher.update(&times.to_le_bytes());
        *times += 1;
        let mut random = [0; 10];
        random.copy_from_slice(&hasher.finalize().as_bytes()[..10]);
        ids::sortable(draft.started_unix_nanos, random)
    }
}

fn answer(exchange: &mut Exchange, reply: Reply) {
    exchange.status = reply.status.into();
    exchange.response_headers = reply.headers;
    exchange.response_body_len = reply.len;
    if let Some(body) = reply.body {
        exchange.response_body_hash = hash(&body);
        exchange.response_body_len = body.len() as u64;
        exchange.response_body = body;
        exchange.set_response_capture(Capture::Whole);
        exchange.set_record_level(Level::Full);
    }
    exchange.edge_lengths = reply.edge_lengths;
    exchange.edge_micros = reply.edge_micros;
    exchange.first_byte_micros = reply.first_byte_micros;
    exchange.end_micros = reply.end_micros;
}

fn hash(body: &[u8]) -> Bytes {
    Bytes::copy_from_slice(blake3::hash(body).as_bytes())
}

/// The header of a body that is JSON.
pub fn json() -> Header {
    Header { name: "content-type".into(), value: "application/json".into() }
}

/// What to record as target of a URL, or of a path: its path and query with secrets withheld. `None` for what is neither.
/// A prefix before a known interface's path, as gateways have it, is left out: its turns would be found to be none.
pub fn target(url: &str) -> Option<String> {
    let url = url.split('#').next().unwrap_or_default();
    let path = match url.split_once("://") {
        _ if url.starts_with('/') => url,
        Some((_, rest)) => rest.find(['/', '?']).map_or("/", |at| &rest[at..]),
        None => return None,
    };
    let (place, query) = path.split_once('?').map_or((path, None), |(place, query)| (place, Some(query)));
    // SGLang's `/generate` is no name of its own: other services have paths that end so.
    let interfaces = Api::ALL.into_iter().filter(|api| *api != Api::Generate).map(Api::path);
    let place = interfaces.into_iter().find(|known| place.ends_with(known)).unwrap_or(place);
    let place = if place.is_empty() { "/" } else { place };
    Some(redact::target(&query.map_or_else(|| place.to_owned(), |query| format!("{place}?{query}"))))
}

/// A time for what has none, by its place alone: a second for each entry, and a millisecond for each turn in it. Entries
/// before it that are mended or found bad do not change it, and so not the id.
pub fn time(entry: usize, turn: usize) -> u64 {
    (entry as u64).saturating_mul(1000).saturating_add(turn as u64).saturating_mul(MILLISECOND)
}

/// What an entry lies in, as the name of its session: alone, the names in two files may be the same.
pub fn session(input: &Input, name: &str) -> String {
    format!("{}/{name}", input.stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(body: &'static str) -> Draft {
        Draft { method: "POST".into(), request_body: body.into(), ..Draft::default() }
    }

    #[test]
    fn ids_are_the_same_the_next_time_and_differ_within_one() {
        let ids = || {
            let mut making = Making::new(Format::Har);
            ["a", "b", "a"].map(|body| making.exchange(draft(body)).id)
        };
        let first = ids();
        assert_eq!(first, ids());
        assert_eq!(first.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{first:?}");
        assert_ne!(first[0], Making::new(Format::Batch).exchange(draft("a")).id);
        let later = Draft { started_unix_nanos: 5 * MILLISECOND, ..draft("a") };
        assert!(Making::new(Format::Har).exchange(later).id > first[0]);
    }

    #[test]
    fn what_is_not_known_of_an_answer_is_not_claimed() {
        let none = Making::new(Format::AiPerf).exchange(draft("a"));
        assert_eq!((none.status, none.response_capture()), (0, Capture::None));
        assert!(none.response_body_hash.is_empty());
        let reply = Some(Reply { status: 200, len: 7, ..Reply::default() });
        let unkept = Making::new(Format::AiPerf).exchange(Draft { reply, ..draft("a") });
        assert_eq!((unkept.response_body_len, unkept.response_capture()), (7, Capture::None));
        let reply = Some(Reply::json(200, "{}".into()));
        let whole = Making::new(Format::AiPerf).exchange(Draft { reply, ..draft("a") });
        assert_eq!((whole.response_capture(), whole.record_level()), (Capture::Whole, Level::Full));
        assert_eq!(whole.response_body_hash.as_ref(), blake3::hash(b"{}").as_bytes());
    }

    #[test]
    fn targets_lose_host_fragment_secrets_and_a_gateways_prefix() {
        let target = |url| target(url).unwrap_or_default();
        assert_eq!(
            target("https://a.example/v1/models?limit=1&key=sk-1#x"),
            "/v1/models?limit=1&key=<withheld>"
        );
        assert_eq!(target("https://a.example/api/v1/chat/completions"), "/v1/chat/completions");
        assert_eq!(target("/v1/responses?stream"), "/v1/responses?stream");
        assert_eq!((target("http://a"), target("http://a?limit=2")), ("/".into(), "/?limit=2".into()));
        assert_eq!((target(""), target("data:text")), (String::new(), String::new()));
    }
}
