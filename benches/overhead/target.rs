//! What is measured: the upstream itself, and proxies in front of it as processes of their own.

#[path = "target/nginx.rs"]
pub mod nginx;
#[path = "target/peers.rs"]
pub mod peers;
#[path = "target/serin.rs"]
pub mod serin;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::Error;
use crate::options::Options;
use crate::process::Process;

/// Where requests go, and whose CPU time counts.
pub struct Target {
    pub name: String,
    pub role: Role,
    pub address: SocketAddr,
    /// Where Serin serves its metrics.
    pub admin: Option<SocketAddr>,
    /// `None` for the upstream itself.
    pub process: Option<Process>,
    /// More connections than this are not opened.
    pub cap: usize,
    /// Header lines that every request must carry.
    pub headers: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Direct,
    /// Direct once more: how far two equal measurements are apart.
    Again,
    Recording,
    NotRecording,
    Nginx,
    Peer,
    /// Another build of Serin, recording.
    Beside,
}

impl Role {
    /// The build that is judged by the goals.
    pub fn is_serin(self) -> bool {
        matches!(self, Role::Recording | Role::NotRecording)
    }
}

/// A target that could not be measured.
pub struct Absent {
    pub name: String,
    pub why: String,
    pub required: bool,
}

pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts every target; those that do not start are named in the report.
pub fn start_all(options: &Options, upstream: SocketAddr) -> (Vec<Target>, Vec<Absent>) {
    let mut targets = vec![Target::plain("direct", Role::Direct, upstream)];
    let mut absent = Vec::new();
    let mut keep = |name: &str, required, started: Result<Target, Error>| match started {
        Ok(target) => targets.push(target),
        Err(error) => {
            eprintln!("{name} is not measured: {error}");
            absent.push(Absent { name: name.to_owned(), why: error.to_string(), required });
        }
    };
    keep("serin, recording", true, serin::start(&options.serin, upstream, true));
    keep("serin, not recording", true, serin::start(&options.serin, upstream, false));
    if let Some(other) = &options.beside {
        let name = "serin, other build, recording";
        let started = serin::start(other, upstream, true);
        keep(name, true, started.map(|other| Target { name: name.to_owned(), role: Role::Beside, ..other }));
    }
    keep("nginx", false, nginx::start(upstream));
    if options.peers {
        for peer in peers::ALL {
            eprintln!("starting {}", peer.name);
            keep(peer.name, false, peers::start(peer, upstream));
        }
        absent.extend(peers::not_packaged());
    }
    targets.push(Target::plain("direct, again", Role::Again, upstream));
    (targets, absent)
}

impl Target {
    fn plain(name: &str, role: Role, address: SocketAddr) -> Target {
        let (name, headers) = (name.to_owned(), String::new());
        Target { name, role, address, admin: None, process: None, cap: usize::MAX, headers }
    }
}

/// Waits until somebody accepts connections on `address`.
fn wait_for(address: SocketAddr, process: &mut Process) -> Result<(), Error> {
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        if process.has_ended() {
            return Err("ended before it listened".into());
        }
        if began.elapsed() > START_TIMEOUT {
            return Err(format!("does not listen on {address} after {} s", START_TIMEOUT.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
