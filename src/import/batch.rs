//! OpenAI's batches: lines with requests, and lines with their answers, which name the same `custom_id`.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::draft::{self, Draft, Making, Reply};
use super::source::{lines, why};
use super::{Bad, Format, Input, Outcomes, Place};
use crate::journal::Header;

const SECOND: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Line<'a> {
    custom_id: String,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    url: Option<String>,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
    #[serde(borrow, default)]
    response: Option<Response<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Response<'a> {
    status_code: u16,
    #[serde(default)]
    request_id: Option<String>,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
}

/// When the server began, in seconds since 1970.
#[derive(Deserialize)]
struct Created {
    #[serde(alias = "created_at")]
    created: f64,
}

/// A request, and where it stands.
struct Asked {
    file: usize,
    line: usize,
    custom_id: String,
    method: String,
    target: String,
    body: Bytes,
}

/// What was answered, and where that stands.
struct Answered {
    file: usize,
    line: usize,
    /// Where the request was carried out.
    reply: Option<Reply>,
    created: Option<u64>,
}

/// What is in all files.
#[derive(Default)]
struct Lines {
    asked: Vec<Asked>,
    ids: HashSet<String>,
    answered: HashMap<String, Answered>,
    bad: Vec<Bad>,
}

/// The requests of all files with their answers, wherever these stand. An answer without its request is a fault: without it
/// nobody knows what was asked.
pub fn read(inputs: &[Input]) -> Outcomes {
    let mut found = Lines::default();
    for (file, input) in inputs.iter().enumerate() {
        for (line, text) in lines(&input.bytes) {
            if let Err(says) = found.take(file, line, &text) {
                found.bad.push(input.bad(Place::Line(line), says));
            }
        }
    }
    let Lines { asked, ids, mut answered, mut bad } = found;
    let mut alone: Vec<_> = answered.iter().filter(|(id, _)| !ids.contains(*id)).collect();
    alone.sort_by_key(|(_, answered)| (answered.file, answered.line));
    bad.extend(alone.into_iter().map(|(id, answered)| {
        let says = format!("no request has custom_id {id:?}; give the file with the requests, too");
        inputs[answered.file].bad(Place::Line(answered.line), says)
    }));
    let mut pairs: Vec<(Asked, Option<Answered>)> = asked
        .into_iter()
        .map(|asked| {
            let answered = answered.remove(&asked.custom_id);
            (asked, answered)
        })
        .collect();
    // A later request may carry on what an earlier one was answered.
    pairs.sort_by_key(|(asked, answered)| {
        (answered.as_ref().and_then(|answered| answered.created), asked.file, asked.line)
    });
    let mut making = Making::new(Format::Batch);
    let exchanges = pairs.into_iter().map(move |(asked, answered)| {
        let created = answered.as_ref().and_then(|answered| answered.created);
        let started_unix_nanos = created.unwrap_or_else(|| draft::time(asked.line, 0));
        Ok(making.exchange(Draft {
            name: asked.custom_id,
            started_unix_nanos,
            method: asked.method,
            target: asked.target,
            request_headers: vec![draft::json()],
            request_body: asked.body,
            reply: answered.and_then(|answered| answered.reply),
            ..Draft::default()
        }))
    });
    Box::new(bad.into_iter().map(Err).chain(exchanges))
}

impl Lines {
    fn take(&mut self, file: usize, line: usize, text: &Bytes) -> Result<(), String> {
        let read: Line<'_> = serde_json::from_slice(text).map_err(|error| {
            format!(
                "{}; a line is an object with custom_id, url and body, or custom_id and response",
                why(&error)
            )
        })?;
        let slice = |raw: &RawValue| text.slice_ref(raw.get().as_bytes());
        let Line { custom_id, method, url, body, response, error } = read;
        let twice = |what: &str| {
            Err(format!("custom_id {custom_id:?} has a second {what}; import each batch by itself"))
        };
        let Some(body) = body else {
            if response.is_none() && error.is_none() {
                return Err("there is neither a body nor a response; a line has one of them".into());
            }
            if self.answered.contains_key(&custom_id) {
                return twice("answer");
            }
            let created = response.as_ref().and_then(|response| created(response.body?));
            let reply = response.map(|response| reply(response, slice));
            self.answered.insert(custom_id, Answered { file, line, reply, created });
            return Ok(());
        };
        if !body.get().starts_with('{') {
            return Err("the body is no object; give it as the interface takes it".into());
        }
        let url = url.ok_or("there is no url, such as /v1/chat/completions")?;
        let target =
            draft::target(&url).ok_or_else(|| format!("url {url:?} is no path; it begins with /"))?;
        if !self.ids.insert(custom_id.clone()) {
            return twice("request");
        }
        let method = method.unwrap_or_else(|| "POST".to_owned());
        self.asked.push(Asked { file, line, custom_id, method, target, body: slice(body) });
        Ok(())
    }
}

