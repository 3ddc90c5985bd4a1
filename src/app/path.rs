//! The threads of the path. Each has a runtime of its own and accepts from the same listener, so that a connection lives
//! and dies on one thread: no task moves, no wake-up crosses threads, and a quiet thread costs nothing.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::Builder;
use tokio::sync::{Semaphore, watch};

use crate::proxy::Proxy;
use crate::recorder::Recorder;
use crate::server::tls::Tls;
use crate::server::{Limits, Server};

/// The running threads; each yields the number of connections it had to cut.
pub struct Path(Vec<JoinHandle<io::Result<usize>>>);

/// What every thread gets its own handle on.
#[derive(Clone)]
pub struct Shared {
    pub tls: Option<Tls>,
    pub limits: Limits,
    pub recorder: Recorder,
    pub stopped: watch::Receiver<bool>,
}

impl Path {
    /// Starts a thread for each of `proxies` on `listener`, which must not block.
    pub fn start(proxies: &[Proxy], listener: &TcpListener, shared: &Shared) -> io::Result<Self> {
        let permits = Arc::new(Semaphore::new(shared.limits.connections));
        let start = |(number, proxy): (usize, &Proxy)| {
            let (listener, shared, permits) = (listener.try_clone()?, shared.clone(), permits.clone());
            let proxy = proxy.clone();
            let thread = std::thread::Builder::new().name(format!("serin-path-{number}"));
            thread.spawn(move || run(listener, proxy, shared, permits))
        };
        proxies.iter().enumerate().map(start).collect::<io::Result<_>>().map(Self)
    }

    /// Waits until every thread has drained.
    pub fn join(self) {
        let mut cut = 0;
        for thread in self.0 {
            match thread.join() {
                Ok(Ok(some)) => cut += some,
                Ok(Err(error)) => tracing::error!(%error, "a thread of the path could not work"),
                Err(_) => tracing::error!("a thread of the path ended badly"),
            }
        }
        match cut {
            0 => tracing::info!("drained"),
            cut => tracing::warn!(cut, "connections outlasted [limits] drain and were cut"),
        }
    }
}

fn run(listener: TcpListener, proxy: Proxy, shared: Shared, permits: Arc<Semaphore>) -> io::Result<usize> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let Shared { tls, limits, recorder, stopped } = shared;
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let bad_heads = proxy.parts().accounts.bad_heads();
        let server = Server::new(listener, tls, limits, permits).counting(bad_heads);
        Ok(server.run(proxy, stopped, move || recorder.stopping()).await)
    })
    // The runtime ends here, and with it whatever a connection has left behind.
}
