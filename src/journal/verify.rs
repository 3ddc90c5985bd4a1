//! Proves a journal: reads every frame and compares every body with what was noted of it when it was recorded.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use super::record::{Capture, Exchange, Record};
use super::scan::{self, Scan};
use super::segment::{self, Class, SegmentFile};
use super::{Damage, Error, Keychain, Lsn, Reader, Result};

/// Faults that are named one by one; the others are counted.
const NAMED: usize = 100;

/// What a journal was found to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proof {
    pub segments: u64,
    pub exchanges: u64,
    pub links: u64,
    /// Records of exchanges that had begun.
    pub starts: u64,
    /// Records of what was found about turns.
    pub flags: u64,
    /// Records that say that something went unrecorded, and how much that was.
    pub gaps: u64,
    pub lost_exchanges: u64,
    /// Records of a type of a later version.
    pub unknown: u64,
    /// Bodies whose bytes have the hash that was noted, and how many bytes they have.
    pub proven_bodies: u64,
    pub proven_bytes: u64,
    /// Bodies that were not kept whole: there is nothing to compare.
    pub partial_bodies: u64,
    /// Bodies that were kept for as long as was asked for, and are gone.
    pub expired_bodies: u64,
    /// Records that do not hold what they say.
    pub faults: u64,
    pub first_faults: Vec<Fault>,
    #[serde(flatten)]
    pub damage: Damage,
    /// What is said of the first segment whose key is not here.
    #[serde(skip)]
    pub first_locked: Option<String>,
}

/// A record that does not hold what it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    pub lsn: Lsn,
    /// The exchange's id.
    pub id: String,
    pub what: &'static str,
}

impl Proof {
    /// Whether everything that was written can be read and is what it was. An unfinished write at the end is no damage: a
    /// process may be writing, or was killed before it had promised anything of it.
    pub fn is_sound(&self) -> bool {
        !self.is_damaged() && self.damage.locked_segments == 0
    }

    /// Whether something is not what it was. Of what is encrypted with a key that is not here, only checksums tell.
    pub fn is_damaged(&self) -> bool {
        self.faults > 0 || self.damage.is_loss()
    }

    fn exchange(&mut self, lsn: Lsn, exchange: &Exchange, kept: Kept) {
        self.exchanges += 1;
        let noted = |kept: &Bytes, sent: &Bytes| if kept.is_empty() { sent.clone() } else { kept.clone() };
        let request = noted(&exchange.request_kept_hash, &exchange.request_body_hash);
        let response = noted(&exchange.response_kept_hash, &exchange.response_body_hash);
        let whole = exchange.response_capture() == Capture::Whole && kept.response == State::There;
        let pieces: u64 = exchange.edge_lengths.iter().map(|length| u64::from(*length)).sum();
        let faults = [
            self.body(exchange.request_capture(), kept.request, &exchange.request_body, &request)
                .then_some("the request's body is not there or has another hash than was noted"),
            self.body(exchange.response_capture(), kept.response, &exchange.response_body, &response)
                .then_some("the response's body is not there or has another hash than was noted"),
            (exchange.edge_lengths.len() != exchange.edge_micros.len())
                .then_some("the response's pieces and their times differ in number"),
            (whole && pieces != 0 && pieces != exchange.response_body.len() as u64)
                .then_some("the response's pieces do not add up to its body"),
        ];
        for what in faults.into_iter().flatten() {
            self.fault(Fault { lsn, id: exchange.id.clone(), what });
        }
    }

    fn fault(&mut self, fault: Fault) {
        self.faults += 1;
        if self.first_faults.len() < NAMED {
            self.first_faults.push(fault);
        }
    }

    /// Whether a body is not what it was. One that was not kept whole is believed.
    fn body(&mut self, capture: Capture, state: State, body: &Bytes, noted: &Bytes) -> bool {
        match (capture, state) {
            (_, State::Expired) => self.expired_bodies += 1,
            (Capture::Whole, State::Lost) => return true,
            (Capture::Whole, State::There) if blake3::hash(body).as_bytes() != &noted[..] => return true,
            (Capture::Whole, State::There) => {
                self.proven_bodies += 1;
                self.proven_bytes += body.len() as u64;
            }
            _ => self.partial_bodies += 1,
        }
        false
    }

    /// A sealed file must have the hash that stands at its end.
    fn file(&mut self, path: &Path, number: u64, keys: &Keychain) -> Result<()> {
        let io = |source| Error::io("read", path, source);
        let mut scan = match Scan::open(path, number, keys) {
            Ok(scan) => scan,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(io(error)),
        };
        let sealed = scan.header.is_some_and(|header| header.class != Class::Mixed);
        if scan.missing(path).is_some() {
            while scan.next_frame().map_err(io)?.is_some() {}
            let tail = if sealed { scan.len().saturating_sub(scan.offset()) } else { 0 };
            self.damage.holes += scan.holes + u64::from(tail > 0);
            self.damage.skipped_bytes += scan.skipped + tail;
        } else if sealed && !scan.is_whole().map_err(io)? {
            let id = path.display().to_string();
            self.fault(Fault {
                lsn: Lsn::first_of(number),
                id,
                what: "the file has another hash than was noted",
            });
        }
        Ok(())
    }
}

/// What has become of a body that was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    There,
    /// Its class of records is no longer kept for that day.
    Expired,
    Lost,
}

