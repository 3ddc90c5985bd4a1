//! What Serin says it recorded: a run that dropped its recordings would look faster than it is.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::Error;

const FAMILY: &str = "serin_recorder_turns_total{";
const TIMEOUT: Duration = Duration::from_secs(5);
/// A metrics page is far smaller.
const PAGE_LIMIT: u64 = 4 * 1024 * 1024;

/// Exchanges by what was kept of them, as one line.
pub fn read(admin: SocketAddr) -> Result<String, Error> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.take(PAGE_LIMIT).read_to_string(&mut page)?;
    let mut ledger: BTreeMap<&str, f64> = BTreeMap::new();
    for (outcome, count) in page.lines().filter_map(entry) {
        *ledger.entry(outcome).or_default() += count;
    }
    if ledger.is_empty() {
        return Err("the metrics page has no ledger".into());
    }
    let entries: Vec<String> = ledger.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect();
    Ok(entries.join(", "))
}

/// The `outcome` label and the value of one line of the family.
fn entry(line: &str) -> Option<(&str, f64)> {
    let (labels, value) = line.strip_prefix(FAMILY)?.split_once('}')?;
    let (_, outcome) = labels.split_once("outcome=\"")?;
    Some((outcome.split('"').next()?, value.trim().parse().ok()?))
}
