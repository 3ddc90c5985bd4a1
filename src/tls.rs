//! Certificate files: reading them, noticing that they have changed, knowing when they expire.

pub mod expiry;
pub mod files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

/// Reads files and remembers what they held, so that a change can be told from what was read.
#[derive(Default)]
pub struct Reader {
    read: Vec<(PathBuf, blake3::Hash)>,
    expiries: Vec<(PathBuf, i64)>,
}

/// The one implementation of cryptography in use.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// `cert_file ca.pem: what is wrong`
fn at(key: &str, path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{key} {}: {error}", path.display())
}

impl Reader {
    /// A certificate chain and its key (PEM), which must belong together.
    pub fn identity(&mut self, cert_file: &Path, key_file: &Path) -> Result<CertifiedKey, String> {
        let chain = self.certificates("cert_file", cert_file)?;
        let soonest = chain.iter().filter_map(|one| expiry::not_after(one)).min();
        let text = self.bytes("key_file", key_file)?;
        let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| at("key_file", key_file, &error))?;
        let identity = CertifiedKey::from_der(chain, key, &provider())
            .map_err(|error| at("key_file", key_file, &error))?;
        self.expiries.extend(soonest.map(|soonest| (cert_file.to_owned(), soonest)));
        Ok(identity)
    }

    /// The authorities a file names (PEM).
    pub fn authorities(&mut self, key: &str, path: &Path) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(key, path)? {
            roots.add(certificate).map_err(|error| at(key, path, &error))?;
        }
        Ok(roots)
    }

    fn certificates(&mut self, key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
        let text = self.bytes(key, path)?;
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|error| at(key, path, &error))?;
        match certificates.is_empty() {
            true => Err(at(key, path, &"holds no certificate; a PEM file is expected")),
            false => Ok(certificates),
        }
    }

    fn bytes(&mut self, key: &str, path: &Path) -> Result<Vec<u8>, String> {
        let read = regular(path).and_then(std::fs::read);
        self.read.push((path.to_owned(), fingerprint(&read)));
        read.map_err(|error| at(key, path, &error))
    }
}

/// A pipe or a device may never end, and nothing else could be looked at meanwhile.
fn regular(path: &Path) -> std::io::Result<&Path> {
    match std::fs::metadata(path)?.is_file() {
        true => Ok(path),
        false => Err(std::io::Error::other("is no regular file")),
    }
}

/// What a file held, or that and why it could not be read.
fn fingerprint(read: &std::io::Result<Vec<u8>>) -> blake3::Hash {
    match read {
        Ok(bytes) => blake3::hash(bytes),
        Err(error) => blake3::hash(format!("unreadable: {:?}", error.kind()).as_bytes()),
    }
}
