//! Thousands of streams that are open at once: what they cost in memory.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::{JoinSet, LocalSet};

use crate::Error;
use crate::books;
use crate::client::Connection;
use crate::options::Options;
use crate::target::{Role, Target, nginx, serin};
use crate::traffic::{ANSWERS, Ask, Kind};
use crate::witness::WITNESS;
use crate::workload::SMALL_BODY;

pub const NAME: &str = "Open streams";

/// Streams through one target.
pub struct Crowd {
    pub target: usize,
    /// As many as the goal asks for, even if the limit of files allows fewer.
    pub wanted: usize,
    /// Those of which an event was seen while all were open.
    pub open: usize,
    pub opening: Duration,
    /// Resident bytes before, with all of them open, and at the highest.
    pub before: u64,
    pub with: u64,
    pub peak: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    /// Exchanges still in flight some time after all clients have left.
    pub left_over: Option<f64>,
}

impl Crowd {
    /// Whether a stream failed, or is still in flight although its client has left.
    pub fn failed(&self) -> bool {
        self.errors > 0 || self.left_over.is_some_and(|left| left != 0.0)
    }
}

/// Microseconds between two events of each stream.
const PACE: u32 = 5_000_000;
/// Connections that are being opened at the same time.
const OPENING: usize = 64;
/// Files this process needs for itself.
const SPARE_FILES: u64 = 256;
const EVENT_WITHIN: Duration = Duration::from_secs(30);
const GONE_WITHIN: Duration = Duration::from_secs(10);
const BUFFER: usize = 4096;

/// How many streams the file limit allows, and what to say if they are fewer than wanted.
pub fn possible(options: &Options) -> (usize, Option<String>) {
    let limit = getrlimit(Resource::Nofile);
    // What cannot be raised stays; the count below says how far it goes.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Each stream has two ends in this process and two in the proxy.
    let most = (files.saturating_sub(SPARE_FILES) / 2) as usize;
    let said = (most < options.crowd).then(|| {
        format!(
            "The limit of {files} open files allows {most} streams of the {} wanted: raise it (ulimit -n).",
            options.crowd
        )
    });
    (most.min(options.crowd), said)
}

/// Each target is started anew: memory that earlier load has left behind would hide what the streams need.
pub fn run(
    options: &Options,
    upstream: SocketAddr,
    streams: usize,
    targets: &[Target],
) -> Result<Vec<Crowd>, Error> {
    let mut crowds = Vec::new();
    for (target, known) in targets.iter().enumerate() {
        let place = match known.role {
            Role::Recording => serin::start(&options.serin, upstream, true)?,
            Role::NotRecording => serin::start(&options.serin, upstream, false)?,
            Role::Nginx => nginx::start(upstream)?,
            Role::Direct | Role::Again | Role::Peer | Role::Beside => continue,
        };
        let crowd = Crowd { wanted: options.crowd, ..measure(streams, target, &place)? };
        eprintln!("{} open streams, {}: {} MiB", crowd.open, place.name, crowd.with >> 20);
        crowds.push(crowd);
        WITNESS.clear();
    }
    Ok(crowds)
}

fn measure(streams: usize, target: usize, place: &Target) -> Result<Crowd, Error> {
    let process = place.process.as_ref().ok_or("no process")?;
    let before = process.memory()?.0;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let began = Instant::now();
    let mut opening = Duration::ZERO;
    let mut with = Err("the streams never were all open".into());
    let mut results = Vec::new();
    LocalSet::new().block_on(&runtime, async {
        let turns = Arc::new(Semaphore::new(OPENING));
        let (opened, measured) = (Rc::new(Barrier::new(streams + 1)), Rc::new(Barrier::new(streams + 1)));
        let mut running = JoinSet::new();
        for _ in 0..streams {
            let (turns, opened, measured) = (turns.clone(), opened.clone(), measured.clone());
            running.spawn_local(stream(place.address, turns, opened, measured));
        }
        opened.wait().await;
        opening = began.elapsed();
        // Each stream has had one event more when this is over.
        tokio::time::sleep(Duration::from_micros(PACE.into()) + Duration::from_secs(1)).await;
        with = process.memory();
        measured.wait().await;
        results = running.join_all().await;
    });
    let failed: Vec<String> =
        results.into_iter().filter_map(|result| result.err().map(|e| e.to_string())).collect();
    let (with, peak) = with?;
    Ok(Crowd {
        target,
        wanted: streams,
        open: streams - failed.len(),
        opening,
        before,
        with,
        peak,
        errors: failed.len() as u64,
        first_error: failed.into_iter().next(),
        left_over: place.admin.map(left_over).transpose()?,
    })
}

/// Opens one stream, waits with all the others, and reads one event more before it leaves.
async fn stream(
    address: SocketAddr,
    turns: Arc<Semaphore>,
    opened: Rc<Barrier>,
    measured: Rc<Barrier>,
) -> Result<(), Error> {
    let begun = async {
        let _turn = turns.acquire().await?;
        let ask = Ask::next(Kind::Events, PACE);
        let mut connection = Connection::with_buffer(address, BUFFER).await?;
        connection.send(&ask.request(address, "", SMALL_BODY)).await?;
        let expected = ANSWERS.to(ask);
        let beginning = connection.beginning(&expected, ANSWERS.ends()[0]);
        tokio::time::timeout(EVENT_WITHIN, beginning).await.map_err(|_| "no event within 30 s")??;
        Ok::<_, Error>(connection)
    }
    .await;
    opened.wait().await;
    measured.wait().await;
    tokio::time::timeout(EVENT_WITHIN, begun?.more()).await.map_err(|_| "no second event")??;
    Ok(())
}

fn left_over(admin: SocketAddr) -> Result<f64, Error> {
    let began = Instant::now();
    loop {
        let now = books::gauge(admin, "serin_proxy_in_flight")?;
        if now == 0.0 || began.elapsed() > GONE_WITHIN {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
