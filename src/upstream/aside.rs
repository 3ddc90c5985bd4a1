//! Requests of our own to an upstream: is it well, and a client has left.

use http_body_util::{BodyExt, Limited};
use hyper::StatusCode;

use super::{Request, Upstream};

/// As much of an answer is read so that its connection can be used again. A longer one is left alone, connection and all.
const MOST: usize = 64 * 1024;

/// The status of an answer that did not break off, as far as it was read.
pub async fn ask(upstream: &dyn Upstream, request: Request) -> Option<StatusCode> {
    let response = upstream.call(request).await.ok()?;
    let status = response.status();
    match Limited::new(response.into_body(), MOST).collect().await {
        Ok(_) => Some(status),
        Err(error) => error.is::<http_body_util::LengthLimitError>().then_some(status),
    }
}
