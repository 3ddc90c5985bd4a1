//! The result as Markdown.

#[path = "report/parts.rs"]
mod parts;
#[path = "report/table.rs"]
mod table;

use std::fmt::Write;
use std::path::Path;

use crate::Error;
use crate::cancel::Left;
use crate::crowd::Crowd;
use crate::goals::{self, Found};
use crate::machine;
use crate::options::Options;
use crate::rounds::Cell;
use crate::target::{Absent, Target, nginx};
use crate::workload::Workload;
use table::table;

/// Everything that was measured.
pub struct Results<'a> {
    pub options: &'a Options,
    pub targets: &'a [Target],
    pub absent: &'a [Absent],
    pub workloads: &'a [Workload],
    pub cells: &'a [Cell],
    pub crowds: &'a [Crowd],
    pub cancels: &'a [Left],
    /// Something the reader must know.
    pub remarks: &'a [String],
}

const BEGIN: &str = "<!-- overhead: begin -->";
const END: &str = "<!-- overhead: end -->";

impl Results<'_> {
    pub fn markdown(&self) -> String {
        let found = Found { targets: self.targets, workloads: self.workloads, cells: self.cells };
        let mut out = self.preamble();
        // Writing to a String cannot fail.
        let _ = write!(out, "\n### Goals\n\n{}", self.goals(&found));
        for (index, workload) in self.workloads.iter().enumerate() {
            let cells: Vec<&Cell> = self.cells.iter().filter(|cell| cell.workload == index).collect();
            if !cells.is_empty() {
                let table = parts::workload(&found, workload, &cells);
                let _ = write!(out, "\n### {}\n\n{}.\n\n{table}", workload.name, workload.what);
            }
            for cell in cells {
                if let Some(error) = &cell.first_error {
                    let _ = writeln!(out, "\n{}: first error: {error}.", self.targets[cell.target].name);
                }
            }
        }
        if !self.crowds.is_empty() {
            let _ =
                write!(out, "\n### {}\n\n{}", crate::crowd::NAME, parts::crowds(self.targets, self.crowds));
        }
        if !self.cancels.is_empty() {
            let _ = write!(
                out,
                "\n### {}\n\n{}",
                crate::cancel::NAME,
                parts::cancels(self.targets, self.cancels)
            );
        }
        for remark in self.remarks {
            let _ = writeln!(out, "\n{remark}");
        }
        for absent in self.absent {
            let _ = writeln!(out, "\nNot measured: {} ({}).", absent.name, absent.why);
        }
        out
    }

    fn preamble(&self) -> String {
        let version = nginx::version().map(|version| format!(" nginx {version}.")).unwrap_or_default();
        format!(
            "Measured {}.{version} Interleaved rounds: {}, of {:.1} s each. Every figure is the median over the rounds, every \
             ratio and difference the median of those within a round. Path CPU is that of the threads clients wait for \
             (`serin-path-*`; the whole process elsewhere), whole CPU that of the process with all its threads and children until \
             its recorder has nothing left to do. × nginx is the path CPU beside nginx's. Dropped and reduced are shares of all \
             records of that run, warm-up included.\n",
            machine::describe(),
            self.options.rounds,
            self.options.measure.as_secs_f64(),
        )
    }

    fn goals(&self, found: &Found<'_>) -> String {
        let verdicts = goals::verdicts(found, self.crowds, self.cancels);
        let rows: Vec<Vec<String>> = verdicts
            .iter()
            .map(|verdict| {
                vec![format!("{}: {}", verdict.part, verdict.goal), verdict.got.clone(), verdict.words()]
            })
            .collect();
        table(&["goal", "measured", "verdict"], &rows)
    }
}

/// Replaces what stands between the marks of `page`; makes the page if there is none.
pub fn write(page: &Path, text: &str) -> Result<(), Error> {
    let old = if page.exists() {
        std::fs::read_to_string(page)?
    } else {
        format!("# Benchmarks\n\n{BEGIN}\n{END}\n")
    };
    let parts = old.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| {
        format!("{} has no lines {BEGIN} and {END}: put them where the tables belong", page.display())
    })?;
    std::fs::write(page, format!("{before}{BEGIN}\n{text}{END}{after}"))?;
    Ok(())
}
