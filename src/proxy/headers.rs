//! Header handling by RFC 9110 section 7.6.1: hop-by-hop fields end here, everything else passes verbatim.

use hyper::HeaderMap;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

use crate::openai::sse;

/// Our own request headers begin with this; they are addressed to us and never travel on.
const OURS: &str = "x-serin-";
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub const SERVED_BY: HeaderName = HeaderName::from_static("x-serin-served-by");
pub const RECORD: HeaderName = HeaderName::from_static("x-serin-record");

const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Fields that concern one connection only. `Trailer` announces trailers and stays; `TE: trailers` is kept below.
const HOP_BY_HOP: [HeaderName; 6] =
    [KEEP_ALIVE, PROXY_CONNECTION, TRANSFER_ENCODING, UPGRADE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION];

/// Removes what must not travel past this hop.
pub fn end_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        // Naming these would let a client have fields removed that the message is built on.
        .filter(|name| ![HOST, CONTENT_LENGTH, TRAILER].contains(name))
        .collect();
    // A message framed by chunks has no length (RFC 9112 section 6.3); kept, it would contradict the framing we write.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let wants_trailers = headers.get(TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    for name in named.iter().chain(&HOP_BY_HOP).chain([&CONNECTION, &TE]) {
        headers.remove(name);
    }
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes our own request headers, whoever sent them.
pub fn strip_ours(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(OURS)).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

/// Gives the request an id if the client sent none; returns the one that was made.
pub fn ensure_id(headers: &mut HeaderMap, made: &str) -> Option<HeaderValue> {
    if headers.contains_key(&REQUEST_ID) {
        return None;
    }
    let value = HeaderValue::try_from(made).ok()?;
    headers.insert(REQUEST_ID, value.clone());
    Some(value)
}

/// Asks an nginx on the way to the client to pass a stream on as it comes; who has said something about it is not overruled.
pub fn ask_not_to_buffer(headers: &mut HeaderMap) {
    if sse::is_stream(headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes)) {
        headers.entry(ACCEL_BUFFERING).or_insert(HeaderValue::from_static("no"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn hop_by_hop_ends_here_and_the_rest_passes() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Drop-Me, host"),
            ("keep-alive", "timeout=5"),
            ("x-drop-me", "1"),
            ("host", "a"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("x-kept", "1"),
        ]);
        end_hop(&mut headers);
        assert_eq!(headers, map(&[("host", "a"), ("x-kept", "1"), ("te", "trailers")]));
    }

    #[test]
    fn only_streams_that_say_nothing_of_buffering_are_marked() {
        for (before, after) in [
            (map(&[("content-type", "text/event-stream; charset=utf-8")]), Some("no")),
            (map(&[("content-type", "text/event-stream"), ("x-accel-buffering", "yes")]), Some("yes")),
            (map(&[("content-type", "application/json")]), None),
        ] {
            let mut headers = before;
            ask_not_to_buffer(&mut headers);
            assert_eq!(headers.get(ACCEL_BUFFERING).map(|value| value.to_str().unwrap()), after);
        }
    }

    #[test]
    fn our_own_headers_never_travel() {
        let mut headers = map(&[("x-serin-canary", "forged"), ("x-serin-engine", "k=v"), ("x-other", "1")]);
        strip_ours(&mut headers);
        assert_eq!(headers, map(&[("x-other", "1")]));
    }
}
