//! What was promised, and by how much it is met or missed.

use crate::cancel::Left;
use crate::crowd::Crowd;
use crate::rounds::{Cell, Round, Spent};
use crate::stats::median;
use crate::target::{Role, Target};
use crate::workload::{self, Workload};

/// One promise and what came of it.
pub struct Verdict {
    pub part: &'static str,
    pub goal: String,
    pub got: String,
    /// The measured value over the promised one where less is better, the other way round where more is; above 1 it
    /// is missed.
    pub over: f64,
}

/// The measurements, by name and role.
pub struct Found<'a> {
    pub targets: &'a [Target],
    pub workloads: &'a [Workload],
    pub cells: &'a [Cell],
}

/// Path CPU against nginx's: workload, who, and how many times as much is allowed.
const CPU: [(&str, Role, f64); 5] = [
    (workload::SMALL, Role::Recording, 1.25),
    (workload::LARGE, Role::Recording, 1.2),
    (workload::BURST, Role::Recording, 0.9),
    (workload::BURST, Role::NotRecording, 0.6),
    (workload::PACED, Role::Recording, 1.1),
];
const DELAY_P99_MICROS: f64 = 1000.0;
const CANCEL_P99_MICROS: f64 = 50_000.0;
const CROWD_BYTES: f64 = (1u64 << 30) as f64;

impl Found<'_> {
    pub fn cell(&self, workload: &str, role: Role) -> Option<&Cell> {
        self.cells.iter().find(|cell| {
            self.workloads[cell.workload].name == workload && self.targets[cell.target].role == role
        })
    }

    /// The median, over the rounds both took part in, of one's number beside the other's.
    pub fn paired(
        &self,
        one: &Cell,
        other: &Cell,
        number: impl Fn(&Round, &Round) -> Option<f64>,
    ) -> Option<f64> {
        let pair = |round: &Round| {
            let beside = other.rounds.iter().find(|beside| beside.number == round.number)?;
            number(round, beside)
        };
        let values: Vec<f64> = one.rounds.iter().filter_map(pair).collect();
        (!values.is_empty()).then(|| median(values))
    }

    /// Path CPU beside nginx's.
    pub fn cpu_ratio(&self, cell: &Cell) -> Option<f64> {
        let nginx = self.cell(self.workloads[cell.workload].name, Role::Nginx)?;
        self.paired(cell, nginx, |own, nginx| Some(own.cpu?.path / nginx.cpu?.path))
    }
}

/// Every promise that this run can judge.
pub fn verdicts(found: &Found<'_>, crowds: &[Crowd], cancels: &[Left]) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = CPU.iter().filter_map(|goal| cpu(found, *goal)).collect();
    verdicts.extend(throughput(found));
    verdicts.extend(recording(found));
    verdicts.extend(delay(found));
    verdicts.extend(idle(found));
    verdicts.extend(
        [workload::SMALL_FIXED, workload::LARGE_FIXED, workload::BURST_FIXED]
            .into_iter()
            .filter_map(|name| drops(found, name)),
    );
    verdicts.extend(crowds.iter().filter_map(|crowd| memory(found, crowd)));
    verdicts.extend(cancels.iter().filter_map(|left| cancel(found, left)));
    verdicts.extend(bytes(found));
    verdicts
}

fn cpu(found: &Found<'_>, (part, role, times): (&'static str, Role, f64)) -> Option<Verdict> {
    let ratio = found.cpu_ratio(found.cell(part, role)?)?;
    let who = if role == Role::Recording { "with recording" } else { "without recording" };
    let goal = format!("path CPU {who} at most {times} × nginx's");
    Some(Verdict { part, goal, got: format!("{ratio:.2} ×"), over: ratio / times })
}

fn throughput(found: &Found<'_>) -> Option<Verdict> {
    let (own, nginx) =
        (found.cell(workload::SMALL, Role::Recording)?, found.cell(workload::SMALL, Role::Nginx)?);
    let ratio = found.paired(own, nginx, |own, nginx| Some(own.per_second / nginx.per_second))?;
    let goal = "as many requests a second as nginx, with recording".to_owned();
    Some(Verdict { part: workload::SMALL, goal, got: format!("{ratio:.2} ×"), over: 1.0 / ratio })
}

/// What recording a turn takes, on the threads clients wait for and in all.
fn recording(found: &Found<'_>) -> Vec<Verdict> {
    let judge = |of: fn(&Spent) -> f64, whose: &str, most: f64| {
        let cell = |role| found.cell(workload::TURN, role);
        let (with, without) = (cell(Role::Recording)?, cell(Role::NotRecording)?);
        let took = found.paired(with, without, |with, without| Some(of(&with.cpu?) - of(&without.cpu?)))?;
        let goal = format!("recording takes at most {most:.0} µs {whose}");
        Some(Verdict { part: workload::TURN, goal, got: format!("{took:.0} µs"), over: took / most })
    };
    let path = judge(|spent| spent.path, "of the path's threads", 10.0);
    path.into_iter().chain(judge(|spent| spent.whole, "of the whole process", 250.0)).collect()
}

