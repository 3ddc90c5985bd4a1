//! The only file that makes answers of our own. They have the form of the API's errors, so that clients can read them.

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::json;

use crate::upstream::{Body, Failure, Response};

/// Why the proxy answers itself.
#[derive(Debug)]
pub enum Refusal<'a> {
    /// All permits are taken.
    Overloaded,
    /// No upstream covers this path.
    NoRoute,
    /// The request does not say which host it is for, or says it twice (RFC 9112 section 3.2).
    Host,
    /// CONNECT would make this a tunnel to anywhere.
    Connect,
    Upstream {
        name: &'a str,
        cause: &'a Failure,
    },
}

impl Refusal<'_> {
    fn status(&self) -> StatusCode {
        match self {
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Host => StatusCode::BAD_REQUEST,
            Self::Connect => StatusCode::NOT_IMPLEMENTED,
            Self::Upstream { cause: Failure::HeadTimeout(_) | Failure::IdleTimeout(_), .. } => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Upstream { cause: Failure::ClientBody(_), .. } => StatusCode::BAD_REQUEST,
            Self::Upstream { cause: Failure::LeftAlone, .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Upstream { .. } => StatusCode::BAD_GATEWAY,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Overloaded => "overloaded",
            Self::NoRoute => "no_route",
            Self::Host => "bad_host",
            Self::Connect => "no_tunnels",
            Self::Upstream { cause, .. } => match cause {
                Failure::Refused(_) => "upstream_refused",
                Failure::LeftAlone => "upstream_unavailable",
                Failure::HeadTimeout(_) => "upstream_timeout",
                Failure::IdleTimeout(_) => "upstream_idle",
                Failure::Cut(_) => "upstream_cut",
                Failure::ClientBody(_) => "request_broken",
            },
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Overloaded => "too many requests are in flight; try again shortly".to_owned(),
            Self::NoRoute => "no upstream is configured for this path".to_owned(),
            Self::Host => "a request carries exactly one Host header".to_owned(),
            Self::Connect => "CONNECT is not supported: this is no forward proxy".to_owned(),
            Self::Upstream { name, cause } => format!("upstream {name:?} {cause}"),
        }
    }
}

/// The answer to a request that got none from an upstream.
pub fn refuse(refusal: &Refusal<'_>) -> Response {
    let error = json!({"error": {"message": refusal.message(), "type": "proxy_error", "param": null, "code": refusal.code()}});
    let mut response = Response::new(Body::whole(Bytes::from(error.to_string())));
    *response.status_mut() = refusal.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
