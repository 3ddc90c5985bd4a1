//! Server certificates.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Reads a certificate chain and its key (PEM). Errors name the file.
pub fn acceptor(cert_file: &Path, key_file: &Path) -> Result<TlsAcceptor, String> {
    let at = |path: &Path, error: &dyn std::fmt::Display| {
        let key = if path == cert_file { "cert_file" } else { "key_file" };
        format!("{key} {}: {error}", path.display())
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(cert_file)
        .and_then(Iterator::collect)
        .map_err(|error| at(cert_file, &error))?;
    if chain.is_empty() {
        return Err(at(cert_file, &"holds no certificate; a PEM file with the chain is expected"));
    }
    let key = PrivateKeyDer::from_pem_file(key_file).map_err(|error| at(key_file, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| at(key_file, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
