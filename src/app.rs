//! The only file that sees everything: it binds, builds, wires and takes apart again.

pub mod chat_model;
mod path;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use rustls::crypto::SecureRandom;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::admin::{self, Admin};
use crate::canary;
use crate::config::{ClientEof, Config};
use crate::fidelity::{dye, tag};
use crate::metrics::Metrics;
use crate::proxy::route::Routes;
use crate::proxy::settle::Accounts;
use crate::proxy::{Parts, Proxy};
use crate::recorder::Recorder;
use crate::recorder::ledger::Ledger;
use crate::recorder::writer::{self, Writer};
use crate::server::{self, Server};
use crate::upstream::Upstream;
use crate::upstream::embedded::{self, Embedded};
use crate::upstream::fetch::Source;
use crate::upstream::http::{Http, Timers};
use chat_model::Fetching;
use path::Path;

/// Why the app cannot start or run, with the exit code of the command line's contract.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub code: u8,
    pub message: String,
}

/// Exit codes (design: the command line).
pub mod code {
    pub const FINDING: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const CONFIG: u8 = 64;
    pub const UNREADABLE: u8 = 66;
    pub const UNAVAILABLE: u8 = 69;
    pub const INTERNAL: u8 = 70;
    pub const IO: u8 = 74;
}

impl Fault {
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// A running Serin.
pub struct App {
    pub traffic: SocketAddr,
    pub admin: SocketAddr,
    pub metrics: Arc<Metrics>,
    stop: watch::Sender<bool>,
    stop_side: watch::Sender<bool>,
    draining: Arc<AtomicBool>,
    path: Path,
    side: JoinHandle<()>,
    fetching: Option<Fetching>,
    writer: Writer,
}

/// Bound and built, not yet running.
struct Built {
    metrics: Arc<Metrics>,
    traffic: TcpListener,
    admin: TcpListener,
    tls: Option<TlsAcceptor>,
    admin_access: admin::Access,
    admin_tls: Option<TlsAcceptor>,
    recorder: Recorder,
    writer: Writer,
    embedded: Option<Embedded>,
    /// The chat model still to be fetched.
    wanted: Option<Source>,
    accounts: Accounts,
    parts: Parts,
    tag_key: tag::Key,
}

impl App {
    /// Binds both listeners first, so that a port in use is known before anything else has happened; a model that must
    /// be fetched arrives later.
    pub fn start(config: Config) -> Result<Self, Fault> {
        raise_file_limit();
        let built = Built::new(&config)?;
        let internal = |error: std::io::Error| Fault::new(code::INTERNAL, format!("cannot start: {error}"));
        let traffic = built.traffic.local_addr().map_err(internal)?;
        let admin = built.admin.local_addr().map_err(internal)?;
        let (stop, stopped) = watch::channel(false);
        let (stop_side, side_stopped) = watch::channel(false);
        let draining = Arc::new(AtomicBool::new(false));

        let shared = path::Shared {
            tls: built.tls,
            limits: limits(&config),
            proxy: Proxy::new(built.parts),
            recorder: built.recorder,
            stopped: stopped.clone(),
        };
        let path = Path::start(config.limits.threads, &built.traffic, &shared).map_err(internal)?;
        drop(shared);
        let admin_service = Admin::new(admin::Parts {
            metrics: built.metrics.clone(),
            accounts: built.accounts,
            embedded: built.embedded.clone(),
            draining: draining.clone(),
            config_hash: config.hash(),
            access: built.admin_access,
        });
        let side = Side {
            admin: built.admin,
            admin_tls: built.admin_tls,
            admin_service,
            limits: limits(&config),
            canary: canary_run(&config, traffic, built.tag_key, &built.metrics, stopped),
            stopped: side_stopped,
        };
        let side =
            std::thread::Builder::new().name("serin-side".into()).spawn(|| side.run()).map_err(internal)?;
        tracing::info!(%traffic, %admin, "listening");
        let fetching = built
            .embedded
            .zip(built.wanted)
            .map(|(embedded, source)| Fetching::start(embedded, &config.fallback, source));
        Ok(Self {
            traffic,
            admin,
            metrics: built.metrics,
            stop,
            stop_side,
            draining,
            path,
            side,
            fetching: fetching.transpose()?,
            writer: built.writer,
        })
    }

