//! One table for each part of the run.

use super::table::table;
use crate::cancel::{Left, PHASES};
use crate::crowd::Crowd;
use crate::goals::Found;
use crate::rounds::{Cell, Round, Spent, events};
use crate::stats::{Summary, median};
use crate::target::Target;
use crate::workload::{self, Workload};

pub fn workload(found: &Found<'_>, workload: &Workload, cells: &[&Cell]) -> String {
    match workload.name {
        workload::IDLE => idle(found, cells),
        _ if cells.iter().any(|cell| cell.is_timed()) => paced(found, cells),
        _ => load(found, cells),
    }
}

fn load(found: &Found<'_>, cells: &[&Cell]) -> String {
    let head = [
        "target",
        "per second",
        "beside direct",
        "mean ms",
        "p50",
        "p99",
        "p99.9",
        "first byte p50",
        "p99",
        "path CPU µs",
        "× nginx",
        "whole CPU µs",
        "dropped",
        "reduced",
        "bytes",
        "errors",
    ];
    let direct = cells[0];
    let row = |cell: &&Cell| {
        let latency = summary(cell, |round| round.latency);
        let first = summary(cell, |round| round.first_byte);
        let ratio = found.paired(cell, direct, |own, direct| Some(own.per_second / direct.per_second));
        let mut row = vec![
            name(found, cell),
            format!("{:.0}", median(cell.rounds.iter().map(|round| round.per_second).collect())),
            shown(ratio, 2),
        ];
        row.extend([latency.mean, latency.p50, latency.p99, latency.p999, first.p50, first.p99].map(millis));
        row.extend(spent(found, cell, 1));
        let share = |lost: f64| match cell.books.sum() - cell.books.off {
            all if all > 0.0 => format!("{:.1} %", lost / all * 100.0),
            _ => "–".to_owned(),
        };
        row.extend([share(cell.books.dropped), share(cell.books.reduced)]);
        row.extend(faults(cell));
        row
    };
    table(&head, &cells.iter().map(row).collect::<Vec<_>>())
}

fn paced(found: &Found<'_>, cells: &[&Cell]) -> String {
    let head = [
        "target",
        "first byte p50 ms",
        "p99",
        "event's delay mean µs",
        "p50",
        "p99",
        "p99.9",
        "above direct p50",
        "p99",
        "p99.9",
        "path CPU µs/event",
        "× nginx",
        "whole CPU µs/event",
        "bytes",
        "errors",
    ];
    let direct = cells[0];
    let row = |cell: &&Cell| {
        let (first, delay) = (summary(cell, |round| round.first_byte), summary(cell, |round| round.delay));
        let above = |of: fn(&Summary) -> f64| {
            found.paired(cell, direct, |own, direct| Some(of(&own.delay) - of(&direct.delay)))
        };
        let mut row = vec![name(found, cell), millis(first.p50), millis(first.p99)];
        row.extend([delay.mean, delay.p50, delay.p99, delay.p999].map(|micros| format!("{micros:.0}")));
        row.extend([above(|s| s.p50), above(|s| s.p99), above(|s| s.p999)].map(|value| shown(value, 0)));
        row.extend(spent(found, cell, 1));
        row.extend(faults(cell));
        row
    };
    let note = format!(
        "\nAn event's delay is the time from the moment the upstream hands it to its connection to its arrival at the client, \
         by one clock; {} events in a stream.\n",
        events()
    );
    table(&head, &cells.iter().map(row).collect::<Vec<_>>()) + &note
}

