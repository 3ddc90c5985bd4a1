//! Processor time of single threads.

use std::fs;

/// Microseconds that the threads of that name have run, as the scheduler counts them.
pub fn cpu_micros(name: &str) -> f64 {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0.0 };
    let nanos = tasks.flatten().filter_map(|task| {
        let comm = fs::read_to_string(task.path().join("comm")).ok()?;
        let ran = fs::read_to_string(task.path().join("schedstat")).ok()?;
        // The kernel keeps 15 bytes of a name.
        (comm.trim_end() == &name[..name.len().min(15)])
            .then(|| ran.split(' ').next()?.parse::<f64>().ok())?
    });
    nanos.sum::<f64>() / 1000.0
}
