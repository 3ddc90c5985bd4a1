//! TLS to our own listener: whoever shows one of the certificates it shows at this moment is trusted, whatever names
//! stand in it and whoever signed it; nobody else is.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

use crate::server::tls::Tls;
use crate::tls::files::{Files, Live};
use crate::tls::{Reader, provider};

/// What opens TLS to the listener that `tls` serves. `identity` is the certificate to show and its key, where the
/// listener asks for one; errors name the file.
pub fn connector(
    tls: Tls,
    identity: Option<(PathBuf, PathBuf)>,
    files: &Files,
) -> Result<Arc<Live<ClientConfig>>, String> {
    files.load("canary", move |reader| client(tls.clone(), identity.as_ref(), reader))
}

fn client(
    tls: Tls,
    identity: Option<&(PathBuf, PathBuf)>,
    reader: &mut Reader,
) -> Result<ClientConfig, String> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Pinned(tls)));
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert_file, key_file)) => {
            let shown = Arc::new(reader.identity(cert_file, key_file)?);
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown)))
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Trusts the certificates of one listener.
struct Pinned(Tls);

impl std::fmt::Debug for Pinned {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Pinned")
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.0.leaves().iter().any(|own| own == shown) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, shown, signed, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, shown, signed, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
