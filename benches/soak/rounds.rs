//! Load and rest in turn. At each rest everything that was taken must have been given back.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep};

use crate::clients::{self, Crew};
use crate::dice::Dice;
use crate::options::{Options, ROUNDS};
use crate::process::{Log, Metrics, Serin, Size};
use crate::tally::{Counts, Tally};
use crate::upstream::{self, Books};
use crate::weather::{self, Past, Reload, Sky};
use crate::{Error, address};

/// How long after the last client everything may take to be given back and written.
const SETTLING: Duration = Duration::from_secs(20);
/// The recorder's ledger.
const LEDGER: &str = "serin_recorder_turns_total";

/// What is left at a rest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    /// The most open files seen while the round ran.
    pub peak_files: usize,
    pub size: Size,
    pub in_flight: f64,
    /// Exchanges the proxy has settled, and those in the recorder's ledger.
    pub proxied: f64,
    pub ledger: f64,
    /// Of those in the ledger, how many left no record.
    pub dropped: f64,
    pub upstream_live: i64,
    pub queue_bytes: f64,
    pub exchanges: u64,
}

impl Rest {
    fn is_settled(&self) -> bool {
        self.in_flight == 0.0
            && self.proxied == self.ledger
            && self.upstream_live == 0
            && self.queue_bytes == 0.0
    }
}

/// All that is known at the end.
pub struct Outcome {
    pub options: Options,
    pub rests: Vec<Rest>,
    pub counts: Counts,
    pub past: Past,
    pub log: Log,
    pub upstream_requests: u64,
    pub malformed_passed: u64,
    /// Configurations put in force, and refused.
    pub reloads: (f64, f64),
    pub exit: Option<i32>,
    pub sessions: usize,
    pub sessions_complaint: String,
}

pub fn run(options: &Options) -> Result<Outcome, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let dir = tempfile::tempdir()?;
    let outcome = LocalSet::new().block_on(&runtime, soak(options, dir.path()));
    if outcome.is_err() {
        eprintln!("soak: the seed was {}", options.seed);
    }
    outcome
}

async fn soak(options: &Options, dir: &std::path::Path) -> Result<Outcome, Error> {
    let address = address::free()?;
    let (up, is_up) = watch::channel(true);
    let books = Arc::new(Books::default());
    let mut serving = JoinSet::new();
    serving.spawn_local(upstream::keep(address, is_up, books.clone()));
    let mut serin = Serin::start(address, dir)?;
    let crew = Crew { proxy: serin.traffic, tally: Tally::default(), sky: Sky::default() };
    let mut rests = Vec::new();
    for round in 0..ROUNDS {
        let reload = options.reloads.then(|| Reload { file: dir.join("config.toml"), upstream: address });
        let peak_files = load(options, round, &crew, &serin, &up, reload).await?;
        if !clients::answers_again(&crew).await {
            crew.tally.wrong(format!("after round {} nothing is answered any more", round + 1));
        }
        let rest = Rest { peak_files, ..rest(&serin, &books, crew.tally.exchanges()).await? };
        eprintln!("soak: round {} of {ROUNDS}: {rest:?}", round + 1);
        rests.push(rest);
        if !rest.is_settled() {
            // More of it would only take longer.
            break;
        }
        if serving.try_join_next().is_some() {
            return Err("the upstream of the harness ended early".into());
        }
    }
    let reloads = |metrics: &Metrics, outcome: &str| {
        metrics.one(&format!("serin_config_reloads_total{{outcome=\"{outcome}\"}}"))
    };
    let metrics = serin.metrics()?;
    let reloads = (reloads(&metrics, "success"), reloads(&metrics, "failure"));
    let exit = serin.stop()?;
    let (sessions, sessions_complaint) = serin.sessions()?;
    Ok(Outcome {
        options: options.clone(),
        rests,
        counts: crew.tally.counts(),
        past: crew.sky.past(),
        log: serin.log(),
        upstream_requests: books.requests.load(Relaxed),
        malformed_passed: books.malformed.load(Relaxed),
        reloads,
        exit,
        sessions,
        sessions_complaint,
    })
}

/// One round of clients and weather; returns the most files that were open.
async fn load(
    options: &Options,
    round: u32,
    crew: &Crew,
    serin: &Serin,
    up: &watch::Sender<bool>,
    reload: Option<Reload>,
) -> Result<usize, Error> {
    let mut dice = Dice::new(options.seed.wrapping_mul(1_000_003).wrapping_add(u64::from(round)));
    let until = Instant::now() + options.round();
    let mut clients = JoinSet::new();
    for _ in 0..options.clients {
        clients.spawn_local(clients::live(crew.clone(), Dice::new(dice.roll()), until, options.exchanges));
    }
    let weather = Dice::new(dice.roll());
    let mut blowing = JoinSet::new();
    blowing.spawn_local(weather::blow(crew.sky.clone(), weather, up.clone(), serin.pid, reload));
    let mut peak = 0;
    loop {
        tokio::select! {
            ended = clients.join_next() => match ended {
                None => break,
                Some(ended) => ended.map_err(|error| format!("a client failed: {error}"))?,
            },
            () = sleep(Duration::from_millis(250)) => {
                peak = peak.max(serin.size()?.files);
                if Instant::now() > until {
                    // What is still under way goes on in good weather.
                    blowing.abort_all();
                    weather::clear(&crew.sky, up, serin.pid);
                }
            }
        }
    }
    blowing.shutdown().await;
    weather::clear(&crew.sky, up, serin.pid);
    Ok(peak)
}

/// Waits until all is given back, or for as long as that may take.
async fn rest(serin: &Serin, books: &Books, exchanges: u64) -> Result<Rest, Error> {
    let begun = Instant::now();
    loop {
        let metrics = serin.metrics()?;
        let rest = Rest {
            peak_files: 0,
            size: serin.size()?,
            in_flight: metrics.sum("serin_proxy_in_flight") + metrics.sum("serin_upstream_in_flight"),
            proxied: metrics.sum("serin_proxy_requests_total"),
            ledger: metrics.sum(LEDGER),
            dropped: metrics.sum_where(LEDGER, "outcome=\"dropped\""),
            upstream_live: books.live.load(Relaxed),
            queue_bytes: metrics.sum("serin_recorder_queue_bytes"),
            exchanges,
        };
        if rest.is_settled() || begun.elapsed() > SETTLING {
            return Ok(rest);
        }
        sleep(Duration::from_millis(50)).await;
    }
}
