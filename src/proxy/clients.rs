//! Limits for each client, told apart by the key it sends or by its address. A client is a keyed hash: neither key nor
//! address stays in memory, and neither is ever a label.

pub mod bucket;
mod table;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, HeaderName};
use prometheus::{IntCounterVec, IntGauge};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::metrics::Metrics;
use bucket::Pace;
use table::{Refused, Table};

/// What tells clients apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientBy {
    /// The credential it sends, and its address where it sends none.
    Key,
    /// Its address; of IPv6 the network of 64 bits, which one client has to itself.
    Address,
}

/// The limits in force, from `[limits]`.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Exchanges at once; 0 for any number.
    pub in_flight: usize,
    /// Requests a second; 0 for any number.
    pub rate: f64,
    /// Requests that may come at once after a pause.
    pub burst: u32,
    pub by: ClientBy,
    /// Clients remembered.
    pub table: usize,
}

/// Every client there is at the moment, and some that were. Cheap to clone.
#[derive(Clone)]
pub struct Clients(Arc<Books>);

struct Books {
    /// Makes a client of a credential, in this process only.
    key: [u8; 32],
    epoch: Instant,
    table: Mutex<Table>,
    limited: IntCounterVec,
    known: IntGauge,
}

/// The place of one exchange among its client's; given back when dropped.
pub struct Place {
    books: Arc<Books>,
    client: u128,
}

/// Why a client has to wait, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    pub by: &'static str,
    pub wait: Duration,
}

/// Where the APIs carry their keys.
pub static CREDENTIALS: [HeaderName; 3] =
    [AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];
/// Nobody knows when an exchange ends; asking again after this costs little.
const SOON: Duration = Duration::from_secs(1);

impl Terms {
    fn limit_nothing(&self) -> bool {
        self.in_flight == 0 && self.rate <= 0.0
    }
}

impl Clients {
    /// `key` is a secret of this process.
    pub fn new(metrics: &Metrics, key: [u8; 32]) -> Self {
        let limited = metrics.counters(
            "serin_proxy_limited_total",
            "Requests refused with 429 because their client was at its limit.",
            &["by"],
        );
        for by in [Refused::IN_FLIGHT, Refused::RATE] {
            limited.with_label_values(&[by]);
        }
        let known = metrics.gauge("serin_proxy_clients", "Clients remembered for their limits.");
        Self(Arc::new(Books { key, epoch: clock::now(), table: Mutex::default(), limited, known }))
    }

    /// Lets a request in, or says why not. Without limits nobody is told apart and nothing is remembered.
    pub fn admit(
        &self,
        terms: &Terms,
        headers: &HeaderMap,
        peer: Option<SocketAddr>,
        now: Instant,
    ) -> Result<Option<Place>, Limited> {
        if terms.limit_nothing() {
            return Ok(None);
        }
        let client = self.0.client(terms.by, headers, peer);
        let since = now.saturating_duration_since(self.0.epoch).as_nanos() as u64;
        let mut table = self.0.table();
        let entered = table.enter(client, terms.in_flight, Pace::new(terms.rate, terms.burst), since);
        table.shrink_to(terms.table);
        self.0.known.set(table.len() as i64);
        drop(table);
        match entered {
            Ok(()) => Ok(Some(Place { books: self.0.clone(), client })),
            Err(refused) => {
                let (by, wait) = match refused {
                    Refused::InFlight => (Refused::IN_FLIGHT, SOON),
                    Refused::Rate(wait) => (Refused::RATE, wait),
                };
                self.0.limited.with_label_values(&[by]).inc();
                Err(Limited { by, wait })
            }
        }
    }
}

impl Books {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self, by: ClientBy, headers: &HeaderMap, peer: Option<SocketAddr>) -> u128 {
        // With several, the upstream may look at one and we at another that changes with every request.
        let credential = || {
            let mut all = CREDENTIALS.iter().flat_map(|name| headers.get_all(name).iter());
            let one = all.next()?;
            all.next().is_none().then(|| secret(one.as_bytes()))
        };
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        match (by, (by == ClientBy::Key).then(credential).flatten()) {
            (ClientBy::Key, Some(credential)) => hasher.update(b"key").update(credential),
            _ => hasher.update(b"address").update(&network(peer)),
        };
        let mut first = [0; 16];
        hasher.finalize_xof().fill(&mut first);
        u128::from_le_bytes(first)
    }
}

