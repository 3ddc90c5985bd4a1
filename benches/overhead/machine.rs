//! Where the numbers were taken.

use std::fs;

/// One line: date, processor, cores, kernel and how busy the machine was.
pub fn describe() -> String {
    let date = jiff::Timestamp::now().to_string();
    let date = date.split('T').next().unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    let load = load.split(' ').next().unwrap_or_default();
    format!("{date}, {}, {cores} cores, Linux {}, load average at the end {load}", processor(), kernel.trim())
}

fn processor() -> String {
    let cpuinfo = read("/proc/cpuinfo");
    let model =
        cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown processor");
    model.trim_start_matches(['\t', ' ', ':']).to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
