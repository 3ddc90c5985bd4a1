//! A scripted HTTP/2 upstream, without TLS.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use hyper::http::{Request, Response};
use tokio::task::JoinSet;

pub type Done = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Answers HTTP/2 requests on loopback until the test ends.
pub struct H2Upstream {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl H2Upstream {
    /// `script` answers one request; the number says how many came before it on its connection. Returning a reason ends
    /// the connection with it.
    pub fn start(
        script: impl Fn(usize, Request<RecvStream>, SendResponse<Bytes>) -> (Done, Option<Reason>)
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (script, count) = (Arc::new(script), connections.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    count.fetch_add(1, SeqCst);
                    let script = script.clone();
                    connections.spawn(async move {
                        let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                        let mut before = 0;
                        let mut exchanges = JoinSet::new();
                        while let Some(Ok((request, respond))) = connection.accept().await {
                            let (done, goodbye) = script(before, request, respond);
                            before += 1;
                            exchanges.spawn(done);
                            match goodbye {
                                Some(Reason::NO_ERROR) => connection.graceful_shutdown(),
                                Some(reason) => connection.abrupt_shutdown(reason),
                                None => {}
                            }
                        }
                    });
                }
            });
        });
        Self { address, connections }
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }
}

/// Answers at once with this body.
pub fn whole(mut respond: SendResponse<Bytes>, body: impl Into<Bytes>) {
    let mut send = respond.send_response(Response::new(()), false).unwrap();
    send.send_data(body.into(), true).unwrap();
}

/// The body of a request.
pub async fn read(mut body: RecvStream) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        all.extend_from_slice(&data);
    }
    all
}
