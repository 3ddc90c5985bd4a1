//! The result as Markdown, columns aligned so that it reads in a terminal too.

use std::fmt::Write;

use crate::ledger;
use crate::machine;
use crate::options::Options;
use crate::rounds::{Cell, Round};
use crate::target::{Absent, Target};
use crate::workload::Workload;

const COLUMNS: [&str; 9] = [
    "target",
    "per second",
    "ratio to direct",
    "p50 ms",
    "p99 ms",
    "first byte p50 ms",
    "CPU µs/request",
    "same bytes",
    "errors",
];

pub fn markdown(
    options: &Options,
    targets: &[Target],
    absent: &[Absent],
    workloads: &[Workload],
    cells: &[Cell],
) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "Measured {}. Interleaved rounds of {:.1} s: {}. Each figure is the median over the rounds. The ratio is the \
         median of each round's ratio to direct in the same round. CPU is the proxy's process, user and system: the \
         least of all rounds, the median in brackets. One worker thread per proxy. In bursts a proxy may beat direct: it hands on in large \
         pieces what the upstream writes in small ones.",
        machine::describe(),
        options.measure.as_secs_f64(),
        options.rounds
    );
    for (index, workload) in workloads.iter().enumerate() {
        let of_workload: Vec<&Cell> = cells.iter().filter(|cell| cell.workload == index).collect();
        let rows: Vec<[String; 9]> =
            of_workload.iter().map(|cell| row(targets[cell.target].name, cell, of_workload[0])).collect();
        let _ = write!(out, "\n### {}\n\n{}.\n\n{}", workload.name, workload.what, table(&rows));
        for cell in of_workload {
            if let Some(error) = &cell.first_error {
                let _ = writeln!(out, "\n{}: first error: {error}", targets[cell.target].name);
            }
        }
    }
    for (target, admin) in targets.iter().filter_map(|target| Some((target, target.admin?))) {
        let ledger = ledger::read(admin).unwrap_or_else(|error| format!("unknown ({error})"));
        let _ = writeln!(out, "\nThe ledger of {}: {ledger}.", target.name);
    }
    for absent in absent {
        let _ = writeln!(out, "\nNot measured: {} ({}).", absent.name, absent.why);
    }
    out
}

fn row(name: &str, cell: &Cell, direct: &Cell) -> [String; 9] {
    let of = |value: fn(&Round) -> f64| median(cell.rounds.iter().map(value).collect());
    let pairs = cell.rounds.iter().zip(&direct.rounds);
    let ratio = median(pairs.map(|(own, direct)| own.per_second / direct.per_second).collect());
    let millis = |micros: f64| format!("{:.2}", micros / 1000.0);
    [
        name.to_owned(),
        format!("{:.0}", of(|round| round.per_second)),
        format!("{ratio:.2}"),
        millis(of(|round| f64::from(round.p50))),
        millis(of(|round| f64::from(round.p99))),
        millis(of(|round| f64::from(round.first_byte_p50))),
        cpu(cell),
        if cell.bytes_equal { "yes" } else { "NO" }.to_owned(),
        cell.errors().to_string(),
    ]
}

fn cpu(cell: &Cell) -> String {
    let spent: Vec<f64> = cell.rounds.iter().filter_map(|round| round.cpu_per_request).collect();
    if spent.is_empty() {
        return "–".to_owned();
    }
    let least = spent.iter().copied().fold(f64::INFINITY, f64::min);
    format!("{least:.0} ({:.0})", median(spent))
}

/// The middle value; the mean of the two middle ones of an even number; 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => (values[even / 2 - 1] + values[even / 2]) / 2.0,
    }
}

fn table(rows: &[[String; 9]]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([COLUMNS[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: [usize; 9] = std::array::from_fn(width);
    let line = |cells: [&str; 9]| {
        let padded = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let dashes: [String; 9] = std::array::from_fn(|column| match column {
        0 => "-".repeat(widths[0]),
        _ => "-".repeat(widths[column] - 1) + ":",
    });
    let mut out = line(COLUMNS) + &line(dashes.each_ref().map(String::as_str));
    out.extend(rows.iter().map(|row| line(row.each_ref().map(String::as_str))));
    out
}
