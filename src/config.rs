//! `config.toml`: the subsystems' own sections put together, read strictly and checked as a whole.

mod bounds;
mod certificates;
pub mod changes;
mod log;
mod remedy;
mod tenants;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::admin::audit;
use crate::proxy::clients::{ClientBy, Terms};
use crate::proxy::route;
use crate::server::tls::{ClientCertificates, Identity};
use crate::units::{Size, Span};
use crate::upstream::original::network::Network;
use crate::upstream::{self, affinity, breaker, embedded};
use crate::{canary, recorder, trace};
pub use log::{Log, LogFormat};

/// The whole file. Every key has a default; an unknown one is an error.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub listen: Listen,
    pub admin: Admin,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upstream: Vec<upstream::Config>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub route: Vec<route::Config>,
    pub balance: affinity::Config,
    pub breaker: breaker::Config,
    pub fallback: embedded::Config,
    pub record: recorder::Config,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenant: Vec<recorder::tenant::Config>,
    pub passive: recorder::passive::Config,
    pub canary: canary::Config,
    pub limits: Limits,
    pub trace: trace::Config,
    pub log: Log,
}

/// `[listen]`: traffic.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    pub address: SocketAddr,
    /// PEM files; both or neither.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// The authorities whose clients are let in.
    pub client_ca_file: PathBuf,
    pub client_certificates: ClientCertificates,
    pub client_eof: ClientEof,
    /// Protocols a client may go on in after HTTP.
    pub upgrades: Vec<String>,
    /// Adds `X-Accel-Buffering: no` to streams that lack it, for an nginx in front.
    pub no_buffering: bool,
    /// Redirected connections go on to where they were going (Linux).
    pub transparent: bool,
    /// Where they may go.
    pub transparent_to: Vec<Network>,
    /// Further certificates, chosen by the name a client asks for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificate: Vec<Identity>,
}

/// What a client means that closes only its writing side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientEof {
    /// It is gone: its request is cancelled.
    Cancel,
    /// It still reads: the answer is sent.
    Honour,
}

/// `[admin]`: metrics, health and API.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    pub address: SocketAddr,
    /// PEM files; both or neither.
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    /// The authorities whose readers are let in.
    pub client_ca_file: PathBuf,
    pub client_certificates: ClientCertificates,
    /// A file that holds the tokens readers must show.
    pub token_file: PathBuf,
    /// Where it is written down who has read what was recorded; empty for a file in `[record] dir`.
    pub audit_file: PathBuf,
    /// A file of it that has grown past this is put aside; and how many are kept besides.
    pub audit_bytes: Size,
    pub audit_files: usize,
    /// Reads of what was recorded at the same time.
    pub readers: usize,
}

impl Admin {
    /// How much of the audit log is kept.
    pub fn audit(&self) -> audit::Size {
        audit::Size { bytes: self.audit_bytes.0, files: self.audit_files }
    }
}

/// `[limits]`: every bound of the path in one place.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub threads: usize,
    pub connections: usize,
    pub in_flight: usize,
    pub body: Size,
    pub body_copy: Size,
    pub connect: Span,
    pub head: Span,
    pub idle: Span,
    pub handshake: Span,
    pub header_read: Span,
    pub client_stall: Span,
    pub pool_idle: Span,
    pub pool_size: usize,
    pub per_client: usize,
    pub per_client_rate: f64,
    pub per_client_burst: u32,
    pub per_client_table: usize,
    pub client_by: ClientBy,
    pub h2_streams: usize,
    pub h2_ping: Span,
    pub drain: Span,
    /// Destinations of redirected connections that are remembered.
    pub destinations: usize,
    /// How often certificate files are looked at.
    pub files_every: Span,
}

impl Limits {
    /// What one client may do.
    pub fn client_terms(&self) -> Terms {
        Terms {
            in_flight: self.per_client,
            rate: self.per_client_rate,
            burst: self.per_client_burst,
            by: self.client_by,
            table: self.per_client_table,
        }
    }

