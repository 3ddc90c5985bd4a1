//! Interleaved rounds: in each, every target runs every workload once, so that a slow moment of the machine
//! falls on all of them.

use crate::Error;
use crate::load::{self, Body, Tally};
use crate::mock::DIGEST_HEADER;
use crate::options::Options;
use crate::target::Target;
use crate::workload::{Stop, Workload};

/// All rounds of one workload on one target.
pub struct Cell {
    pub workload: usize,
    pub target: usize,
    pub rounds: Vec<Round>,
    /// Every answer had direct's bytes, and the upstream got the request's bytes as direct sent them.
    pub bytes_equal: bool,
    pub first_error: Option<String>,
}

/// One measurement. Times are in microseconds.
pub struct Round {
    pub per_second: f64,
    pub p50: u32,
    pub p99: u32,
    pub first_byte_p50: u32,
    /// CPU time of the proxy's process per answer.
    pub cpu_per_request: Option<f64>,
    pub errors: u64,
}

impl Cell {
    pub fn errors(&self) -> u64 {
        self.rounds.iter().map(|round| round.errors).sum()
    }
}

pub fn run(options: &Options, targets: &[Target], workloads: &[Workload]) -> Result<Vec<Cell>, Error> {
    let mut cells = Vec::new();
    for (workload, kind) in workloads.iter().enumerate() {
        for (target, place) in targets.iter().enumerate() {
            let bytes_equal = request_survives(kind, &targets[0], place);
            cells.push(Cell { workload, target, rounds: Vec::new(), bytes_equal, first_error: None });
        }
    }
    for round in 0..options.rounds {
        for (workload, kind) in workloads.iter().enumerate() {
            let mut direct: Option<Body> = None;
            for step in 0..targets.len() {
                // direct goes first, for its bytes; the others take turns at going next.
                let target = if step == 0 { 0 } else { 1 + (step - 1 + round) % (targets.len() - 1) };
                let (tally, cpu) = measure(options, kind, &targets[target])?;
                let cell = &mut cells[workload * targets.len() + target];
                cell.bytes_equal &= !tally.bodies_differ && (step == 0 || tally.body == direct);
                if step == 0 {
                    direct = tally.body;
                }
                progress(round, kind, &targets[target], &tally);
                cell.add(tally, cpu);
            }
        }
    }
    Ok(cells)
}

/// Whether the request's bytes survive: the upstream's hash of what arrived is the one it has of direct's. The
/// answers' bytes are compared during the rounds.
fn request_survives(workload: &Workload, direct: &Target, target: &Target) -> bool {
    let header = format!("{DIGEST_HEADER}: 1\r\n");
    let sample = |target: &Target| load::sample(workload, target.address, &header);
    match (sample(direct), sample(target)) {
        (Ok(direct), Ok(target)) => direct == target,
        (_, Err(error)) | (Err(error), _) => {
            eprintln!("{} / {}: {error}", workload.name, target.name);
            false
        }
    }
}

fn measure(options: &Options, workload: &Workload, target: &Target) -> Result<(Tally, Option<u64>), Error> {
    if matches!(workload.stop, Stop::After(_)) {
        load::run(workload, target.address, Stop::After(options.warm_up))?;
    }
    let before = target.cpu_micros()?;
    let tally = load::run(workload, target.address, workload.stop)?;
    let spent = before.zip(target.cpu_micros()?).map(|(before, after)| after - before);
    Ok((tally, spent))
}

fn progress(round: usize, workload: &Workload, target: &Target, tally: &Tally) {
    let per_second = tally.latency.len() as f64 / tally.elapsed.as_secs_f64();
    let error =
        tally.first_error.as_deref().map(|error| format!(", first error: {error}")).unwrap_or_default();
    eprintln!("round {}: {}, {}: {per_second:.0}/s{error}", round + 1, workload.name, target.name);
}

impl Cell {
    fn add(&mut self, mut tally: Tally, cpu: Option<u64>) {
        let answers = tally.latency.len() as f64;
        self.rounds.push(Round {
            per_second: answers / tally.elapsed.as_secs_f64(),
            p50: quantile(&mut tally.latency, 0.5),
            p99: quantile(&mut tally.latency, 0.99),
            first_byte_p50: quantile(&mut tally.first_byte, 0.5),
            cpu_per_request: cpu.filter(|_| answers > 0.0).map(|cpu| cpu as f64 / answers),
            errors: tally.errors,
        });
        self.first_error = self.first_error.take().or(tally.first_error);
    }
}

/// The value below which the share `q` of the samples lies; 0 without samples.
fn quantile(samples: &mut [u32], q: f64) -> u32 {
    if samples.is_empty() {
        return 0;
    }
    let at = ((samples.len() - 1) as f64 * q).round() as usize;
    *samples.select_nth_unstable(at).1
}