/// The secret in a credential, whatever the scheme and the spaces before it: one key is one client however it is written.
pub fn secret(credential: &[u8]) -> &[u8] {
    let trimmed = credential.trim_ascii();
    let space = trimmed.iter().position(|byte| byte.is_ascii_whitespace());
    space.map_or(trimmed, |at| trimmed[at..].trim_ascii_start())
}

/// What of an address belongs to one client.
fn network(peer: Option<SocketAddr>) -> [u8; 8] {
    let mut network = [0; 8];
    match peer.map(|peer| peer.ip().to_canonical()) {
        // No IPv6 network in use begins with 96 bits of 0.
        Some(IpAddr::V4(ip)) => network[4..].copy_from_slice(&ip.octets()),
        Some(IpAddr::V6(ip)) => network.copy_from_slice(&ip.octets()[..8]),
        None => {}
    }
    network
}

impl Drop for Place {
    fn drop(&mut self) {
        self.books.table().leave(self.client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients() -> Clients {
        Clients::new(&Metrics::default(), [7; 32])
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn clients_are_told_apart_by_what_was_asked_for() {
        let books = clients().0;
        let at = |address: &str| Some(address.parse().unwrap());
        let by = |by, pairs: &[_], address| books.client(by, &headers(pairs), at(address));
        let (a, b) = ("192.0.2.1:1000", "192.0.2.2:1000");
        let (one, two) = ([("authorization", "Bearer one")], [("x-api-key", "two")]);
        assert_eq!(by(ClientBy::Key, &one, a), by(ClientBy::Key, &one, b));
        assert_ne!(by(ClientBy::Key, &one, a), by(ClientBy::Key, &two, a));
        assert_eq!(by(ClientBy::Key, &[], a), by(ClientBy::Address, &one, a), "no key: the address");
        assert_eq!(by(ClientBy::Address, &one, a), by(ClientBy::Address, &two, "192.0.2.1:2000"));
        assert_ne!(by(ClientBy::Address, &one, a), by(ClientBy::Address, &one, b));
        let written = |name, value| by(ClientBy::Key, &[(name, value)], a);
        for (name, value) in [("authorization", "bEARER  one"), ("x-api-key", "one"), ("api-key", " one ")] {
            assert_eq!(
                written("authorization", "Bearer one"),
                written(name, value),
                "one key, however it is written"
            );
        }
        // With two credentials one may be invented anew each time: the address is what is left.
        let two = |second| by(ClientBy::Key, &[("x-api-key", "good"), ("authorization", second)], a);
        assert_eq!(two("made up"), two("made up again"));
        let network = by(ClientBy::Address, &[], "[2001:db8:1:2::1]:1");
        assert_eq!(network, by(ClientBy::Address, &[], "[2001:db8:1:2:ffff::9]:1"));
        assert_ne!(network, by(ClientBy::Address, &[], "[2001:db8:1:3::1]:1"));
        assert_eq!(by(ClientBy::Address, &[], "[::ffff:192.0.2.1]:1"), by(ClientBy::Address, &[], a));
    }

    #[test]
    fn a_place_is_given_back_and_without_limits_nothing_is_remembered() {
        let clients = clients();
        let mut terms = Terms { in_flight: 0, rate: 0.0, burst: 1, by: ClientBy::Address, table: 8 };
        let enter = |terms: &Terms| clients.admit(terms, &HeaderMap::new(), None, clock::now());
        assert!(enter(&terms).unwrap().is_none() && clients.0.table().len() == 0);
        terms.in_flight = 1;
        let place = enter(&terms).unwrap();
        assert_eq!(enter(&terms).err(), Some(Limited { by: "in_flight", wait: SOON }));
        drop(place);
        assert!(enter(&terms).is_ok());
    }
}
