//! Where a request is addressed to, in the form each version of HTTP wants.

use http_body::Body as _;
use hyper::header::{HOST, HeaderValue, TRANSFER_ENCODING};
use hyper::http::uri::Authority;
use hyper::{Method, Uri};

use crate::upstream::Request;
use crate::upstream::connect::Endpoint;

/// Gives the request the target an HTTP/1.1 origin server expects: the path, and the host in its header. `host` replaces the
/// client's.
pub fn origin_form(request: &mut Request, host: Option<&HeaderValue>, endpoint: &Endpoint) {
    // A target that carries its authority, absolute or HTTP/2's, outranks a Host header (RFC 9112 section 3.2.2).
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    if let Some(path) = request.uri().path_and_query().cloned() {
        let path = Uri::from(path);
        // From `http://host#fragment` a path remains that would be written as nothing at all.
        *request.uri_mut() = if path.path().is_empty() { Uri::from_static("/") } else { path };
    }
    *request.version_mut() = hyper::Version::HTTP_11;
    say_chunked(request);
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host.clone());
    } else if authority.is_some() || !request.headers().contains_key(HOST) {
        let value = authority.unwrap_or_else(|| endpoint.authority());
        if let Ok(value) = HeaderValue::try_from(value) {
            request.headers_mut().insert(HOST, value);
        }
    }
}

/// hyper takes GET and HEAD to have no body unless a header says so, and would leave out one that came in chunks.
fn say_chunked(request: &mut Request) {
    let unknown = !request.body().is_end_stream() && request.body().size_hint().exact().is_none();
    if unknown && matches!(*request.method(), Method::GET | Method::HEAD) {
        request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Gives a request in origin form the target HTTP/2 wants: everything in its pseudo-headers (RFC 9113 section 8.3.1).
pub fn absolute_form(request: &mut Request, endpoint: &Endpoint) {
    let host = request.headers_mut().remove(HOST);
    request.headers_mut().remove(TRANSFER_ENCODING);
    let authority = host.as_ref().and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let authority = authority.or_else(|| Authority::try_from(endpoint.authority()).ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(endpoint.scheme());
    parts.authority = authority;
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    *request.version_mut() = hyper::Version::HTTP_2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::replay::Replay;
    use crate::upstream::connect::Versions;

    #[test]
    fn a_target_always_has_a_path() {
        let endpoint = Endpoint::parse(
            "http://router:1",
            Versions::Auto,
            crate::upstream::connect::tls::Wanted::default(),
            None,
        )
        .unwrap();
        for (target, expected) in [
            ("http://h#80/x", "/"),
            ("http://h", "/"),
            ("http://h?a=1", "/?a=1"),
            ("/v1/x?y#z", "/v1/x?y"),
            ("*", "*"),
        ] {
            let mut request = Request::new(Replay::held(bytes::Bytes::new()));
            *request.uri_mut() = target.parse().unwrap();
            origin_form(&mut request, None, &endpoint);
            assert_eq!(request.uri().to_string(), expected, "{target}");
        }
    }
}
