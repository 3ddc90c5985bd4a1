//! TLS on a listener: certificates chosen by name, clients asked for theirs, all of it made anew when a file changes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::IntCounterVec;
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::metrics::Metrics;
use crate::tls::files::{Files, Live};
use crate::tls::{Reader, provider};

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    None,
    /// They may show one, which then must be good.
    Requested,
    /// Without a good one there is no connection.
    Required,
}

/// A certificate chain and its key (PEM files). The names it is for stand in the certificate.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

/// What a listener's section of the configuration says about TLS.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The first is shown where no other fits the name a client asks for. None: no TLS.
    pub identities: Vec<Identity>,
    pub client_ca_file: PathBuf,
    pub client_certificates: ClientCertificates,
}

/// One listener's TLS, as its files say now. Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    live: Arc<Live<Served>>,
    failures: Failures,
}

/// What is made from the files.
struct Served {
    config: Arc<ServerConfig>,
    leaves: Vec<CertificateDer<'static>>,
}

/// Counts handshakes that failed, by reason.
#[derive(Clone)]
pub struct Failures {
    family: IntCounterVec,
    listener: &'static str,
}

const REASONS: [&str; 8] = [
    "timeout",
    "client_left",
    "not_tls",
    "nothing_in_common",
    "no_client_certificate",
    "bad_client_certificate",
    "refused_by_client",
    "other",
];

impl Failures {
    /// The counters of each listener, by its section's name.
    pub fn new<const N: usize>(metrics: &Metrics, listeners: [&'static str; N]) -> [Self; N] {
        let family = metrics.counters(
            "serin_server_handshake_failures_total",
            "TLS handshakes that failed.",
            &["listener", "reason"],
        );
        listeners.map(|listener| {
            for reason in REASONS {
                family.with_label_values(&[listener, reason]);
            }
            Self { family: family.clone(), listener }
        })
    }

    fn count(&self, reason: &str) {
        self.family.with_label_values(&[self.listener, reason]).inc();
    }
}

impl Tls {
    /// Reads the files of a section; `None` if it names no certificate. Errors name the file.
    pub fn new(files: &Files, wanted: Wanted, failures: Failures) -> Result<Option<Self>, String> {
        if wanted.identities.is_empty() {
            return Ok(None);
        }
        let live = files.load(failures.listener, move |reader| serve(&wanted, reader))?;
        Ok(Some(Self { live, failures }))
    }

    /// The certificates in use at this moment, without what vouches for them.
    pub fn leaves(&self) -> Vec<CertificateDer<'static>> {
        self.live.get().leaves.clone()
    }

    /// Shakes hands within `limit`. A failure is counted; there is nobody to tell of it.
    pub async fn accept<S>(&self, stream: S, limit: Duration) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.live.get().config.clone());
        let reason = match tokio::time::timeout(limit, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => reason(&error),
            Err(_) => "timeout",
        };
        self.failures.count(reason);
        tracing::debug!(reason, "a TLS handshake failed");
        None
    }
}

/// Why a handshake failed, in one of [`REASONS`].
fn reason(error: &io::Error) -> &'static str {
    use rustls::Error;
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
        Some(Error::NoCertificatesPresented) => "no_client_certificate",
        Some(Error::InvalidCertificate(_)) => "bad_client_certificate",
        Some(Error::AlertReceived(_)) => "refused_by_client",
        Some(Error::InvalidMessage(_)) => "not_tls",
        Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => "nothing_in_common",
        Some(_) => "other",
        None => match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                "client_left"
            }
            _ => "other",
        },
    }
}

fn serve(wanted: &Wanted, reader: &mut Reader) -> Result<Served, String> {
    let read = |one: &Identity| reader.identity(&one.cert_file, &one.key_file).map(Arc::new);
    let identities: Vec<_> = wanted.identities.iter().map(read).collect::<Result<_, _>>()?;
    let leaves = identities.iter().filter_map(|one| one.cert.first().cloned()).collect();
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match wanted.client_certificates {
        ClientCertificates::None => builder.with_no_client_auth(),
        kind => {
            let required = kind == ClientCertificates::Required;
            builder.with_client_cert_verifier(clients(reader, &wanted.client_ca_file, required)?)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(ByName(identities)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Served { config: Arc::new(config), leaves })
}

/// What judges clients' certificates.
fn clients(
    reader: &mut Reader,
    ca_file: &Path,
    required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let roots = Arc::new(reader.authorities("client_ca_file", ca_file)?);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| format!("client_ca_file {}: {error}", ca_file.display()))
}

/// Chooses the certificate that is for the name a client asks for, else the first; of several such, one whose key the
/// client can verify.
#[derive(Debug)]
struct ByName(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let fits = |one: &&Arc<CertifiedKey>| one.key.choose_scheme(hello.signature_schemes()).is_some();
        let named = self.0.iter().filter(|one| name.as_ref().is_some_and(|name| covers(one, name)));
        let first = self.0.first()?;
        named.clone().find(fits).or(named.clone().next()).or(Some(first)).cloned()
    }
}

fn covers(identity: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let certificate = identity.end_entity_cert().ok().and_then(|one| ParsedCertificate::try_from(one).ok());
    certificate.is_some_and(|certificate| verify_server_name(&certificate, name).is_ok())
}
