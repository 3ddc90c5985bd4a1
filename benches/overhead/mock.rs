//! The upstream: an OpenAI-compatible server on one thread, whose answers follow from the requests' numbers.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Error;
use crate::traffic::{ANSWERS, Ask, Kind};
use crate::witness::WITNESS;

/// A stream of events, paced or as fast as it is taken.
struct Events {
    rest: Bytes,
    next: usize,
    pace: Option<Duration>,
    timer: Option<Pin<Box<Sleep>>>,
    /// Sending times, where they are wanted.
    times: Option<Vec<std::time::Instant>>,
    unfinished: Unfinished,
}

/// A request whose answer has not ended. Dropped before that, its connection is gone.
struct Unfinished(Option<u64>);

type Answer = Response<Either<Full<Bytes>, Events>>;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Starts the server for the rest of the process's life; returns its address.
pub fn start() -> Result<SocketAddr, Error> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    let listener = std::net::TcpListener::from(socket);
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
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        connections.spawn_local(async move {
            // A peer that leaves is the peer's business.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(answer))
                .await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(request: Request<Incoming>) -> Result<Answer, Infallible> {
    if request.method() == Method::GET {
        return Ok(json(about(request.uri().path())));
    }
    let mut body = request.into_body();
    let mut received = Vec::with_capacity(body.size_hint().lower() as usize);
    let mut asked = None;
    let mut unfinished = Unfinished(None);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Ok(json(Bytes::new())) };
        received.extend_from_slice(frame.data_ref().map_or(&[][..], |part| part));
        if asked.is_none() {
            asked = Ask::read(&received);
            if let Some(Ask { number, kind: Kind::Hold, .. }) = asked {
                unfinished.0 = Some(number);
                WITNESS.note_arrived(number);
            }
        }
    }
    let Some(ask) = asked else { return Ok(stranger(&received)) };
    if !ask.is_in(&received) {
        WITNESS.note_changed();
    }
    match ask.kind {
        Kind::Hold => std::future::pending().await,
        Kind::Json => Ok(json(ANSWERS.to(ask))),
        Kind::Events | Kind::Timed => Ok(stream(ask)),
    }
}

/// A request that is not of this benchmark, such as a canary's.
fn stranger(body: &[u8]) -> Answer {
    const STREAM: &[u8] = b"\"stream\":true";
    let streams = body.windows(STREAM.len()).any(|window| window == STREAM);
    let kind = if streams { Kind::Events } else { Kind::Json };
    let ask = Ask { number: 0, kind, pace: 0 };
    if streams { stream(ask) } else { json(ANSWERS.to(ask)) }
}

/// What gateways ask a model server before they send it anything.
fn about(path: &str) -> Bytes {
    match path {
        "/v1/models" => {
            r#"{"object":"list","data":[{"id":"mock","object":"model","created":1700000000,"owned_by":"mock","root":"mock","max_model_len":131072}]}"#
        }
        "/get_model_info" | "/model_info" => r#"{"model_path":"mock","tokenizer_path":"mock","is_generation":true}"#,
        "/get_server_info" | "/server_info" => {
            r#"{"model_path":"mock","tokenizer_path":"mock","served_model_name":"mock","tp_size":1,"dp_size":1,"version":"0.5.0"}"#
        }
        _ => r#"{"status":"ok"}"#,
    }
    .into()
}

fn json(body: Bytes) -> Answer {
    let mut response = Response::new(Either::Left(Full::new(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn stream(ask: Ask) -> Answer {
    let events = Events {
        rest: ANSWERS.to(ask),
        next: 0,
        pace: (ask.pace > 0).then(|| Duration::from_micros(ask.pace.into())),
        timer: None,
        times: (ask.kind == Kind::Timed).then(|| Vec::with_capacity(ANSWERS.ends().len())),
        unfinished: Unfinished(Some(ask.number)),
    };
    let mut response = Response::new(Either::Right(events));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    response
}

impl Events {
    /// The last event has been taken.
    fn finish(&mut self) {
        let number = self.unfinished.0.take();
        if let (Some(number), Some(times)) = (number, self.times.take()) {
            WITNESS.note_sent(number, times);
        }
    }
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
        let ends = ANSWERS.ends();
        let Some(end) = ends.get(self.next) else { return Poll::Ready(None) };
        let begin = self.next.checked_sub(1).map_or(0, |last| ends[last]);
        self.next += 1;
        let event = self.rest.split_to(end - begin);
        if let Some(times) = self.times.as_mut() {
            times.push(std::time::Instant::now());
        }
        if self.next == ends.len() {
            self.finish();
        } else if let Some(pace) = self.pace {
            // From the last due time, not from now: a late chunk does not make the whole stream late.
            let due = self.timer.as_ref().map_or_else(Instant::now, |timer| timer.deadline()) + pace;
            self.timer = Some(Box::pin(sleep_until(due)));
        }
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(number) = self.0 {
            WITNESS.note_gone(number);
        }
    }
}
