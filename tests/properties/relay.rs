//! Requests and answers as bytes, through hyper as Serin sets it up, over pipes in memory: what a client sends, what
//! Serin makes of it, and what the server behind it understands.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, client, server};
use hyper_util::rt::TokioIo;
use serin::body::budget::Budget;
use serin::body::replay::{Extent, Replay};
use serin::proxy::{forward, headers};
use serin::redact;
use serin::server::heads::{Ambiguous, Watched};
use serin::upstream;
use serin::upstream::connect::tls::Wanted;
use serin::upstream::connect::{Endpoint, Versions};
use serin::upstream::http::target;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::pieces;

/// Bytes of a request body that the copy may hold.
const COPY: u64 = 300;
const PIPE: usize = 1 << 16;
/// More fields than fit into a head that Serin reads.
const MOST: usize = 1000;

/// A message as one of the two sides sees it.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    line: String,
    headers: HeaderMap,
    /// None where it was broken off.
    body: Option<Bytes>,
}

/// What became of a connection: requests as they arrived, as they were understood behind us, and what was refused.
#[derive(Debug, Default, PartialEq)]
struct Story {
    arrived: Vec<Seen>,
    passed: Vec<Seen>,
    refused: usize,
}

/// Runs a future to its end without a network.
fn run<T>(future: impl Future<Output = T>) -> T {
    thread_local!(static RUNTIME: tokio::runtime::Runtime =
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime"));
    RUNTIME.with(|runtime| runtime.block_on(future))
}

/// However a connection's bytes are cut, the same requests are read from it; and each that is passed on is understood
/// behind us as it was here, with nothing that concerns only one hop.
pub fn requests(input: &[u8]) {
    let (pieces, whole) = pieces::cut(input);
    let story = run(tell(&pieces)).without_broken();
    assert_eq!(story, run(tell(&[whole])).without_broken(), "cutting the bytes changes what is read");
    assert_eq!(story.arrived, story.passed, "a request is understood in two ways");
    assert!(!frames_twice(whole) || story.arrived.is_empty(), "a request with two framings was passed on");
}

/// Whether the first head of a connection says both ways where its body ends. Told without any parser of ours or hyper's.
fn frames_twice(bytes: &[u8]) -> bool {
    let start = bytes.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(bytes.len());
    let lines =
        bytes[start..].split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let names = lines.take_while(|line| !line.is_empty()).skip(1);
    let names: Vec<_> = names.filter_map(|line| line.split(|byte| *byte == b':').next()).collect();
    let has = |wanted: &[u8]| names.iter().any(|name| name.eq_ignore_ascii_case(wanted));
    has(b"content-length") && has(b"transfer-encoding")
}

impl Story {
    /// How much of a broken request gets through depends on when its end is seen, and is nobody's promise.
    fn without_broken(mut self) -> Story {
        self.arrived.retain(|seen| seen.body.is_some());
        self.passed.retain(|seen| seen.body.is_some());
        self
    }
}

async fn tell(pieces: &[&[u8]]) -> Story {
    let story = RefCell::new(Story::default());
    let (near, far) = duplex(PIPE);
    let far = Watched::new(far);
    let (doubt, number) = (far.doubt(), Cell::new(0));
    let service = service_fn(async |mut request: Request<Incoming>| {
        if doubt.concerns(number.replace(number.get() + 1), request.headers()) {
            request.extensions_mut().insert(Ambiguous);
        }
        let mut response = Response::new(Empty::<Bytes>::new());
        if !pass(request, &story).await {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok::<_, Infallible>(response)
    });
    let connection = server::conn::http1::Builder::new()
        .preserve_header_case(true)
        .half_close(true)
        .serve_connection(TokioIo::new(far), service);
    let _ = tokio::join!(feed(near, pieces), connection);
    story.into_inner()
}

/// Sends the pieces one by one, then nothing more, and reads what comes back.
async fn feed(stream: DuplexStream, pieces: &[&[u8]]) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut answers = Vec::new();
    let send = async {
        for piece in pieces {
            if writer.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let _ = writer.shutdown().await;
    };
    let _ = tokio::join!(send, reader.read_to_end(&mut answers));
    answers
}

/// What the proxy does with a request's head and body, up to the next server's understanding of them; `false` where it
/// refuses to.
async fn pass(request: Request<Incoming>, story: &RefCell<Story>) -> bool {
    let (mut head, body) = request.into_parts();
    if forward::malformed(&head).is_some() {
        story.borrow_mut().refused += 1;
        return false;
    }
    headers::strip_ours(&mut head.headers);
    let _ = headers::ensure_id(&mut head.headers, "made");
    headers::end_hop(&mut head.headers);
    check_head(&head.headers);
    let budget = Budget::new(COPY);
    let body = Replay::live(body, Some(budget.lease(COPY)), u64::MAX);
    let copy = body.copy();
    let mut request = Request::from_parts(head, body);
    let endpoint =
        Endpoint::parse("http://router:1", Versions::Auto, Wanted::default(), None).expect("an address");
    target::origin_form(&mut request, None, &endpoint);
    let _ = redact::target(&request.uri().to_string());
    let line = format!("{} {}", request.method(), request.uri());
    let mut arrived = Seen { line, headers: framing_aside(request.headers()), body: None };
    let passed = send_on(request).await;
    let bytes = copy.bytes();
    match copy.extent() {
        // The copy is what the next server was sent, or a beginning of it.
        Extent::Whole => arrived.body = Some(bytes.clone()),
        Extent::Truncated => {
            let body = passed.as_ref().and_then(|passed| passed.body.clone());
            assert!(
                body.as_ref()
                    .is_none_or(|body| body.starts_with(&bytes) && body.len() as u64 == copy.length())
            );
            arrived.body = body;
        }
        Extent::Open | Extent::Broken => {}
    }
    assert!(budget.used() <= COPY && bytes.len() as u64 <= COPY);
    let mut story = story.borrow_mut();
    story.arrived.push(arrived);
    story.passed.extend(passed);
    true
}

/// Sends a request to another server, as an upstream's connection does; returns what that one read.
async fn send_on(request: upstream::Request) -> Option<Seen> {
    let read = RefCell::new(Vec::new());
    let service = service_fn(async |request: Request<Incoming>| {
        let (head, body) = request.into_parts();
        let body = body.collect().await.ok().map(|body| body.to_bytes());
        let line = format!("{} {}", head.method, head.uri);
        read.borrow_mut().push(Seen { line, headers: framing_aside(&head.headers), body });
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let (near, far) = duplex(PIPE);
    // The id of ours makes one field more than Serin itself reads.
    let serve =
        server::conn::http1::Builder::new().max_headers(MOST).serve_connection(TokioIo::new(far), service);
    let send = async {
        let builder = client::conn::http1::Builder::new().preserve_header_case(true).clone();
        let Ok((mut sender, connection)) = builder.handshake::<_, Replay>(TokioIo::new(near)).await else {
            return;
        };
        let exchange = async move {
            if let Ok(answer) = sender.send_request(request).await {
                let _ = answer.into_body().collect().await;
            }
        };
        let _ = tokio::join!(exchange, connection);
    };
    let _ = tokio::join!(send, serve);
    let mut read = read.into_inner();
    assert!(read.len() <= 1, "one request became {}: {read:?}", read.len());
    read.pop()
}

/// Nothing that concerns this hop, and nothing that is ours, is left.
fn check_head(head: &HeaderMap) {
    check_hop(head);
    assert!(!head.contains_key("proxy-authorization"), "proxy-authorization travels on");
    assert!(head.keys().all(|name| !name.as_str().starts_with("x-serin-")));
    for (name, value) in redact::headers(head) {
        let secret = ["authorization", "cookie", "x-api-key"].contains(&name.as_str());
        assert!(!secret || value.starts_with("<withheld "), "{name}: {value}");
    }
}

/// Nothing that concerns this hop is left.
fn check_hop(head: &HeaderMap) {
    for name in ["connection", "keep-alive", "transfer-encoding", "upgrade"] {
        assert!(!head.contains_key(name), "{name} travels on");
    }
}

/// The headers without those that say how the body is framed, which each hop decides for itself.
fn framing_aside(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in ["content-length", "transfer-encoding", "host"] {
        headers.remove(name);
    }
    headers
}

/// However an upstream's bytes are cut, the same answer is read from them, and what is passed on of its head concerns
/// no single hop.
pub fn answers(input: &[u8]) {
    let (pieces, whole) = pieces::cut(input);
    let read = run(ask(&pieces));
    assert_eq!(read, run(ask(&[whole])), "cutting the bytes changes what is read");
}

async fn ask(pieces: &[&[u8]]) -> Option<Seen> {
    let (near, far) = duplex(PIPE);
    let builder = client::conn::http1::Builder::new().preserve_header_case(true).clone();
    let (mut sender, connection) = builder.handshake::<_, Empty<Bytes>>(TokioIo::new(near)).await.ok()?;
    let request = Request::get("/v1/models").header("host", "h").body(Empty::new()).expect("a request");
    let exchange = async move {
        let (head, body) = sender.send_request(request).await.ok()?.into_parts();
        let mut headers = head.headers;
        headers::end_hop(&mut headers);
        check_hop(&headers);
        let _ = redact::headers(&headers);
        let body = body.collect().await.ok().map(|body| body.to_bytes());
        Some(Seen { line: head.status.to_string(), headers, body })
    };
    let (answer, ..) = tokio::join!(exchange, connection, feed(far, pieces));
    answer
}
