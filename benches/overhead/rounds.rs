//! Interleaved rounds: in each, every target runs every workload once, so that a slow moment of the machine
//! falls on all of them.

use std::time::Duration;

use crate::Error;
use crate::books::Books;
use crate::load::{self, Tally};
use crate::options::Options;
use crate::stats::Summary;
use crate::target::{Role, Target};
use crate::traffic::ANSWERS;
use crate::witness::WITNESS;
use crate::workload::{Demand, Workload};

/// All rounds of one workload on one target.
pub struct Cell {
    pub workload: usize,
    pub target: usize,
    pub rounds: Vec<Round>,
    /// Requests and answers that did not arrive as they were sent.
    pub differing: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    /// Answers, warm-up included, whose exchanges Serin is to enter in its books; none of a target that keeps no books.
    pub due: u64,
    pub books: Books,
}

/// One measurement. Times are in microseconds.
pub struct Round {
    pub number: usize,
    pub per_second: f64,
    pub latency: Summary,
    pub first_byte: Summary,
    /// Of each event, where they are timed.
    pub delay: Summary,
    /// CPU time per answer, or per event of a timed stream.
    pub cpu: Option<Spent>,
}

#[derive(Clone, Copy)]
pub struct Spent {
    pub path: f64,
    pub whole: f64,
}

/// Rounds that peers take part in: they are slower by far more than rounds differ.
const PEER_ROUNDS: usize = 2;

pub fn run(options: &Options, targets: &[Target], workloads: &[Workload]) -> Result<Vec<Cell>, Error> {
    let mut cells = Vec::new();
    let wanted = || workloads.iter().enumerate().filter(|(_, kind)| options.wants(kind.name));
    for (workload, kind) in wanted() {
        cells.extend((0..targets.len()).filter(|at| takes_part(kind, &targets[*at])).map(|target| Cell {
            workload,
            target,
            rounds: Vec::new(),
            differing: 0,
            errors: 0,
            first_error: None,
            due: 0,
            books: Books::default(),
        }));
    }
    for round in 0..options.rounds {
        for (workload, kind) in wanted() {
            let mut turn: Vec<usize> = (0..targets.len())
                .filter(|at| takes_part(kind, &targets[*at]))
                .filter(|at| targets[*at].role != Role::Peer || round < PEER_ROUNDS)
                .collect();
            // Direct goes first and last; the others take turns at going next.
            let between = turn.len() - 1;
            turn[1..between].rotate_left(round % (between - 1).max(1));
            for target in turn {
                let of = |cell: &&mut Cell| cell.workload == workload && cell.target == target;
                let cell = cells.iter_mut().find(of).ok_or("a cell is missing")?;
                measure(options, round, kind, &targets[target], cell)?;
            }
        }
    }
    Ok(cells)
}

fn takes_part(workload: &Workload, target: &Target) -> bool {
    workload.everywhere || !matches!(target.role, Role::NotRecording | Role::Peer)
}

fn measure(
    options: &Options,
    number: usize,
    workload: &Workload,
    target: &Target,
    cell: &mut Cell,
) -> Result<(), Error> {
    let changed = WITNESS.changed();
    if !matches!(workload.demand, Demand::Once(_)) {
        let (warm_up, books) = settle(target, || load::run(workload, target, Some(options.warm_up)))?;
        cell.enter(&warm_up, books);
    }
    let cpu = |of: &Target| of.process.as_ref().map(|process| process.cpu()).transpose();
    let before = cpu(target)?;
    let mut path_after = None;
    let (tally, books) = settle(target, || {
        let tally = load::run(workload, target, None)?;
        path_after = cpu(target)?;
        Ok(tally)
    })?;
    // The path has done its part when the load ends; the recorder goes on until it has settled.
    let whole_after = cpu(target)?;
    let units = if tally.delay.is_empty() { tally.answers } else { tally.delay.len() as u64 } as f64;
    let spent = match (before, path_after, whole_after) {
        (Some(before), Some(path), Some(whole)) if units > 0.0 => Some(Spent {
            path: (path.path - before.path) / units,
            whole: (whole.whole - before.whole) / units,
        }),
        _ => None,
    };
    progress(number, workload, target, &tally, spent);
    cell.enter(&tally, books);
    cell.differing += WITNESS.changed() - changed;
    cell.add(number, tally, spent);
    WITNESS.clear();
    Ok(())
}

/// Runs, and waits until Serin's recorder has entered everything, so that one run's backlog is not the next one's cost.
fn settle(
    target: &Target,
    run: impl FnOnce() -> Result<Tally, Error>,
) -> Result<(Tally, Option<Books>), Error> {
    let Some(admin) = target.admin else { return Ok((run()?, None)) };
    let before = Books::read(admin)?;
    let tally = run()?;
    let after = Books::settled(admin, before, tally.answers)?;
    Ok((tally, Some(after.since(before))))
}

fn progress(number: usize, workload: &Workload, target: &Target, tally: &Tally, spent: Option<Spent>) {
    let per_second = tally.answers as f64 / tally.elapsed.as_secs_f64();
    let cpu = spent.map(|spent| format!(", {:.1} µs", spent.path)).unwrap_or_default();
    let error =
        tally.first_error.as_deref().map(|error| format!(", first error: {error}")).unwrap_or_default();
    eprintln!("round {}: {}, {}: {per_second:.0}/s{cpu}{error}", number + 1, workload.name, target.name);
}

impl Cell {
    /// What went wrong, and what was recorded, in a warm-up as well as in a measurement.
    fn enter(&mut self, tally: &Tally, books: Option<Books>) {
        self.errors += tally.errors;
        self.differing += tally.differing;
        self.first_error = self.first_error.take().or_else(|| tally.first_error.clone());
        if let Some(books) = books {
            self.due += tally.answers;
            self.books = self.books.and(books);
        }
    }

    /// Whether each answer is in the books once; an exchange that failed may be there or not.
    pub fn books_agree(&self) -> bool {
        let (entered, due) = (self.books.sum(), self.due as f64);
        entered >= due && entered <= due + self.errors as f64
    }

    /// Whether anything went wrong, or nothing was answered at all.
    pub fn failed(&self) -> bool {
        self.errors > 0 || self.differing > 0 || self.rounds.is_empty() || !self.books_agree()
    }

    fn add(&mut self, number: usize, tally: Tally, cpu: Option<Spent>) {
        let lasted = tally.elapsed.max(Duration::from_millis(1)).as_secs_f64();
        if tally.answers == 0 {
            return;
        }
        self.rounds.push(Round {
            number,
            per_second: tally.answers as f64 / lasted,
            latency: Summary::of(tally.latency),
            first_byte: Summary::of(tally.first_byte),
            delay: Summary::of(tally.delay),
            cpu,
        });
    }

    /// Whether the cell's streams are timed event by event.
    pub fn is_timed(&self) -> bool {
        self.rounds.iter().any(|round| round.delay.p50 > 0.0)
    }
}

/// Events in one stream.
pub fn events() -> usize {
    ANSWERS.ends().len()
}
