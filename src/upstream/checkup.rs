//! Active health checks: a request to a path of the upstream's own, or a connection, now and then, so that one that is ill is known before a
//! client meets it and one that is well again is used again.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::HOST;
use tokio::sync::watch;

use super::balance::Member;
use super::connect::Endpoint;
use super::{Config, aside};
use crate::body::replay::Replay;
use crate::units::Span;

/// Failures in a row after which an upstream is held to be ill. One success makes it well.
const PATIENCE: u32 = 2;

/// `health` of an upstream that is only to be connected to.
const TCP: &str = "tcp";

/// Checks one member until told to stop. `config.health` says how.
pub async fn keep(member: Arc<Member>, config: Config, every: Span, mut stop: watch::Receiver<bool>) {
    let mut failures = 0;
    // For a connection only: TCP, and TLS where the URL says so.
    let endpoint = Endpoint::parse(&config.url, config.http, config.tls(), None);
    loop {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            () = tokio::time::sleep(every.0) => {}
        }
        let well = async {
            match config.health.as_str() {
                TCP => match &endpoint {
                    Ok(endpoint) => endpoint.open(every.0).await.is_ok(),
                    Err(_) => false,
                },
                path => is_well(&member, path).await,
            }
        };
        match tokio::time::timeout(every.0, well).await {
            Ok(true) => failures = 0,
            Ok(false) | Err(_) => failures += 1,
        }
        member.set_well(failures < PATIENCE);
    }
}

/// Anything below 500 is an answer of somebody who is there and able to give one.
async fn is_well(member: &Member, path: &str) -> bool {
    let request = hyper::Request::get(path).header(HOST, "health").body(Replay::held(Bytes::new()));
    let Ok(request) = request else { return false };
    aside::ask(member.upstream(), request).await.is_some_and(|status| !status.is_server_error())
}
