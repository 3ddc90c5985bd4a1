//! The thread that sends spans: in batches, again where the collector asks for it, and not for ever.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::sync::mpsc;

use super::otlp::{self, Exported, Span};
use super::{Config, Counts, Fate};
use crate::clock;
use crate::ids;
use crate::upstream::connect::tls::Wanted;
use crate::upstream::connect::{Endpoint, Versions};

/// Spans sent together, and how long the first of them waits for others.
const BATCH: usize = 512;
const GATHER: Duration = Duration::from_secs(1);
/// Attempts for one batch; between them it waits twice as long each time, unless it is told how long.
const ATTEMPTS: u32 = 5;
const BACKOFF: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(60);
/// What is left at the end of the process gets one attempt of this length.
const LAST: Duration = Duration::from_secs(2);
/// The largest answer of a collector that is read.
const ANSWER: usize = 64 * 1024;

/// The running thread. It ends when every [`super::Tracer`] is gone and what they sent is sent on or lost.
pub struct Exporter(JoinHandle<()>);

/// Where spans go, as configured.
pub struct Target {
    endpoint: Endpoint,
    path: String,
    headers: HeaderMap,
}

/// What came of one attempt.
#[derive(Debug, PartialEq)]
enum Sent {
    /// All but so many were taken.
    Taken {
        rejected: u64,
    },
    /// Not now; perhaps after this.
    Later {
        wait: Option<Duration>,
        why: String,
    },
    Never {
        why: String,
    },
}

impl Target {
    /// Reads endpoint and headers; a mistake names its key.
    pub fn read(config: &Config) -> Result<Self, String> {
        let url = &config.endpoint;
        let at = |error: String| format!("[trace] endpoint: {error}");
        let uri: hyper::Uri = url
            .parse()
            .map_err(|error| at(format!("{url:?} cannot be read: {error}; write http://HOST:4318")))?;
        let path = match uri.path_and_query().map_or("/", |path| path.as_str()) {
            "/" => "/v1/traces".to_owned(),
            path => path.to_owned(),
        };
        let scheme = uri.scheme_str().unwrap_or_default();
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let endpoint =
            Endpoint::parse(&format!("{scheme}://{authority}"), Versions::One, Wanted::default(), None)
                .map_err(|error| at(error.to_string()));
        Ok(Self { endpoint: endpoint?, path, headers: headers(&config.headers_file)? })
    }
}

/// The lines of a file, `name: value` each; what they hold is never logged.
fn headers(file: &Path) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    if file.as_os_str().is_empty() {
        return Ok(headers);
    }
    let at = |what: String| format!("[trace] headers_file {}: {what}", file.display());
    let text = std::fs::read_to_string(file).map_err(|error| at(error.to_string()))?;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let header = line.split_once(':').and_then(|(name, value)| {
            let mut value = HeaderValue::try_from(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name.trim()).ok()?, value))
        });
        let (name, value) =
            header.ok_or_else(|| at(format!("line {} is no header; write NAME: VALUE", number + 1)))?;
        headers.append(name, value);
    }
    Ok(headers)
}

impl Exporter {
    /// Starts the thread, which takes spans from `waiting`.
    pub fn start(config: &Config, waiting: mpsc::Receiver<Span>, counts: Counts) -> Result<Self, String> {
        let target = Target::read(config)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("traces cannot be sent: {error}"))?;
        let mut sending = Sending {
            target,
            service: config.service.clone(),
            instance: ids::hex(&ids::entropy()),
            timeout: config.timeout.0,
            counts,
            deadline: None,
            failing: false,
        };
        let run = move || runtime.block_on(sending.run(waiting));
        let thread = std::thread::Builder::new().name("serin-trace".into()).spawn(run);
        thread.map(Self).map_err(|error| format!("traces cannot be sent: {error}"))
    }

    /// Waits until what is left was sent or given up: for the attempt that is under way, and [`LAST`] after it.
    pub fn join(self) {
        if self.0.join().is_err() {
            tracing::error!("the thread that sends traces died");
        }
    }
}

