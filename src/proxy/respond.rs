//! The only file that makes answers of our own. They have the form of the API's errors, so that clients can read them.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use serde_json::json;

use super::clients::Limited;
use crate::upstream::original::Barred;
use crate::upstream::{Body, Failure, Response};

/// Why the proxy answers itself.
#[derive(Debug)]
pub enum Refusal<'a> {
    /// All permits are taken.
    Overloaded,
    /// This client is at its limit.
    Limited(Limited),
    /// No upstream covers this path.
    NoRoute,
    /// The request does not say which host it is for, or says it twice (RFC 9112 section 3.2).
    Host,
    /// The request says twice where its body ends: by a length and by chunks (RFC 9112 section 6.1).
    Framing,
    /// Transparent mode: the connection must not go on to where it was going.
    Barred(Barred),
    /// CONNECT would make this a tunnel to anywhere.
    Connect,
    Upstream {
        name: &'a str,
        cause: &'a Failure,
    },
}

/// Whose fault it is. Only an upstream's is one to its breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Client,
    Upstream,
    Proxy,
}

/// How an API writes its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    OpenAi,
    Anthropic,
}

impl Refusal<'_> {
    fn status(&self) -> StatusCode {
        match self {
            Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
            Self::Limited(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::Host | Self::Framing => StatusCode::BAD_REQUEST,
            Self::Upstream { cause: Failure::TooLarge(_), .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Barred(Barred::Elsewhere(_)) => StatusCode::FORBIDDEN,
            Self::Barred(Barred::Loop) => StatusCode::LOOP_DETECTED,
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
            Self::Limited(_) => "rate_limit_exceeded",
            Self::NoRoute => "no_route",
            Self::Host => "bad_host",
            Self::Framing => "ambiguous_length",
            Self::Barred(Barred::Elsewhere(_)) => "destination_not_allowed",
            Self::Barred(Barred::Loop) => "redirect_loop",
            Self::Connect => "no_tunnels",
            Self::Upstream { cause, .. } => match cause {
                Failure::Refused(_) => "upstream_refused",
                Failure::LeftAlone => "upstream_unavailable",
                Failure::HeadTimeout(_) => "upstream_timeout",
                Failure::IdleTimeout(_) => "upstream_idle",
                Failure::Cut(_) => "upstream_cut",
                Failure::ClientBody(_) => "request_broken",
                Failure::TooLarge(_) => "request_too_large",
            },
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Overloaded => "too many requests are in flight; try again shortly".to_owned(),
            Self::Limited(Limited { by: "rate", wait }) => {
                format!(
                    "this client sends more requests than it may; the next one may come in {} s",
                    seconds(*wait)
                )
            }
            Self::Limited(_) => {
                "this client has as many requests in flight as it may; let one end first".to_owned()
            }
            Self::NoRoute => "no upstream is configured for this path".to_owned(),
            Self::Host => "a request carries exactly one Host header".to_owned(),
            Self::Barred(Barred::Elsewhere(to)) => {
                format!(
                    "connections to {to} are redirected here, and [listen] transparent_to does not allow them"
                )
            }
            Self::Barred(Barred::Loop) => {
                "the rule that redirects connections here catches the proxy's own; exempt them, by \
                                           their user for instance"
                    .to_owned()
            }
            Self::Framing => {
                "a request carries Content-Length or Transfer-Encoding, never both; send one of them"
                    .to_owned()
            }
            Self::Connect => "CONNECT is not supported: this is no forward proxy".to_owned(),
            // No upstream has anything to do with it.
            Self::Upstream { cause: cause @ (Failure::TooLarge(_) | Failure::ClientBody(_)), .. } => {
                cause.to_string()
            }
            Self::Upstream { name, cause } => format!("upstream {name:?} {cause}"),
        }
    }
}

impl Refusal<'_> {
    fn fault(&self) -> Fault {
        match self {
            Self::Overloaded | Self::NoRoute | Self::Barred(_) => Fault::Proxy,
            Self::Limited(_)
            | Self::Host
            | Self::Framing
            | Self::Connect
            | Self::Upstream { cause: Failure::ClientBody(_) | Failure::TooLarge(_), .. } => Fault::Client,
            Self::Upstream { .. } => Fault::Upstream,
        }
    }
}

impl Form {
    /// The form that whoever sent a request to this path can read.
    pub fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") { Self::Anthropic } else { Self::OpenAi }
    }

    fn body(self, refusal: &Refusal<'_>) -> serde_json::Value {
        let (message, code) = (refusal.message(), refusal.code());
        match self {
            Self::OpenAi => {
                let kind = match (refusal.fault(), refusal.status()) {
                    (Fault::Client, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_error",
                    (Fault::Client, _) => "invalid_request_error",
                    (Fault::Upstream, _) => "upstream_error",
                    (Fault::Proxy, _) => "proxy_error",
                };
                json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
            }
            Self::Anthropic => {
                // The types this API knows; whose fault it was is in the code.
                let kind = match (refusal.fault(), refusal.status()) {
                    (Fault::Client, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_error",
                    (Fault::Client, StatusCode::PAYLOAD_TOO_LARGE) => "request_too_large",
                    (Fault::Client, _) => "invalid_request_error",
                    (_, StatusCode::SERVICE_UNAVAILABLE) => "overloaded_error",
                    (_, StatusCode::NOT_FOUND) => "not_found_error",
                    (_, StatusCode::GATEWAY_TIMEOUT) => "timeout_error",
                    _ => "api_error",
                };
                json!({"type": "error", "error": {"type": kind, "message": message, "code": code}})
            }
        }
    }
}

/// The answer to a request that got none from an upstream.
pub fn refuse(refusal: &Refusal<'_>, form: Form) -> Response {
    let mut response = Response::new(Body::whole(Bytes::from(form.body(refusal).to_string())));
    *response.status_mut() = refusal.status();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let wait = match refusal {
        Refusal::Limited(limited) => Some(seconds(limited.wait)),
        _ => (response.status() == StatusCode::SERVICE_UNAVAILABLE).then_some(1),
    };
    if let Some(wait) = wait {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait));
    }
    response
}

/// Whole seconds, of which a wait has at least one.
fn seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0 || wait.is_zero())
}
