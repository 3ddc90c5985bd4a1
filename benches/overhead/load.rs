//! The load generator: connections on one thread, in a closed loop or at a fixed rate.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, LocalSet};

use crate::Error;
use crate::client::Connection;
use crate::target::Target;
use crate::traffic::{ANSWERS, Ask, Kind};
use crate::witness::WITNESS;
use crate::workload::{Demand, Workload};

/// What one run saw. Durations are in microseconds.
#[derive(Default)]
pub struct Tally {
    pub answers: u64,
    /// From the moment a request was due to its last byte received.
    pub latency: Vec<u32>,
    /// To the first byte of the body.
    pub first_byte: Vec<u32>,
    /// From the moment the upstream handed an event to its connection to its arrival.
    pub delay: Vec<u32>,
    pub errors: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
    pub elapsed: Duration,
    /// Answers that were not, byte for byte, what the upstream sent.
    pub differing: u64,
}

/// One connection's orders.
struct Orders {
    address: SocketAddr,
    headers: Rc<str>,
    kind: Kind,
    pace: u32,
    length: usize,
    start: Instant,
    /// The next request is due when the answer before it is there.
    closed: bool,
    /// When its first request is due, after the start, and each further one after that.
    first: Duration,
    every: Duration,
    end: Instant,
    at_most: usize,
}

/// No answer takes longer; a run cannot hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// After so many errors in a row a connection gives up.
const ERRORS_IN_A_ROW: u32 = 5;

/// Runs `workload` against `target`; `during` replaces the workload's own time.
pub fn run(workload: &Workload, target: &Target, during: Option<Duration>) -> Result<Tally, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tally = Rc::new(RefCell::new(Tally::default()));
    let connections = workload.connections.min(target.cap);
    let start = Instant::now();
    LocalSet::new().block_on(&runtime, async {
        let mut running = JoinSet::new();
        for number in 0..connections {
            let orders = Orders::new(workload, target, start, during, number, connections);
            running.spawn_local(drive(orders, Rc::clone(&tally)));
        }
        while running.join_next().await.is_some() {}
    });
    let mut tally = tally.take();
    tally.elapsed = start.elapsed();
    Ok(tally)
}

impl Orders {
    fn new(
        workload: &Workload,
        target: &Target,
        start: Instant,
        during: Option<Duration>,
        number: usize,
        of: usize,
    ) -> Orders {
        let Workload { kind, pace, length, .. } = *workload;
        let share = number as f64 / of as f64;
        let far = Duration::from_secs(3600);
        let (first, every, lasts, at_most) = match workload.demand {
            Demand::Closed(lasts) => (Duration::ZERO, Duration::ZERO, lasts, usize::MAX),
            Demand::Open { per_second, during } => {
                let every = Duration::from_secs_f64(of as f64 / f64::from(per_second.max(1)));
                (every.mul_f64(share), every, during, usize::MAX)
            }
            Demand::Once(spread) => (spread.mul_f64(share), Duration::ZERO, far, 1),
        };
        let end = start + during.unwrap_or(lasts);
        let (address, headers) = (target.address, target.headers.as_str().into());
        let closed = matches!(workload.demand, Demand::Closed(_));
        Orders { address, headers, kind, pace, length, start, closed, first, every, end, at_most }
    }

    /// When request `sent` is due; `None` when there is no such request.
    fn due(&self, sent: usize) -> Option<Instant> {
        let due = self.start + self.first + self.every * sent as u32;
        (sent < self.at_most && due.max(Instant::now()) < self.end).then_some(due)
    }
}

/// One connection's life; opens it again after an error.
async fn drive(orders: Orders, tally: Rc<RefCell<Tally>>) {
    let mut failed = 0;
    let mut connection = None;
    let mut sent = 0;
    while let Some(due) = orders.due(sent) {
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
        }
        let base = if orders.closed { Instant::now() } else { due };
        match once(&mut connection, &orders, base, &tally).await {
            Ok(()) => failed = 0,
            Err(error) => {
                connection = None;
                failed += 1;
                tally.borrow_mut().fail(error);
                if failed == ERRORS_IN_A_ROW {
                    return;
                }
            }
        }
        sent += 1;
    }
}

async fn once(
    connection: &mut Option<Connection>,
    orders: &Orders,
    base: Instant,
    tally: &RefCell<Tally>,
) -> Result<(), Error> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(Connection::open(orders.address).await?),
    };
    let ask = Ask::next(orders.kind, orders.pace);
    let request = ask.request(orders.address, &orders.headers, orders.length);
    let expected = ANSWERS.to(ask);
    let mut arrivals = (orders.kind == Kind::Timed).then(Vec::new);
    let exchange = async {
        open.send(&request).await?;
        open.answer(&expected, arrivals.as_mut()).await
    };
    let answer =
        tokio::time::timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| "no whole answer within 20 s")??;
    let ended = Instant::now();
    if answer.status != 200 {
        return Err(format!("status {}", answer.status).into());
    }
    let mut tally = tally.borrow_mut();
    tally.answers += 1;
    tally.latency.push(micros(ended - base));
    tally.first_byte.push(micros(answer.first_byte - base));
    tally.differing += u64::from(!answer.as_expected);
    if let Some(arrivals) = arrivals {
        tally.delays(&WITNESS.take_sent(ask.number), &arrivals);
    }
    Ok(())
}

pub fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

impl Tally {
    fn fail(&mut self, error: Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    /// Each event's way: it has arrived with the read that brought its last byte.
    fn delays(&mut self, sent: &[Instant], arrivals: &[(usize, Instant)]) {
        let mut arrivals = arrivals.iter();
        let mut latest = arrivals.next();
        for (end, sent) in ANSWERS.ends().iter().zip(sent) {
            while let Some((length, _)) = latest
                && length < end
            {
                latest = arrivals.next();
            }
            let Some((_, arrived)) = latest else { return };
            self.delay.push(micros(arrived.saturating_duration_since(*sent)));
        }
    }
}
