//! What Serin says it recorded: a run that dropped its records would look faster than it is.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::Error;

const FAMILY: &str = "serin_recorder_turns_total{";
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long the recorder may need for what a saturated run has left in its queue.
const SETTLE: Duration = Duration::from_secs(30);
/// A metrics page is far smaller.
const PAGE_LIMIT: u64 = 4 * 1024 * 1024;

/// Exchanges by what was kept of them.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Books {
    pub full: f64,
    /// Recorded without bodies, or with a part of them.
    pub reduced: f64,
    pub dropped: f64,
    /// Not to be recorded.
    pub off: f64,
}

impl Books {
    pub fn read(admin: SocketAddr) -> Result<Books, Error> {
        let page = page(admin)?;
        let mut books = Books::default();
        for (outcome, count) in page.lines().filter_map(entry) {
            match outcome {
                "full" => books.full += count,
                "dropped" => books.dropped += count,
                "off" => books.off += count,
                _ => books.reduced += count,
            }
        }
        Ok(books)
    }

    /// Waits until everything that has ended has been entered, and reads.
    pub fn settled(admin: SocketAddr, before: Books, exchanges: u64) -> Result<Books, Error> {
        let began = Instant::now();
        loop {
            let now = Books::read(admin)?;
            if now.since(before).sum() >= exchanges as f64 || began.elapsed() > SETTLE {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn since(self, before: Books) -> Books {
        Books {
            full: self.full - before.full,
            reduced: self.reduced - before.reduced,
            dropped: self.dropped - before.dropped,
            off: self.off - before.off,
        }
    }

    pub fn and(self, other: Books) -> Books {
        Books {
            full: self.full + other.full,
            reduced: self.reduced + other.reduced,
            dropped: self.dropped + other.dropped,
            off: self.off + other.off,
        }
    }

    pub fn sum(self) -> f64 {
        self.full + self.reduced + self.dropped + self.off
    }
}

/// The value of the first series whose line begins so.
pub fn gauge(admin: SocketAddr, series: &str) -> Result<f64, Error> {
    let page = page(admin)?;
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.split_whitespace().last());
    Ok(value.ok_or_else(|| format!("the metrics page has no {series}"))?.parse()?)
}

fn page(admin: SocketAddr) -> Result<String, Error> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n")?;
    let mut page = String::new();
    stream.take(PAGE_LIMIT).read_to_string(&mut page)?;
    Ok(page)
}

/// The `outcome` label and the value of one line of the family.
fn entry(line: &str) -> Option<(&str, f64)> {
    let (labels, value) = line.strip_prefix(FAMILY)?.split_once('}')?;
    let (_, outcome) = labels.split_once("outcome=\"")?;
    Some((outcome.split('"').next()?, value.trim().parse().ok()?))
}
