//! A file from a URL, over the same connections that upstreams use.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::header::LOCATION;

use super::connect::tls::Wanted;
use super::connect::{Endpoint, Versions};
use super::http::{Http, Timers};
use super::{Response, Upstream};
use crate::body::replay::Replay;
use crate::units::Span;

/// Called with bytes so far and the expected total (0: unknown).
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

const REDIRECTS: usize = 5;
const TIMERS: Timers = Timers {
    connect: Span::seconds(20),
    head: Span::seconds(60),
    idle: Span::seconds(60),
    pool_idle: Span::seconds(1),
    pool_size: 1,
    h2_streams: 1,
    h2_ping: Span::seconds(30),
};

/// Downloads `url` into `part`, following a few redirects. Runs its own small runtime: it is called from a thread.
pub fn download(url: &str, part: &Path, cancel: &AtomicBool, progress: Progress<'_>) -> Result<(), String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        tokio::select! {
            done = into_file(url, part, progress) => done,
            () = cancelled(cancel) => Err("stopped".to_owned()),
        }
    })
}

async fn into_file(url: &str, part: &Path, progress: Progress<'_>) -> Result<(), String> {
    let mut response = locate(url).await?;
    let total = http_body::Body::size_hint(response.body()).exact().unwrap_or(0);
    let at = |error: std::io::Error| format!("{}: {error}", part.display());
    let mut file = File::create(part).map_err(at)?;
    let mut done = 0;
    while let Some(frame) = response.body_mut().frame().await {
        let frame = frame.map_err(|error| format!("{url} {error}"))?;
        if let Some(data) = frame.data_ref() {
            file.write_all(data).map_err(at)?;
            done += data.len() as u64;
            progress(done, total);
        }
    }
    file.sync_all().map_err(at)
}

/// Looks a few times a second whether the fetch is still wanted.
async fn cancelled(cancel: &AtomicBool) {
    while !cancel.load(Relaxed) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The answer that carries the file.
async fn locate(url: &str) -> Result<Response, String> {
    let mut url = url.to_owned();
    for _ in 0..=REDIRECTS {
        let uri: hyper::Uri = url.parse().map_err(|error| format!("url {url:?} cannot be read: {error}"))?;
        let (scheme, authority) =
            (uri.scheme_str().unwrap_or_default(), uri.authority().map(|a| a.as_str()).unwrap_or_default());
        let origin = format!("{scheme}://{authority}");
        let endpoint = Endpoint::parse(&origin, Versions::One, Wanted::default(), None);
        let server = Http::at("download", endpoint.map_err(|error| error.to_string())?, TIMERS);
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let request = hyper::Request::get(target)
            .body(Replay::held(Bytes::new()))
            .map_err(|error| error.to_string())?;
        let response = server.call(request).await.map_err(|failed| format!("{origin} {}", failed.cause))?;
        let status = response.status();
        match response.headers().get(LOCATION).and_then(|location| location.to_str().ok()) {
            Some(location) if status.is_redirection() => {
                url = if location.starts_with('/') {
                    format!("{origin}{location}")
                } else {
                    location.to_owned()
                };
            }
            _ if status.is_success() => return Ok(response),
            _ => return Err(format!("{url} answered {status}")),
        }
    }
    Err(format!("{url}: more than {REDIRECTS} redirects"))
}
