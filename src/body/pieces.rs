//! A body of unknown length, copied for later in pieces: it grows without being moved, and whoever wants it whole puts
//! it together off the path.

use bytes::Bytes;

use super::budget::Lease;

/// Pieces grow with what is there, between these.
const LEAST: usize = 1 << 10;
const MOST: usize = 16 << 10;

/// A copy that grows until its lease is spent.
#[derive(Debug)]
pub struct Pieces {
    full: Vec<Bytes>,
    last: Vec<u8>,
    length: usize,
    lease: Lease,
    /// Something did not fit: nothing more is kept, so that what is there is a beginning and has no holes.
    overrun: bool,
}

impl Pieces {
    pub fn new(lease: Lease) -> Self {
        Self { full: Vec::new(), last: Vec::new(), length: 0, lease, overrun: false }
    }

    pub fn overrun(&self) -> bool {
        self.overrun
    }

    /// Keeps `data` if it fits; `to_come` is what is known to follow, so that a body of known length is one piece.
    pub fn push(&mut self, data: &[u8], to_come: u64) -> bool {
        if self.overrun {
            return false;
        }
        let (here, rest) = data.split_at(data.len().min(self.last.capacity() - self.last.len()));
        if !rest.is_empty() {
            let Some(mut next) = self.next(rest.len(), to_come) else {
                self.overrun = true;
                return false;
            };
            next.extend_from_slice(rest);
            self.last.extend_from_slice(here);
            let before = std::mem::replace(&mut self.last, next);
            if !before.is_empty() {
                self.full.push(before.into());
            }
        } else {
            self.last.extend_from_slice(here);
        }
        self.length += data.len();
        true
    }

    /// Takes memory that is kept elsewhere into the same lease.
    pub fn account(&mut self, bytes: u64) -> bool {
        self.overrun |= !self.lease.grow(bytes);
        !self.overrun
    }

    /// Room for the next piece: generously if the lease allows it, else just enough.
    fn next(&mut self, length: usize, to_come: u64) -> Option<Vec<u8>> {
        let known = length.saturating_add(usize::try_from(to_come).unwrap_or(usize::MAX));
        let ahead = known.max(self.length.clamp(LEAST, MOST));
        let capacity = [ahead, length].into_iter().find(|wish| self.lease.grow(*wish as u64))?;
        Some(Vec::with_capacity(capacity))
    }

    /// The copy and the lease on its memory, which must live as long.
    pub fn into_parts(mut self) -> (Vec<Bytes>, Lease) {
        if !self.last.is_empty() {
            self.full.push(self.last.into());
        }
        (self.full, self.lease)
    }
}

/// Pieces in their order as one.
pub fn joined(mut pieces: Vec<Bytes>) -> Bytes {
    match pieces.len() {
        0 | 1 => pieces.pop().unwrap_or_default(),
        _ => pieces.concat().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::budget::Budget;
    use proptest::prelude::*;

    #[test]
    fn the_lease_stands_for_the_memory_taken() {
        let budget = Budget::new(100_000);
        let mut pieces = Pieces::new(budget.lease(100_000));
        for _ in 0..6000 {
            assert!(pieces.push(b"0123456789", 0));
        }
        let held: usize = pieces.full.iter().map(Bytes::len).sum::<usize>() + pieces.last.capacity();
        assert!(held as u64 == budget.used() && held <= 76_000, "{held}, {}", budget.used());
        let (all, lease) = pieces.into_parts();
        assert_eq!(joined(all).len(), 60_000);
        drop(lease);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_is_kept_has_no_holes() {
        let budget = Budget::new(1_000_000);
        let mut pieces = Pieces::new(budget.lease(1_600));
        assert!(pieces.push(&[1; 500], 0));
        assert!(pieces.push(&[2; 900], 0), "just enough is enough");
        assert!(!pieces.push(&[3; 300], 0), "past the lease");
        assert!(!pieces.push(&[4; 1], 0), "nothing follows what did not fit");
        assert_eq!(joined(pieces.into_parts().0), [[1; 500].as_slice(), &[2; 900]].concat());
    }

    #[test]
    fn a_known_length_is_one_piece() {
        let mut pieces = Pieces::new(Budget::new(1 << 20).lease(1 << 20));
        assert!(pieces.push(&[1; 100], 99_900) && pieces.push(&[1; 99_900], 0));
        assert_eq!(pieces.into_parts().0.len(), 1);
    }

    proptest! {
        #[test]
        fn what_comes_out_is_what_went_in(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..3000), 0u64..5000), 0..40),
            most in 0u64..60_000,
        ) {
            let budget = Budget::new(50_000);
            let mut pieces = Pieces::new(budget.lease(most));
            let mut wanted = Vec::new();
            for (part, to_come) in &parts {
                if pieces.push(part, *to_come) {
                    wanted.extend_from_slice(part);
                }
            }
            prop_assert!(budget.used() <= most.min(50_000));
            prop_assert_eq!(joined(pieces.into_parts().0), wanted);
        }
    }
}