struct Sending {
    target: Target,
    service: String,
    instance: String,
    timeout: Duration,
    counts: Counts,
    /// The last batch came to nothing, and that has been said.
    failing: bool,
    /// When the process, which is ending, goes on without the collector.
    deadline: Option<Instant>,
}

impl Sending {
    async fn run(&mut self, mut waiting: mpsc::Receiver<Span>) {
        let mut spans = Vec::new();
        while waiting.recv_many(&mut spans, BATCH).await > 0 {
            let gathering =
                async { while spans.len() < BATCH && waiting.recv_many(&mut spans, BATCH).await > 0 {} };
            let _ = tokio::time::timeout(GATHER, gathering).await;
            self.send(std::mem::take(&mut spans), &waiting).await;
        }
    }

    /// Sends one batch, again where that may help.
    async fn send(&mut self, spans: Vec<Span>, waiting: &mpsc::Receiver<Span>) {
        let count = spans.len() as u64;
        let body = Bytes::from(otlp::export(&self.service, &self.instance, spans));
        let mut pause = BACKOFF;
        for attempt in 1..=ATTEMPTS {
            // At the end of the process nobody waits for a collector that is away.
            let last = waiting.is_closed() || attempt == ATTEMPTS;
            let limit = self.patience(waiting);
            if limit.is_zero() {
                return self.lost(Fate::Unreachable, count, "the process ends and the collector is away");
            }
            let sent = tokio::time::timeout(limit, self.attempt(body.clone())).await;
            match sent
                .unwrap_or_else(|_| Sent::Later { wait: None, why: format!("no answer within {limit:?}") })
            {
                Sent::Taken { rejected } => return self.taken(count, rejected),
                Sent::Never { why } => return self.lost(Fate::Rejected, count, &why),
                Sent::Later { why, .. } if last => return self.lost(Fate::Unreachable, count, &why),
                Sent::Later { wait, .. } => {
                    let wait = wait.unwrap_or_else(|| jittered(pause)).min(LONGEST);
                    pausing(wait, waiting).await;
                    pause *= 2;
                }
            }
        }
    }

    /// How long an attempt may take: at the end of the process all that are left share [`LAST`].
    fn patience(&mut self, waiting: &mpsc::Receiver<Span>) -> Duration {
        if !waiting.is_closed() {
            return self.timeout;
        }
        let now = clock::now();
        let deadline = *self.deadline.get_or_insert(now + LAST);
        self.timeout.min(deadline.saturating_duration_since(now))
    }

    fn taken(&mut self, count: u64, rejected: u64) {
        self.counts.count(Fate::Exported, count.saturating_sub(rejected));
        if rejected > 0 {
            return self.lost(Fate::Rejected, rejected.min(count), "the collector did not want some of them");
        }
        if std::mem::take(&mut self.failing) {
            tracing::info!("traces can be sent again");
        }
    }

    fn lost(&mut self, fate: Fate, count: u64, why: &str) {
        self.counts.count(fate, count);
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(
                "traces cannot be sent to {} ({why}); see [trace] endpoint and headers_file",
                self.target.endpoint.authority()
            );
        }
    }

    async fn attempt(&self, body: Bytes) -> Sent {
        match self.post(body).await {
            Ok((status, headers, body)) => judge(status, &headers, body),
            Err(why) => Sent::Later { wait: None, why },
        }
    }

    /// One request on a connection of its own: once a second at most, that costs little and is never stale.
    async fn post(&self, body: Bytes) -> Result<(StatusCode, HeaderMap, Bytes), String> {
        let stream = self.target.endpoint.open(self.timeout).await.map_err(|error| error.to_string())?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
        let request = self.request(body)?;
        let answer = async {
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let (head, body) = response.into_parts();
            // An answer that is too long or broken says as much as its status does.
            let body = Limited::new(body, ANSWER).collect().await.map(|body| body.to_bytes());
            Ok((head.status, head.headers, body.unwrap_or_default()))
        };
        tokio::pin!(answer, connection);
        let mut connected = true;
        loop {
            tokio::select! {
                answered = &mut answer => return answered,
                _ = &mut connection, if connected => connected = false,
            }
        }
    }

    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let request = Request::post(self.target.path.as_str()).body(Full::new(body));
        let mut request = request.map_err(|error| error.to_string())?;
        let host =
            HeaderValue::try_from(self.target.endpoint.authority()).map_err(|error| error.to_string())?;
        *request.headers_mut() = self.target.headers.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, host);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("serin/", env!("CARGO_PKG_VERSION"))));
        Ok(request)
    }
}