    /// Drains and stops. Everything that was offered to the recorder is durable when this returns.
    pub fn stop(self) {
        self.draining.store(true, Relaxed);
        let _ = self.stop.send(true);
        if let Some(fetching) = self.fetching {
            fetching.stop();
        }
        self.path.join();
        let _ = self.stop_side.send(true);
        let _ = self.side.join();
        self.writer.join();
    }
}

impl Built {
    fn new(config: &Config) -> Result<Self, Fault> {
        let metrics = Arc::new(Metrics::default());
        let traffic = bind(config.listen.address, "[listen] address")?;
        let admin = bind(config.admin.address, "[admin] address")?;
        let tls = certificates(&config.listen.cert_file, &config.listen.key_file)?;
        let admin_tls = certificates(&config.admin.cert_file, &config.admin.key_file)?;
        let admin_access =
            admin::Access::read(&config.admin.token_file).map_err(|e| Fault::new(code::UNREADABLE, e))?;
        if config.canary.enabled {
            config.canary.api_key().map_err(|error| Fault::new(code::UNREADABLE, error.to_string()))?;
        }
        let upstreams = upstreams(config, &metrics)?;
        let routes =
            Routes::new(&config.route, &upstreams).map_err(|error| Fault::new(code::CONFIG, error))?;
        let embedded = engine(config, &metrics)?;
        let wanted = match &embedded {
            Some(embedded) => chat_model::prepare(embedded, &config.fallback)?,
            None => None,
        };
        let mut names: Vec<&str> = config.upstream.iter().map(|upstream| upstream.name.as_str()).collect();
        names.extend([embedded::NAME, "none"]);
        let (recorder, writer) =
            writer::start(&config.record, Ledger::new(&metrics, &names)).map_err(|error| {
                Fault::new(
                    code::IO,
                    format!("[record] dir = {:?}: {error}", config.record.dir.display().to_string()),
                )
            })?;
        let accounts = Accounts::new(&metrics, config.limits.in_flight, &names);
        about(&metrics, config);
        let tag_key = tag_key()?;
        let parts = Parts {
            routes,
            embedded: embedded.clone(),
            recorder: recorder.clone(),
            accounts: accounts.clone(),
            tag_key: tag_key.clone(),
            body_copy: config.limits.body_copy.0,
        };
        Ok(Self {
            metrics,
            traffic,
            admin,
            tls,
            admin_access,
            admin_tls,
            recorder,
            writer,
            embedded,
            wanted,
            accounts,
            parts,
            tag_key,
        })
    }
}

/// The side thread: admin and canaries, so that neither competes with traffic for its threads.
struct Side<F> {
    admin: TcpListener,
    admin_tls: Option<TlsAcceptor>,
    admin_service: Admin,
    limits: server::Limits,
    canary: Option<F>,
    stopped: watch::Receiver<bool>,
}

impl<F: Future<Output = ()> + Send + 'static> Side<F> {
    fn run(self) {
        let Ok(runtime) = Builder::new_current_thread().enable_all().build() else {
            return tracing::error!("the admin side cannot start");
        };
        runtime.block_on(async {
            let listener = match tokio::net::TcpListener::from_std(self.admin) {
                Ok(listener) => listener,
                Err(error) => return tracing::error!(%error, "the admin side cannot start"),
            };
            let brief =
                server::Limits { drain: crate::units::Span::seconds(1), connections: 64, ..self.limits };
            let permits = Arc::new(Semaphore::new(brief.connections));
            let serve = Server::new(listener, self.admin_tls, brief, permits);
            let serve = serve.run(self.admin_service, self.stopped, || ());
            // A task of its own: whatever happens to a canary, admin goes on.
            let mut canary = JoinSet::new();
            self.canary.map(|run| canary.spawn(run));
            serve.await;
            canary.abort_all();
            while let Some(ended) = canary.join_next().await {
                if ended.is_err_and(|error| error.is_panic()) {
                    tracing::error!("the canaries died; please report what was logged before");
                }
            }
        });
    }
}

