//! The program under test: started, looked at from outside, stopped.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::Error;

/// A running Serin and what it has logged.
pub struct Serin {
    child: Child,
    reader: Option<std::thread::JoinHandle<()>>,
    log: Arc<Mutex<Log>>,
    dir: PathBuf,
    pub traffic: SocketAddr,
    pub admin: SocketAddr,
    pub pid: Pid,
}

/// Lines that matter, and how many there were of all.
#[derive(Clone, Default)]
pub struct Log {
    pub lines: u64,
    /// Errors and panics, but for those that our own weather asks for.
    pub bad: Vec<String>,
    pub disk_errors: u64,
}

/// What `/proc` says of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Size {
    pub files: usize,
    pub rss_kib: u64,
    pub threads: usize,
}

/// One reading of `/metrics`: series with their labels, and values.
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// One series, written as in the exposition.
    pub fn one(&self, series: &str) -> f64 {
        self.0.get(series).copied().unwrap_or(0.0)
    }

    /// The sum over all series of a family.
    pub fn sum(&self, family: &str) -> f64 {
        self.sum_where(family, "")
    }

    /// The sum over those series of a family that carry the label, written as in the exposition.
    pub fn sum_where(&self, family: &str, label: &str) -> f64 {
        let wanted = |name: &str| name.split('{').next() == Some(family) && name.contains(label);
        self.0.iter().filter(|(name, _)| wanted(name)).map(|(_, value)| value).sum()
    }
}

impl Serin {
    pub fn start(upstream: SocketAddr, dir: &Path) -> Result<Serin, Error> {
        std::fs::write(dir.join("config.toml"), config(upstream, 0))?;
        let mut child = Command::new(env!("CARGO_BIN_EXE_serin"))
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let stderr = child.stderr.take().ok_or("no standard error")?;
        let mut lines = BufReader::new(stderr);
        let listening = loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                return Err("serin ended before it listened".into());
            }
            if line.contains("listening") {
                break line;
            }
        };
        let pid = Pid::from_raw(child.id().try_into()?).ok_or("no process id")?;
        let log = Arc::new(Mutex::new(Log::default()));
        let kept = log.clone();
        let reader = std::thread::spawn(move || read_log(lines, &kept));
        let (traffic, admin) = (address(&listening, "traffic=")?, address(&listening, "admin=")?);
        Ok(Serin { child, reader: Some(reader), log, dir: dir.to_owned(), traffic, admin, pid })
    }

    pub fn log(&self) -> Log {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn metrics(&self) -> Result<Metrics, Error> {
        let mut stream = TcpStream::connect(self.admin)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let series = text.lines().filter(|line| line.starts_with("serin_"));
        let read = series.filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Ok(Metrics(read.collect()))
    }

    pub fn size(&self) -> Result<Size, Error> {
        let proc = PathBuf::from(format!("/proc/{}", self.pid.as_raw_nonzero()));
        let status = std::fs::read_to_string(proc.join("status"))?;
        let field = |name: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
        };
        let files = std::fs::read_dir(proc.join("fd"))?.count();
        Ok(Size { files, rss_kib: field("VmRSS:"), threads: field("Threads:") as usize })
    }

    /// Asks it to stop and waits; returns its exit code.
    pub fn stop(&mut self) -> Result<Option<i32>, Error> {
        kill_process(self.pid, Signal::TERM)?;
        let begun = std::time::Instant::now();
        while self.child.try_wait()?.is_none() {
            if begun.elapsed() > Duration::from_secs(60) {
                return Err("serin did not end within a minute of SIGTERM".into());
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        Ok(self.child.wait()?.code())
    }

    /// The recorded conversations as `sessions list` counts them, and what it complains of.
    pub fn sessions(&self) -> Result<(usize, String), Error> {
        let listed = Command::new(env!("CARGO_BIN_EXE_serin"))
            .current_dir(&self.dir)
            .args(["sessions", "list", "--json", "--limit", "1000000"])
            .output()?;
        let mut complaint = String::from_utf8_lossy(&listed.stderr).trim().to_owned();
        if !listed.status.success() {
            complaint.push_str(&format!(" ({})", listed.status));
        }
        Ok((String::from_utf8_lossy(&listed.stdout).lines().count(), complaint))
    }
}

impl Drop for Serin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address(line: &str, name: &str) -> Result<SocketAddr, Error> {
    let value = line.split(name).nth(1).and_then(|rest| rest.split_whitespace().next());
    Ok(value.ok_or_else(|| format!("no {name} in {line:?}"))?.parse()?)
}

fn read_log(lines: BufReader<ChildStderr>, log: &Mutex<Log>) {
    for line in lines.lines().map_while(Result::ok) {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.lines += 1;
        // What comes of the full disk that we have made.
        let ours = line.contains("recording fails") || line.contains("a segment could not be sealed");
        log.disk_errors += u64::from(ours);
        if (line.contains("ERROR") || line.contains("panicked")) && !ours && log.bad.len() < 20 {
            log.bad.push(line);
        }
    }
}

/// Short limits, so that a minute sees all of them at work; bodies pass the copies' limit now and then.
/// `turn` makes each a little different, so that there is something to put in force.
pub fn config(upstream: SocketAddr, turn: u64) -> String {
    let idle = 600 + turn;
    format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [[upstream]]\nname = \"router\"\nurl = \"http://{upstream}\"\n\
         [breaker]\nfailures = 40\nopen = \"200ms\"\n\
         [fallback]\nmodel = \"\"\nfor = []\n\
         [record]\ndir = \"data\"\nmemory = \"64MiB\"\n\
         [canary]\nenabled = false\n\
         [limits]\nbody_copy = \"1MiB\"\nheader_read = \"2s\"\npool_idle = \"1s\"\nidle = \"{idle}s\"\ndrain = \"20s\"\n"
    )
}
