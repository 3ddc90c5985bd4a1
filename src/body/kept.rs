//! Bytes copied for later, in memory of their own.
//!
//! A slice of a connection's read buffer holds the whole buffer, however few bytes it shows; a thousand small slices can
//! hold megabytes. So what is kept is copied, and the lease stands for the memory that is really taken.

use bytes::Bytes;

use super::budget::Lease;

/// A copy that grows until its lease is spent.
#[derive(Debug)]
pub struct Kept {
    bytes: Vec<u8>,
    lease: Lease,
    /// Something did not fit: nothing more is kept, so that what is there is a beginning and has no holes.
    overrun: bool,
}

impl Kept {
    pub fn new(lease: Lease) -> Self {
        Self { bytes: Vec::new(), lease, overrun: false }
    }

    pub fn overrun(&self) -> bool {
        self.overrun
    }

    /// Keeps `data` if it fits; `to_come` is what is known to follow, so that a body of known length is allocated once.
    pub fn push(&mut self, data: &[u8], to_come: u64) -> bool {
        if self.overrun || !self.make_room(data.len(), to_come) {
            self.overrun = true;
            return false;
        }
        self.bytes.extend_from_slice(data);
        true
    }

    /// Takes memory that is kept elsewhere into the same lease.
    pub fn account(&mut self, bytes: u64) -> bool {
        self.overrun |= !self.lease.grow(bytes);
        !self.overrun
    }

    fn make_room(&mut self, length: usize, to_come: u64) -> bool {
        let (have, needed) = (self.bytes.capacity(), self.bytes.len() + length);
        if needed <= have {
            return true;
        }
        let ahead =
            needed.saturating_add(usize::try_from(to_come).unwrap_or(usize::MAX)).max(have * 2).max(512);
        // Generously if the lease allows it, else just enough.
        let Some(capacity) = [ahead, needed].into_iter().find(|wish| self.lease.grow((wish - have) as u64))
        else {
            return false;
        };
        self.bytes.reserve_exact(capacity - self.bytes.len());
        true
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The copy and the lease on its memory, which must live as long.
    pub fn into_parts(self) -> (Bytes, Lease) {
        (self.bytes.into(), self.lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::budget::Budget;

    #[test]
    fn the_lease_stands_for_the_memory_taken() {
        let budget = Budget::new(10_000);
        let mut kept = Kept::new(budget.lease(10_000));
        for _ in 0..600 {
            assert!(kept.push(b"x", 0));
        }
        assert!(kept.bytes.capacity() as u64 <= budget.used() && budget.used() <= 2_048);
        let (bytes, lease) = kept.into_parts();
        assert_eq!(bytes.len(), 600);
        drop(lease);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_is_kept_has_no_holes() {
        let budget = Budget::new(1_000);
        let mut kept = Kept::new(budget.lease(600));
        assert!(kept.push(&[1; 500], 0));
        assert!(!kept.push(&[2; 200], 0), "past the lease");
        assert!(!kept.push(&[3; 1], 0), "nothing follows what did not fit");
        assert_eq!(kept.into_parts().0.len(), 500);
    }

    #[test]
    fn a_known_length_is_allocated_once() {
        let mut kept = Kept::new(Budget::new(1 << 20).lease(1 << 20));
        assert!(kept.push(&[1; 100], 9_900));
        let capacity = kept.bytes.capacity();
        assert!(kept.push(&[1; 9_900], 0));
        assert_eq!((capacity, kept.bytes.capacity()), (10_000, 10_000));
    }
}
