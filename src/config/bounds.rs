//! What values may be: neither so small that nothing works nor so large that nothing is bounded.

use super::Config;
use crate::units::Size;

/// More of anything than one process can hold.
const MILLION: usize = 1_000_000;

impl Config {
    pub(super) fn check_upgrades(&self) -> Result<(), String> {
        let header = |name: &&String| hyper::header::HeaderName::try_from(name.as_str()).is_err();
        if let Some(name) = self.listen.upgrades.iter().find(header) {
            return Err(format!("[listen] upgrades: {name:?} is no name of a protocol"));
        }
        let http = |name: &&String| {
            let name = name.to_ascii_lowercase();
            name.starts_with("h2c") || name.starts_with("http") || name.starts_with("tls")
        };
        if let Some(name) = self.listen.upgrades.iter().find(http) {
            return Err(format!(
                "[listen] upgrades: {name:?} would carry requests past the proxy; name protocols such as \"websocket\""
            ));
        }
        match self.balance.worker_headers.iter().find(header) {
            Some(name) => Err(format!("[balance] worker_headers: {name:?} is no name of a header")),
            None => Ok(()),
        }
    }

    pub(super) fn check_counts(&self) -> Result<(), String> {
        let counts = [
            ("[limits] threads", self.limits.threads, 1_024),
            ("[limits] connections", self.limits.connections, MILLION),
            ("[limits] in_flight", self.limits.in_flight, MILLION),
            ("[limits] h2_streams", self.limits.h2_streams, MILLION),
            ("[limits] destinations", self.limits.destinations, MILLION),
            ("[balance] affinity_entries", self.balance.affinity_entries, 64 * MILLION),
            ("[balance] workers", self.balance.workers, 10_000),
            ("[balance] abort_queue", self.balance.abort_queue, MILLION),
            ("[record] queue", self.record.queue, MILLION),
            ("[passive] queue", self.passive.queue, MILLION),
            ("[passive] turns", self.passive.turns, 64 * MILLION),
            ("[passive] lines", self.passive.lines, 64 * MILLION),
            ("[passive] models", self.passive.models, MILLION),
            ("[passive] codes", self.passive.codes, MILLION),
            ("[admin] readers", self.admin.readers, 1_024),
            ("[admin] audit_files", self.admin.audit_files, 10_000),
            ("[log] queue", self.log.queue, MILLION),
            ("[trace] queue", self.trace.queue, MILLION),
            ("[fallback] threads", self.fallback.threads, 1_024),
            ("[fallback] slots", self.fallback.slots, 1_024),
            ("[fallback] queue", self.fallback.queue, MILLION),
        ];
        for (key, count, most) in counts {
            if count == 0 {
                return Err(format!("{key} = 0 would let nothing through; it must be at least 1"));
            }
            if count > most {
                return Err(format!("{key} = {count} is beyond any use; {most} is the most"));
            }
        }
        // Requests wait for so much of their body before they go on.
        if self.balance.affinity_prefix > Size(1 << 20) {
            let most = Size(1 << 20);
            return Err(format!(
                "[balance] affinity_prefix = \"{}\" is beyond any use; {most} is the most",
                self.balance.affinity_prefix
            ));
        }
        let (least, most) = (Size(64 << 10), Size::mib(4096));
        if !(least..=most).contains(&self.admin.audit_bytes) {
            return Err(format!("[admin] audit_bytes is beyond any use; it goes from {least} to {most}"));
        }
        match self.limits.pool_size > MILLION {
            true => Err(format!("[limits] pool_size = {} is beyond any use", self.limits.pool_size)),
            false => Ok(()),
        }
    }

    pub(super) fn check_durations(&self) -> Result<(), String> {
        let limits = &self.limits;
        let durations = [
            ("connect", limits.connect),
            ("head", limits.head),
            ("idle", limits.idle),
            ("handshake", limits.handshake),
            ("header_read", limits.header_read),
            ("client_stall", limits.client_stall),
            ("h2_ping", limits.h2_ping),
            ("files_every", limits.files_every),
        ];
        match durations.iter().find(|(_, span)| span.0.is_zero()) {
            Some((key, _)) => {
                Err(format!("[limits] {key} = \"0ms\" would refuse everything; give it a length"))
            }
            None => Ok(()),
        }
    }

    pub(super) fn check_names(&self) -> Result<(), String> {
        for (at, upstream) in self.upstream.iter().enumerate() {
            let name = &upstream.name;
            if name.is_empty() || ["embedded", "none", "original", "unknown"].contains(&name.as_str()) {
                return Err(format!("[[upstream]] name = {name:?} is reserved; choose another"));
            }
            if self.upstream[..at].iter().any(|earlier| earlier.name == *name) {
                return Err(format!("two [[upstream]] are named {name:?}; names must differ"));
            }
        }
        self.check_paths()?;
        if let Some(upstream) = self.upstream.iter().find(|upstream| !(1..=1_000).contains(&upstream.weight))
        {
            return Err(format!("[[upstream]] name = {:?}: weight goes from 1 to 1000", upstream.name));
        }
        if self.breaker.failures == 0
            || self.breaker.open.0.is_zero()
            || self.breaker.health_every.0.is_zero()
        {
            return Err(
                "[breaker] failures and open must be above 0; a high number of failures switches it off"
                    .into(),
            );
        }
        Ok(())
    }

    fn check_paths(&self) -> Result<(), String> {
        for upstream in &self.upstream {
            let (name, health, abort) = (&upstream.name, upstream.health.as_str(), upstream.abort.as_str());
            if !matches!(health, "" | "tcp") && !is_target(health) {
                return Err(format!(
                    "[[upstream]] name = {name:?}: health is \"tcp\" or a path that begins with /"
                ));
            }
            if !abort.is_empty() && !is_target(abort) {
                return Err(format!("[[upstream]] name = {name:?}: abort is a path and begins with /"));
            }
        }
        for (at, route) in self.route.iter().enumerate() {
            let prefix = &route.path_prefix;
            if !is_target(prefix) || prefix.contains('?') {
                return Err(format!(
                    "[[route]] path_prefix = {prefix:?} must begin with / and be a path as requests carry it"
                ));
            }
            if self.route[..at].iter().any(|earlier| earlier.path_prefix == *prefix) {
                return Err(format!(
                    "two [[route]] have path_prefix = {prefix:?}; name all its upstreams in one"
                ));
            }
        }
        Ok(())
    }

    /// Whether the embedded engine could ever answer: with upstreams and nothing it may stand in for, never.
    pub fn wants_engine(&self) -> bool {
        self.upstream.is_empty() || !self.fallback.answers_for.is_empty()
    }

    /// Whether some upstream wants to be told of clients that left.
    pub fn wants_abort(&self) -> bool {
        self.upstream.iter().any(|upstream| !upstream.abort.is_empty())
    }
}

/// Whether a request could name this path.
fn is_target(path: &str) -> bool {
    path.starts_with('/') && !path.contains('#') && path.parse::<hyper::http::uri::PathAndQuery>().is_ok()
}
