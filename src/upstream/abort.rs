//! Telling an upstream that a client has left, where closing the connection is not enough: some keep a request that they have
//! queued (SGLang's `/abort_request`). Off the path: the word waits in a bounded queue.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use prometheus::IntCounterVec;
use serde_json::json;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinSet;

use super::aside;
use super::balance::Member;
use crate::body::replay::Replay;
use crate::metrics::Metrics;

/// How long one word may take, and how many are on their way at once.
const PATIENCE: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 16;

/// The path's end. Cheap to clone.
#[derive(Clone)]
pub struct Aborts {
    queue: Sender<Abort>,
    told: IntCounterVec,
}

/// The end that does the telling.
pub struct Telling {
    queue: Receiver<Abort>,
    told: IntCounterVec,
}

struct Abort {
    member: Arc<Member>,
    id: String,
}

/// Both ends of a queue of this length.
pub fn queue(length: usize, metrics: &Metrics) -> (Aborts, Telling) {
    let told = metrics.counters(
        "serin_upstream_aborts_total",
        "Clients that left, told to upstreams with an abort path, by what came of it.",
        &["upstream", "outcome"],
    );
    let (sender, receiver) = channel(length);
    (Aborts { queue: sender, told: told.clone() }, Telling { queue: receiver, told })
}

impl Aborts {
    /// The client of request `id` has left `member`. Never waits.
    pub fn tell(&self, member: Arc<Member>, id: String) {
        if let Err(refused) = self.queue.try_send(Abort { member, id }) {
            let name = refused.into_inner().member.upstream().name().to_owned();
            self.told.with_label_values(&[name.as_str(), "dropped"]).inc();
        }
    }
}

impl Telling {
    /// Runs until the path's end is gone.
    pub async fn run(mut self) {
        let mut under_way = JoinSet::new();
        while let Some(abort) = self.queue.recv().await {
            if under_way.len() >= AT_ONCE {
                under_way.join_next().await;
            }
            while under_way.try_join_next().is_some() {}
            let told = self.told.clone();
            under_way.spawn(async move {
                let outcome = match tokio::time::timeout(PATIENCE, tell(&abort)).await {
                    Ok(true) => "told",
                    Ok(false) | Err(_) => "failed",
                };
                told.with_label_values(&[abort.member.upstream().name(), outcome]).inc();
                tracing::debug!(id = abort.id, outcome, "an upstream was told that a client left");
            });
        }
    }
}

async fn tell(abort: &Abort) -> bool {
    let Some(path) = abort.member.abort() else { return false };
    let body = Bytes::from(json!({"rid": abort.id}).to_string());
    let request = hyper::Request::post(path)
        .header(HOST, "abort")
        .header(CONTENT_TYPE, "application/json")
        .body(Replay::held(body));
    let Ok(request) = request else { return false };
    aside::ask(abort.member.upstream(), request).await.is_some_and(|status| status.is_success())
}
