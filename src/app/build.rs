//! Everything that is made before anything runs, and every mistake that can be found by making it.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use rustls::crypto::SecureRandom;

use super::fleet::Fleet;
use super::shown::Shown;
use super::{Fault, chat_model, code};
use crate::admin;
use crate::canary;
use crate::canary::driver::pinned;
use crate::config::Config;
use crate::fidelity::dye::Registry;
use crate::fidelity::tag;
use crate::log::Log;
use crate::metrics::Metrics;
use crate::proxy::clients::Clients;
use crate::proxy::settle::Accounts;
use crate::proxy::tenants::{self, Tenants};
use crate::proxy::witness::Observers;
use crate::proxy::{Parts, Settings};
use crate::recorder::Recorder;
use crate::recorder::ledger::Ledger;
use crate::recorder::passive::{self, Passive};
use crate::recorder::tenant::Tenant;
use crate::recorder::writer::{self, Writer};
use crate::server::tls::{Failures, Tls, Wanted};
use crate::tls::files::Files;
use crate::trace::export::Exporter;
use crate::trace::{self, Tracer};
use crate::upstream::abort::{self, Aborts, Telling};
use crate::upstream::balance::Member;
use crate::upstream::embedded::{self, Embedded};
use crate::upstream::fetch::Source;
use crate::upstream::original;

/// Bound and built, not yet running.
pub struct Built {
    pub metrics: Arc<Metrics>,
    pub traffic: TcpListener,
    pub admin: TcpListener,
    pub tls: Option<Tls>,
    /// What was read for TLS, to be looked at again.
    pub files: Files,
    pub desk: admin::Desk,
    pub admin_tls: Option<Tls>,
    pub recorder: Recorder,
    pub writer: Writer,
    pub embedded: Option<Embedded>,
    /// The chat model still to be fetched.
    pub wanted: Option<Source>,
    pub accounts: Accounts,
    pub parts: Parts,
    pub fleet: Fleet,
    pub members: Vec<Arc<Member>>,
    /// Tells upstreams of clients that left.
    pub telling: Telling,
    pub aborts: Aborts,
    pub shown: Shown,
    pub exporter: Option<Exporter>,
    pub tag_key: tag::Key,
    pub canaries: canary::Books,
}

/// Finds every mistake that `serve` would find before it listens, without binding or writing anything.
pub fn check(config: &Config) -> Result<(), Fault> {
    keys(config)?;
    check_again(config)
}

/// As [`check`], for a Serin that runs: keys of recordings are read at start only, and may have been taken away since.
pub fn check_again(config: &Config) -> Result<(), Fault> {
    let metrics = Metrics::default();
    let files = Files::new(&metrics);
    let (tls, _) = certificates(config, &metrics, &files)?;
    access(config)?;
    let fleet = Fleet::new(config, &metrics, &files);
    fleet.routes(config, &fleet.build(config)?.members())?;
    chat_model::check(&config.fallback)?;
    passive::check(&config.passive).map_err(|error| Fault::new(code::UNREADABLE, error))?;
    Tenants::read(&config.tenant, [0; 32]).map_err(whose)?;
    if config.canary.enabled {
        config.canary.api_key().map_err(|error| Fault::new(code::UNREADABLE, error.to_string()))?;
        if let Some(tls) = tls {
            pinned::connector(tls, config.canary.identity(), &files)
                .map_err(|error| Fault::new(code::UNREADABLE, format!("[canary] {error}")))?;
        }
    }
    Ok(())
}

