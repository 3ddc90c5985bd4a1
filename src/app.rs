//! The only file that sees everything: it binds, builds, wires and takes apart again.

mod build;
pub mod chat_model;
mod path;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::admin::{self, Admin};
use crate::canary;
use crate::config::{ClientEof, Config};
use crate::fidelity::{dye, tag};
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::recorder::writer::Writer;
use crate::server::{self, Server};
use crate::upstream::abort::Telling;
use crate::upstream::balance::Member;
use crate::upstream::checkup;
use build::Built;
pub use build::check;
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

impl App {
    /// Binds both listeners first, so that a port in use is known before anything else has happened; a model that must
    /// be fetched arrives later.
    pub fn start(config: Config) -> Result<Self, Fault> {
        build::raise_file_limit();
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
            checkups: checkups(&config, built.members, built.telling, &stopped),
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

/// The side thread: admin and canaries, so that neither competes with traffic for its threads.
struct Side<F> {
    admin: TcpListener,
    admin_tls: Option<TlsAcceptor>,
    admin_service: Admin,
    limits: server::Limits,
    /// Health checks of upstreams.
    checkups: Vec<Checkup>,
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
            let mut checkups: JoinSet<()> = self.checkups.into_iter().collect();
            serve.await;
            canary.abort_all();
            checkups.abort_all();
            while let Some(ended) = canary.join_next().await {
                if ended.is_err_and(|error| error.is_panic()) {
                    tracing::error!("the canaries died; please report what was logged before");
                }
            }
        });
    }
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

type Checkup = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What is done for upstreams beside the traffic: the checks of those that want them, and telling of clients that left.
fn checkups(
    config: &Config,
    members: Vec<Arc<Member>>,
    telling: Telling,
    stopped: &watch::Receiver<bool>,
) -> Vec<Checkup> {
    let checked = config.upstream.iter().zip(members).filter(|(upstream, _)| !upstream.health.is_empty());
    let keep = |(upstream, member): (&crate::upstream::Config, Arc<Member>)| {
        let every = config.breaker.health_every;
        Box::pin(checkup::keep(member, upstream.clone(), every, stopped.clone())) as Checkup
    };
    checked.map(keep).chain([Box::pin(telling.run()) as Checkup]).collect()
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
