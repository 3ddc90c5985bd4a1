//! TCP keep-alive: a stream may be silent for half an hour, and neither a box on the way nor a dead peer may pass
//! unnoticed for that long.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

/// Silence before the first probe. Below what routers and load balancers on the way commonly forget connections after.
const IDLE: Duration = Duration::from_secs(30);
const BETWEEN: Duration = Duration::from_secs(15);
/// Probes without an answer after which the connection is dead.
const PROBES: u32 = 4;

/// Switches keep-alive on for a connection, whichever side opened it.
pub fn switch_on(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, IDLE)?;
    sockopt::set_tcp_keepintvl(stream, BETWEEN)?;
    Ok(sockopt::set_tcp_keepcnt(stream, PROBES)?)
}