/// What an answer means, as OTLP over HTTP defines it.
fn judge(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Sent {
    let why = format!("status {}", status.as_u16());
    match status.as_u16() {
        200..=299 => {
            let partial = Exported::decode(body).ok().and_then(|exported| exported.partial_success);
            Sent::Taken { rejected: partial.map_or(0, |partial| partial.rejected_spans.max(0) as u64) }
        }
        429 | 502 | 503 | 504 => {
            let wait = headers.get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
            Sent::Later { wait: wait.map(Duration::from_secs), why }
        }
        _ => Sent::Never { why },
    }
}

/// Waits so long, or until there is nobody left to send for.
async fn pausing(wait: Duration, waiting: &mpsc::Receiver<Span>) {
    const STEP: Duration = Duration::from_millis(100);
    let mut left = wait;
    while !left.is_zero() && !waiting.is_closed() {
        let step = left.min(STEP);
        tokio::time::sleep(step).await;
        left -= step;
    }
}

/// Half to one and a half times as long, so that many of us do not come back together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + f64::from(ids::entropy()[0]) / 255.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_means_what_the_protocol_says() {
        let judge = |status: u16, headers: &HeaderMap, body: &'static [u8]| {
            judge(StatusCode::from_u16(status).unwrap(), headers, Bytes::from_static(body))
        };
        let mut wait = HeaderMap::new();
        wait.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        assert_eq!(judge(200, &wait, b""), Sent::Taken { rejected: 0 });
        // partial_success { rejected_spans: 3 }
        assert_eq!(judge(200, &wait, b"\x0a\x02\x08\x03"), Sent::Taken { rejected: 3 });
        assert_eq!(judge(200, &wait, b"no protobuf"), Sent::Taken { rejected: 0 });
        for status in [429, 502, 503, 504] {
            let Sent::Later { wait: found, .. } = judge(status, &wait, b"") else { panic!("{status}") };
            assert_eq!(found, Some(Duration::from_secs(7)));
        }
        for status in [400, 401, 404, 500, 301] {
            assert!(matches!(judge(status, &wait, b""), Sent::Never { .. }), "{status}");
        }
    }

    #[test]
    fn a_target_is_read_and_its_mistakes_are_named() {
        let read = |endpoint: &str| Target::read(&Config { endpoint: endpoint.into(), ..Config::default() });
        assert_eq!(read("http://collector:4318").unwrap().path, "/v1/traces");
        assert_eq!(read("https://h/otlp?x=1").unwrap().path, "/otlp?x=1");
        for bad in ["collector:4318", "ftp://h", "http://u:p@h", "http://h:x"] {
            let error = read(bad).err().unwrap_or_else(|| panic!("{bad}"));
            assert!(error.starts_with("[trace] endpoint: "), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("headers");
        std::fs::write(&file, "authorization: Bearer secret\n\nx-scope: a:b\n").unwrap();
        let found = headers(&file).unwrap();
        assert_eq!((found["x-scope"].to_str().unwrap(), found.len()), ("a:b", 2));
        assert!(!format!("{found:?}").contains("secret"));
        std::fs::write(&file, "secret\n").unwrap();
        let error = headers(&file).unwrap_err();
        assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
    }
}
