//! What is known of an upstream's liveness: told once when it changes, not with every request.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use prometheus::IntGauge;

use super::Failure;

/// One upstream's state.
pub struct Health {
    name: String,
    up: AtomicBool,
    gauge: IntGauge,
}

impl Health {
    /// An upstream is thought to be up until it is seen to be down.
    pub fn new(name: &str, gauge: IntGauge) -> Self {
        gauge.set(1);
        Self { name: name.to_owned(), up: AtomicBool::new(true), gauge }
    }

    /// Takes note of an attempt to reach it at `address`.
    pub fn note(&self, failure: Option<&Failure>, address: &str) {
        // Anything but a refusal came over a connection: it is there, whatever it answers.
        let refused = match failure {
            Some(Failure::Refused(cause)) => Some(cause),
            _ => None,
        };
        self.gauge.set(i64::from(refused.is_none()));
        let was_up = self.up.swap(refused.is_none(), Relaxed);
        match refused {
            Some(cause) if was_up => tracing::warn!(
                "upstream {:?} at {address} cannot be reached ({cause}); start it, or correct url in its \
                 [[upstream]] section",
                self.name
            ),
            None if !was_up => tracing::info!("upstream {:?} at {address} can be reached again", self.name),
            _ => {}
        }
    }
}