fn reply(response: Response<'_>, slice: impl Fn(&RawValue) -> Bytes) -> Reply {
    let mut reply = match response.body {
        Some(body) => Reply::json(response.status_code, slice(body)),
        None => Reply { status: response.status_code, ..Reply::default() },
    };
    let id = response.request_id.filter(|id| !id.is_empty());
    reply.headers.extend(id.map(|id| Header { name: "x-request-id".into(), value: id.into() }));
    reply
}

fn created(body: &RawValue) -> Option<u64> {
    let Created { created } = serde_json::from_str(body.get()).ok()?;
    let nanos = (created > 0.0).then_some((created * SECOND as f64) as u64)?;
    i64::try_from(nanos).is_ok().then_some(nanos)
}

#[cfg(test)]
mod tests {
    use super::super::tests::input;
    use super::*;
    use crate::journal::{Capture, Exchange};

    const ASKED: &str = r#"{"custom_id":"b","method":"POST","url":"/v1/chat/completions","body":{"model":"m", "messages":[]}}
{"custom_id":"a","url":"/v1/responses","body":{"input":"x"}}
"#;
    const ANSWERED: &str = r#"{"id":"x","custom_id":"a","response":{"status_code":200,"request_id":"r1","body":{"created_at":1767319445,"output":[]}},"error":null}
{"custom_id":"b","response":{"status_code":429,"body":{"error":{}}}}
"#;

    fn all(texts: &[&str]) -> Vec<Result<Exchange, Bad>> {
        let names = ["one.jsonl", "two.jsonl", "three.jsonl"];
        let inputs: Vec<Input> = names.iter().zip(texts).map(|(name, text)| input(name, text)).collect();
        read(&inputs).collect()
    }

    fn says(texts: &[&str]) -> Vec<String> {
        all(texts).into_iter().filter_map(|outcome| Some(outcome.err()?.to_string())).collect()
    }

    #[test]
    fn requests_and_answers_are_joined_wherever_they_stand() {
        let both = format!("{ASKED}{ANSWERED}");
        let wanted = all(&[ASKED, ANSWERED]);
        assert_eq!(all(&[&both]), wanted);
        assert_eq!(all(&[ANSWERED, ASKED]), wanted);
        let [Ok(b), Ok(a)] = wanted.as_slice() else { panic!("{wanted:?}") };
        assert_eq!(
            (b.target.as_str(), b.status, b.started_unix_nanos),
            ("/v1/chat/completions", 429, 1_000_000_000)
        );
        assert_eq!(b.request_body.as_ref(), br#"{"model":"m", "messages":[]}"#, "as it stands there");
        assert_eq!((a.target.as_str(), a.started_unix_nanos), ("/v1/responses", 1_767_319_445_000_000_000));
        assert_eq!(a.response_header("x-request-id"), Some(&b"r1"[..]));
        assert_eq!(a.response_body.as_ref(), br#"{"created_at":1767319445,"output":[]}"#);
    }

    #[test]
    fn requests_without_answers_claim_none() {
        let expired = r#"{"custom_id":"b","response":null,"error":{"code":"batch_expired"}}"#;
        for outcome in all(&[ASKED, expired]) {
            let exchange = outcome.expect("is good");
            assert_eq!((exchange.status, exchange.response_capture()), (0, Capture::None));
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_file_and_line() {
        let alone = says(&[ASKED, r#"{"custom_id":"z","response":{"status_code":200}}"#]);
        assert_eq!(
            alone,
            ["two.jsonl, line 1: no request has custom_id \"z\"; give the file with the requests, too"]
        );
        let twice = says(&[ASKED, ASKED]);
        assert!(twice[0].starts_with("two.jsonl, line 1: custom_id \"b\" has a second request"), "{twice:?}");
        assert_eq!(all(&[ASKED, ASKED]).len(), 4, "the others are taken");
        for (line, wanted) in [
            ("{", "EOF while parsing"),
            (r#"{"custom_id":"a"}"#, "neither a body nor a response"),
            (r#"{"custom_id":"a","body":7,"url":"/v1/responses"}"#, "the body is no object"),
            (r#"{"custom_id":"a","body":{}}"#, "there is no url"),
            (r#"{"custom_id":"a","body":{},"url":"x"}"#, "url \"x\" is no path"),
        ] {
            assert!(says(&[line])[0].contains(wanted), "{line}: {:?}", says(&[line]));
        }
    }
}
