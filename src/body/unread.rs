//! What is left of a request's body when nobody wants it any more: an answer may be complete before its request has been
//! read, and hyper closes a connection of which it cannot read on. The client would lose what it sends next, and where
//! bytes of its request are still under way even the answer (RFC 9112, section 9.6). So the connection's own task reads
//! the rest and throws it away, one body at a time and for a limited time.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::mpsc;

/// Where one connection's requests leave what is left of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Unread(mpsc::Sender<Incoming>);

/// The other end, for the connection's task.
pub struct Leavings(mpsc::Receiver<Incoming>);

/// Both ends, for one connection.
pub fn unread() -> (Unread, Leavings) {
    // On HTTP/1.1 one request is read before the next begins.
    let (sender, receiver) = mpsc::channel(1);
    (Unread(sender), Leavings(receiver))
}

impl Unread {
    pub fn leave(&self, body: Incoming) {
        let _ = self.0.try_send(body);
    }
}

impl Leavings {
    /// Reads what is left, each for at most `limit`; never ends.
    pub async fn read(mut self, limit: Duration) {
        while let Some(mut body) = self.0.recv().await {
            let rest = async { while let Some(Ok(_)) = body.frame().await {} };
            let _ = tokio::time::timeout(limit, rest).await;
        }
        std::future::pending().await
    }
}
