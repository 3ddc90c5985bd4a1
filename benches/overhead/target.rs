//! What is measured: the upstream itself, and proxies in front of it as processes of their own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Error;
use crate::options::Options;

/// Where requests go, and whose CPU time counts.
pub struct Target {
    pub name: &'static str,
    pub address: SocketAddr,
    /// Where Serin serves its metrics.
    pub admin: Option<SocketAddr>,
    /// `None` for the upstream itself.
    pub process: Option<Process>,
}

/// A child process with its files; both go away with it.
pub struct Process {
    child: Child,
    _files: TempDir,
}

/// What Serin says when it is ready.
struct Listening {
    traffic: SocketAddr,
    admin: SocketAddr,
}

/// A target that could not be measured.
pub struct Absent {
    pub name: &'static str,
    pub why: String,
    pub required: bool,
}

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Linux counts a process's CPU time in hundredths of a second (USER_HZ) on every architecture we build for.
const MICROS_PER_TICK: u64 = 10_000;

/// Starts every target; those that do not start are named in the report.
pub fn start_all(options: &Options, upstream: SocketAddr) -> Result<(Vec<Target>, Vec<Absent>), Error> {
    let mut targets = vec![Target { name: "direct", address: upstream, admin: None, process: None }];
    let mut absent = Vec::new();
    for (name, record) in [("serin, recording", true), ("serin, not recording", false)] {
        match start_serin(name, &options.serin, upstream, record) {
            Ok(target) => targets.push(target),
            Err(error) => absent.push(Absent { name, why: error.to_string(), required: true }),
        }
    }
    match find_nginx() {
        Some(nginx) => targets.push(start_nginx(&nginx, upstream)?),
        None => absent.push(Absent { name: "nginx", why: "not installed".to_owned(), required: false }),
    }
    for absent in &absent {
        eprintln!("{} is not measured: {}", absent.name, absent.why);
    }
    Ok((targets, absent))
}

fn start_serin(
    name: &'static str,
    binary: &Path,
    upstream: SocketAddr,
    record: bool,
) -> Result<Target, Error> {
    let files = tempfile::tempdir()?;
    let config = files.path().join("config.toml");
    let journal = files.path().join("record");
    fs::write(
        &config,
        format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n\n[admin]\naddress = \"127.0.0.1:0\"\n\n\
             [[upstream]]\nname = \"mock\"\nurl = \"http://{upstream}\"\n\n\
             [record]\nenabled = {record}\ndir = \"{}\"\n\n[canary]\nenabled = false\n\n\
             [fallback]\nfor = []\n\n[limits]\nthreads = 1\n",
            journal.display()
        ),
    )?;
    let mut child = Command::new(binary)
        .args(["serve", "--config"])
        .arg(&config)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{} does not start: {error}", binary.display()))?;
    let log = child.stderr.take().ok_or("serin's log is not readable")?;
    let process = Process { child, _files: files };
    let (found, addresses) = sync_channel(1);
    std::thread::Builder::new()
        .name("serin log".to_owned())
        .spawn(move || watch(BufReader::new(log), &found))?;
    let Listening { traffic, admin } = wait_for(&addresses)?;
    Ok(Target { name, address: traffic, admin: Some(admin), process: Some(process) })
}

/// Reads the log to its end, so that serin never waits for a full pipe, and reports its addresses.
fn watch(log: impl BufRead, found: &SyncSender<Result<Listening, String>>) {
    let mut last = String::new();
    for line in log.lines().map_while(Result::ok) {
        match listening(&line) {
            Some(addresses) => drop(found.try_send(Ok(addresses))),
            None => last = line,
        }
    }
    // Nobody listens any more when the address was found before.
    drop(found.try_send(Err(format!("ended before it listened; its last line was: {last:?}"))));
}

fn wait_for(addresses: &Receiver<Result<Listening, String>>) -> Result<Listening, Error> {
    let first = addresses.recv_timeout(START_TIMEOUT).map_err(|_| "named no address within 20 s")?;
    Ok(first?)
}

/// The addresses after `traffic=` and `admin=` in the line that says `listening`; colours are skipped.
fn listening(line: &str) -> Option<Listening> {
    let plain = without_colours(line);
    let (_, fields) = plain.split_once("listening")?;
    let address = |key: &str| {
        let (_, value) = fields.split_once(key)?;
        value.split_whitespace().next()?.trim_matches('"').parse().ok()
    };
    Some(Listening { traffic: address("traffic=")?, admin: address("admin=")? })
}

fn without_colours(line: &str) -> String {
    let mut pieces = line.split('\u{1b}');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |plain, piece| plain + piece.split_once('m').map_or("", |(_, rest)| rest))
}

fn find_nginx() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join("nginx")).find(|file| file.is_file())
}

/// nginx as one process with one worker, not buffering, with connections kept to the upstream.
fn start_nginx(nginx: &Path, upstream: SocketAddr) -> Result<Target, Error> {
    let files = tempfile::tempdir()?;
    // nginx cannot be asked for any free port: take one and hand it over.
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let folder = files.path().display();
    let config = files.path().join("nginx.conf");
    fs::write(
        &config,
        format!(
            "daemon off;\nmaster_process off;\nworker_processes 1;\npid {folder}/pid;\nerror_log {folder}/error.log;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\n  access_log off;\n  client_body_temp_path {folder}/body;\n  proxy_temp_path {folder}/proxy;\n\
             \x20 fastcgi_temp_path {folder}/fastcgi;\n  uwsgi_temp_path {folder}/uwsgi;\n  scgi_temp_path {folder}/scgi;\n\
             \x20 client_body_buffer_size 256k;\n  client_max_body_size 16m;\n  keepalive_requests 100000000;\n\
             \x20 upstream mock {{ server {upstream}; keepalive 256; keepalive_requests 100000000; }}\n\
             \x20 server {{\n    listen {address};\n    location / {{\n      proxy_pass http://mock;\n\
             \x20     proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
        ),
    )?;
    let child = Command::new(nginx)
        .arg("-c")
        .arg(&config)
        .arg("-e")
        .arg(files.path().join("error.log"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let process = Process { child, _files: files };
    let began = Instant::now();
    while TcpStream::connect(address).is_err() {
        if began.elapsed() > START_TIMEOUT {
            return Err(format!("nginx does not answer on {address}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Target { name: "nginx", address, admin: None, process: Some(process) })
}

impl Target {
    /// CPU time of the target's process since its start, user and system; `None` for the upstream.
    pub fn cpu_micros(&self) -> Result<Option<u64>, Error> {
        self.process.as_ref().map(Process::cpu_micros).transpose()
    }
}

impl Process {
    fn cpu_micros(&self) -> Result<u64, Error> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The command's name may hold spaces; the fields are counted from behind it. See proc(5).
        let (_, fields) = stat.rsplit_once(')').ok_or("/proc/PID/stat has no name")?;
        let ticks = |field: usize| fields.split_whitespace().nth(field).unwrap_or_default().parse::<u64>();
        Ok((ticks(11)? + ticks(12)?) * MICROS_PER_TICK)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
