//! Where a connection was going before a firewall rule redirected it to us (Linux: REDIRECT keeps that beside the
//! connection).

use std::net::SocketAddr;

use tokio::net::TcpStream;

/// A connection that was not meant for us. In the extensions of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    pub from: SocketAddr,
    pub to: SocketAddr,
}

impl Redirected {
    /// `None` for a connection that was meant for us.
    pub fn of(stream: &TcpStream) -> Option<Self> {
        let (from, local) = (canonical(stream.peer_addr().ok()?), canonical(stream.local_addr().ok()?));
        let to = canonical(original(stream, local)?);
        (to != local).then_some(Self { from, to })
    }
}

/// An IPv4 address that is written as IPv6 as what it is.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// What the kernel remembers; nothing where no rule has touched the connection.
#[cfg(target_os = "linux")]
fn original(stream: &TcpStream, local: SocketAddr) -> Option<SocketAddr> {
    use rustix::net::sockopt::{ip_original_dst, ipv6_original_dst};
    match local {
        SocketAddr::V4(_) => ip_original_dst(stream).ok().map(Into::into),
        SocketAddr::V6(_) => ipv6_original_dst(stream).ok().map(Into::into),
    }
}

#[cfg(not(target_os = "linux"))]
fn original(_: &TcpStream, _: SocketAddr) -> Option<SocketAddr> {
    None
}
