//! A request kept in case the reused connection it goes out on turns out to have been closed.
//!
//! A server may close an idle connection at the very moment a request is sent on it. If the connection breaks before a
//! single byte of an answer, and the whole body is at hand, the request is sent once more, on a new connection. Everything
//! else is a failure and said to be one. Of an HTTP/2 request only the server's own word that it has not looked at it will do.

use hyper::http::request;

use crate::body::replay::{Copied, Extent, Replay};
use crate::upstream::Request;

pub struct Spare {
    head: request::Parts,
    body: Copied,
}

impl Spare {
    pub fn of(request: &Request) -> Self {
        // Cloned field by field: a request as a whole cannot be, its body streams.
        let mut head = hyper::Request::new(()).into_parts().0;
        head.method = request.method().clone();
        head.uri = request.uri().clone();
        head.version = request.version();
        head.headers = request.headers().clone();
        head.extensions = request.extensions().clone();
        Self { head, body: request.body().copy() }
    }

    /// The request again, if its body was copied whole.
    pub fn again(self) -> Option<Request> {
        if self.body.extent() != Extent::Whole {
            return None;
        }
        let body = Replay::repeated(self.body.bytes(), self.body);
        Some(hyper::Request::from_parts(self.head, body))
    }
}
