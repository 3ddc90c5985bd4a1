//! What the upstream saw, told to the load generator. Both are threads of one process, so that the two ends of a proxy
//! can be compared by one clock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

#[derive(Default)]
pub struct Witness {
    /// Requests that were not, byte for byte, what was sent.
    changed: AtomicU64,
    seen: Mutex<Seen>,
    news: Notify,
}

#[derive(Default)]
struct Seen {
    /// Requests that are held and never answered, by number.
    arrived: HashMap<u64, Instant>,
    /// When the connection of an unfinished answer was seen closed.
    gone: HashMap<u64, Instant>,
    /// When each event of a timed stream was handed to the connection.
    sent: HashMap<u64, Vec<Instant>>,
}

pub static WITNESS: LazyLock<Witness> = LazyLock::new(Witness::default);

impl Witness {
    pub fn changed(&self) -> u64 {
        self.changed.load(Relaxed)
    }

    pub fn note_changed(&self) {
        self.changed.fetch_add(1, Relaxed);
    }

    pub fn note_arrived(&self, number: u64) {
        self.seen().arrived.insert(number, Instant::now());
        self.news.notify_waiters();
    }

    pub fn note_gone(&self, number: u64) {
        self.seen().gone.insert(number, Instant::now());
        self.news.notify_waiters();
    }

    pub fn note_sent(&self, number: u64, times: Vec<Instant>) {
        self.seen().sent.insert(number, times);
    }

    /// When the request arrived; `None` if it does not within `limit`.
    pub async fn arrival(&self, number: u64, limit: Duration) -> Option<Instant> {
        self.wait(limit, |seen| seen.arrived.remove(&number)).await
    }

    /// When the upstream saw its connection closed; `None` if it does not within `limit`.
    pub async fn departure(&self, number: u64, limit: Duration) -> Option<Instant> {
        self.wait(limit, |seen| seen.gone.remove(&number)).await
    }

    /// When each event of a timed stream was sent.
    pub fn take_sent(&self, number: u64) -> Vec<Instant> {
        self.seen().sent.remove(&number).unwrap_or_default()
    }

    /// Forgets what nobody has asked about.
    pub fn clear(&self) {
        *self.seen() = Seen::default();
    }

    async fn wait(
        &self,
        limit: Duration,
        mut take: impl FnMut(&mut Seen) -> Option<Instant>,
    ) -> Option<Instant> {
        let found = async {
            loop {
                let news = self.news.notified();
                if let Some(found) = take(&mut self.seen()) {
                    return found;
                }
                news.await;
            }
        };
        tokio::time::timeout(limit, found).await.ok()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
