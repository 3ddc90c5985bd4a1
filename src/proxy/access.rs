//! The access log: one line of JSON for each exchange of a client, written when it has ended. No bodies, and of headers
//! only the user agent.

use std::net::SocketAddr;

use serde::Serialize;

use crate::clock;
use crate::journal::record;
use crate::log::Log;

/// What the record of an exchange does not hold.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub client: Option<SocketAddr>,
    pub request_id: String,
    /// Upstreams it was sent to.
    pub attempts: u32,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub first_byte: Option<f64>,
    pub trace: String,
}

/// One line, as it is written.
#[derive(Serialize)]
struct Line<'a> {
    time: String,
    id: &'a str,
    request_id: &'a str,
    client: Option<SocketAddr>,
    method: &'a str,
    target: &'a str,
    status: u32,
    end: &'a str,
    upstream: &'a str,
    served_by: &'a str,
    attempts: u32,
    bytes_up: u64,
    bytes_down: u64,
    seconds: f64,
    first_byte_seconds: Option<f64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    trace: &'a str,
    user_agent: Option<std::borrow::Cow<'a, str>>,
}

/// Logs one exchange. `record` has ended, and its secrets are masked; the line is rendered by the thread that writes it.
pub fn write(log: &Log, seen: Seen, record: &record::Exchange) {
    // All but what is large: bodies, edges and headers stay where they are.
    let agent = record.request_header("user-agent").map(|agent| String::from_utf8_lossy(agent).into_owned());
    let (end, status, micros) = (record.end().name(), record.status, record.end_micros);
    let ended = record.ended_unix_nanos();
    let first_byte = seen.first_byte.map(|_| record.first_byte_micros as f64 / 1e6);
    let [id, method, target] = [&record.id, &record.method, &record.target].map(String::clone);
    let [upstream, served_by, model] =
        [&record.upstream, &record.served_by, &record.model].map(String::clone);
    log.output(move |out| {
        let line = Line {
            time: clock::rfc3339(ended),
            id: &id,
            request_id: if seen.request_id.is_empty() { &id } else { &seen.request_id },
            client: seen.client,
            method: &method,
            target: &target,
            status,
            end,
            upstream: &upstream,
            served_by: if served_by.is_empty() { &upstream } else { &served_by },
            attempts: seen.attempts,
            bytes_up: seen.bytes_up,
            bytes_down: seen.bytes_down,
            seconds: micros as f64 / 1e6,
            first_byte_seconds: first_byte,
            model: &model,
            trace: &seen.trace,
            user_agent: agent.as_deref().map(Into::into),
        };
        let begun = out.len();
        match serde_json::to_writer(&mut *out, &line) {
            Ok(()) => out.push(b'\n'),
            Err(_) => out.truncate(begun),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::record::{End, Header};

    #[test]
    fn a_line_is_one_object_with_what_an_operator_asks_for() {
        let record = record::Exchange {
            id: "0190".into(),
            started_unix_nanos: 1_700_000_000_000_000_000,
            end_micros: 1_500_000,
            method: "POST".into(),
            target: "/v1/chat?key=<withheld>".into(),
            status: 200,
            end: End::UpstreamCut.into(),
            upstream: "router".into(),
            request_headers: vec![Header { name: "User-Agent".into(), value: "cu\"rl\n".into() }],
            ..Default::default()
        };
        let (log, lines) = crate::log::captured();
        let seen = Seen { attempts: 2, first_byte: Some(0.25), ..Seen::default() };
        write(&log, seen, &record);
        let text = String::from_utf8(lines()).unwrap();
        assert_eq!(text.matches('\n').count(), 1);
        let line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(line["time"], "2023-11-14T22:13:21.500000Z");
        assert_eq!((&line["end"], &line["served_by"]), (&"upstream_cut".into(), &"router".into()));
        assert_eq!((&line["seconds"], &line["user_agent"]), (&1.5.into(), &"cu\"rl\n".into()));
        assert_eq!((&line["request_id"], &line["model"]), (&"0190".into(), &serde_json::Value::Null));
    }
}