    fn check_clients(&self) -> Result<(), String> {
        // Less than one request in four months is a mistake.
        if self.per_client_rate != 0.0 && !(1e-7..=1e6).contains(&self.per_client_rate) {
            return Err(format!("[limits] per_client_rate = {} is no rate; 0 is none", self.per_client_rate));
        }
        if self.body.0 == 0 {
            return Err(
                "[limits] body = \"0B\" would refuse every request with a body; give it a size".into()
            );
        }
        if self.per_client_burst == 0 {
            return Err(
                "[limits] per_client_burst = 0 would let nothing through; it must be at least 1".into()
            );
        }
        // A client with something in flight is never forgotten: the table must hold as many as there can be.
        let limited = self.per_client > 0 || self.per_client_rate > 0.0;
        match limited && self.per_client_table < self.in_flight {
            true => Err(format!(
                "[limits] per_client_table = {} is smaller than in_flight = {}; make it at least as large",
                self.per_client_table, self.in_flight
            )),
            false => Ok(()),
        }
    }
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 8080)),
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            client_ca_file: PathBuf::new(),
            client_certificates: ClientCertificates::None,
            certificate: Vec::new(),
            transparent: false,
            transparent_to: Network::private(),
            client_eof: ClientEof::Cancel,
            upgrades: vec!["websocket".to_owned()],
            no_buffering: false,
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 9464)),
            cert_file: PathBuf::new(),
            key_file: PathBuf::new(),
            client_ca_file: PathBuf::new(),
            client_certificates: ClientCertificates::None,
            token_file: PathBuf::new(),
            audit_file: PathBuf::new(),
            audit_bytes: Size::mib(8),
            audit_files: 8,
            readers: 4,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: 2,
            connections: 16_384,
            in_flight: 8_192,
            body: Size::mib(512),
            body_copy: Size::mib(16),
            connect: Span::seconds(5),
            head: Span::seconds(1_800),
            idle: Span::seconds(600),
            handshake: Span::seconds(10),
            header_read: Span::seconds(30),
            client_stall: Span::seconds(120),
            pool_idle: Span::seconds(4),
            pool_size: 1_024,
            per_client: 0,
            per_client_rate: 0.0,
            per_client_burst: 10,
            per_client_table: 65_536,
            client_by: ClientBy::Key,
            h2_streams: 100,
            h2_ping: Span::seconds(30),
            drain: Span::seconds(180),
            destinations: 256,
            files_every: Span::seconds(5),
        }
    }
}

