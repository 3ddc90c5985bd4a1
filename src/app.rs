//! The only file that sees everything: it binds, builds, wires and takes apart again.

mod build;
pub mod chat_model;
mod fleet;
mod path;
mod reload;
mod shown;
mod side;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::admin::{self, Admin};
use crate::config::{ClientEof, Config};
use crate::log::Log;
use crate::metrics::Metrics;
use crate::proxy::settle::Accounts;
use crate::proxy::{Parts, Proxy};
use crate::recorder::writer::Writer;
use crate::server;
use crate::server::tls::ClientCertificates;
use crate::trace::export::Exporter;
use build::Built;
pub use build::check;
use chat_model::Fetching;
use path::Path;
use reload::{InForce, Reloader, SetLevel};
use side::{Canaries, Orders, Side, Tasks};

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

/// What the app is given besides its configuration.
#[derive(Default)]
pub struct Setup {
    /// Where the configuration came from, to be read again at a reload.
    pub file: Option<PathBuf>,
    pub set_level: Option<SetLevel>,
    /// Where the access log goes.
    pub log: Log,
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
    reloader: Arc<Reloader>,
    writer: Writer,
    exporter: Option<Exporter>,
}

impl App {
    /// Starts with what the configuration says and nothing besides.
    pub fn start(config: Config) -> Result<Self, Fault> {
        Self::start_with(config, Setup::default())
    }

    /// Binds both listeners first, so that a port in use is known before anything else has happened; a model that must
    /// be fetched arrives later.
    pub fn start_with(config: Config, setup: Setup) -> Result<Self, Fault> {
        build::raise_file_limit();
        let built = Built::new(&config, &setup.log)?;
        announce(&config, setup.file.as_deref());
        let internal = |error: std::io::Error| Fault::new(code::INTERNAL, format!("cannot start: {error}"));
        let traffic = built.traffic.local_addr().map_err(internal)?;
        let admin = built.admin.local_addr().map_err(internal)?;
        let (stop, stopped) = watch::channel(false);
        let (stop_side, side_stopped) = watch::channel(false);
        let (orders, ordered) = watch::channel(Arc::new(Orders::new(&config, &built.members)));
        let draining = Arc::new(AtomicBool::new(false));

        let tenants = built.parts.tenants.clone();
        let proxies = proxies(config.limits.threads, built.parts);
        let (tls, limits, files_every) = (built.tls, limits(&config), config.limits.files_every);
        let shared =
            path::Shared { tls: tls.clone(), limits, recorder: built.recorder, stopped: stopped.clone() };
        let path = Path::start(&proxies, &built.traffic, &shared).map_err(internal)?;
        drop(shared);
        let (embedded, fallback) = (built.embedded.clone(), config.fallback.clone());
        let must_show = config.listen.client_certificates == ClientCertificates::Required;
        let (files, tag_key, books) = (built.files.clone(), built.tag_key, built.canaries);
        let canaries = Canaries { traffic, tls, must_show, files, tag_key, books };
        let reloader = Arc::new(Reloader {
            file: setup.file,
            set_level: setup.set_level,
            log: setup.log,
            proxies,
            embedded: built.embedded.clone(),
            orders,
            aborts: built.aborts,
            shown: built.shown,
            hash: RwLock::new(config.hash()),
            in_force: Mutex::new(InForce { config, fleet: built.fleet, tenants }),
        });
        let side = Side {
            listener: built.admin,
            tls: built.admin_tls,
            admin: admin_side(built.desk, built.accounts, &built.metrics, &draining, &reloader),
            limits,
            canaries,
            orders: ordered,
            telling: built.telling,
            tasks: Tasks::new(&built.metrics),
            files: built.files,
            files_every,
            draining: stopped,
            stopped: side_stopped,
        };
        let side =
            std::thread::Builder::new().name("serin-side".into()).spawn(|| side.run()).map_err(internal)?;
        tracing::info!(%traffic, %admin, "listening");
        let start = |(embedded, source)| Fetching::start(embedded, &fallback, source);
        let fetching = embedded.zip(built.wanted).map(start).transpose()?;
        let (metrics, writer, exporter) = (built.metrics, built.writer, built.exporter);
        Ok(Self {
            traffic,
            admin,
            metrics,
            stop,
            stop_side,
            draining,
            path,
            side,
            fetching,
            reloader,
            writer,
            exporter,
        })
    }

    /// Reads the configuration again and puts it in force for whatever begins from now on; see [`Setup::file`].
    pub fn reload(&self) -> Result<Vec<String>, Fault> {
        self.reloader.reload()
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
        // The recorder's thread ends when nobody can offer it anything.
        drop(self.reloader);
        self.writer.join();
        // Nobody is left who could send it a span.
        self.exporter.into_iter().for_each(Exporter::join);
    }
}

/// One for each thread of the path.
fn proxies(threads: usize, parts: Parts) -> Vec<Proxy> {
    (0..threads).map(|_| Proxy::new(parts.clone())).collect()
}

/// What this process is, for whoever reads its log later.
fn announce(config: &Config, file: Option<&std::path::Path>) {
    let names: Vec<&str> = config.upstream.iter().map(|upstream| upstream.name.as_str()).collect();
    let record =
        if config.record.enabled { config.record.dir.display().to_string() } else { "off".to_owned() };
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        config = %file.unwrap_or("none".as_ref()).display(),
        hash = config.hash(),
        upstreams = if names.is_empty() { "embedded".to_owned() } else { names.join(",") },
        record,
        canary = config.canary.enabled,
        "starting"
    );
}

fn limits(config: &Config) -> server::Limits {
    server::Limits {
        connections: config.limits.connections,
        handshake: config.limits.handshake,
        header_read: config.limits.header_read,
        client_stall: config.limits.client_stall,
        drain: config.limits.drain,
        transparent: config.listen.transparent,
        eof_cancels: config.listen.client_eof == ClientEof::Cancel,
    }
}

/// What the admin side may see and do.
fn admin_side(
    desk: admin::Desk,
    accounts: Accounts,
    metrics: &Arc<Metrics>,
    draining: &Arc<AtomicBool>,
    reloader: &Arc<Reloader>,
) -> Admin {
    let (read, again) = (reloader.clone(), reloader.clone());
    let reload = move || again.reload().map_err(|fault| (reload::status(&fault), fault.message));
    Admin::new(admin::Parts {
        metrics: metrics.clone(),
        accounts,
        embedded: reloader.embedded.clone(),
        draining: draining.clone(),
        desk,
        config_hash: Box::new(move || read.hash()),
        reload: Box::new(reload),
    })
}
