//! HAR 1.2: a list of requests with their answers and times, in any order.
//!
//! Bodies in it have no content coding any more, so a header that names one is left out. An entry may carry `_sse`, a
//! list of pairs: milliseconds since the request began, and bytes that came then.

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::draft::{self, Draft, Making, Reply};
use super::source::why;
use super::{Bad, Format, Input, Outcomes, Place};
use crate::journal::Header;
use crate::redact;

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    log: Log<'a>,
}

#[derive(Deserialize)]
struct Log<'a> {
    #[serde(borrow)]
    entries: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Started {
    started_date_time: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct Entry {
    started_date_time: String,
    #[serde(default)]
    time: Option<f64>,
    request: Request,
    response: Response,
    #[serde(default)]
    timings: Option<Timings>,
    #[serde(default, rename = "_sse")]
    sse: Option<Vec<(f64, u32)>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct Request {
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<Pair>,
    #[serde(default)]
    post_data: Option<Text>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Response {
    status: u16,
    #[serde(default)]
    headers: Vec<Pair>,
    #[serde(default)]
    content: Text,
}

#[derive(Deserialize)]
struct Timings {
    #[serde(default)]
    receive: Option<f64>,
}

#[derive(Deserialize)]
struct Pair {
    name: String,
    #[serde(default)]
    value: String,
}

/// A body, as text or as `base64`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Text {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    encoding: Option<String>,
    #[serde(default)]
    mime_type: Option<String>,
    #[serde(default)]
    size: Option<i64>,
}

/// The entries of a file, the earliest first.
///
/// # Errors
/// Where it is no HAR file.
pub fn read(input: &Input) -> Result<Outcomes, Bad> {
    let broken = |error| {
        let says = format!("is no HAR file: {error}; it needs `log.entries`; export it anew");
        input.bad(Place::Whole, says)
    };
    let wire: Wire<'_> = serde_json::from_slice(&input.bytes).map_err(broken)?;
    let slice = |raw: &RawValue| input.bytes.slice_ref(raw.get().as_bytes());
    let mut entries: Vec<(Option<u64>, usize, Bytes)> =
        (1..).zip(wire.log.entries).map(|(number, raw)| (begun(raw), number, slice(raw))).collect();
    entries.sort_by_key(|(started, number, _)| (*started, *number));
    let (input, mut making) = (input.clone(), Making::new(Format::Har));
    Ok(Box::new(entries.into_iter().map(move |(_, number, raw)| {
        let draft = entry(&raw).map_err(|says| input.bad(Place::Entry(number), says))?;
        Ok(making.exchange(draft))
    })))
}

/// When an entry begins, for sorting: what is wrong with it is said when its turn comes.
fn begun(raw: &RawValue) -> Option<u64> {
    let started: Started = serde_json::from_str(raw.get()).ok()?;
    nanos(&started.started_date_time)
}

/// A moment that every part of the journal can hold.
fn nanos(text: &str) -> Option<u64> {
    let moment: Timestamp = text.trim().parse().ok()?;
    u64::try_from(moment.as_nanosecond()).ok().filter(|nanos| i64::try_from(*nanos).is_ok())
}

fn entry(raw: &[u8]) -> Result<Draft, String> {
    let entry: Entry =
        serde_json::from_slice(raw).map_err(|error| format!("{}; mend it or leave it out", why(&error)))?;
    let started = nanos(&entry.started_date_time).ok_or_else(|| {
        let text = &entry.started_date_time;
        format!("startedDateTime {text:?} is no time after 1970 as RFC 3339 writes it, such as 2026-01-02T03:04:05.678Z")
    })?;
    let mut draft = Draft {
        name: entry.started_date_time,
        started_unix_nanos: started,
        method: entry.request.method,
        // What has no path is nothing that a model was asked.
        target: draft::target(&entry.request.url).unwrap_or_default(),
        ..Draft::default()
    };
    if !draft.is_turn() {
        return Ok(draft);
    }
    let body = entry.request.post_data.unwrap_or_default().bytes("request.postData")?;
    draft.request_body =
        body.ok_or("request.postData has no text: the body was not saved; export again with bodies")?;
    let mut headers = map(&entry.request.headers, "request.headers")?;
    drop_coding(&mut headers, &draft.request_body);
    draft.request_headers = recorded(&headers);
    // A status of 0 stands for an answer that never came.
    if entry.response.status != 0 {
        draft.reply = Some(reply(entry.response, entry.time, entry.timings, entry.sse)?);
    }
    let end = draft.reply.as_ref().map_or(0, |reply| reply.end_micros.saturating_mul(1000));
    match i64::try_from(started.saturating_add(end)) {
        Ok(_) => Ok(draft),
        Err(_) => Err("time is longer than any answer takes; it is in milliseconds".into()),
    }
}

fn reply(
    response: Response,
    time: Option<f64>,
    timings: Option<Timings>,
    sse: Option<Vec<(f64, u32)>>,
) -> Result<Reply, String> {
    let size = response.content.size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default();
    let mut headers = map(&response.headers, "response.headers")?;
    let media = response.content.mime_type.as_ref().and_then(|media| HeaderValue::from_str(media).ok());
    if let (None, Some(media)) = (headers.get(CONTENT_TYPE), media.filter(|media| !media.is_empty())) {
        headers.insert(CONTENT_TYPE, media);
    }
    // Without text and without size the body was empty.
    let body = response.content.bytes("response.content")?.or((size == 0).then(Bytes::new));
    drop_coding(&mut headers, body.as_deref().unwrap_or_default());
    let mut reply = Reply {
        status: response.status,
        headers: recorded(&headers),
        len: size,
        end_micros: micros(time.unwrap_or_default()),
        ..Reply::default()
    };
    let receive = timings.and_then(|timings| timings.receive).filter(|receive| *receive >= 0.0);
    reply.first_byte_micros = receive.map_or(0, |receive| reply.end_micros.saturating_sub(micros(receive)));
    edges(&mut reply, &sse.unwrap_or_default(), body.as_deref().unwrap_or_default())?;
    reply.body = body;
    Ok(reply)
}

/// Takes over when each part of the body came.
fn edges(reply: &mut Reply, parts: &[(f64, u32)], body: &[u8]) -> Result<(), String> {
    let sum: u64 = parts.iter().map(|(_, len)| u64::from(*len)).sum();
    let Some((first, _)) = parts.first() else { return Ok(()) };
    if sum != body.len() as u64 {
        let len = body.len();
        return Err(format!(
            "_sse has parts of {sum} bytes together where the body has {len}; mend or remove _sse"
        ));
    }
    let mut before = 0;
    for (at, len) in parts {
        let at = micros(*at);
        if at < before {
            return Err(
                "the times in _sse go backwards; they are milliseconds since the request began".into()
            );
        }
        reply.edge_lengths.push(*len);
        reply.edge_micros.push(u32::try_from(at - before).unwrap_or(u32::MAX));
        before = at;
    }
    reply.first_byte_micros = micros(*first);
    reply.end_micros = reply.end_micros.max(before);
    Ok(())
}

/// Microseconds of milliseconds; what is below none, such as the -1 for "not known", is none.
fn micros(milliseconds: f64) -> u64 {
    (milliseconds * 1000.0).max(0.0) as u64
}

impl Text {
    /// The body; `None` where there is no text.
    fn bytes(self, place: &str) -> Result<Option<Bytes>, String> {
        match (self.text, self.encoding.as_deref().unwrap_or_default()) {
            (None, _) => Ok(None),
            (Some(text), "") => Ok(Some(text.into())),
            (Some(text), "base64") => match base64(text.as_bytes()) {
                Some(bytes) => Ok(Some(bytes.into())),
                None => {
                    Err(format!("{place}.text is no base64, as its encoding says; mend it or leave it out"))
                }
            },
            (Some(_), other) => Err(format!("{place}.encoding {other:?} is not known; use base64 or none")),
        }
    }
}

/// The headers as a map, which is how the list of what may be kept reads them.
fn map(pairs: &[Pair], place: &str) -> Result<HeaderMap, String> {
    let mut map = HeaderMap::new();
    // HTTP/2 has the request's line among the headers.
    for Pair { name, value } in pairs.iter().filter(|pair| !pair.name.starts_with(':')) {
        let name = HeaderName::from_bytes(name.trim().as_bytes())
            .map_err(|_| format!("{place} has the name {name:?}, which is none; mend it or leave it out"))?;
        // Browsers put the values of repeated headers on lines of one.
        let value = value.replace(|character: char| character.is_control(), " ");
        let value =
            HeaderValue::from_str(value.trim()).or_else(|_| HeaderValue::from_bytes(value.as_bytes()));
        let value = value.map_err(|_| format!("{place} has a value for {name} that is none"))?;
        map.try_append(name, value).map_err(|_| format!("{place} has more headers than anybody sends"))?;
    }
    Ok(map)
}

/// Removes the name of a content coding that a body has not got: no coding yields text.
fn drop_coding(headers: &mut HeaderMap, body: &[u8]) {
    if std::str::from_utf8(body).is_ok() {
        headers.remove(CONTENT_ENCODING);
    }
}

fn recorded(headers: &HeaderMap) -> Vec<Header> {
    redact::headers(headers).into_iter().map(|(name, value)| Header { name, value: value.into() }).collect()
}

/// The bytes of base64, of either alphabet, padded or not, on one line or several. `None` where it is none.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| match byte {
        b'-' => b'+',
        b'_' => b'/',
        other => *other,
    };
    let mut digits: Vec<u8> = text.iter().filter(|byte| !byte.is_ascii_whitespace()).map(digit).collect();
    let padding = digits.iter().rev().take_while(|byte| **byte == b'=').count();
    digits.truncate(digits.len() - padding);
    base64::decode_config(&digits, base64::STANDARD_NO_PAD).ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{input, outcomes};
    use super::*;
    use crate::journal::{Capture, End, Exchange, Level, Phase};

    const STREAM: &str = r#"{
      "startedDateTime": "2026-01-02T03:04:05.500+01:00", "time": 250.5,
      "request": {"method": "POST", "url": "https://api.example/v1/chat/completions?key=sk-1",
        "headers": [{"name": ":method", "value": "POST"}, {"name": "Authorization", "value": "Bearer sk-1"},
          {"name": "User-Agent", "value": "tool/1"}, {"name": "Content-Encoding", "value": "zstd"}],
        "postData": {"mimeType": "application/json", "text": "{\"model\":\"m\",\"messages\":[]}"}},
      "response": {"status": 200, "headers": [{"name": "X-Request-Id", "value": "r1"}, {"name": "Set-Cookie", "value": "a=1\nb=2"}],
        "content": {"size": 15, "mimeType": "text/event-stream", "encoding": "base64", "text": "ZGF0YTogW0RPTkVdCgo="}},
      "timings": {"send": 1, "wait": 200, "receive": 49.5},
      "_sse": [[120.25, 6], [240, 8]]}"#;

    fn har(entries: &[&str]) -> Vec<Result<Exchange, Bad>> {
        outcomes(read(&input("a.har", &format!("{{\"log\":{{\"entries\":[{}]}}}}", entries.join(",")))))
    }

    fn value<'a>(headers: &'a [Header], name: &str) -> Option<&'a str> {
        headers
            .iter()
            .find(|header| header.name == name)
            .and_then(|header| std::str::from_utf8(&header.value).ok())
    }

    #[test]
    fn an_entry_becomes_an_exchange_with_its_edges_and_without_secrets() {
        let found = har(&[STREAM]);
        let exchange = found[0].as_ref().expect("is good");
        assert_eq!(
            (exchange.method.as_str(), exchange.target.as_str()),
            ("POST", "/v1/chat/completions?key=<withheld>")
        );
        assert_eq!(exchange.started_unix_nanos, 1_767_319_445_500_000_000);
        assert!(exchange.id.starts_with("019b7c"), "{}", exchange.id);
        assert_eq!(value(&exchange.request_headers, "authorization"), Some("<withheld 11 bytes>"));
        assert_eq!(value(&exchange.request_headers, "user-agent"), Some("tool/1"));
        assert_eq!(value(&exchange.request_headers, "content-encoding"), None, "the body has none any more");
        assert_eq!(value(&exchange.response_headers, "content-type"), Some("text/event-stream"));
        assert_eq!(value(&exchange.response_headers, "x-request-id"), Some("r1"));
        assert_eq!(exchange.request_body.as_ref(), br#"{"model":"m","messages":[]}"#);
        assert_eq!(exchange.response_body.as_ref(), b"data: [DONE]\n\n");
        assert_eq!(
            (&exchange.edge_lengths[..], &exchange.edge_micros[..]),
            (&[6, 8][..], &[120_250, 119_750][..])
        );
        assert_eq!((exchange.first_byte_micros, exchange.end_micros), (120_250, 250_500));
        assert_eq!(
            (exchange.end(), exchange.phase(), exchange.record_level()),
            (End::Complete, Phase::Done, Level::Full)
        );
        assert_eq!((exchange.upstream.as_str(), exchange.status), ("imported", 200));
        assert_eq!(exchange.response_body_hash.as_ref(), blake3::hash(b"data: [DONE]\n\n").as_bytes());
        assert_eq!(exchange.request_body_len, 27);
    }

    #[test]
    fn entries_come_in_the_order_of_their_times_and_errors_name_the_entry() {
        let at = |time: &str, rest: &str| {
            let request =
                r#""request":{"method":"POST","url":"http://a/v1/messages","postData":{"text":"{}"}}"#;
            format!(r#"{{"startedDateTime":"{time}",{request},"response":{{"status":200}}{rest}}}"#)
        };
        let (late, early) = (at("2026-01-02T00:00:02Z", ""), at("2026-01-02T00:00:01Z", ""));
        let wrong = at("2026-01-02T00:00:03Z", r#","_sse":[[1,5]]"#);
        let found = har(&[&late, &early, "{\"startedDateTime\":7}", &at("yesterday", ""), &wrong]);
        let says: Vec<String> = found
            .iter()
            .map(|outcome| match outcome {
                Ok(exchange) => exchange.started_unix_nanos.to_string(),
                Err(bad) => bad.to_string(),
            })
            .collect();
        assert!(
            says[0].starts_with("a.har, entry 3: ") && says[0].ends_with("mend it or leave it out"),
            "{says:?}"
        );
        assert!(says[1].contains("entry 4: startedDateTime \"yesterday\" is no time"), "{says:?}");
        assert!(says[2] < says[3], "{says:?}");
        assert!(
            says[4].contains("entry 5: _sse has parts of 5 bytes together where the body has 0"),
            "{says:?}"
        );
    }

    #[test]
    fn what_is_no_turn_is_not_looked_into() {
        let entry = r#"{"startedDateTime":"2026-01-02T00:00:01Z","request":{"method":"POST","url":"data:x","headers":[{"name":"a b"}]},
          "response":{"status":200},"_sse":[[1,5]]}"#;
        let found = har(&[entry]);
        assert_eq!(found[0].as_ref().expect("is good").target, "");
    }

    #[test]
    fn what_was_not_saved_is_an_error_of_the_request_and_no_body_of_the_response() {
        let entry = |post: &str, content: &str| {
            format!(
                r#"{{"startedDateTime":"2026-01-02T00:00:01Z","request":{{"method":"POST","url":"/v1/messages"{post}}},
                  "response":{{"status":200,"content":{content}}}}}"#
            )
        };
        let text = r#","postData":{"text":"{}"}"#;
        let found = har(&[
            &entry("", "{}"),
            &entry(text, r#"{"size":9}"#),
            &entry(text, "{}"),
            &entry(text, r#"{"text":"?","encoding":"base64"}"#),
        ]);
        assert!(
            found[0].as_ref().is_err_and(|bad| bad.says.contains("export again with bodies")),
            "{found:?}"
        );
        let unkept = found[1].as_ref().expect("is good");
        assert_eq!((unkept.response_capture(), unkept.response_body_len), (Capture::None, 9));
        assert_eq!(found[2].as_ref().expect("is good").response_capture(), Capture::Whole);
        assert!(found[3].as_ref().is_err_and(|bad| bad.says.contains("is no base64")), "{found:?}");
    }

    #[test]
    fn base64_is_read_and_what_is_none_is_not() {
        assert_eq!(base64(b"aGk_\n"), Some(b"hi?".to_vec()));
        assert_eq!(
            (base64(b"aGk="), base64(b"aGk"), base64(b"")),
            (Some(b"hi".to_vec()), Some(b"hi".to_vec()), Some(vec![]))
        );
        for text in ["a", "aGk=a", "a b!", "aGl"] {
            assert_eq!(base64(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_file_that_is_none_is_refused_with_what_it_needs() {
        let bad = read(&input("a.har", "{\"log\":{}}")).err().expect("is none");
        assert!(bad.to_string().starts_with("a.har: is no HAR file: missing field `entries`"), "{bad}");
    }
}
