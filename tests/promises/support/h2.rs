//! HTTP/2 with prior knowledge, spoken by hyper's client.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};

/// Sends a POST and calls `piece` with each piece of the answer as it comes. How the stream ended: `Err` names the reset.
pub fn post(
    address: SocketAddr,
    path: &str,
    body: &[u8],
    mut piece: impl FnMut(&[u8]),
) -> Result<u16, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.unwrap();
        let request = hyper::Request::post(format!("http://test{path}"))
            .body(Full::new(Bytes::copy_from_slice(body)))
            .unwrap();
        let exchange = async {
            let mut answer = sender.send_request(request).await.map_err(|error| reason(&error))?;
            let status = answer.status().as_u16();
            while let Some(frame) = answer.body_mut().frame().await {
                // The end of a stream may be a frame without data.
                if let Ok(bytes) = frame.map_err(|error| reason(&error))?.into_data()
                    && !bytes.is_empty()
                {
                    piece(&bytes);
                }
            }
            Ok(status)
        };
        tokio::select! {
            biased;
            ended = exchange => ended,
            _ = connection => Err("the connection ended first".to_owned()),
        }
    })
}

fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    match error.source() {
        Some(source) => reason(source),
        None => error.to_string(),
    }
}
