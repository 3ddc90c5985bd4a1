//! Proves a journal: reads every frame and compares every body with what was noted of it when it was recorded.

use std::path::Path;

use bytes::Bytes;
use serde::Serialize;

use super::record::{Capture, Exchange, Record};
use super::{Damage, Position, Reader, Result, segment};

/// Faults that are named one by one; the others are counted.
const NAMED: usize = 100;

/// What a journal was found to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Proof {
    pub segments: u64,
    pub exchanges: u64,
    pub links: u64,
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
    /// Records that do not hold what they say.
    pub faults: u64,
    pub first_faults: Vec<Fault>,
    #[serde(flatten)]
    pub damage: Damage,
}

/// A record that does not hold what it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    #[serde(flatten)]
    pub position: Position,
    /// The exchange's id.
    pub id: String,
    pub what: &'static str,
}

impl Proof {
    /// Whether everything that was written can be read and is what it was. An unfinished write at the end is no damage: a
    /// process may be writing, or was killed before it had promised anything of it.
    pub fn is_sound(&self) -> bool {
        self.faults == 0 && !self.damage.is_loss()
    }

    fn exchange(&mut self, position: Position, exchange: &Exchange) {
        self.exchanges += 1;
        let request = (exchange.request_capture(), &exchange.request_body, &exchange.request_body_hash);
        let response = (exchange.response_capture(), &exchange.response_body, &exchange.response_body_hash);
        let pieces: u64 = exchange.edge_lengths.iter().map(|length| u64::from(*length)).sum();
        let whole = response.0 == Capture::Whole;
        let faults = [
            (!self.body(request)).then_some("the request's body has another hash than was noted"),
            (!self.body(response)).then_some("the response's body has another hash than was noted"),
            (exchange.edge_lengths.len() != exchange.edge_micros.len())
                .then_some("the response's pieces and their times differ in number"),
            (whole && pieces != 0 && pieces != exchange.response_body.len() as u64)
                .then_some("the response's pieces do not add up to its body"),
        ];
        for what in faults.into_iter().flatten() {
            self.faults += 1;
            if self.first_faults.len() < NAMED {
                self.first_faults.push(Fault { position, id: exchange.id.clone(), what });
            }
        }
    }

    /// Whether a body is what it was; one that was not kept whole is believed.
    fn body(&mut self, (capture, body, noted): (Capture, &Bytes, &Bytes)) -> bool {
        if capture != Capture::Whole {
            self.partial_bodies += 1;
            return true;
        }
        let same = blake3::hash(body).as_bytes() == &noted[..];
        if same {
            self.proven_bodies += 1;
            self.proven_bytes += body.len() as u64;
        }
        same
    }
}

/// Reads the journal in `dir` from its beginning to its end. Memory does not grow with it.
///
/// # Errors
/// As [`Reader::open`]; damage is no error but a part of the proof.
pub fn verify(dir: &Path) -> Result<Proof> {
    let mut reader = Reader::open(dir)?;
    let mut proof = Proof { segments: segment::list(dir)?.len() as u64, ..Proof::default() };
    for entry in &mut reader {
        match entry? {
            (position, Record::Exchange(exchange)) => proof.exchange(position, &exchange),
            (_, Record::Link(_)) => proof.links += 1,
            (_, Record::Gap(gap)) => {
                proof.gaps += 1;
                proof.lost_exchanges += gap.count;
            }
            (_, Record::Unknown { .. }) => proof.unknown += 1,
        }
    }
    proof.damage = reader.damage();
    Ok(proof)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        proof.exchange(Position::default(), exchange);
        proof.first_faults.iter().map(|fault| fault.what).collect()
    }

    #[test]
    fn a_body_that_is_not_what_it_was_is_a_fault() {
        assert!(faults(&whole(b"abc")).is_empty());
        let changed = Exchange { request_body: Bytes::from_static(b"abd"), ..whole(b"abc") };
        assert_eq!(faults(&changed), ["the request's body has another hash than was noted"]);
        let changed = Exchange { response_body: Bytes::from_static(b"x"), ..whole(b"abc") };
        assert_eq!(faults(&changed), ["the response's body has another hash than was noted"]);
        let mut partial = changed;
        partial.set_response_capture(Capture::Truncated);
        assert!(faults(&partial).is_empty());
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
        (0..=NAMED).for_each(|_| proof.exchange(Position::default(), &changed));
        assert_eq!((proof.faults, proof.first_faults.len()), (NAMED as u64 + 1, NAMED));
        assert!(!proof.is_sound());
    }
}
