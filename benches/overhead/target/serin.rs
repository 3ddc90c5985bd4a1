//! Serin: one path thread, and with recording everything that production has.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::{Role, START_TIMEOUT, Target};
use crate::Error;
use crate::process::Process;

/// Serin's threads that clients wait for.
const PATH_THREADS: &str = "serin-path";

/// What Serin says when it is ready.
struct Listening {
    traffic: SocketAddr,
    admin: SocketAddr,
}

/// Without recording there are no canaries either: what is left is a plain proxy.
pub fn start(binary: &Path, upstream: SocketAddr, record: bool) -> Result<Target, Error> {
    let files = tempfile::tempdir()?;
    let config = files.path().join("config.toml");
    let journal = files.path().join("record");
    fs::write(
        &config,
        format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n\n[admin]\naddress = \"127.0.0.1:0\"\n\n\
             [[upstream]]\nname = \"mock\"\nurl = \"http://{upstream}\"\n\n\
             [record]\nenabled = {record}\ndir = \"{}\"\n\n\
             [canary]\nenabled = {record}\ninterval = \"5s\"\nmodel = \"mock\"\n\n\
             [fallback]\nfor = []\n\n\
             [limits]\nthreads = 1\nconnections = 65536\nin_flight = 65536\n",
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
    let process = Process::new(child, Some(PATH_THREADS), files);
    let (found, addresses) = sync_channel(1);
    std::thread::Builder::new()
        .name("serin log".to_owned())
        .spawn(move || watch(BufReader::new(log), &found))?;
    let Listening { traffic, admin } = wait_for(&addresses)?;
    let (name, role) = match record {
        true => ("serin, recording", Role::Recording),
        false => ("serin, not recording", Role::NotRecording),
    };
    Ok(Target { admin: Some(admin), process: Some(process), ..Target::plain(name, role, traffic) })
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
    let first = addresses.recv_timeout(START_TIMEOUT).map_err(|_| "named no address in time")?;
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
