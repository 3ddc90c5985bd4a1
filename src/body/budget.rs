//! The memory all copies of bodies share. A lease grows with the bytes it stands for and gives them back when it is
//! dropped, wherever that happens: after the record is durable, or with an exchange nobody recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A cap on bytes held in copies, shared by every exchange. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    used: AtomicU64,
    cap: u64,
    /// The budget that this one is a share of.
    whole: Option<Budget>,
}

/// A part of the budget, as large as what has been granted so far.
#[derive(Debug)]
pub struct Lease {
    budget: Budget,
    held: u64,
    /// The most this one lease may hold.
    cap: u64,
}

impl Budget {
    pub fn new(cap: u64) -> Self {
        Self(Arc::new(Pool { used: AtomicU64::new(0), cap, whole: None }))
    }

    /// A budget of `cap` bytes that are this one's too: who spends a share leaves the rest to others.
    pub fn share(&self, cap: u64) -> Self {
        Self(Arc::new(Pool { used: AtomicU64::new(0), cap, whole: Some(self.clone()) }))
    }

    /// Bytes granted and not yet given back.
    pub fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// Whether more than half of it is granted: what can do without should.
    pub fn is_scarce(&self) -> bool {
        self.used() > self.0.cap / 2
    }

    /// An empty lease that may grow to `cap` bytes, as long as the whole budget allows.
    pub fn lease(&self, cap: u64) -> Lease {
        Lease { budget: self.clone(), held: 0, cap }
    }

    /// Takes bytes from this budget and from the one it is a share of, or from neither.
    fn take(&self, bytes: u64) -> bool {
        // Two threads may both pass the check below and then one takes its share back: the cap is never exceeded by
        // more than is visible in `used` for a moment, and nothing waits.
        let pool = &self.0;
        let granted = pool.used.fetch_add(bytes, Relaxed) + bytes <= pool.cap
            && pool.whole.as_ref().is_none_or(|whole| whole.take(bytes));
        if !granted {
            pool.used.fetch_sub(bytes, Relaxed);
        }
        granted
    }

    fn give_back(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Relaxed);
        self.0.whole.iter().for_each(|whole| whole.give_back(bytes));
    }
}

impl Lease {
    /// Asks for `bytes` more; `false` leaves the lease as it was.
    pub fn grow(&mut self, bytes: u64) -> bool {
        if self.held + bytes > self.cap || !self.budget.take(bytes) {
            return false;
        }
        self.held += bytes;
        true
    }

    /// Gives everything back now.
    pub fn release(&mut self) {
        self.budget.give_back(self.held);
        self.held = 0;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_comes_back() {
        let budget = Budget::new(100);
        let mut one = budget.lease(80);
        let mut two = budget.lease(80);
        assert!(one.grow(60) && !one.grow(30), "a lease has its own cap");
        assert!(!two.grow(50) && two.grow(40), "the budget is shared");
        assert_eq!((budget.used(), budget.is_scarce()), (100, true));
        drop(one);
        assert!(!budget.is_scarce());
        assert!(two.grow(40));
        two.release();
        drop(two);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_share_ends_before_the_whole_and_is_bounded_by_it() {
        let budget = Budget::new(100);
        let (small, large) = (budget.share(30), budget.share(80));
        let (mut one, mut two) = (small.lease(100), large.lease(100));
        assert!(one.grow(30) && !one.grow(1), "a share is spent");
        assert!(!two.grow(71) && two.grow(70), "what is left of the whole is for others");
        assert_eq!((small.used(), large.used(), budget.used()), (30, 70, 100));
        drop(one);
        assert!(!two.grow(11) && two.grow(10), "a share has its own cap");
        drop(two);
        assert_eq!((small.used(), large.used(), budget.used()), (0, 0, 0));
    }
}
