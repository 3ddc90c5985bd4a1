//! Addresses for programs that cannot be asked for any free port. Every benchmark includes this file.

use std::net::{SocketAddr, TcpListener};

/// An address on this machine that nobody listens on.
pub fn free() -> std::io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}
