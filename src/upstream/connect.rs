//! Connections to an upstream: TCP, and TLS over it where the URL says so.

pub mod outgoing;
pub mod tls;

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::http::uri::Scheme;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::server::keepalive;
use crate::tls::files::{Files, Live};
use outgoing::{Noted, Outgoing};

/// Where an upstream is, as read from its URL.
#[derive(Clone)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    versions: Versions,
    outgoing: Option<Outgoing>,
    tls: Option<(Arc<Live<ClientConfig>>, ServerName<'static>)>,
}

/// `[[upstream]] http`: the versions of HTTP an upstream is spoken to in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub enum Versions {
    /// HTTP/2 where TLS negotiates it, else HTTP/1.1.
    #[default]
    #[serde(rename = "auto")]
    Auto,
    #[serde(rename = "1.1")]
    One,
    /// HTTP/2 only: without TLS by prior knowledge.
    #[serde(rename = "2")]
    Two,
}

/// Why an upstream's section cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Mistake {
    #[error("{0}")]
    Url(String),
    #[error("{0}")]
    File(String),
}

/// A connection, of either kind, that counts what it has received.
pub struct Stream {
    kind: Kind,
    received: Arc<AtomicU64>,
    http2: bool,
    /// The peer takes nothing any more. What it has said before that still waits to be read.
    deaf: bool,
    /// Where it comes from, for as long as it lives.
    _noted: Option<Noted>,
}

enum Kind {
    Tcp(TcpStream),
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl Stream {
    fn new(kind: Kind, versions: Versions, noted: Option<Noted>) -> Self {
        let http2 = match &kind {
            Kind::Tcp(_) => versions == Versions::Two,
            Kind::Tls(tls) => tls.get_ref().1.alpn_protocol() == Some(b"h2"),
        };
        Self { kind, received: Arc::default(), http2, deaf: false, _noted: noted }
    }

    /// Whether HTTP/2 is spoken on it.
    pub fn is_http2(&self) -> bool {
        self.http2
    }

    /// A server may answer a request that it has not read, with 413 for instance, and close. Who then gave up at the broken
    /// write would lose the answer: so what is written from here on goes nowhere, and reading tells how it ended.
    fn noted<T>(&mut self, done: Poll<io::Result<T>>, all: T) -> Poll<io::Result<T>> {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        match done {
            Poll::Ready(Err(error))
                if matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset) =>
            {
                self.deaf = true;
                Poll::Ready(Ok(all))
            }
            done => done,
        }
    }

    /// Bytes received so far, to be read while somebody else owns the stream.
    pub fn received(&self) -> Arc<AtomicU64> {
        self.received.clone()
    }
}

impl Endpoint {
    /// Reads `http://host:port` or `https://host[:port]`; anything behind the authority is refused, because a prefix
    /// would silently change the path of every request. `watch` names who looks after the files, and for whom.
    pub fn parse(
        url: &str,
        versions: Versions,
        wanted: tls::Wanted,
        watch: Option<(&Files, &str)>,
    ) -> Result<Self, Mistake> {
        let (host, port, secure) = read_url(url).map_err(Mistake::Url)?;
        let tls = match (secure, wanted.some_key()) {
            (true, _) => Some((tls::connector(wanted, watch)?, tls::server_name(&host)?)),
            (false, Some(key)) => {
                return Err(Mistake::Url(format!("url {url:?} is not https, so {key} would never be used")));
            }
            (false, None) => None,
        };
        Ok(Self { host, port, versions, outgoing: None, tls })
    }

    /// An address that is spoken to in HTTP/1.1, without TLS.
    pub fn plain(address: SocketAddr) -> Self {
        let (host, port) = (address.ip().to_string(), address.port());
        Self { host, port, versions: Versions::One, outgoing: None, tls: None }
    }

    /// The same, with where its connections come from noted.
    pub fn noting(self, outgoing: Outgoing) -> Self {
        Self { outgoing: Some(outgoing), ..self }
    }

    /// `host:port`, as a `Host` header shows it.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// `http` or `https`.
    pub fn scheme(&self) -> Scheme {
        if self.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }

    /// Whether an HTTP/2 connection to it can exist.
    pub fn may_speak_http2(&self) -> bool {
        match self.versions {
            Versions::Auto => self.tls.is_some(),
            Versions::One => false,
            Versions::Two => true,
        }
    }

    /// Opens a connection in one of its versions; `limit` covers name resolution, TCP and the TLS handshake together.
    pub async fn open(&self, limit: Duration) -> io::Result<Stream> {
        self.open_in(self.versions, limit).await
    }

    /// Opens a connection that speaks HTTP/1.1, for what HTTP/2 cannot carry.
    pub async fn open_http1(&self, limit: Duration) -> io::Result<Stream> {
        self.open_in(Versions::One, limit).await
    }

