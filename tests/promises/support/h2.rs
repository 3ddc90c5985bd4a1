//! HTTP/2 with prior knowledge, spoken by hyper's client.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

type Sender = hyper::client::conn::http2::SendRequest<Full<Bytes>>;
/// How a stream ended: the status of its answer, or what broke it.
pub type Ended = Result<u16, String>;

/// Sends a POST and calls `piece` with each piece of the answer as it comes. How the stream ended: `Err` names the reset.
pub fn post(address: SocketAddr, path: &str, body: &[u8], mut piece: impl FnMut(&[u8])) -> Ended {
    let body = Bytes::copy_from_slice(body);
    on_one_connection(address, async |sender| {
        let on = |bytes: &[u8]| {
            piece(bytes);
            true
        };
        exchange(sender, path, body, on).await
    })
}

/// Two streams side by side on one connection, each with its path and what is called with each piece of its answer; where
/// that yields `false` the client leaves, and the stream is reset.
pub fn side_by_side(
    address: SocketAddr,
    one: (&str, impl FnMut(&[u8]) -> bool),
    two: (&str, impl FnMut(&[u8]) -> bool),
) -> (Ended, Ended) {
    on_one_connection(address, async |sender| {
        let (first, second) = (exchange(sender.clone(), one.0, Bytes::new(), one.1), two);
        tokio::join!(first, exchange(sender, second.0, Bytes::new(), second.1))
    })
}

fn on_one_connection<T>(address: SocketAddr, work: impl AsyncFnOnce(Sender) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.unwrap();
        // Driven until it is dropped.
        let mut driver = tokio::task::JoinSet::new();
        driver.spawn(connection);
        work(sender).await
    })
}

async fn exchange(
    mut sender: Sender,
    path: &str,
    body: Bytes,
    mut piece: impl FnMut(&[u8]) -> bool,
) -> Ended {
    let request = hyper::Request::post(format!("http://test{path}")).body(Full::new(body)).unwrap();
    let mut answer = sender.send_request(request).await.map_err(|error| reason(&error))?;
    let status = answer.status().as_u16();
    while let Some(frame) = answer.body_mut().frame().await {
        // The end of a stream may be a frame without data.
        if let Ok(bytes) = frame.map_err(|error| reason(&error))?.into_data()
            && !bytes.is_empty()
            && !piece(&bytes)
        {
            break;
        }
    }
    Ok(status)
}

fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    match error.source() {
        Some(source) => reason(source),
        None => error.to_string(),
    }
}
