//! A new configuration for a Serin that runs: read, checked as at start, and put in force as a whole or not at all.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use hyper::StatusCode;
use tokio::sync::watch;
use tracing::level_filters::LevelFilter;

use super::build::{check_again, settings, whose};
use super::fleet::Fleet;
use super::shown::Shown;
use super::side::Orders;
use super::{Fault, code};
use crate::config::{self, Config, changes};
use crate::log::Log;
use crate::proxy::Proxy;
use crate::proxy::tenants::Tenants;
use crate::upstream::abort::Aborts;
use crate::upstream::embedded::Embedded;

/// Changes how much is logged.
pub type SetLevel = Box<dyn Fn(LevelFilter) + Send + Sync>;

/// Everything a new configuration reaches.
pub struct Reloader {
    /// Where the configuration came from.
    pub file: Option<PathBuf>,
    pub set_level: Option<SetLevel>,
    pub log: Log,
    /// One for each thread of the path.
    pub proxies: Vec<Proxy>,
    pub embedded: Option<Embedded>,
    pub orders: watch::Sender<Arc<Orders>>,
    pub aborts: Aborts,
    pub shown: Shown,
    pub in_force: Mutex<InForce>,
    pub hash: RwLock<String>,
}

/// What the process runs with at this moment.
pub struct InForce {
    pub config: Config,
    pub fleet: Fleet,
    pub tenants: Arc<Tenants>,
}

impl Reloader {
    /// Reads the file again and puts it in force for whatever begins from now on; yields the keys that changed. Where
    /// anything is wrong with it, everything stays as it is.
    pub fn reload(&self) -> Result<Vec<String>, Fault> {
        let mut in_force = self.in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let done = self.replace(&mut in_force);
        match &done {
            Ok(changed) => {
                self.shown.reloaded(&in_force.config);
                let (hash, changed) = (in_force.config.hash(), changed.join(", "));
                self.hash.write().unwrap_or_else(PoisonError::into_inner).clone_from(&hash);
                tracing::info!(hash, changed, "the configuration was read again and is in force");
            }
            Err(fault) => {
                self.shown.failed();
                tracing::warn!("the configuration was not reloaded and the old one stays in force: {fault}");
            }
        }
        done
    }

    /// The hash of the configuration in force; never waits for a reload that is under way.
    pub fn hash(&self) -> String {
        self.hash.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, in_force: &mut InForce) -> Result<Vec<String>, Fault> {
        let Some(file) = &self.file else {
            let message =
                "this Serin was started without a configuration file, so there is nothing to read again";
            return Err(Fault::new(code::USAGE, message));
        };
        let config = Config::read(file).map_err(|error| {
            let code = match error {
                config::Error::Unreadable { .. } => code::UNREADABLE,
                config::Error::Bad(_) => code::CONFIG,
            };
            Fault::new(code, error.to_string())
        })?;
        let changed = changes::between(&in_force.config, &config);
        self.possible(&changed, &config)?;
        check_again(&config)?;
        let built = in_force.fleet.build(&config)?;
        let members = built.members();
        let table = in_force.fleet.routes(&config, &members)?;
        let originals = in_force.fleet.originals(&config, &members);
        // Who belongs to which tenant may change; which tenants there are may not.
        let tenants = Arc::new(in_force.tenants.again(&config.tenant).map_err(whose)?);
        // From here on nothing can fail.
        let engine = self.embedded.as_ref().filter(|_| config.wants_engine());
        let names: Vec<&str> = config.upstream.iter().map(|upstream| upstream.name.as_str()).collect();
        for (number, proxy) in self.proxies.iter().enumerate() {
            let mut parts = proxy.parts();
            // The books are the same for all.
            if number == 0 {
                parts.accounts.set_in_flight(config.limits.in_flight);
                parts.accounts.expect(&names);
                parts.recorder.ledger().expect(&names);
            }
            parts.routes = table.clone();
            parts.originals = originals.clone();
            parts.embedded = engine.map(|engine| engine.on_terms_of(&config.fallback));
            parts.settings = settings(&config);
            parts.tenants = tenants.clone();
            parts.aborts = config.wants_abort().then(|| self.aborts.clone());
            parts.observers.access = config.log.access.then(|| self.log.clone());
            proxy.replace(parts);
        }
        self.orders.send_replace(Arc::new(Orders::new(&config, &members)));
        in_force.fleet.adopt(built);
        in_force.tenants = tenants;
        if let Some(set_level) = &self.set_level {
            set_level(config.log.level());
        }
        in_force.config = config;
        Ok(changed)
    }

    /// Refuses what only a new process can take over.
    fn possible(&self, changed: &[String], config: &Config) -> Result<(), Fault> {
        let fixed: Vec<&str> =
            changed.iter().map(String::as_str).filter(|key| changes::needs_restart(key)).collect();
        if !fixed.is_empty() {
            let message = format!(
                "{} cannot change while Serin runs; restart it, or put the old value back",
                fixed.join(", ")
            );
            return Err(Fault::new(code::CONFIG, message));
        }
        if config.wants_engine() && self.embedded.is_none() {
            let message = "[fallback] for: this process was started without the embedded engine; restart it to have \
                           one, or keep an [[upstream]] and for = []";
            return Err(Fault::new(code::CONFIG, message));
        }
        Ok(())
    }
}

/// How the admin side tells of a reload that failed.
pub fn status(fault: &Fault) -> StatusCode {
    match fault.code {
        code::USAGE => StatusCode::CONFLICT,
        code::CONFIG => StatusCode::UNPROCESSABLE_ENTITY,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
