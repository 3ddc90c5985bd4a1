//! The load generator: closed-loop connections on one thread.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::task::{JoinSet, LocalSet};

use crate::Error;
use crate::client::Connection;
use crate::workload::{Stop, Workload};

/// What one run saw.
#[derive(Default)]
pub struct Tally {
    /// Microseconds from the first byte sent to the last byte received, one per answer.
    pub latency: Vec<u32>,
    /// Microseconds to the first byte of the body.
    pub first_byte: Vec<u32>,
    pub errors: u64,
    /// The first error, in words.
    pub first_error: Option<String>,
    pub elapsed: Duration,
    /// Body length and hash of the answers that were hashed, when they all agree.
    pub body: Option<Body>,
    pub bodies_differ: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Body {
    pub length: usize,
    pub digest: blake3::Hash,
}

/// One request in this many has its answer hashed; of the others only the length is compared.
const HASHED: usize = 16;
/// No answer takes longer; a run cannot hang.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// After so many errors in a row a connection gives up.
const ERRORS_IN_A_ROW: u32 = 5;

/// Runs `workload` against `address` until it stops.
pub fn run(workload: &Workload, address: SocketAddr, stop: Stop) -> Result<Tally, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let request: Rc<[u8]> = workload.request(address, "").into();
    let tally = Rc::new(RefCell::new(Tally::default()));
    let start = Instant::now();
    LocalSet::new().block_on(&runtime, async {
        let mut connections = JoinSet::new();
        for _ in 0..workload.connections {
            connections.spawn_local(drive(address, Rc::clone(&request), start, stop, Rc::clone(&tally)));
        }
        while connections.join_next().await.is_some() {}
    });
    let mut tally = tally.take();
    tally.elapsed = start.elapsed();
    Ok(tally)
}

/// The answer to one request with an extra header line, as its length and hash.
pub fn sample(workload: &Workload, address: SocketAddr, header: &str) -> Result<Body, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let request = workload.request(address, header);
    runtime.block_on(async {
        let mut connection = Connection::open(address).await?;
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, connection.exchange(&request, true)).await??;
        let digest = answer.digest.ok_or("the answer was not hashed")?;
        Ok(Body { length: answer.length, digest })
    })
}

/// One connection's life; opens it again after an error.
async fn drive(
    address: SocketAddr,
    request: Rc<[u8]>,
    start: Instant,
    stop: Stop,
    tally: Rc<RefCell<Tally>>,
) {
    let mut sent = 0;
    let mut failed = 0;
    let mut connection = None;
    while stop.more(start, sent) && failed < ERRORS_IN_A_ROW {
        match once(&mut connection, address, &request, sent, &tally).await {
            Ok(()) => failed = 0,
            Err(error) => {
                connection = None;
                failed += 1;
                tally.borrow_mut().fail(error);
            }
        }
        sent += 1;
    }
}

async fn once(
    connection: &mut Option<Connection>,
    address: SocketAddr,
    request: &[u8],
    sent: usize,
    tally: &RefCell<Tally>,
) -> Result<(), Error> {
    let open = match connection {
        Some(open) => open,
        None => connection.insert(Connection::open(address).await?),
    };
    let began = Instant::now();
    let exchange = open.exchange(request, sent.is_multiple_of(HASHED));
    let answer =
        tokio::time::timeout(ANSWER_TIMEOUT, exchange).await.map_err(|_| "no whole answer within 20 s")??;
    let ended = Instant::now();
    if answer.status != 200 {
        return Err(format!("status {}", answer.status).into());
    }
    let mut tally = tally.borrow_mut();
    tally.latency.push(micros(ended - began));
    tally.first_byte.push(micros(answer.first_byte - began));
    tally.compare(answer.length, answer.digest);
    Ok(())
}

fn micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

impl Stop {
    fn more(self, start: Instant, sent: usize) -> bool {
        match self {
            Stop::After(duration) => start.elapsed() < duration,
            Stop::Each(requests) => sent < requests,
        }
    }
}

impl Tally {
    fn fail(&mut self, error: Error) {
        self.errors += 1;
        self.first_error.get_or_insert_with(|| error.to_string());
    }

    /// Every answer of a run must be the same.
    fn compare(&mut self, length: usize, digest: Option<blake3::Hash>) {
        match (self.body, digest) {
            (Some(known), Some(digest)) => self.bodies_differ |= known != Body { length, digest },
            (Some(known), None) => self.bodies_differ |= known.length != length,
            (None, Some(digest)) => self.body = Some(Body { length, digest }),
            (None, None) => {}
        }
    }
}
