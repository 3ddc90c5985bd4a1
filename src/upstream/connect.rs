//! Connections to an upstream: TCP, and TLS over it where the URL says so.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Where an upstream is, as read from its URL.
#[derive(Clone)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

/// Either kind of connection.
pub enum Stream {
    Tcp(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl Endpoint {
    /// Reads `http://host:port` or `https://host[:port]`; anything behind the authority is refused, because a prefix
    /// would silently change the path of every request.
    pub fn parse(url: &str, ca_file: Option<&Path>) -> Result<Self, String> {
        let uri: hyper::Uri = url.parse().map_err(|error| format!("url {url:?} cannot be read: {error}"))?;
        let host = uri.host().ok_or_else(|| format!("url {url:?} names no host; write http://HOST:PORT"))?;
        if uri.path() != "/" && !uri.path().is_empty() || uri.query().is_some() {
            return Err(format!(
                "url {url:?} carries a path; requests keep their own path, so write http://HOST:PORT"
            ));
        }
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(format!("url {url:?} must begin with http:// or https://")),
        };
        let host = host.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tls = match secure {
            true => Some((connector(ca_file)?, server_name(&host)?)),
            false => None,
        };
        Ok(Self { host, port, tls })
    }

    /// `host:port`, as a `Host` header shows it.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Opens a connection; `limit` covers name resolution, TCP and the TLS handshake together.
    pub async fn open(&self, limit: Duration) -> io::Result<Stream> {
        let opening = async {
            let tcp = TcpStream::connect((self.host.as_str(), self.port)).await?;
            tcp.set_nodelay(true)?;
            match &self.tls {
                None => Ok(Stream::Tcp(tcp)),
                Some((tls, name)) => Ok(Stream::Tls(Box::new(tls.connect(name.clone(), tcp).await?))),
            }
        };
        tokio::time::timeout(limit, opening).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}")))
        })
    }
}

fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned())
        .map_err(|error| format!("host {host:?} cannot be verified by TLS: {error}"))
}

fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let read = |error| format!("ca_file {}: {error}", path.display());
            for certificate in
                rustls::pki_types::CertificateDer::pem_file_iter(path).map_err(|e| read(e.to_string()))?
            {
                roots.add(certificate.map_err(|e| read(e.to_string()))?).map_err(|e| read(e.to_string()))?;
            }
        }
        None => {
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(found.certs);
            if added == 0 {
                return Err(
                    "no trusted certificates on this system; install ca-certificates or set ca_file".into()
                );
            }
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(tcp) => tcp.is_write_vectored(),
            Self::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
