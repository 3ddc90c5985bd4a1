//! How long it takes the upstream to see that a client has left, by phase.

use std::time::{Duration, Instant};

use crate::Error;
use crate::client::Connection;
use crate::load::micros;
use crate::options::Options;
use crate::stats::Summary;
use crate::target::{Role, Target};
use crate::traffic::{ANSWERS, Ask, Kind};
use crate::witness::WITNESS;
use crate::workload::SMALL_BODY;

pub const NAME: &str = "Cancel";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A part of the request's body is still to come.
    Sending,
    /// The request has arrived; no byte of the answer is there.
    Waiting,
    /// Some events of a stream have come.
    Streaming,
}

pub const PHASES: [(Phase, &str); 3] = [
    (Phase::Sending, "while the request is being sent"),
    (Phase::Waiting, "while waiting for the answer"),
    (Phase::Streaming, "in the middle of a stream"),
];

/// One phase on one target, in microseconds.
pub struct Left {
    pub phase: Phase,
    pub target: usize,
    pub times: Result<(Summary, usize), String>,
}

impl Left {
    /// Cancels that were not seen, or not in time; all of them where it was given up.
    pub fn failures(&self) -> usize {
        self.times.as_ref().map_or(FAILURES, |(_, failures)| *failures)
    }
}

/// Events that come before the client leaves, one a millisecond.
const EVENTS: usize = 3;
const EVENT_PACE: u32 = 1000;
const LONG_BODY: usize = 16 * 1024;
const ARRIVES_WITHIN: Duration = Duration::from_secs(2);
const SEEN_WITHIN: Duration = Duration::from_secs(5);
/// A target that fails this often is not asked again.
const FAILURES: usize = 3;

pub fn run(options: &Options, targets: &[Target]) -> Result<Vec<Left>, Error> {
    let mut left = Vec::new();
    for (phase, what) in PHASES {
        for (target, place) in targets.iter().enumerate().filter(|(_, place)| place.role != Role::Again) {
            let samples = if place.role == Role::Peer { options.cancels.min(100) } else { options.cancels };
            let times = measure(phase, place, samples).map_err(|error| error.to_string());
            let said = match &times {
                Ok((times, _)) => format!("p50 {:.0} µs, p99 {:.0} µs", times.p50, times.p99),
                Err(error) => error.clone(),
            };
            eprintln!("cancel {what}, {}: {said}", place.name);
            left.push(Left { phase, target, times });
        }
    }
    WITNESS.clear();
    Ok(left)
}

fn measure(phase: Phase, target: &Target, samples: usize) -> Result<(Summary, usize), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut times = Vec::with_capacity(samples);
    let mut failures = 0;
    while times.len() < samples {
        match runtime.block_on(once(phase, target)) {
            Ok(time) => times.push(micros(time)),
            Err(error) => {
                failures += 1;
                if failures == FAILURES {
                    return Err(error);
                }
            }
        }
    }
    Ok((Summary::of(times), failures))
}

async fn once(phase: Phase, target: &Target) -> Result<Duration, Error> {
    let (kind, pace, length) = match phase {
        Phase::Sending => (Kind::Hold, 0, LONG_BODY),
        Phase::Waiting => (Kind::Hold, 0, SMALL_BODY),
        Phase::Streaming => (Kind::Events, EVENT_PACE, SMALL_BODY),
    };
    let ask = Ask::next(kind, pace);
    let request = ask.request(target.address, &target.headers, length);
    let sent = if phase == Phase::Sending { request.len() / 2 } else { request.len() };
    let mut connection = Connection::open(target.address).await?;
    connection.send(&request[..sent]).await?;
    if phase == Phase::Streaming {
        let expected = ANSWERS.to(ask);
        let beginning = connection.beginning(&expected, ANSWERS.ends()[EVENTS - 1]);
        tokio::time::timeout(ARRIVES_WITHIN, beginning).await.map_err(|_| "no event arrives")??;
    } else {
        WITNESS
            .arrival(ask.number, ARRIVES_WITHIN)
            .await
            .ok_or("nothing reaches the upstream before it is whole")?;
    }
    let left = Instant::now();
    drop(connection);
    let seen = WITNESS.departure(ask.number, SEEN_WITHIN).await;
    let seen = seen.ok_or_else(|| format!("not seen within {} s", SEEN_WITHIN.as_secs()))?;
    Ok(seen.saturating_duration_since(left))
}
