//! A request that asks to speak something else on its connection (RFC 9110 section 7.8), such as a WebSocket.

use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use hyper::body::Incoming;

use super::pool::{Link, handshake};
use crate::upstream::Request;
use crate::upstream::connect::Stream;

/// A connection that no longer speaks HTTP, and what has been read from it already.
pub struct Switched {
    pub stream: Stream,
    pub read: Bytes,
}

/// What the server thinks of it.
pub enum Answer {
    Yes(hyper::Response<Switched>),
    /// An ordinary answer, over a connection that goes on speaking HTTP.
    No(hyper::Response<Incoming>, Link),
}

/// Sends `request` as the only one on `stream`.
pub async fn ask(stream: Stream, request: Request) -> hyper::Result<Answer> {
    let received = stream.received();
    let (mut sender, mut connection) = handshake(stream).await?;
    let mut ended = false;
    let answer = {
        let mut answer = pin!(sender.send_request(request));
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            // What comes behind the head of a 101 is not HTTP: the stream must survive the connection.
            ended = ended || connection.poll_without_shutdown(cx).is_ready();
            answer.as_mut().poll(cx)
        })
        .await?
    };
    if answer.status() != hyper::StatusCode::SWITCHING_PROTOCOLS {
        let mut link = Link::new(sender, connection, received);
        if ended {
            link.connection = None;
        }
        return Ok(Answer::No(answer, link));
    }
    if !ended {
        std::future::poll_fn(|cx| connection.poll_without_shutdown(cx)).await?;
    }
    let parts = connection.into_parts();
    let switched = Switched { stream: parts.io.into_inner(), read: parts.read_buf };
    Ok(Answer::Yes(answer.map(|_| switched)))
}
