//! Runs Serin under callgrind and reads what it counted.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::cases::Case;
use crate::{Error, address};

/// A function that only the path thread runs.
const ONLY_ON_THE_PATH: &str = "serin::proxy::forward::";
/// Under valgrind everything takes its time.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

/// Ended, whatever happens.
struct Running(Child);

/// Instructions of the path thread in a whole life of Serin that serves `units` of `case`; its count is left in `keep`.
pub fn path_instructions(
    binary: &Path,
    case: &Case,
    units: usize,
    keep: Option<&Path>,
) -> Result<u64, Error> {
    let files = tempfile::tempdir()?;
    let upstream = case.upstream(units)?;
    let (serin, admin) = (address::free()?, address::free()?);
    let config = files.path().join("config.toml");
    fs::write(
        &config,
        format!(
            "[listen]\naddress = \"{serin}\"\n[admin]\naddress = \"{admin}\"\n\
             [[upstream]]\nname = \"mock\"\nurl = \"http://{}\"\n\
             [record]\ndir = \"{}\"\n[canary]\nenabled = false\n[fallback]\nfor = []\n\
             [limits]\nthreads = 1\npool_idle = \"1h\"\n[log]\nlevel = \"error\"\n",
            upstream.address,
            files.path().join("record").display()
        ),
    )?;
    let mut running = start(binary, files.path(), &config)?;
    wait_for(serin, &mut running.0)?;
    case.drive(serin, &upstream, units).map_err(|error| format!("{}: {error}", case.name))?;
    stop(&mut running.0)?;
    let (file, count) = read(files.path())?;
    if let Some(folder) = keep {
        fs::create_dir_all(folder)?;
        fs::copy(file, folder.join(case.name))?;
    }
    Ok(count)
}

fn start(binary: &Path, files: &Path, config: &Path) -> Result<Running, Error> {
    let child = Command::new("valgrind")
        .args(["--tool=callgrind", "--separate-threads=yes", "--log-file=/dev/null"])
        .arg(format!("--callgrind-out-file={}", files.join("counted").display()))
        .arg(binary)
        .args(["serve", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    let child = child
        .map_err(|error| format!("valgrind does not start ({error}); on Debian: apt-get install valgrind"))?;
    Ok(Running(child))
}

fn wait_for(address: SocketAddr, serin: &mut Child) -> Result<(), Error> {
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        if let Some(status) = serin.try_wait()? {
            return Err(format!("serin ended before it listened: {status}").into());
        }
        if began.elapsed() > START_TIMEOUT {
            return Err("serin does not listen".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Valgrind writes its counts when the program ends by itself.
fn stop(serin: &mut Child) -> Result<(), Error> {
    let pid = i32::try_from(serin.id()).ok().and_then(Pid::from_raw).ok_or("no process id")?;
    kill_process(pid, Signal::TERM)?;
    let began = Instant::now();
    while began.elapsed() < STOP_TIMEOUT {
        if let Some(status) = serin.try_wait()? {
            return if status.success() {
                Ok(())
            } else {
                Err(format!("serin ended badly: {status}").into())
            };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("serin does not end".into())
}

/// One file for each thread; the path's is the one with the path's functions in it.
fn read(files: &Path) -> Result<(PathBuf, u64), Error> {
    let mut found = Vec::new();
    for file in fs::read_dir(files)? {
        let file = file?.path();
        let of_a_thread = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("counted-"));
        if !of_a_thread {
            continue;
        }
        let text = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
        if text.contains(ONLY_ON_THE_PATH) {
            let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
            found.push((file, total.ok_or("a count without totals")?.trim().parse()?));
        }
    }
    match found.pop() {
        Some(one) if found.is_empty() => Ok(one),
        _ => Err("not exactly one thread looks like the path; has its code moved?".into()),
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended by itself, unless something went wrong.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
