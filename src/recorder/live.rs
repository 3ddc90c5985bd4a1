//! Exchanges that run for long are noted while they do: a process that dies leaves a trace of them.
//!
//! The path hands each over as it begins, without waiting, and leaves behind in it how far it has come. The recorder's
//! thread looks at those that are old enough, and never at one that has ended by then.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::ledger::Ledger;
use crate::journal::record::{Exchange, Header, Phase};

const WAITING: u8 = 0;
const ANSWERING: u8 = 1;
const OVER: u8 = 2;

/// An exchange that runs.
pub struct Live {
    begun: Instant,
    tenant: usize,
    record: Exchange,
    /// Neither side ever waits for the other here.
    upstream: Mutex<String>,
    stage: AtomicU8,
}

impl Live {
    /// `record` holds what is known of the request, and `tenant` is whose it is.
    pub fn new(record: &Exchange, begun: Instant, tenant: usize) -> Live {
        let record = Exchange {
            id: record.id.clone(),
            started_unix_nanos: record.started_unix_nanos,
            origin: record.origin,
            method: record.method.clone(),
            target: record.target.clone(),
            request_headers: record.request_headers.iter().map(Header::clone).collect(),
            ..Exchange::default()
        };
        Live { begun, tenant, record, upstream: Mutex::default(), stage: AtomicU8::new(WAITING) }
    }

    /// Whose it is, by the order of [`super::tenant::Tenant::all`].
    pub fn tenant(&self) -> usize {
        self.tenant
    }

    /// The upstream that was chosen.
    pub fn sent_to(&self, upstream: &str) {
        if let Ok(mut held) = self.upstream.try_lock() {
            upstream.clone_into(&mut held);
        }
    }

    /// The first byte of its answer has come.
    pub fn answering(&self) {
        self.stage.store(ANSWERING, Relaxed);
    }

    /// It has ended. To be called before its record is offered.
    pub fn over(&self) {
        self.stage.store(OVER, Relaxed);
    }

    fn is_over(&self) -> bool {
        self.stage.load(Relaxed) == OVER
    }

    /// What is known of it by now.
    fn so_far(&self) -> Exchange {
        let mut record = self.record.clone();
        if let Ok(held) = self.upstream.try_lock() {
            record.upstream.clone_from(&held);
        }
        record.set_phase(match self.stage.load(Relaxed) {
            ANSWERING => Phase::ResponseBody,
            _ => Phase::PreFirstByte,
        });
        record
    }
}

/// The path's end.
pub type Begun = SyncSender<Arc<Live>>;

/// Those that run, in the order in which they began.
pub struct Watch {
    begun: Receiver<Arc<Live>>,
    running: VecDeque<Arc<Live>>,
    /// The most that are watched at once.
    most: usize,
    /// The age from which one is noted.
    after: Duration,
    ledger: Ledger,
}

impl Watch {
    /// Watches `most` exchanges at once, and notes those that are older than `after`.
    pub fn new(most: usize, after: Duration, ledger: Ledger) -> (Begun, Watch) {
        let (sender, begun) = sync_channel(most);
        (sender, Watch { begun, running: VecDeque::new(), most, after, ledger })
    }

    /// Looks at those that have begun since the last time.
    pub fn gather(&mut self) {
        while let Ok(live) = self.begun.try_recv() {
            if live.is_over() {
                continue;
            }
            if self.running.len() >= self.most {
                self.running.retain(|live| !live.is_over());
            }
            match self.running.len() < self.most {
                true => self.running.push_back(live),
                false => self.ledger.started(false),
            }
        }
    }

    /// The next that is old enough to be noted. Each is noted once.
    pub fn next(&mut self, now: Instant) -> Option<(Arc<Live>, Exchange)> {
        while let Some(oldest) = self.running.front() {
            if !oldest.is_over() && now.saturating_duration_since(oldest.begun) < self.after {
                return None;
            }
            let live = self.running.pop_front()?;
            if !live.is_over() {
                let record = live.so_far();
                return Some((live, record));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::metrics::Metrics;

    fn live(id: &str, begun: Instant) -> Arc<Live> {
        Arc::new(Live::new(&Exchange { id: id.into(), ..Exchange::default() }, begun, 0))
    }

    fn watch(most: usize) -> (Begun, Watch, Metrics) {
        let metrics = Metrics::default();
        let (begun, watch) = Watch::new(most, Duration::from_secs(1), Ledger::new(&metrics, &[]));
        (begun, watch, metrics)
    }

    #[test]
    fn only_those_that_still_run_are_noted_and_each_once() {
        let (begun, mut watch, _) = watch(8);
        let now = clock::now();
        let all: Vec<_> = ["1", "2", "3"].map(|id| live(id, now)).into();
        all.iter().for_each(|live| begun.try_send(live.clone()).expect("has room"));
        all[0].over();
        all[2].sent_to("router");
        all[2].answering();
        watch.gather();
        assert!(watch.next(now).is_none(), "they are young");
        let later = now + Duration::from_secs(1);
        let (_, second) = watch.next(later).expect("is due");
        assert_eq!((second.id.as_str(), second.phase()), ("2", Phase::PreFirstByte));
        let (_, third) = watch.next(later).expect("is due");
        assert_eq!(
            (third.id.as_str(), third.upstream.as_str(), third.phase()),
            ("3", "router", Phase::ResponseBody)
        );
        assert!(watch.next(later + Duration::from_secs(9)).is_none());
    }

    #[test]
    fn more_than_can_be_watched_are_counted_and_those_that_ended_make_room() {
        let (begun, mut watch, metrics) = watch(2);
        let now = clock::now();
        let all: Vec<_> = ["1", "2", "3", "4"].map(|id| live(id, now)).into();
        for one in &all[..3] {
            begun.try_send(one.clone()).expect("has room");
            watch.gather();
        }
        let lost = "serin_recorder_starts_total{outcome=\"lost\"} 1";
        assert!(String::from_utf8(metrics.text().expect("is text")).expect("is text").contains(lost));
        all[0].over();
        begun.try_send(all[3].clone()).expect("has room");
        watch.gather();
        let later = now + Duration::from_secs(1);
        let ids: Vec<String> = std::iter::from_fn(|| Some(watch.next(later)?.1.id)).collect();
        assert_eq!(ids, ["2", "4"]);
    }
}
