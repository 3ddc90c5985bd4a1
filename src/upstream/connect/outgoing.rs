//! The addresses our own connections come from, so that one which a redirect rule sends back to us is known.

use std::net::SocketAddr;
use std::sync::Arc;

use dashmap::DashSet;

/// Local addresses of open connections to upstreams. Cheap to clone.
#[derive(Clone, Default)]
pub struct Outgoing(Arc<DashSet<SocketAddr>>);

/// One of them, for as long as this lives.
pub struct Noted {
    all: Outgoing,
    address: SocketAddr,
}

impl Outgoing {
    pub fn note(&self, address: SocketAddr) -> Noted {
        self.0.insert(address);
        Noted { all: self.clone(), address }
    }

    pub fn contains(&self, address: SocketAddr) -> bool {
        self.0.contains(&address)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.all.0.remove(&self.address);
    }
}
