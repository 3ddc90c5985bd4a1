//! A child process and what the kernel says of it.

use std::fs;
use std::process::Child;

use tempfile::TempDir;

use crate::Error;

/// A child process with its files; both go away with it.
pub struct Process {
    child: Child,
    /// Threads whose names begin with this are the path; without it every thread is.
    path_threads: Option<&'static str>,
    _files: TempDir,
}

/// CPU time since the start, in microseconds, user and system.
#[derive(Clone, Copy)]
pub struct Cpu {
    /// The threads clients wait for.
    pub path: f64,
    /// Every thread, and every child.
    pub whole: f64,
}

/// Linux counts a process's CPU time in hundredths of a second (USER_HZ) on every architecture we build for.
const MICROS_PER_TICK: f64 = 10_000.0;

impl Process {
    pub fn new(child: Child, path_threads: Option<&'static str>, files: TempDir) -> Process {
        Process { child, path_threads, _files: files }
    }

    pub fn cpu(&self) -> Result<Cpu, Error> {
        let whole = whole(self.child.id())?;
        let path = match self.path_threads {
            Some(prefix) => threads(self.child.id(), prefix)?,
            None => whole,
        };
        Ok(Cpu { path, whole })
    }

    /// Resident memory in bytes: now, and at its highest.
    pub fn memory(&self) -> Result<(u64, u64), Error> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let of = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.ok_or_else(|| format!("/proc/PID/status has no {key}"))
        };
        Ok((of("VmRSS:")? * 1024, of("VmHWM:")? * 1024))
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

/// CPU time of a process and all its descendants.
fn whole(pid: u32) -> Result<f64, Error> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The command's name may hold spaces; the fields are counted from behind it. See proc(5).
    let (_, fields) = stat.rsplit_once(')').ok_or("/proc/PID/stat has no name")?;
    let ticks = |field: usize| fields.split_whitespace().nth(field).unwrap_or_default().parse::<f64>();
    let mut spent = (ticks(11)? + ticks(12)?) * MICROS_PER_TICK;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end while we look.
        let children = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        spent += children.split_whitespace().filter_map(|child| whole(child.parse().ok()?).ok()).sum::<f64>();
    }
    Ok(spent)
}

/// CPU time of the threads whose names begin with `prefix`; the scheduler counts it in nanoseconds.
fn threads(pid: u32, prefix: &str) -> Result<f64, Error> {
    let mut spent = 0.0;
    let mut found = false;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        if fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with(prefix)) {
            let times = fs::read_to_string(task.join("schedstat"))?;
            spent += times.split(' ').next().unwrap_or_default().parse::<f64>()? / 1000.0;
            found = true;
        }
    }
    if found { Ok(spent) } else { Err(format!("no thread is named {prefix}*").into()) }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
