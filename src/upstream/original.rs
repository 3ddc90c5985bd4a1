//! Transparent mode: a redirected connection's requests go where the connection was going.

pub mod network;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::Config;
use super::balance::{Balance, Families, Group, Member};
use super::breaker;
use super::connect::outgoing::Outgoing;
use super::connect::{self, Endpoint};
use super::http::{Http, Timers};
use network::Network;

/// What such destinations are called in metrics and records, all of them together.
pub const NAME: &str = "original";

/// The destinations there may be and those there were lately.
pub struct Originals {
    parts: Parts,
    /// Those that are an `[[upstream]]`.
    known: HashMap<SocketAddr, Arc<Group>>,
    /// The others.
    made: Mutex<Made>,
}

/// Destinations that were asked for lately.
#[derive(Default)]
struct Made {
    /// Requests so far: the clock by which the longest unused is told.
    asked: u64,
    groups: HashMap<SocketAddr, (u64, Arc<Group>)>,
}

/// What destinations are made from.
pub struct Parts {
    /// Where requests may go.
    pub allowed: Vec<Network>,
    /// Destinations whose connections are kept.
    pub most: usize,
    pub timers: Timers,
    pub balance: Arc<Balance>,
    pub families: Arc<Families>,
    pub outgoing: Outgoing,
}

/// Why a request does not go where its connection was going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// It is not among the allowed.
    Elsewhere(SocketAddr),
    /// The connection is one of our own.
    Loop,
}

impl Originals {
    /// `members` are the configured upstreams, each with its section.
    pub fn new<'a>(parts: Parts, members: impl Iterator<Item = (&'a Config, &'a Arc<Member>)>) -> Self {
        let named = members.filter_map(|(config, member)| {
            let group = Group::new(vec![member.clone()], parts.balance.clone());
            Some((address(&config.url)?, Arc::new(group)))
        });
        let known = named.collect();
        Self { parts, known, made: Mutex::default() }
    }

    /// The way to `to` for a connection that came from `from`.
    pub fn group(&self, from: SocketAddr, to: SocketAddr) -> Result<Arc<Group>, Barred> {
        if self.parts.outgoing.contains(from) {
            return Err(Barred::Loop);
        }
        if let Some(group) = self.known.get(&to) {
            return Ok(group.clone());
        }
        if !self.parts.allowed.iter().any(|network| network.contains(to.ip())) {
            return Err(Barred::Elsewhere(to));
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let Made { asked, groups: made } = &mut *made;
        *asked += 1;
        if let Some((last, group)) = made.get_mut(&to) {
            *last = *asked;
            return Ok(group.clone());
        }
        if made.len() >= self.parts.most
            && let Some(oldest) = made.iter().min_by_key(|(_, (last, _))| *last).map(|(to, _)| *to)
        {
            made.remove(&oldest);
        }
        let group = Arc::new(self.parts.make(to));
        made.insert(to, (*asked, group.clone()));
        Ok(group)
    }
}

impl Parts {
    fn make(&self, to: SocketAddr) -> Group {
        let http = Http::at(NAME, Endpoint::plain(to).noting(self.outgoing.clone()), self.timers);
        // There is no other way to this destination, and so nothing to be gained from leaving it alone.
        let never = breaker::Config { failures: u32::MAX, ..breaker::Config::default() };
        let member = Member::new(Arc::new(http), &Config::named(NAME, ""), never, &self.families);
        Group::new(vec![Arc::new(member)], self.balance.clone())
    }
}

/// The address of an upstream that is spoken to without TLS and named by a number.
fn address(url: &str) -> Option<SocketAddr> {
    let (host, port, secure) = connect::read_url(url).ok()?;
    let host = host.parse().ok()?;
    (!secure).then(|| SocketAddr::new(host, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::units::Span;
    use crate::upstream::affinity::{self, Table};

    fn originals(most: usize, outgoing: &Outgoing) -> Originals {
        let metrics = Metrics::default();
        let span = Span::seconds(1);
        let timers = Timers {
            connect: span,
            head: span,
            idle: span,
            pool_idle: span,
            pool_size: 1,
            h2_streams: 1,
            h2_ping: span,
        };
        let balance =
            Balance { config: affinity::Config::default(), table: Arc::new(Table::new(1, &metrics)) };
        let parts = Parts {
            allowed: vec!["10.0.0.0/8".parse().unwrap()],
            most,
            timers,
            balance: Arc::new(balance),
            families: Arc::new(Families::new(&metrics)),
            outgoing: outgoing.clone(),
        };
        Originals::new(parts, std::iter::empty())
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn destinations_are_allowed_kept_and_bounded() {
        let outgoing = Outgoing::default();
        let originals = originals(2, &outgoing);
        let client = at("10.9.9.9:4444");
        let go = |to: &str| originals.group(client, at(to));
        assert_eq!(go("8.8.8.8:80").err(), Some(Barred::Elsewhere(at("8.8.8.8:80"))));
        let (one, two) = (go("10.0.0.1:80").unwrap(), go("10.0.0.2:80").unwrap());
        assert!(Arc::ptr_eq(&one, &go("10.0.0.1:80").unwrap()));
        // A third takes the place of the one that was not asked for lately.
        go("10.0.0.3:80").unwrap();
        assert!(Arc::ptr_eq(&one, &go("10.0.0.1:80").unwrap()));
        assert!(!Arc::ptr_eq(&two, &go("10.0.0.2:80").unwrap()));
        assert_eq!(originals.made.lock().unwrap().groups.len(), 2);
        let noted = outgoing.note(client);
        assert_eq!(go("10.0.0.1:80").err(), Some(Barred::Loop));
        drop(noted);
        assert!(go("10.0.0.1:80").is_ok());
    }

    #[test]
    fn an_upstream_with_a_number_is_known_by_it() {
        assert_eq!(address("http://10.0.0.1:30000"), Some(at("10.0.0.1:30000")));
        assert_eq!(address("http://[fd00::1]"), Some(at("[fd00::1]:80")));
        assert_eq!(address("http://router:80"), None);
        assert_eq!(address("https://10.0.0.1"), None);
    }
}
