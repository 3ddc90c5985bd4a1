//! Certificates made for a test, and a TLS client that takes any and says which it was shown.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned};

/// An authority of a test's own.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Certificate,
}

/// A certificate and its key, in files.
pub struct Files {
    pub cert: PathBuf,
    pub key: PathBuf,
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        // OpenSSL takes a certificate for self-signed whose own name is its issuer's.
        params.distinguished_name = named("the authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Writes its certificate to `dir/name.pem`.
    pub fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(format!("{name}.pem"));
        std::fs::write(&path, self.certificate.pem()).unwrap();
        path
    }

    /// A certificate for these names that expires on the first of January of `year`, as `dir/name.pem` and
    /// `dir/name-key.pem`, over what was there.
    pub fn issue(&self, dir: &Path, name: &str, names: &[&str], year: i32) -> Files {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = named(name);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let made = params.signed_by(&key, &self.issuer).unwrap();
        let files = Files { cert: dir.join(format!("{name}.pem")), key: dir.join(format!("{name}-key.pem")) };
        std::fs::write(&files.cert, made.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}

impl Files {
    /// The two keys of a section.
    pub fn keys(&self) -> String {
        format!("cert_file = {:?}\nkey_file = {:?}\n", self.cert, self.key)
    }

    /// The certificate alone.
    pub fn der(&self) -> Vec<u8> {
        use rustls::pki_types::pem::PemObject;
        CertificateDer::from_pem_file(&self.cert).unwrap().to_vec()
    }
}

/// A connection whose handshake is done.
pub type Secure = StreamOwned<ClientConnection, TcpStream>;

/// Shakes hands with whoever is there, asking for `name` and offering `alpn`.
pub fn shake(address: SocketAddr, name: &str, alpn: &[&[u8]]) -> Secure {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|one| one.to_vec()).collect();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = StreamOwned::new(
        ClientConnection::new(Arc::new(config), name).unwrap(),
        super::wire::connect(address),
    );
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).unwrap();
    }
    stream
}

/// The certificate shown to who asks for `name`.
pub fn shown(address: SocketAddr, name: &str) -> Vec<u8> {
    shake(address, name, &[]).conn.peer_certificates().unwrap()[0].to_vec()
}

/// Believes everybody: it is there to see, not to judge.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