/// Every connection is a file; the usual soft limit of 1,024 would be met long before `[limits] connections`.
fn raise_file_limit() {
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

fn certificates(
    cert_file: &std::path::Path,
    key_file: &std::path::Path,
) -> Result<Option<TlsAcceptor>, Fault> {
    if cert_file.as_os_str().is_empty() {
        return Ok(None);
    }
    server::tls::acceptor(cert_file, key_file).map(Some).map_err(|error| Fault::new(code::UNREADABLE, error))
}

fn limits(config: &Config) -> server::Limits {
    server::Limits {
        connections: config.limits.connections,
        header_read: config.limits.header_read,
        client_stall: config.limits.client_stall,
        drain: config.limits.drain,
        eof_cancels: config.listen.client_eof == ClientEof::Cancel,
    }
}

fn upstreams(config: &Config, metrics: &Metrics) -> Result<Vec<Arc<dyn Upstream>>, Fault> {
    let timers = Timers {
        connect: config.limits.connect,
        head: config.limits.head,
        idle: config.limits.idle,
        pool_idle: config.limits.pool_idle,
        pool_size: config.limits.pool_size,
    };
    let up = metrics.int_gauges(
        "serin_upstream_up",
        "Whether the upstream's last connection attempt succeeded.",
        &["upstream"],
    );
    let make = |upstream: &crate::upstream::Config| {
        let health =
            crate::upstream::health::Health::new(&upstream.name, up.with_label_values(&[&upstream.name]));
        match Http::new(upstream, timers, health) {
            Ok(http) => Ok(Arc::new(http) as Arc<dyn Upstream>),
            Err(error) => {
                Err(Fault::new(code::CONFIG, format!("[[upstream]] name = {:?}: {error}", upstream.name)))
            }
        }
    };
    config.upstream.iter().map(make).collect()
}

/// The engine, unless it could never answer: with upstreams and nothing it may stand in for.
fn engine(config: &Config, metrics: &Metrics) -> Result<Option<Embedded>, Fault> {
    if !config.upstream.is_empty() && config.fallback.answers_for.is_empty() {
        return Ok(None);
    }
    let embedded = Embedded::start(config.fallback.clone(), metrics);
    embedded
        .map(Some)
        .map_err(|error| Fault::new(code::INTERNAL, format!("the embedded engine cannot start: {error}")))
}

fn about(metrics: &Metrics, config: &Config) {
    let build =
        metrics.int_gauges("serin_build_info", "Always 1; the version is in the label.", &["version"]);
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
    let hash = metrics.int_gauges(
        "serin_config_info",
        "Always 1; the effective configuration's hash is in the label.",
        &["hash"],
    );
    hash.with_label_values(&[&config.hash()]).set(1);
}

/// A fresh key for this process: canaries of another one are strangers.
fn tag_key() -> Result<tag::Key, Fault> {
    let mut key = [0; 32];
    let provider = rustls::crypto::ring::default_provider();
    let random: &dyn SecureRandom = provider.secure_random;
    random.fill(&mut key).map_err(|_| Fault::new(code::INTERNAL, "the system gives no random numbers"))?;
    Ok(tag::Key::new(key))
}

fn canary_run(
    config: &Config,
    traffic: SocketAddr,
    tag_key: tag::Key,
    metrics: &Metrics,
    stopped: watch::Receiver<bool>,
) -> Option<impl Future<Output = ()> + Send + 'static> {
    let canary_metrics = canary::Metrics::new(metrics);
    let dye = Arc::new(dye::Registry::new(dye::DEFAULT_CAPACITY));
    if !config.canary.enabled {
        return None;
    }
    if !config.listen.cert_file.as_os_str().is_empty() {
        tracing::warn!(
            "canaries cannot reach a TLS listener yet, none will run; [canary] enabled = false silences this"
        );
        return None;
    }
    Some(canary::run(config.canary.clone(), reachable(traffic), tag_key, canary_metrics, dye, stopped))
}

/// The address under which we reach our own listener: one that listens everywhere is reached over loopback.
fn reachable(listener: SocketAddr) -> SocketAddr {
    let ip = match listener.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listener.port())
}
