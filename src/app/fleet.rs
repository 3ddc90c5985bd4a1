//! The upstreams of a configuration, made; a new configuration keeps those that it does not change.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Fault, code};
use crate::config::Config;
use crate::metrics::Metrics;
use crate::proxy::route::Routes;
use crate::tls::files::Files;
use crate::upstream;
use crate::upstream::affinity::Table;
use crate::upstream::balance::{Balance, Families, Member};
use crate::upstream::connect::Mistake;
use crate::upstream::connect::outgoing::Outgoing;
use crate::upstream::health::{self, Health};
use crate::upstream::http::{Http, Timers};
use crate::upstream::original::{self, Originals};

/// Names of upstreams one process has room for. Counters keep the series of those that are gone, so that no count is ever
/// lost between two scrapes; this is what bounds them.
const MOST_NAMES: usize = 1_000;

/// Makes upstreams and remembers those in use.
pub struct Fleet {
    families: Arc<Families>,
    liveness: health::Families,
    /// Looks after the files that upstreams name.
    files: Files,
    /// In transparent mode, where our own connections come from.
    outgoing: Option<Outgoing>,
    /// Where conversations went; outlives every configuration.
    table: Arc<Table>,
    members: Vec<(Mark, Arc<Member>)>,
    /// Every name there ever was.
    seen: BTreeSet<String>,
}

/// Changes with anything that concerns one upstream: its section, the files it names, its timers and its breaker.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark(blake3::Hash);

impl Fleet {
    pub fn new(config: &Config, metrics: &Metrics, files: &Files) -> Self {
        let table = Arc::new(Table::new(config.balance.affinity_entries, metrics));
        let (families, liveness) = (Arc::new(Families::new(metrics)), health::Families::new(metrics));
        let outgoing = config.listen.transparent.then(Outgoing::default);
        let files = files.clone();
        Self { families, liveness, files, outgoing, table, members: Vec::new(), seen: BTreeSet::new() }
    }

    /// The members of `config`, in its order. Those in use that it does not change are the same ones, with their
    /// connections, their breaker and what is in flight with them.
    pub fn build(&self, config: &Config) -> Result<Built, Fault> {
        let mut seen = self.seen.clone();
        seen.extend(config.upstream.iter().map(|upstream| upstream.name.clone()));
        if seen.len() > MOST_NAMES {
            let message = format!(
                "this process has seen {} names of upstreams, more than the {MOST_NAMES} it has room for; restart it",
                seen.len()
            );
            return Err(Fault::new(code::CONFIG, message));
        }
        let member = |section| {
            let mark = Mark::of(section, config);
            let kept = self.members.iter().find(|(known, _)| *known == mark);
            match kept {
                Some((_, member)) => Ok((mark, member.clone())),
                None => self.make(section, config).map(|member| (mark, member)),
            }
        };
        let members = config.upstream.iter().map(member).collect::<Result<_, _>>()?;
        Ok(Built { members, seen })
    }

    /// The way of each path to them.
    pub fn routes(&self, config: &Config, members: &[Arc<Member>]) -> Result<Arc<Routes>, Fault> {
        let routes = Routes::new(&config.route, members, &self.balance(config));
        routes.map(Arc::new).map_err(|error| Fault::new(code::CONFIG, error))
    }

    fn balance(&self, config: &Config) -> Arc<Balance> {
        Arc::new(Balance { config: config.balance.clone(), table: self.table.clone() })
    }

    /// In transparent mode, the way of redirected connections to where they were going.
    pub fn originals(&self, config: &Config, members: &[Arc<Member>]) -> Option<Arc<Originals>> {
        let parts = original::Parts {
            allowed: config.listen.transparent_to.clone(),
            most: config.limits.destinations,
            timers: timers(config),
            balance: self.balance(config),
            families: self.families.clone(),
            outgoing: self.outgoing.clone()?,
        };
        Some(Arc::new(Originals::new(parts, config.upstream.iter().zip(members))))
    }

    /// Takes these into use. What was shown of the state of others is shown no more.
    pub fn adopt(&mut self, built: Built) {
        let (before, now) = (members(&self.members), members(&built.members));
        for member in before.iter().filter(|member| !now.iter().any(|kept| Arc::ptr_eq(kept, member))) {
            member.retire();
            let name = member.upstream().name();
            if !now.iter().any(|kept| kept.upstream().name() == name) {
                self.families.forget(name);
                self.liveness.forget(name);
            }
        }
        self.families.relabel(&before, &now);
        (self.members, self.seen) = (built.members, built.seen);
    }

    fn make(&self, section: &upstream::Config, config: &Config) -> Result<Arc<Member>, Fault> {
        let health = Health::new(&section.name, &self.liveness);
        let code_of = |mistake: &Mistake| match mistake {
            Mistake::Url(_) => code::CONFIG,
            Mistake::File(_) => code::UNREADABLE,
        };
        match Http::new(section, timers(config), health, &self.files) {
            Ok(http) => {
                let http = Arc::new(http.noting(self.outgoing.as_ref()));
                Ok(Arc::new(Member::new(http, section, config.breaker, &self.families)))
            }
            Err(error) => {
                let message = format!("[[upstream]] name = {:?}: {error}", section.name);
                Err(Fault::new(code_of(&error), message))
            }
        }
    }
}

/// Members that were made or kept, not yet in use.
pub struct Built {
    members: Vec<(Mark, Arc<Member>)>,
    seen: BTreeSet<String>,
}

impl Built {
    pub fn members(&self) -> Vec<Arc<Member>> {
        members(&self.members)
    }
}

fn members(marked: &[(Mark, Arc<Member>)]) -> Vec<Arc<Member>> {
    marked.iter().map(|(_, member)| member.clone()).collect()
}

impl Mark {
    fn of(section: &upstream::Config, config: &Config) -> Self {
        let mut hasher = blake3::Hasher::new();
        let written = toml::Table::try_from(section).unwrap_or_default();
        for (key, value) in &written {
            hasher.update(format!("{key} = {value}\n").as_bytes());
        }
        hasher.update(format!("{:?}{:?}", timers(config), config.breaker).as_bytes());
        Self(hasher.finalize())
    }
}

fn timers(config: &Config) -> Timers {
    Timers {
        connect: config.limits.connect,
        head: config.limits.head,
        idle: config.limits.idle,
        pool_idle: config.limits.pool_idle,
        pool_size: config.limits.pool_size,
        h2_streams: config.limits.h2_streams,
        h2_ping: config.limits.h2_ping,
    }
}
