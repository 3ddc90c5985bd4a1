//! The binary itself: exit codes, signals, kills.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

/// `serin` with these arguments, run in `dir`, to its end.
pub fn run(dir: &Path, arguments: &[&str]) -> Output {
    command(dir).args(arguments).output().unwrap()
}

pub fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_serin"));
    command.current_dir(dir).stdin(Stdio::null());
    command
}

/// A running `serin serve`.
pub struct Program {
    child: Child,
    errors: Option<BufReader<ChildStderr>>,
    /// What it said before it listened.
    pub begun: String,
    pub traffic: SocketAddr,
    pub admin: SocketAddr,
}

impl Program {
    /// Starts it in `dir`, recording there, in front of `address` and with no engine behind it.
    pub fn before(address: SocketAddr, dir: &Path) -> Self {
        Self::with(address, dir, "")
    }

    /// The same with further settings.
    pub fn with(address: SocketAddr, dir: &Path, extra: &str) -> Self {
        let upstream = format!(
            "[[upstream]]\nname = \"router\"\nurl = \"http://{address}\"\n{extra}\n[fallback]\nfor = []\n"
        );
        std::fs::write(dir.join("config.toml"), super::base(dir, &upstream)).unwrap();
        Self::start(command(dir))
    }

    /// Starts it with the `config.toml` that lies in `dir`, and waits until it says where it listens.
    pub fn start(command: Command) -> Self {
        Self::start_into(command, Stdio::null())
    }

    /// The same, with its standard output somewhere.
    pub fn start_into(mut command: Command, output: Stdio) -> Self {
        let mut child = command.stdout(output).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut begun) = (String::new(), String::new());
        loop {
            begun.push_str(&line);
            line.clear();
            assert!(errors.read_line(&mut line).unwrap() > 0, "serin ended before it listened");
            if line.contains("listening") {
                break;
            }
        }
        let address = |name: &str| {
            let value =
                line.split(&format!("{name}=")).nth(1).unwrap_or_else(|| panic!("no {name} in {line:?}"));
            value.split_whitespace().next().unwrap().parse().unwrap()
        };
        Self { traffic: address("traffic"), admin: address("admin"), child, errors: Some(errors), begun }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Sets the size that its files may have; `unlimited` or bytes. This stands for a disk that is full.
    pub fn file_limit(&self, limit: &str) {
        let set = Command::new("prlimit")
            .args(["--pid", &self.pid().to_string(), &format!("--fsize={limit}:unlimited")])
            .status();
        assert!(set.is_ok_and(|status| status.success()), "prlimit (util-linux) is needed");
    }

    /// A figure of `/proc/PID/status`, in kilobytes.
    pub fn kilobytes(&self, name: &str) -> usize {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
            .unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Its open files and sockets, and how many of them are sockets.
    pub fn open_files(&self) -> (usize, usize) {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap();
        let names: Vec<_> = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()).collect();
        let sockets = names.iter().filter(|name| name.to_string_lossy().starts_with("socket:")).count();
        (names.len(), sockets)
    }

    /// The value of one series.
    pub fn metric(&self, series: &str) -> Option<f64> {
        super::value(&String::from_utf8(super::wire::get(self.admin, "/metrics").body).unwrap(), series)
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; returns the exit code and what else it said.
    pub fn wait(&mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        if let Some(mut errors) = self.errors.take() {
            let _ = errors.read_to_string(&mut said);
        }
        (self.child.wait().unwrap().code(), said)
    }

    /// Reads its log until a line contains `text`.
    pub fn says(&mut self, text: &str) -> String {
        let errors = self.errors.as_mut().expect("not waited for yet");
        let mut line = String::new();
        while errors.read_line(&mut line).unwrap() > 0 {
            if line.contains(text) {
                return line;
            }
            line.clear();
        }
        panic!("serin ended without saying {text:?}")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