/// What has become of both bodies.
#[derive(Clone, Copy, Debug)]
struct Kept {
    request: State,
    response: State,
}

/// Which classes of records are still kept, by the folders of their days.
struct Days(Vec<SegmentFile>);

impl Days {
    fn state(&self, found: bool, lsn: Lsn, class: Class) -> State {
        let folder = self.0.iter().find(|file| file.number == lsn.segment()).map(|file| &file.dir);
        let has = |file: &SegmentFile| file.is_open() || file.classes.contains(&class);
        match self.0.iter().any(|file| Some(&file.dir) == folder && has(file)) {
            _ if found => State::There,
            true => State::Lost,
            false => State::Expired,
        }
    }
}

/// Reads the journal in `dir` from its beginning to its end. Memory does not grow with it.
///
/// # Errors
/// As [`Reader::open`]; damage is no error but a part of the proof.
pub fn verify(dir: &Path, keys: &Arc<Keychain>) -> Result<Proof> {
    let mut reader = Reader::open_at(dir, Lsn::default(), keys.clone())?.bare();
    let days = Days(segment::list(dir)?);
    let mut proof = Proof { segments: days.0.len() as u64, ..Proof::default() };
    while let Some(entry) = reader.next() {
        match entry? {
            (lsn, Record::Exchange(mut exchange)) => {
                let streamed = exchange.stream_back > 0;
                let found = reader.fill(&mut exchange, lsn)?;
                let class = if streamed { Class::Stream } else { Class::Content };
                let request = days.state(found.request, lsn, Class::Content);
                let kept = Kept { request, response: days.state(found.response, lsn, class) };
                proof.exchange(lsn, &exchange, kept);
            }
            (_, Record::Link(_)) => proof.links += 1,
            (_, Record::Flag(_)) => proof.flags += 1,
            (_, Record::Start(_)) => proof.starts += 1,
            (_, Record::Gap(gap)) => {
                proof.gaps += 1;
                proof.lost_exchanges += gap.count;
            }
            _ => proof.unknown += 1,
        }
    }
    proof.damage = reader.damage();
    proof.first_locked = reader.first_locked().map(str::to_owned);
    for file in &days.0 {
        file.classes.iter().try_for_each(|class| proof.file(&file.path(*class), file.number, keys))?;
    }
    Ok(proof)
}

/// What is said of the first segment of a journal whose key is not here.
///
/// # Errors
/// [`Error::Io`].
pub fn locked(dir: &Path, keys: &Keychain) -> Result<Option<Error>> {
    scan::locked(&segment::list(dir)?, keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: Kept = Kept { request: State::There, response: State::There };

    fn whole(body: &'static [u8]) -> Exchange {
        Exchange {
            request_body: Bytes::from_static(body),
            request_body_hash: Bytes::copy_from_slice(blake3::hash(body).as_bytes()),
            response_body_hash: Bytes::copy_from_slice(blake3::hash(b"").as_bytes()),
            ..Exchange::default()
        }
    }

    fn faults(exchange: &Exchange) -> Vec<&'static str> {
        let mut proof = Proof::default();
        proof.exchange(Lsn::default(), exchange, THERE);
        proof.first_faults.iter().map(|fault| fault.what).collect()
    }

    #[test]
    fn a_body_that_is_not_what_it_was_is_a_fault() {
        assert!(faults(&whole(b"abc")).is_empty());
        let changed = Exchange { request_body: Bytes::from_static(b"abd"), ..whole(b"abc") };
        assert_eq!(faults(&changed), ["the request's body is not there or has another hash than was noted"]);
        let changed = Exchange { response_body: Bytes::from_static(b"x"), ..whole(b"abc") };
        assert_eq!(faults(&changed), ["the response's body is not there or has another hash than was noted"]);
        let mut partial = changed;
        partial.set_response_capture(Capture::Truncated);
        assert!(faults(&partial).is_empty());
        let mut proof = Proof::default();
        let kept = Kept { request: State::Expired, response: State::Lost };
        proof.exchange(Lsn::default(), &whole(b"abc"), kept);
        assert_eq!((proof.expired_bodies, proof.faults), (1, 1));
    }

    #[test]
    fn pieces_make_up_the_whole() {
        let body = Bytes::from_static(b"abc");
        let hash = Bytes::copy_from_slice(blake3::hash(&body).as_bytes());
        let pieces = |lengths: &[u32], micros: &[u32]| {
            faults(&Exchange {
                response_body: body.clone(),
                response_body_hash: hash.clone(),
                edge_lengths: lengths.to_vec(),
                edge_micros: micros.to_vec(),
                ..whole(b"")
            })
        };
        assert!(pieces(&[1, 2], &[7, 0]).is_empty());
        assert_eq!(pieces(&[1, 1], &[7, 0]), ["the response's pieces do not add up to its body"]);
        assert_eq!(pieces(&[1, 2], &[7]), ["the response's pieces and their times differ in number"]);
    }

    #[test]
    fn faults_are_counted_past_the_ones_that_are_named() {
        let mut proof = Proof::default();
        let changed = Exchange { request_body: Bytes::from_static(b"abd"), ..whole(b"abc") };
        (0..=NAMED).for_each(|_| proof.exchange(Lsn::default(), &changed, THERE));
        assert_eq!((proof.faults, proof.first_faults.len()), (NAMED as u64 + 1, NAMED));
        assert!(!proof.is_sound());
    }
}