fn idle(found: &Found<'_>, cells: &[&Cell]) -> String {
    let head = [
        "target",
        "mean µs",
        "p50",
        "p99",
        "p99.9",
        "added mean µs",
        "p50",
        "p99",
        "p99.9",
        "path CPU µs",
        "× nginx",
        "whole CPU µs",
        "bytes",
        "errors",
    ];
    let direct = cells[0];
    let row = |cell: &&Cell| {
        let latency = summary(cell, |round| round.latency);
        let added = |of: fn(&Summary) -> f64| {
            found.paired(cell, direct, |own, direct| Some(of(&own.latency) - of(&direct.latency)))
        };
        let mut row = vec![name(found, cell)];
        row.extend(
            [latency.mean, latency.p50, latency.p99, latency.p999].map(|micros| format!("{micros:.0}")),
        );
        let added = [added(|s| s.mean), added(|s| s.p50), added(|s| s.p99), added(|s| s.p999)];
        row.extend(added.map(|value| shown(value, 0)));
        row.extend(spent(found, cell, 1));
        row.extend(faults(cell));
        row
    };
    let noise =
        "\nThe row \"direct, again\" is the noise: what two equal measurements in one round differ by.\n";
    table(&head, &cells.iter().map(row).collect::<Vec<_>>()) + noise
}

pub fn crowds(targets: &[Target], crowds: &[Crowd]) -> String {
    let head = [
        "target",
        "open streams",
        "opened in s",
        "resident MiB before",
        "with them",
        "peak",
        "KiB each",
        "left over",
        "errors",
    ];
    let mib = |bytes: u64| (bytes >> 20).to_string();
    let row = |crowd: &Crowd| {
        let each = crowd.with.saturating_sub(crowd.before) as f64 / 1024.0 / crowd.open.max(1) as f64;
        let errors = match &crowd.first_error {
            Some(error) => format!("{} ({error})", crowd.errors),
            None => "0".to_owned(),
        };
        vec![
            targets[crowd.target].name.clone(),
            crowd.open.to_string(),
            format!("{:.1}", crowd.opening.as_secs_f64()),
            mib(crowd.before),
            mib(crowd.with),
            mib(crowd.peak),
            format!("{each:.1}"),
            shown(crowd.left_over, 0),
            errors,
        ]
    };
    let note = "\nOne event every 5 s on each; left over is what Serin still counts in flight after all clients have left.\n";
    table(&head, &crowds.iter().map(row).collect::<Vec<_>>()) + note
}

pub fn cancels(targets: &[Target], cancels: &[Left]) -> String {
    let mut out =
        "From the client's close to the moment the upstream sees its own connection closed, one client at a time.\n"
            .to_owned();
    for (phase, what) in PHASES {
        let row = |left: &Left| {
            let mut row = vec![targets[left.target].name.clone()];
            match &left.times {
                Ok((times, failures)) => {
                    row.extend(
                        [times.mean, times.p50, times.p99, times.p999].map(|micros| format!("{micros:.0}")),
                    );
                    row.push(failures.to_string());
                }
                Err(error) => row.extend(["–", "–", "–", "–", error].map(str::to_owned)),
            }
            row
        };
        let rows: Vec<Vec<String>> = cancels.iter().filter(|left| left.phase == phase).map(row).collect();
        let head = [what, "mean µs", "p50", "p99", "p99.9", "failed"];
        out += &format!("\n{}", table(&head, &rows));
    }
    out
}

fn name(found: &Found<'_>, cell: &Cell) -> String {
    let silent = if cell.rounds.is_empty() { " (no answers)" } else { "" };
    format!("{}{silent}", found.targets[cell.target].name)
}

fn summary(cell: &Cell, of: fn(&Round) -> Summary) -> Summary {
    Summary::median(&cell.rounds.iter().map(of).collect::<Vec<_>>())
}

/// Path CPU, how many times nginx's it is, and the whole.
fn spent(found: &Found<'_>, cell: &Cell, digits: usize) -> [String; 3] {
    let of = |number: fn(&Spent) -> f64| {
        let values: Vec<f64> =
            cell.rounds.iter().filter_map(|round| round.cpu.as_ref().map(number)).collect();
        shown((!values.is_empty()).then(|| median(values)), digits)
    };
    let ratio = shown(found.cpu_ratio(cell), 2);
    [of(|spent| spent.path), ratio, of(|spent| spent.whole)]
}

fn faults(cell: &Cell) -> [String; 2] {
    let bytes = if cell.differing == 0 { "same".to_owned() } else { format!("{} DIFFER", cell.differing) };
    [bytes, cell.errors.to_string()]
}

fn millis(micros: f64) -> String {
    format!("{:.2}", micros / 1000.0)
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
}
