//! The upstream: does what each request's plan says, and can be taken down and brought back on the same port.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Error;
use crate::plan::{Ending, HEADER, MALFORMED, Pieces, Plan, RECEIVED};

/// What the upstream has to tell.
#[derive(Default)]
pub struct Books {
    /// Requests being answered now; cancelled ones must leave.
    pub live: AtomicI64,
    pub requests: AtomicU64,
    /// Requests that the proxy should have refused.
    pub malformed: AtomicU64,
}

/// Counts a request for as long as it is answered.
struct Live(Arc<Books>);

/// An answer by plan.
struct Answer {
    pieces: Pieces,
    _live: Live,
}

#[derive(Debug)]
struct Cut;

impl std::fmt::Display for Cut {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("cut as planned")
    }
}

impl std::error::Error for Cut {}

/// Serves while `up` is true and is gone while it is not, until the sender of `up` is dropped.
pub async fn keep(
    address: SocketAddr,
    mut up: watch::Receiver<bool>,
    books: Arc<Books>,
) -> Result<(), Error> {
    while up.wait_for(|up| *up).await.is_ok() {
        let listener = bind(address).await?;
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                down = up.wait_for(|up| !*up) => match down {
                    Ok(_) => break,
                    Err(_) => return Ok(()),
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                accepted = listener.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let _ = stream.set_nodelay(true);
                    let books = books.clone();
                    let service = service_fn(move |request| answer(request, books.clone()));
                    let serve = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    connections.spawn_local(async move { drop(serve.await) });
                }
            }
        }
        // Dropping the set cuts what is running, dropping the listener refuses what comes.
    }
    Ok(())
}

/// The port may still be held by connections of the last time for a moment.
async fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let mut tries = 0;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if tries > 100 => return Err(format!("{address}: {error}").into()),
            Err(_) => tries += 1,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

type Answered = Response<Either<Full<Bytes>, Answer>>;

async fn answer(request: Request<Incoming>, books: Arc<Books>) -> Result<Answered, Cut> {
    books.requests.fetch_add(1, Relaxed);
    books.live.fetch_add(1, Relaxed);
    let live = Live(books.clone());
    if request.headers().contains_key(MALFORMED) {
        books.malformed.fetch_add(1, Relaxed);
    }
    let plan = request.headers().get(HEADER).and_then(|plan| Plan::parse(plan.to_str().ok()?));
    let Some(plan) = plan else { return Ok(Response::new(Either::Left(Full::default()))) };
    let digest = digest(request.into_body()).await.ok_or(Cut)?;
    match plan.ending {
        Ending::NoHead => return Err(Cut),
        Ending::Never => std::future::pending().await,
        Ending::Whole | Ending::CutAfter(_) => {}
    }
    let media = if plan.sized { "application/json" } else { "text/event-stream" };
    let body = Answer { pieces: Pieces::of(plan), _live: live };
    let response = Response::builder().header("content-type", media).header(RECEIVED, digest);
    response.body(Either::Right(body)).map_err(|_| Cut)
}

/// The digest of a body, if all of it came.
async fn digest(mut body: Incoming) -> Option<String> {
    let mut hasher = blake3::Hasher::new();
    while let Some(frame) = body.frame().await {
        if let Some(part) = frame.ok()?.data_ref() {
            hasher.update(part);
        }
    }
    Some(hasher.finalize().to_hex().to_string())
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        ready!(self.pieces.poll_due(cx));
        if self.pieces.plan().ending == Ending::CutAfter(self.pieces.taken()) {
            return Poll::Ready(Some(Err(Cut)));
        }
        Poll::Ready(self.pieces.take().map(|piece| Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        self.pieces.size_hint()
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Relaxed);
    }
}