fn delay(found: &Found<'_>) -> Option<Verdict> {
    let (own, direct) =
        (found.cell(workload::PACED, Role::Recording)?, found.cell(workload::PACED, Role::Direct)?);
    let added = found.paired(own, direct, |own, direct| Some(own.delay.p99 - direct.delay.p99))?;
    Some(Verdict {
        part: workload::PACED,
        goal: "an event's delay, p99, at most 1 ms above direct's, with recording".to_owned(),
        got: format!("{:.2} ms", added / 1000.0),
        over: added / DELAY_P99_MICROS,
    })
}

fn idle(found: &Found<'_>) -> Vec<Verdict> {
    let judge = |name: &str, of: fn(&Round) -> f64| {
        let cell = |role| found.cell(workload::IDLE, role);
        let (own, nginx, direct) = (cell(Role::Recording)?, cell(Role::Nginx)?, cell(Role::Direct)?);
        let added = |cell: &Cell| found.paired(cell, direct, |own, direct| Some(of(own) - of(direct)));
        let (own, nginx) = (added(own)?, added(nginx)?);
        Some(Verdict {
            part: workload::IDLE,
            goal: format!("latency added with recording, {name}, below nginx's"),
            got: format!("{own:.0} µs against {nginx:.0}"),
            over: if nginx > 0.0 { own / nginx } else { f64::INFINITY },
        })
    };
    [judge("mean", |round| round.latency.mean), judge("p50", |round| round.latency.p50)]
        .into_iter()
        .flatten()
        .collect()
}

fn drops(found: &Found<'_>, part: &'static str) -> Option<Verdict> {
    let cell = found.cell(part, Role::Recording)?;
    let (books, due) = (cell.books, cell.due);
    let kept = due > 0 && cell.books_agree() && books.dropped + books.reduced == 0.0;
    Some(Verdict {
        part,
        goal: "each exchange in the books, no record dropped or reduced".to_owned(),
        got: format!(
            "{:.0} dropped, {:.0} reduced of {:.0}, for {due} answers",
            books.dropped,
            books.reduced,
            books.sum()
        ),
        over: if kept { 0.0 } else { f64::INFINITY },
    })
}

fn memory(found: &Found<'_>, crowd: &Crowd) -> Option<Verdict> {
    (found.targets[crowd.target].role == Role::Recording).then(|| Verdict {
        part: crate::crowd::NAME,
        goal: format!("{} open streams with recording in less than 1 GiB, none left over", crowd.wanted),
        got: format!("{} open, {} MiB", crowd.open, crowd.with >> 20),
        over: match crowd.failed() || crowd.open != crowd.wanted {
            true => f64::INFINITY,
            false => crowd.with as f64 / CROWD_BYTES,
        },
    })
}

fn cancel(found: &Found<'_>, left: &Left) -> Option<Verdict> {
    if found.targets[left.target].role != Role::Recording {
        return None;
    }
    let what =
        crate::cancel::PHASES.iter().find(|(phase, _)| *phase == left.phase).map_or("", |(_, what)| what);
    let (got, over) = match &left.times {
        Ok((times, 0)) => (format!("{:.2} ms", times.p99 / 1000.0), times.p99 / CANCEL_P99_MICROS),
        Ok((times, failures)) => (format!("{:.2} ms, {failures} failed", times.p99 / 1000.0), f64::INFINITY),
        Err(error) => (error.clone(), f64::INFINITY),
    };
    Some(Verdict {
        part: crate::cancel::NAME,
        goal: format!("the upstream sees a client leave {what} within 50 ms, p99"),
        got,
        over,
    })
}

fn bytes(found: &Found<'_>) -> Option<Verdict> {
    let own: Vec<&Cell> =
        found.cells.iter().filter(|cell| found.targets[cell.target].role.is_serin()).collect();
    let differing: u64 = own.iter().map(|cell| cell.differing).sum();
    let errors: u64 = own.iter().map(|cell| cell.errors).sum();
    let silent = own.iter().filter(|cell| cell.rounds.is_empty()).count();
    let unentered = own.iter().filter(|cell| !cell.books_agree()).count();
    (!found.cells.is_empty()).then(|| Verdict {
        part: "Every run",
        goal: "every request and answer byte for byte as direct and in the books, no errors".to_owned(),
        got: format!(
            "{differing} differ, {errors} errors, {silent} runs without an answer, {unentered} whose books do not agree"
        ),
        over: if own.iter().any(|cell| cell.failed()) { f64::INFINITY } else { 0.0 },
    })
}

impl Verdict {
    pub fn words(&self) -> String {
        match self.over {
            over if over.is_infinite() => "MISSED".to_owned(),
            over if over > 1.0 => format!("MISSED by {:.0} %", (over - 1.0) * 100.0),
            over if over > 0.0 => format!("met by {:.0} %", (1.0 - over) * 100.0),
            _ => "met".to_owned(),
        }
    }
}
