//! Erasing what belongs to somebody, and what has become of it.

use std::path::Path;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::answer::{Answer, Refusal};
use super::recordings::{Recordings, known, refusal};
use super::routes::Given;
use crate::clock;
use crate::conversation::Subject;
use crate::journal::erase::{Erasure, find};
use crate::journal::record::Origin;
use crate::recorder::{EraseError, Recorder};

/// Whom a request to erase names.
pub fn subject(given: &Given) -> Result<Subject, Refusal> {
    let value = given.path("value").to_owned();
    match given.path("kind") {
        "conv" => Ok(Subject::Conversation(value)),
        "session" => Ok(Subject::Session(value)),
        kind => {
            let message = format!("{kind:?} names nobody");
            Err(Refusal::new(StatusCode::NOT_FOUND, message, "kind", "write conv or session"))
        }
    }
}

/// Has it erased. What the answer tells of is no longer shown; its bytes go within seconds.
pub fn erase(recorder: &Recorder, given: &Given, subject: Subject) -> Result<Erasure, Refusal> {
    known(given, &["canary"])?;
    let origin = if Recordings::is_canary(given) { Origin::Canary } else { Origin::Client };
    recorder.erase(origin, subject).map_err(|error| match error {
        EraseError::Failed(error) => refusal(error),
        EraseError::Busy => {
            let remedy = "ask again; /readyz says how the recorder does";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), "recorder", remedy)
        }
        EraseError::Off => {
            let remedy = "run `serin sessions delete` for what lies in the directory";
            Refusal::new(StatusCode::CONFLICT, error.to_string(), "[record] enabled", remedy)
        }
    })
}

/// What has become of a request to erase.
pub fn erasure(dir: &Path, given: &Given) -> Result<Answer, Refusal> {
    known(given, &["tenant", "canary"])?;
    let id = given.path("id");
    let found = find(dir, id).ok_or_else(|| {
        let remedy = "take the id that DELETE has answered with";
        Refusal::new(StatusCode::NOT_FOUND, format!("no erasure {id:?}"), "id", remedy)
    })?;
    Ok(Answer::json(&told(&found)))
}

/// An erasure as it is told of.
pub fn told(erasure: &Erasure) -> Value {
    let state = if erasure.receipt.is_some() { "rewritten" } else { "tombstoned" };
    let receipt = erasure.receipt.map(|receipt| {
        json!({
            "done": clock::rfc3339(receipt.done_unix_nanos),
            "exchanges": receipt.exchanges,
            "files": receipt.files,
            "bytes_before": receipt.bytes_before,
            "bytes_after": receipt.bytes_after,
            "damaged_files": receipt.damaged_files,
        })
    });
    let exchanges = erasure.receipt.map_or(erasure.turns.len() as u64, |receipt| receipt.exchanges);
    json!({
        "id": erasure.id,
        "subject": erasure.subject,
        "state": state,
        "requested": clock::rfc3339(erasure.requested_unix_nanos),
        "exchanges": exchanges,
        "receipt": receipt,
    })
}
