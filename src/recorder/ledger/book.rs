//! One tenant's page of the ledger.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus::{IntCounter, IntCounterVec};

use super::DROPPED;
use crate::clock;
use crate::journal::record::Gap;
use crate::metrics::Metrics;

/// What may become of an exchange.
const OUTCOMES: [&str; 5] = ["full", "shape", "meta", "off", "dropped"];

/// What became of a tenant's exchanges, and what of its losses is not yet in its journal.
pub struct Book {
    /// By [`OUTCOMES`].
    turns: [IntCounter; OUTCOMES.len()],
    /// By [`DROPPED`]'s order: count and time of the first.
    pending: [(AtomicU64, AtomicU64); DROPPED.len()],
}

/// The family of all pages.
pub fn register(metrics: &Metrics) -> IntCounterVec {
    metrics.counters(
        "serin_recorder_tenant_turns_total",
        "Clients' exchanges by tenant and by what was recorded of them; each is in serin_recorder_turns_total as well.",
        &["tenant", "outcome"],
    )
}

impl Book {
    pub fn new(family: &IntCounterVec, tenant: &str) -> Book {
        let turns = OUTCOMES.map(|outcome| family.with_label_values(&[tenant, outcome]));
        Book { turns, pending: Default::default() }
    }

    pub fn count(&self, outcome: &str) {
        let known = OUTCOMES.iter().zip(&self.turns).find(|(known, _)| **known == outcome);
        known.into_iter().for_each(|(_, turns)| turns.inc());
    }

    /// Notes a loss, by its place in [`DROPPED`].
    pub fn lost(&self, why: usize) {
        let (count, since) = &self.pending[why];
        if count.fetch_add(1, Relaxed) == 0 {
            since.store(clock::unix_nanos(), Relaxed);
        }
    }

    /// Losses since the last call, to be written into the tenant's journal.
    pub fn take_gaps(&self) -> Vec<Gap> {
        let now = clock::unix_nanos();
        let pending = DROPPED.iter().zip(&self.pending);
        pending
            .filter_map(|((_, name), (count, since))| {
                let lost = count.swap(0, Relaxed);
                (lost > 0).then(|| Gap {
                    from_unix_nanos: since.load(Relaxed),
                    to_unix_nanos: now,
                    reason: (*name).to_owned(),
                    count: lost,
                })
            })
            .collect()
    }

    /// A gap that was taken and could not be written: it counts as not taken.
    pub fn gap_not_written(&self, gap: &Gap) {
        let pending = DROPPED.iter().zip(&self.pending).find(|((_, name), _)| **name == gap.reason);
        if let Some((_, (count, since))) = pending {
            since.store(gap.from_unix_nanos, Relaxed);
            count.fetch_add(gap.count, Relaxed);
        }
    }
}