    /// A name nobody knows is told apart from a server that is not there.
    async fn tcp(&self) -> io::Result<TcpStream> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await.map_err(|error| {
            io::Error::new(error.kind(), format!("its name {:?} cannot be resolved: {error}", self.host))
        });
        let addresses: Vec<_> = found?.collect();
        TcpStream::connect(addresses.as_slice()).await
    }

    async fn open_in(&self, versions: Versions, limit: Duration) -> io::Result<Stream> {
        let opening = async {
            let tcp = self.tcp().await?;
            tcp.set_nodelay(true)?;
            keepalive::switch_on(&tcp)?;
            let local = self.outgoing.as_ref().zip(tcp.local_addr().ok());
            let noted = local.map(|(outgoing, local)| outgoing.note(local));
            match &self.tls {
                None => Ok(Stream::new(Kind::Tcp(tcp), versions, noted)),
                Some((tls, name)) => {
                    let tls = TlsConnector::from(tls.get());
                    let offered = tls.with_alpn(versions.offered());
                    let stream = offered.connect(name.clone(), tcp).await.map_err(told)?;
                    let stream = Stream::new(Kind::Tls(Box::new(stream)), versions, noted);
                    match versions == Versions::Two && !stream.http2 {
                        true => Err(io::Error::other("does not speak HTTP/2; set http = \"auto\"")),
                        false => Ok(stream),
                    }
                }
            }
        };
        tokio::time::timeout(limit, opening).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {limit:?}")))
        })
    }
}

/// Says of a failed handshake what it most likely means.
fn told(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(_)) => io::Error::new(
            error.kind(),
            format!("does not speak TLS, so its url may have to begin with http:// ({error})"),
        ),
        Some(_) => io::Error::new(error.kind(), format!("no TLS with it: {error}")),
        None => error,
    }
}

impl Versions {
    /// What is offered in a TLS handshake, the preferred first.
    fn offered(self) -> Vec<Vec<u8>> {
        let (one, two) = (b"http/1.1".to_vec(), b"h2".to_vec());
        match self {
            Self::Auto => vec![two, one],
            Self::One => vec![one],
            Self::Two => vec![two],
        }
    }
}

/// Host, port and whether TLS is wanted, or what is wrong with `url`.
pub fn read_url(url: &str) -> Result<(String, u16, bool), String> {
    let uri: hyper::Uri = url.parse().map_err(|error| format!("url {url:?} cannot be read: {error}"))?;
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(format!("url {url:?} must begin with http:// or https://")),
    };
    let named = uri.authority().and_then(|authority| Some((authority, bare_host(authority.host())?)));
    let (authority, host) =
        named.ok_or_else(|| format!("url {url:?} names no valid host; write http://HOST:PORT"))?;
    if uri.path() != "/" && !uri.path().is_empty() || uri.query().is_some() {
        return Err(format!(
            "url {url:?} carries a path; requests keep their own path, so write http://HOST:PORT"
        ));
    }
    if authority.as_str().contains('@') {
        return Err(format!(
            "url for {} carries a user name; credentials belong to the clients",
            authority.host()
        ));
    }
    let port = match authority.port_u16() {
        Some(port) if port > 0 => port,
        None if authority.port().is_none() && !authority.as_str().ends_with(':') => {
            if secure {
                443
            } else {
                80
            }
        }
        _ => return Err(format!("url {url:?} has no valid port; ports go from 1 to 65535")),
    };
    // The parser drops a port it cannot read: what is left of the text must be the host alone.
    let bare = authority.as_str().strip_suffix(&format!(":{port}")).unwrap_or(authority.as_str());
    if bare != authority.host() {
        return Err(format!("url {url:?} has no valid port; ports go from 1 to 65535"));
    }
    Ok((host.to_owned(), port, secure))
}

/// The host of a URL without the brackets of an IPv6 address, or nothing where it is neither a name nor an address
/// (RFC 3986, section 3.2.2).
fn bare_host(host: &str) -> Option<&str> {
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').filter(|address| address.parse::<Ipv6Addr>().is_ok()),
        None => (!host.contains(':') && ServerName::try_from(host).is_ok()).then_some(host),
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let polled = match &mut this.kind {
            Kind::Tcp(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Kind::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        };
        this.received.fetch_add((buf.filled().len() - before) as u64, Relaxed);
        polled
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.deaf {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = match &mut this.kind {
            Kind::Tcp(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Kind::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        };
        this.noted(written, buf.len())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let all = || bufs.iter().map(|buf| buf.len()).sum();
        if this.deaf {
            return Poll::Ready(Ok(all()));
        }
        let written = match &mut this.kind {
            Kind::Tcp(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Kind::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bufs),
        };
        this.noted(written, all())
    }

    fn is_write_vectored(&self) -> bool {
        match &self.kind {
            Kind::Tcp(tcp) => tcp.is_write_vectored(),
            Kind::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = match &mut this.kind {
            Kind::Tcp(tcp) => Pin::new(tcp).poll_flush(cx),
            Kind::Tls(tls) => Pin::new(tls).poll_flush(cx),
        };
        this.noted(flushed, ())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            Kind::Tcp(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Kind::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_valid_host_is_refused() {
        let odd = [
            "http://:1",
            "https://:443/",
            "http://[]:1",
            "http://ca.[81]",
            "http://[a]:1",
            "http://a..b:1",
            "http://[1.2.3.4]:1",
        ];
        for url in odd {
            let mistake = Endpoint::parse(url, Versions::Auto, tls::Wanted::default(), None)
                .err()
                .map(|mistake| mistake.to_string());
            assert!(mistake.as_ref().is_some_and(|mistake| mistake.contains(url)), "{url}: {mistake:?}");
        }
    }
}