/// Why a configuration cannot be used: one line that says what, where and what would do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {error}; name another file with --config FILE")]
    Unreadable { path: String, error: std::io::Error },
    #[error("{0}")]
    Bad(String),
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::Unreadable { path: path.display().to_string(), error })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads and checks a text; `name` stands for it in messages.
    pub fn parse(text: &str, name: &str) -> Result<Self, Error> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let line =
                error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let key = text.lines().nth(line - 1).and_then(|line| Some(line.split_once('=')?.0.trim()));
            let message = error.message().replace("unknown field", "unknown key").replace('\n', "; ");
            let message = remedy::add(message, text.lines().nth(line - 1).unwrap_or_default());
            match key {
                Some(key) if !message.contains(key) => Error::Bad(format!("{name}:{line}: {key}: {message}")),
                _ => Error::Bad(format!("{name}:{line}: {message}")),
            }
        })?;
        config.check().map_err(|message| Error::Bad(format!("{name}: {message}")))?;
        Ok(config)
    }

    /// What no single key can know.
    fn check(&self) -> Result<(), String> {
        self.check_names()?;
        self.canary.check().map_err(|error| error.to_string())?;
        self.trace.check()?;
        self.passive.check()?;
        self.check_certificates()?;
        let unset = |path: &PathBuf| path.as_os_str().is_empty();
        let admin = &self.admin;
        if !admin.address.ip().is_loopback() && (unset(&admin.cert_file) || unset(&admin.token_file)) {
            return Err(format!(
                "[admin] address = \"{}\" is not a loopback address; that needs cert_file, key_file and token_file",
                admin.address
            ));
        }
        if self.admin.address == self.listen.address && self.listen.address.port() != 0 {
            return Err(
                "[admin] address and [listen] address are the same; traffic and admin never share one".into(),
            );
        }
        if self.limits.body_copy > self.record.memory {
            return Err(
                "[limits] body_copy is larger than [record] memory; no such body could ever be recorded"
                    .into(),
            );
        }
        self.record.check()?;
        self.check_tenants()?;
        self.check_upgrades()?;
        self.limits.check_clients()?;
        self.check_counts()?;
        self.check_durations()
    }

    /// The effective configuration as a file, for `check-config` and for the hash.
    pub fn text(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// Where it is written down who has read what was recorded.
    pub fn audit_file(&self) -> PathBuf {
        match self.admin.audit_file.as_os_str().is_empty() {
            true => self.record.dir.join("audit.jsonl"),
            false => self.admin.audit_file.clone(),
        }
    }

    /// Twelve hexadecimal digits that change with any effective key.
    pub fn hash(&self) -> String {
        blake3::hash(self.text().as_bytes()).to_hex()[..12].to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bad(text: &str) -> String {
        Config::parse(text, "config.toml").unwrap_err().to_string()
    }

    #[test]
    fn the_shipped_file_says_what_the_defaults_are() {
        let shipped = Config::parse(include_str!("../config.toml"), "config.toml").unwrap();
        assert_eq!(shipped, Config::default());
    }

    #[test]
    fn a_mistake_is_one_line_with_place_and_remedy() {
        let cases = [
            (
                "[listen]\nadress = \"127.0.0.1:1\"",
                "config.toml:2: unknown key `adress`, expected one of `address`",
            ),
            ("[lisen]", "config.toml:1: unknown key `lisen`"),
            ("[limits]\ndrain = \"soon\"", "write it like"),
            ("[listen]\naddress = \"nowhere\"", "config.toml:2: "),
            ("[admin]\naddress = \"0.0.0.0:9464\"", "not a loopback address; that needs cert_file"),
            ("[listen]\ncert_file = \"a\"", "set both or neither"),
            ("[listen]\nclient_certificates = \"required\"", "client_ca_file and client_certificates"),
            ("[admin]\nclient_ca_file = \"a\"", "client_ca_file and client_certificates"),
            ("[listen]\nclient_certificates = \"required\"\nclient_ca_file = \"a\"", "needs TLS"),
            ("[[upstream]]\nname = \"a\"\nurl = \"https://h\"\nkey_file = \"k\"", "set both or neither"),
            ("[fallback]\nindex_topk = 0", "index_topk is \"all\" or a number above 0"),
            (
                "[[upstream]]\nname = \"a\"\nurl = \"x\"\n[[upstream]]\nname = \"a\"\nurl = \"x\"",
                "names must differ",
            ),
            ("[[upstream]]\nname = \"embedded\"\nurl = \"x\"", "reserved"),
            ("[[upstream]]\nname = \"a\"", "missing field `url`"),
            ("[record]\nmemory = \"1MiB\"", "body_copy is larger"),
            ("[limits]\nthreads = 0", "at least 1"),
            ("[breaker]\nfailures = 0", "must be above 0"),
            ("[[upstream]]\nname = \"a\"\nurl = \"http://h\"\nweight = 0", "weight goes from 1"),
            ("[limits]\nin_flight = 9223372036854775807", "beyond any use"),
            ("[limits]\nhead = \"0ms\"", "would refuse everything"),
            ("[limits]\nthreads = -1", "config.toml:2: threads: "),
            ("[record]\ndir = \"\"", "names no directory"),
            ("[log]\nlevel = \"inof\"", "config.toml:2: level: unknown variant `inof`, expected one of"),
            ("x =", "config.toml:1: "),
            (
                "[listen]\naddress = \"localhost:8080\"",
                "write an IP address and a port, such as \"127.0.0.1:8080\"",
            ),
            ("[upstream]\nname = \"a\"", "config.toml:1: invalid type"),
            ("[upstream]\nname = \"a\"", "write [[upstream]] with two brackets"),
            (
                "[fallback]\nfor = \"*\"",
                "for: invalid type: string \"*\", expected a sequence; write a list in brackets",
            ),
            ("[limits]\nhead = 5", "write it in quotes with its unit, such as \"30s\" or \"64MiB\""),
            ("[limits]\nhead = 5s", "write it in quotes with its unit"),
            ("[[upstream]]\nurl = \"http://h\"", "each [[upstream]] needs a name of your choice"),
            ("[limits]\nper_client_rate = -1", "is no rate"),
            ("[limits]\nper_client_rate = 1e-12", "is no rate"),
            ("[limits]\nbody = \"0B\"", "would refuse every request"),
            ("[balance]\naffinity_prefix = \"99999GiB\"", "beyond any use"),
            ("[record]\nturns = 0", "[record] turns is beyond any use"),
            ("[record]\nread_files = 0", "[record] read_files is beyond any use"),
            ("[record]\nread_cache = \"1B\"", "[record] read_cache is beyond any use"),
            ("[passive]\nlines = 0", "[passive] lines = 0 would let nothing through"),
            ("[admin]\nreaders = 2000", "[admin] readers = 2000 is beyond any use"),
            ("[admin]\naudit_bytes = \"1B\"", "[admin] audit_bytes is beyond any use"),
            ("[record]\nparts = 67108865", "it goes from 1 to 67108864"),
            ("[listen]\nupgrades = [\"a b\"]", "is no name of a protocol"),
            ("[[upstream]]\nname = \"a\"\nurl = \"http://h\"\nhealth = \"/a b\"", "health is"),
            ("[[upstream]]\nname = \"a\"\nurl = \"http://h\"\nabort = \"/\\r\\n\"", "abort is a path"),
            ("[[route]]\npath_prefix = \"/x?y\"\nupstreams = []", "a path as requests carry it"),
            (
                "[[route]]\npath_prefix = \"/\"\nupstreams = []\n[[route]]\npath_prefix = \"/\"\nupstreams = []",
                "two [[route]]",
            ),
            ("[limits]\nper_client = 1\nper_client_table = 5", "at least as large"),
            (
                "[[tenant]]",
                "config.toml:1: missing field `name`; each [[tenant]] needs a name of your choice",
            ),
            ("[tenant]\nname = \"a\"", "write [[tenant]] with two brackets"),
            ("[[tenant]]\nname = \"a\"\nmodes = \"off\"", "config.toml:3: unknown key `modes`"),
            ("[[tenant]]\nname = \"default\"", "is reserved; [record] speaks of that one"),
            ("[[tenant]]\nname = \"../a\"", "is no name; it has 1 to 16 characters"),
            ("[[tenant]]\nname = \"a\"", "nobody belongs to it; set keys_file"),
            ("[[tenant]]\nname = \"a\"\nheader = \"x-t\"", "set both or neither"),
            ("[[tenant]]\nname = \"a\"\nheader = \"x t\"\nvalue = \"a\"", "is no name of a header"),
            ("[[tenant]]\nname = \"a\"\nheader = \"X-Api-Key\"\nvalue = \"a\"", "use keys_file"),
            ("[[tenant]]\nname = \"a\"\nheader = \"x-t\"\nvalue = \"a\\n\"", "none that a header can have"),
            (
                "[[tenant]]\nname = \"a\"\nkeys_file = \"k\"\n[[tenant]]\nname = \"a\"\nkeys_file = \"k\"",
                "two [[tenant]] are named \"a\"",
            ),
            (
                "[[tenant]]\nname = \"a\"\nheader = \"x-t\"\nvalue = \"v\"\n[[tenant]]\nname = \"b\"\nheader = \"X-T\"\nvalue = \"v\"",
                "[[tenant]] name = \"b\": header and value are those of \"a\"",
            ),
            ("[[tenant]]\nname = \"a\"\nkeys_file = \"k\"\nmemory = \"1GiB\"", "larger than [record] memory"),
            (
                "[[tenant]]\nname = \"a\"\nkeys_file = \"k\"\nmemory = \"1MiB\"",
                "smaller than [limits] body_copy",
            ),
            (
                "[[tenant]]\nname = \"a\"\nkeys_file = \"k\"\nsample = 2",
                "[[tenant]] name = \"a\": sample = 2 is no share",
            ),
            (
                "[[tenant]]\nname = \"a\"\nkeys_file = \"k\"\nkeep_content = \"100d\"",
                "[[tenant]] name = \"a\": keep_streams, keep_content and keep_metadata",
            ),
            ("[trace]\nendpoint = \"collector\"", "[trace] endpoint"),
            ("[trace]\nratio = 2", "goes from 0 to 1"),
        ];
        for (text, expected) in cases {
            let message = bad(text);
            assert!(message.contains(expected) && !message.contains('\n'), "{text:?} gave {message:?}");
        }
    }

    #[test]
    fn what_check_config_prints_is_read_back() {
        let config = Config::default();
        assert_eq!(Config::parse(&config.text(), "x").unwrap(), config);
        assert_eq!(config.hash().len(), 12);
    }
}