impl Built {
    pub fn new(config: &Config, log: &Log) -> Result<Self, Fault> {
        check(config)?;
        let metrics = Arc::new(Metrics::default());
        log.show(&metrics);
        let traffic = bind(config.listen.address, "[listen] address")?;
        let admin = bind(config.admin.address, "[admin] address")?;
        let files = Files::new(&metrics);
        let (tls, admin_tls) = certificates(config, &metrics, &files)?;
        let mut fleet = Fleet::new(config, &metrics, &files);
        let made = fleet.build(config)?;
        let members = made.members();
        fleet.adopt(made);
        let routes = fleet.routes(config, &members)?;
        let originals = fleet.originals(config, &members);
        let embedded = engine(config, &metrics)?;
        let wanted = match &embedded {
            Some(embedded) => chat_model::prepare(embedded, &config.fallback)?,
            None => None,
        };
        let names = names(config, originals.is_some());
        let mut canaries = books(config, &metrics);
        let passive = passive(config, &metrics, &canaries)?;
        let (recorder, writer) = recording(config, Ledger::new(&metrics, &names), passive)?;
        canaries.recorder = Some(recorder.clone());
        let desk = desk(config, &recorder, writer.tenants())?;
        let accounts = Accounts::new(&metrics, config.limits.in_flight, config.balance.workers, &names);
        let (aborts, telling) = abort::queue(config.balance.abort_queue, &metrics);
        about(&metrics);
        let shown = Shown::new(&metrics, config);
        let tag_key = tag_key()?;
        let (tracer, exporter) = tracing(config, &metrics)?;
        let observers = Observers { access: config.log.access.then(|| log.clone()), tracer };
        let parts = Parts {
            clients: Clients::new(&metrics, tag_key.derive("client limits")),
            observers,
            routes,
            originals,
            embedded: embedded.clone(),
            recorder: recorder.clone(),
            tenants: told_apart(config, &tag_key)?,
            accounts: accounts.clone(),
            tag_key: tag_key.clone(),
            settings: settings(config),
            aborts: config.wants_abort().then(|| aborts.clone()),
        };
        Ok(Self {
            metrics,
            traffic,
            admin,
            tls,
            files,
            desk,
            admin_tls,
            recorder,
            writer,
            embedded,
            wanted,
            accounts,
            parts,
            fleet,
            members,
            telling,
            aborts,
            shown,
            exporter,
            tag_key,
            canaries,
        })
    }
}

/// The names of upstreams whose series begin at 0.
fn names(config: &Config, originals: bool) -> Vec<&str> {
    let named = config.upstream.iter().map(|upstream| upstream.name.as_str());
    named.chain([embedded::NAME, "none"]).chain(originals.then_some(original::NAME)).collect()
}

/// What the path is told, at start and at every reload.
pub fn settings(config: &Config) -> Settings {
    Settings {
        client_terms: config.limits.client_terms(),
        body_copy: config.limits.body_copy.0,
        body: config.limits.body.0,
        upgrades: config.listen.upgrades.clone(),
        idle: config.limits.idle,
        digest_sample: if config.passive.enabled { config.passive.digest_sample } else { 0.0 },
        no_buffering: config.listen.no_buffering,
    }
}

/// Every connection is a file; the usual soft limit of 1,024 would be met long before `[limits] connections`.
pub fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
    {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

fn bind(address: SocketAddr, key: &str) -> Result<TcpListener, Fault> {
    let bound =
        TcpListener::bind(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    bound.map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "is in use; stop what listens there or choose another address".to_owned()
            }
            _ => format!("cannot be bound: {error}"),
        };
        Fault::new(code::UNAVAILABLE, format!("{key} = \"{address}\" {why}"))
    })
}

/// TLS of the traffic listener and of the admin side.
fn certificates(
    config: &Config,
    metrics: &Metrics,
    files: &Files,
) -> Result<(Option<Tls>, Option<Tls>), Fault> {
    let [listen, admin] = Failures::new(metrics, ["listen", "admin"]);
    let read = |section: &str, wanted: Wanted, failures: Failures| {
        Tls::new(files, wanted, failures)
            .map_err(|error| Fault::new(code::UNREADABLE, format!("{section} {error}")))
    };
    Ok((read("[listen]", config.listen.tls(), listen)?, read("[admin]", config.admin.tls(), admin)?))
}

fn access(config: &Config) -> Result<admin::Access, Fault> {
    admin::Access::read(&config.admin.token_file).map_err(|error| Fault::new(code::UNREADABLE, error))
}

/// Whose clients are, told under a secret of this process.
fn told_apart(config: &Config, key: &tag::Key) -> Result<Arc<Tenants>, Fault> {
    Tenants::read(&config.tenant, key.derive("tenants")).map(Arc::new).map_err(whose)
}

