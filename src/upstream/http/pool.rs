//! Unused connections, and what a connection is: the pair of a sender and the connection it drives.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::Context;
use std::time::Instant;

use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_util::rt::TokioIo;

use super::Timers;
use crate::body::replay::Replay;
use crate::clock;
use crate::upstream::connect::Stream;

/// One upstream's unused connections and its timers.
pub struct Pool {
    pub timers: Timers,
    unused: Mutex<VecDeque<(Instant, Link)>>,
}

/// A connection and the handle that sends requests on it.
pub struct Link {
    pub sender: SendRequest<Replay>,
    pub connection: Pin<Box<Connection<TokioIo<Stream>, Replay>>>,
    /// The connection has finished; nothing more will come.
    pub dead: bool,
}

impl Link {
    /// Lets the connection do what it can now.
    pub fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.dead && self.connection.as_mut().poll(cx).is_ready() {
            self.dead = true;
        }
    }

    /// Whether another request may be sent on it.
    pub fn usable(&self) -> bool {
        !self.dead && self.sender.is_ready() && !self.sender.is_closed()
    }
}

impl Pool {
    pub fn new(timers: Timers) -> Self {
        Self { timers, unused: Mutex::default() }
    }

    /// The youngest usable connection. Old ones are dropped: a server may be about to close them.
    pub fn take(&self) -> Option<(Instant, Link)> {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = unused
            .pop_back()
            .filter(|(since, _)| clock::now().duration_since(*since) < self.timers.pool_idle.0);
        if fresh.is_none() {
            unused.clear();
        }
        fresh
    }

    pub fn give(&self, link: Link) {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() >= self.timers.pool_size {
            unused.pop_front();
        }
        unused.push_back((clock::now(), link));
    }
}
