//! TLS to an upstream: whom to trust and what to show.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};

use super::Mistake;
use crate::tls::files::{Files, Live};
use crate::tls::{Reader, provider};

/// The TLS keys of an `[[upstream]]`.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate to show where the upstream asks for one, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Wanted {
    /// The first key that is set, to name it where it cannot be used.
    pub fn some_key(&self) -> Option<&'static str> {
        let ca = self.ca_file.as_ref().map(|_| "ca_file");
        ca.or_else(|| self.identity.as_ref().map(|_| "cert_file"))
    }
}

/// The name an upstream's certificate must carry.
pub fn server_name(host: &str) -> Result<ServerName<'static>, Mistake> {
    ServerName::try_from(host.to_owned())
        .map_err(|error| Mistake::Url(format!("host {host:?} cannot be verified by TLS: {error}")))
}

/// What opens TLS to an upstream; made anew when one of the files of its `section` changes.
pub fn connector(wanted: Wanted, watch: Option<(&Files, &str)>) -> Result<Arc<Live<ClientConfig>>, Mistake> {
    let made = match watch {
        Some((files, section)) => files.load(section, move |reader| client(&wanted, reader)),
        None => client(&wanted, &mut Reader::default()).map(Live::fixed),
    };
    made.map_err(Mistake::File)
}

fn client(wanted: &Wanted, reader: &mut Reader) -> Result<ClientConfig, String> {
    let roots = match &wanted.ca_file {
        Some(path) => reader.authorities("ca_file", path)?,
        None => system_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    Ok(match &wanted.identity {
        None => builder.with_no_client_auth(),
        Some((cert_file, key_file)) => {
            let shown = Arc::new(reader.identity(cert_file, key_file)?);
            builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(shown)))
        }
    })
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs) {
        (0, _) => {
            Err("no trusted certificates on this system; install ca-certificates or set ca_file".to_owned())
        }
        _ => Ok(roots),
    }
}
