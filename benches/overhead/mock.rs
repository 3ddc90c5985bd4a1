//! The upstream: an OpenAI-compatible server with fixed answers, on one thread.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Error;

/// Request header: microseconds between two chunks of a stream.
pub const PACE_HEADER: &str = "x-bench-pace-us";
/// Request header: answer with the BLAKE3 hash of the request's body.
pub const DIGEST_HEADER: &str = "x-bench-digest";

/// Content chunks of a stream, and words of an answer.
const TOKENS: usize = 200;
const WORDS: [&str; 8] =
    ["one ", "seven ", "eighty ", "ninety ", "hundred ", "fourteen ", "twelve ", "sixty "];
/// The switch is looked for in the last bytes only, so that a large body costs a read and nothing more.
const STREAM_SWITCH: &[u8] = b"\"stream\":true";

/// The answers, made once.
struct Answers {
    json: Bytes,
    events: Vec<Bytes>,
}

/// A stream of the prepared events, paced or as fast as it is taken.
struct Events {
    answers: Rc<Answers>,
    next: usize,
    pace: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
}

type Answer = Response<Either<Full<Bytes>, Events>>;

/// Starts the server for the rest of the process's life; returns its address.
pub fn start() -> Result<SocketAddr, Error> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("mock".to_owned()).spawn(move || {
        let served = LocalSet::new().block_on(&runtime, serve(listener));
        eprintln!("mock upstream ended: {served:?}");
    })?;
    Ok(address)
}

async fn serve(listener: std::net::TcpListener) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let answers = Rc::new(Answers::new());
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answers = Rc::clone(&answers);
        connections.spawn_local(async move {
            let service = service_fn(move |request| answer(request, Rc::clone(&answers)));
            // A peer that leaves is the peer's business.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: Request<Incoming>, answers: Rc<Answers>) -> Result<Answer, Infallible> {
    let header =
        |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let pace = header(PACE_HEADER).and_then(|micros| micros.parse().ok()).map(Duration::from_micros);
    let wants_digest = header(DIGEST_HEADER).is_some();
    let body = match request.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(_) => return Ok(json(Bytes::from_static(b"{\"error\":\"the request was cut\"}"))),
    };
    if wants_digest {
        return Ok(json(blake3::hash(&body).to_hex().to_string().into()));
    }
    let tail = &body[body.len().saturating_sub(64)..];
    if !tail.windows(STREAM_SWITCH.len()).any(|window| window == STREAM_SWITCH) {
        return Ok(json(answers.json.clone()));
    }
    let mut response = Response::new(Either::Right(Events { answers, next: 0, pace, timer: None }));
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("text/event-stream"));
    Ok(response)
}

fn json(body: Bytes) -> Answer {
    let mut response = Response::new(Either::Left(Full::new(body)));
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    response
}

impl Answers {
    fn new() -> Answers {
        let text: String = (0..TOKENS).map(|token| WORDS[token % WORDS.len()]).collect();
        let usage =
            format!(r#"{{"prompt_tokens":32,"completion_tokens":{TOKENS},"total_tokens":{}}}"#, TOKENS + 32);
        let json = format!(
            r#"{{"id":"chatcmpl-0","object":"chat.completion","created":1700000000,"model":"mock","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"length"}}],"usage":{usage}}}"#
        );
        let words = (0..TOKENS)
            .map(|token| event(&format!(r#"{{"content":"{}"}}"#, WORDS[token % WORDS.len()]), "null"));
        let mut events = vec![event(r#"{"role":"assistant","content":""}"#, "null")];
        events.extend(words);
        events.push(event("{}", r#""length""#));
        events.push(Bytes::from_static(b"data: [DONE]\n\n"));
        Answers { json: json.into(), events }
    }
}

fn event(delta: &str, finish: &str) -> Bytes {
    let event = format!(
        "data: {{\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\
         \"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
    );
    event.into()
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(timer) = self.timer.as_mut() {
            std::task::ready!(timer.as_mut().poll(cx));
        }
        let Some(event) = self.answers.events.get(self.next).cloned() else { return Poll::Ready(None) };
        self.next += 1;
        if let Some(pace) = self.pace {
            // From the last due time, not from now: a late chunk does not make the whole stream late.
            let due = self.timer.as_ref().map_or_else(Instant::now, |timer| timer.deadline()) + pace;
            self.timer = Some(Box::pin(sleep_until(due)));
        }
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}
