//! Answers of the admin side.

use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::combinators::MapErr;
use http_body_util::{BodyExt, Full};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::json;

use crate::body::BoxError;

pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
pub const JSON: &str = "application/json";
pub const HTML: &str = "text/html; charset=utf-8";
pub const BYTES: &str = "application/octet-stream";

pub type Body = MapErr<Full<Bytes>, fn(Infallible) -> BoxError>;

/// What is answered.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub content_type: &'static str,
    pub headers: Vec<(HeaderName, String)>,
    pub body: Bytes,
}

/// Why something is not answered: what is wrong, where, and what would do.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub message: String,
    /// A part of the request, or what it concerns here.
    pub place: &'static str,
    pub remedy: &'static str,
}

impl Answer {
    pub fn new(content_type: &'static str, body: impl Into<Bytes>) -> Answer {
        Answer { status: StatusCode::OK, content_type, headers: Vec::new(), body: body.into() }
    }

    pub fn json(value: &impl Serialize) -> Answer {
        match serde_json::to_vec(value) {
            Ok(body) => Answer::new(JSON, body),
            Err(error) => Refusal::inside(&error).into(),
        }
    }

    pub fn status(mut self, status: StatusCode) -> Answer {
        self.status = status;
        self
    }

    pub fn with(mut self, name: HeaderName, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }

    pub fn response(self) -> Response<Body> {
        let never: fn(Infallible) -> BoxError = |never| match never {};
        let mut response = Response::new(Full::new(self.body).map_err(never));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(
            CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
        );
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in self.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        response
    }
}

impl Refusal {
    pub fn new(
        status: StatusCode,
        message: impl Into<String>,
        place: &'static str,
        remedy: &'static str,
    ) -> Refusal {
        Refusal { status, message: message.into(), place, remedy }
    }

    pub fn inside(error: &dyn std::fmt::Display) -> Refusal {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Refusal::new(status, error.to_string(), "here", "look at the log; ask again")
    }
}

impl From<Refusal> for Answer {
    fn from(refusal: Refusal) -> Answer {
        let Refusal { status, message, place, remedy } = refusal;
        let body = json!({"error": {"message": message, "where": place, "remedy": remedy}}).to_string();
        Answer::new(JSON, body).status(status)
    }
}
