//! The kinds of traffic.

use std::time::Duration;

use crate::options::Options;
use crate::traffic::Kind;

pub struct Workload {
    pub name: &'static str,
    pub what: String,
    pub kind: Kind,
    /// Microseconds between two events of an answer, where the upstream paces it.
    pub pace: u32,
    /// Length of a request's body.
    pub length: usize,
    pub connections: usize,
    pub demand: Demand,
    /// Whether it is run on every target, or only on direct, Serin with recording and nginx.
    pub everywhere: bool,
}

/// How much is asked for.
#[derive(Clone, Copy)]
pub enum Demand {
    /// Each connection sends its next request when it has its answer.
    Closed(Duration),
    /// So many requests a second, whether or not answers come.
    Open { per_second: u32, during: Duration },
    /// One stream on each connection, their beginnings spread over this.
    Once(Duration),
}

pub const SMALL: &str = "Small JSON, saturated";
pub const SMALL_FIXED: &str = "Small JSON, fixed rate";
pub const LARGE: &str = "128 KiB requests, saturated";
pub const LARGE_FIXED: &str = "128 KiB requests, fixed rate";
pub const BURST: &str = "SSE burst, saturated";
pub const BURST_FIXED: &str = "SSE burst, fixed rate";
pub const PACED: &str = "SSE paced";
pub const TURN: &str = "Turn of 35 KB, four at a time";
pub const IDLE: &str = "One idle connection";

/// Time between two events of a paced stream, in microseconds: a model that makes 100 tokens a second.
const PACE: u32 = 10_000;
pub const SMALL_BODY: usize = 200;
const LARGE_BODY: usize = 128 * 1024;
const TURN_BODY: usize = 35_000;

pub fn all(options: &Options) -> Vec<Workload> {
    let json = "200-byte request, 1.5 KB answer";
    let large = "128 KiB request, 1.5 KB answer";
    let burst = "200-byte request, 203 events (45 KB) sent as fast as they are taken";
    let paced = "203 events, one every 10 ms, 128 streams at once that begin within 100 ms";
    let turn = "35 KB request, 203 events (45 KB) sent as fast as they are taken";
    let idle = format!("{json}, one connection, one request after the other, nothing else running");
    let idle = Workload { demand: Demand::Closed(options.measure), ..plain(IDLE, idle, 1) };
    let once = Demand::Once(Duration::from_millis(100));
    let timed =
        Workload { kind: Kind::Timed, pace: PACE, demand: once, ..plain(PACED, paced.to_owned(), 128) };
    let as_large = |workload| Workload { length: LARGE_BODY, ..workload };
    let as_stream = |workload| Workload { kind: Kind::Events, ..workload };
    vec![
        saturated(options, SMALL, json, 64),
        fixed(options, SMALL_FIXED, json, 64, options.rate),
        as_large(saturated(options, LARGE, large, 32)),
        as_large(fixed(options, LARGE_FIXED, large, 32, options.rate / 10)),
        as_stream(saturated(options, BURST, burst, 64)),
        as_stream(fixed(options, BURST_FIXED, burst, 64, options.rate / 5)),
        timed,
        Workload { length: TURN_BODY, ..as_stream(saturated(options, TURN, turn, 4)) },
        idle,
    ]
}

fn saturated(options: &Options, name: &'static str, what: &str, connections: usize) -> Workload {
    let what = format!("{what}, {connections} connections, closed loop");
    Workload { demand: Demand::Closed(options.measure), ..plain(name, what, connections) }
}

fn fixed(options: &Options, name: &'static str, what: &str, connections: usize, rate: u32) -> Workload {
    let what = format!("{what}, {rate} a second, open loop");
    let demand = Demand::Open { per_second: rate, during: options.measure };
    Workload { demand, everywhere: false, ..plain(name, what, connections) }
}

/// Small requests and answers, as many as one second brings.
fn plain(name: &'static str, what: String, connections: usize) -> Workload {
    let demand = Demand::Closed(Duration::from_secs(1));
    Workload {
        name,
        what,
        kind: Kind::Json,
        pace: 0,
        length: SMALL_BODY,
        connections,
        demand,
        everywhere: true,
    }
}