/// That whoever is recorded can be, with the keys that it takes.
fn keys(config: &Config) -> Result<(), Fault> {
    let tenants =
        Tenant::all(&config.record, &config.tenant).and_then(|tenants| match config.record.enabled {
            true => tenants.iter().try_for_each(Tenant::may_write),
            false => Ok(()),
        });
    tenants.map_err(|error| Fault::new(code::UNREADABLE, error.to_string()))
}

/// Why clients cannot be told apart.
pub fn whose(error: tenants::Error) -> Fault {
    let code = match error {
        tenants::Error::Unreadable { .. } => code::UNREADABLE,
        tenants::Error::Bad { .. } => code::CONFIG,
    };
    Fault::new(code, error.to_string())
}

/// What was recorded, and who may see it.
fn desk(config: &Config, recorder: &Recorder, tenants: Vec<Tenant>) -> Result<admin::Desk, Fault> {
    Ok(admin::Desk {
        access: access(config)?,
        audit: admin::audit::Audit::new(config.audit_file(), config.admin.audit()),
        recorder: recorder.clone(),
        recordings: admin::Recordings::new(tenants, config.admin.readers),
    })
}

/// The engine, unless it could never answer: with upstreams and nothing it may stand in for.
fn engine(config: &Config, metrics: &Metrics) -> Result<Option<Embedded>, Fault> {
    if !config.wants_engine() {
        return Ok(None);
    }
    let embedded = Embedded::start(config.fallback.clone(), metrics);
    embedded
        .map(Some)
        .map_err(|error| Fault::new(code::INTERNAL, format!("the embedded engine cannot start: {error}")))
}

fn about(metrics: &Metrics) {
    let build =
        metrics.int_gauges("serin_build_info", "Always 1; the version is in the label.", &["version"]);
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
}

/// Both ends of recording.
fn recording(config: &Config, ledger: Ledger, passive: Option<Passive>) -> Result<(Recorder, Writer), Fault> {
    writer::start(&config.record, &config.tenant, ledger, passive).map_err(|error| match error {
        writer::Error::Tenant(error) => Fault::new(code::UNREADABLE, error.to_string()),
        error => {
            let dir = config.record.dir.display().to_string();
            Fault::new(code::IO, format!("[record] dir = {dir:?}: {error}"))
        }
    })
}

/// Where canaries' outcomes go; verdicts are written down once there is a recorder.
fn books(config: &Config, metrics: &Metrics) -> canary::Books {
    let live = Arc::new(Registry::new(config.passive.codes));
    canary::Books { metrics: canary::Metrics::new(metrics), live, recorder: None }
}

/// What checks the recorded turns, where there are any.
fn passive(config: &Config, metrics: &Metrics, canaries: &canary::Books) -> Result<Option<Passive>, Fault> {
    let parts = passive::Parts {
        metrics: passive::Metrics::new(metrics),
        dye: canaries.live.clone(),
        crosstalk: canaries.metrics.production_crosstalk(),
    };
    if !config.record.enabled {
        return Ok(None);
    }
    Passive::start(&config.passive, parts).map_err(|error| Fault::new(code::UNREADABLE, error))
}

/// Both ends of tracing, where spans are wanted.
fn tracing(config: &Config, metrics: &Metrics) -> Result<(Option<Tracer>, Option<Exporter>), Fault> {
    let counts = trace::Counts::new(metrics);
    if config.trace.endpoint.is_empty() {
        return Ok((None, None));
    }
    let (sender, waiting) = tokio::sync::mpsc::channel(config.trace.queue);
    let exporter = Exporter::start(&config.trace, waiting, counts.clone());
    let exporter = exporter.map_err(|error| Fault::new(code::UNREADABLE, error))?;
    Ok((Some(Tracer::new(&config.trace, sender, counts)), Some(exporter)))
}

/// A fresh key for this process: canaries of another one are strangers.
fn tag_key() -> Result<tag::Key, Fault> {
    let mut key = [0; 32];
    let provider = rustls::crypto::ring::default_provider();
    let random: &dyn SecureRandom = provider.secure_random;
    random.fill(&mut key).map_err(|_| Fault::new(code::INTERNAL, "the system gives no random numbers"))?;
    Ok(tag::Key::new(key))
}
