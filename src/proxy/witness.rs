//! Who is told of an exchange besides the recorder, once it has ended: the access log, and a trace.

use std::net::SocketAddr;

use hyper::header::HOST;
use hyper::http::request;
use hyper::{HeaderMap, Version};

use super::access::{self, Seen};
use super::headers::REQUEST_ID;
use crate::ids;
use crate::journal::record::{self, End, Origin};
use crate::log::Log;
use crate::recorder::tap::{After, Ended};
use crate::trace::otlp::{self, Attribute, Span};
use crate::trace::{self, Begun, Tracer};

/// The longest id of a client's that is logged.
const LONGEST_ID: usize = 256;

/// Whom to tell. Cheap to clone.
#[derive(Clone, Default)]
pub struct Observers {
    pub access: Option<Log>,
    pub tracer: Option<Tracer>,
}

/// One exchange, as it is seen by them.
pub struct Witness {
    access: Option<Log>,
    traced: Option<Traced>,
    seen: Seen,
}

struct Traced {
    tracer: Tracer,
    begun: Begun,
    host: String,
    version: Version,
}

impl Observers {
    /// Begins to watch an exchange; `None` if nobody wants to know. A trace that is to go on in the upstream puts its mark
    /// into the headers here.
    pub fn begin(
        &self,
        head: &mut request::Parts,
        origin: Origin,
        client: Option<SocketAddr>,
    ) -> Option<Witness> {
        let access = self.access.clone().filter(|_| origin == Origin::Client);
        let came_with = access.as_ref().and_then(|_| trace::parent(&head.headers));
        let begun = self.tracer.as_ref().and_then(|tracer| tracer.begin(&mut head.headers));
        if access.is_none() && begun.is_none() {
            return None;
        }
        let trace = begun.as_ref().map(|begun| begun.trace).or(came_with.map(|parent| parent.trace));
        let seen = Seen {
            client,
            request_id: request_id(&head.headers),
            trace: trace.map_or_else(String::new, |trace| ids::hex(&trace)),
            ..Seen::default()
        };
        let traced = self.tracer.clone().zip(begun).map(|(tracer, begun)| {
            let host = head.uri.authority().map(|authority| authority.as_str().to_owned());
            let named = || head.headers.get(HOST)?.to_str().ok().map(str::to_owned);
            Traced { tracer, begun, host: host.or_else(named).unwrap_or_default(), version: head.version }
        });
        Some(Witness { access, traced, seen })
    }
}

impl Witness {
    /// The exchange has ended. What is to be told is told later, by whoever has read the record.
    pub fn ended(self, ended: &Ended<'_>, attempts: u32) -> After {
        let Self { access, traced, mut seen } = self;
        (seen.attempts, seen.first_byte) = (attempts, ended.first_byte);
        (seen.bytes_up, seen.bytes_down) = (ended.bytes_up, ended.bytes_down);
        Box::new(move |record| {
            if let Some(Traced { tracer, begun, host, version }) = traced {
                tracer.end(span(&begun, &host, version, &seen, record));
            }
            if let Some(log) = access {
                access::write(&log, seen, record);
            }
        })
    }
}

fn request_id(headers: &HeaderMap) -> String {
    let Some(id) = headers.get(&REQUEST_ID) else { return String::new() };
    String::from_utf8_lossy(&id.as_bytes()[..id.len().min(LONGEST_ID)]).into_owned()
}

/// A server's span, by the conventions for HTTP and for generative models.
fn span(begun: &Begun, host: &str, version: Version, seen: &Seen, record: &record::Exchange) -> Span {
    let remote = if begun.parent.is_some() { otlp::REMOTE } else { 0 };
    let failed = record.end() != End::Complete || record.status >= 500;
    let error = otlp::Status { message: record.end().name().to_owned(), code: otlp::ERROR };
    Span {
        trace_id: begun.trace.to_vec(),
        span_id: begun.span.to_vec(),
        trace_state: begun.state.clone(),
        parent_span_id: begun.parent.map_or_else(Vec::new, |parent| parent.to_vec()),
        name: name(record),
        kind: otlp::SERVER,
        start_time_unix_nano: record.started_unix_nanos,
        end_time_unix_nano: record.ended_unix_nanos(),
        attributes: attributes(host, version, seen, record),
        // A client that leaves is no error of the server's.
        status: (failed && record.end() != End::ClientCancelled).then_some(error),
        flags: otlp::SAMPLED | otlp::KNOWN_REMOTE | remote,
    }
}

/// The operation of a path that is known, by the names the conventions give it.
fn operation(path: &str) -> Option<&'static str> {
    match path {
        "/v1/chat/completions" | "/v1/responses" | "/v1/messages" => Some("chat"),
        "/v1/completions" => Some("text_completion"),
        "/v1/embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// Few names for many paths: what is not known goes by its method.
fn name(record: &record::Exchange) -> String {
    match operation(record.path()) {
        Some(_) => format!("{} {}", record.method, record.path()),
        None => record.method.clone(),
    }
}

fn attributes(host: &str, version: Version, seen: &Seen, record: &record::Exchange) -> Vec<Attribute> {
    let (server, port) = match host.rsplit_once(':') {
        Some((server, port)) if !port.ends_with(']') => (server, port.parse::<u64>().ok()),
        _ => (host, None),
    };
    let protocol = match version {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    };
    let mut all = vec![
        Attribute::new("http.request.method", record.method.as_str()),
        Attribute::new("url.path", record.path()),
        Attribute::new("network.protocol.version", protocol),
        Attribute::new("http.request.body.size", seen.bytes_up),
        Attribute::new("http.response.body.size", seen.bytes_down),
        Attribute::new("serin.exchange.id", record.id.as_str()),
        Attribute::new("serin.end", record.end().name()),
        Attribute::new("serin.attempts", u64::from(seen.attempts)),
    ];
    let served_by = if record.served_by.is_empty() { &record.upstream } else { &record.served_by };
    let query = record.target.split_once('?').map_or("", |(_, query)| query);
    let agent = record.request_header("user-agent").map(|agent| String::from_utf8_lossy(agent));
    for (key, text) in [
        ("url.query", query),
        ("server.address", server),
        ("user_agent.original", agent.as_deref().unwrap_or_default()),
        ("serin.upstream", record.upstream.as_str()),
        ("serin.served_by", served_by.as_str()),
        ("gen_ai.operation.name", operation(record.path()).unwrap_or_default()),
        ("gen_ai.request.model", record.model.as_str()),
    ] {
        if !text.is_empty() {
            all.push(Attribute::new(key, text));
        }
    }
    all.extend(port.map(|port| Attribute::new("server.port", port)));
    all.extend(seen.client.iter().flat_map(|client| {
        [
            Attribute::new("client.address", client.ip().to_string()),
            Attribute::new("client.port", u64::from(client.port())),
        ]
    }));
    all.extend(seen.first_byte.map(|seconds| Attribute::new("serin.first_byte_seconds", seconds)));
    if record.status > 0 {
        all.push(Attribute::new("http.response.status_code", u64::from(record.status)));
    }
    match (record.end(), record.status) {
        (End::Complete, 0..=499) => {}
        (End::Complete, status) => all.push(Attribute::new("error.type", status.to_string())),
        (end, _) => all.push(Attribute::new("error.type", end.name())),
    }
    if record.origin() == Origin::Canary {
        all.push(Attribute::new("serin.canary", true));
    }
    all
}
