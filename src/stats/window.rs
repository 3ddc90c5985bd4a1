//! The last few outcomes of a sequence, for ratios that show the present and not all history.

use std::collections::VecDeque;

/// A sliding window over pass-or-fail outcomes.
#[derive(Debug, Clone)]
pub struct Window {
    capacity: usize,
    outcomes: VecDeque<bool>,
    losses: usize,
}

impl Window {
    /// A window that remembers the last `capacity` outcomes (at least one).
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { capacity, outcomes: VecDeque::with_capacity(capacity), losses: 0 }
    }

    /// Adds an outcome and forgets the oldest one when full.
    pub fn push(&mut self, lost: bool) {
        if self.outcomes.len() == self.capacity && self.outcomes.pop_front() == Some(true) {
            self.losses -= 1;
        }
        self.outcomes.push_back(lost);
        self.losses += usize::from(lost);
    }

    /// Losses among the remembered outcomes.
    pub fn losses(&self) -> u64 {
        self.losses as u64
    }

    /// How many outcomes are remembered.
    pub fn len(&self) -> u64 {
        self.outcomes.len() as u64
    }

    /// Whether there has been no outcome yet.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Share of losses, `None` while empty.
    pub fn ratio(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.losses as f64 / self.outcomes.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forgets_the_oldest() {
        let mut window = Window::new(3);
        assert_eq!(window.ratio(), None);
        for lost in [true, true, false, false, false] {
            window.push(lost);
        }
        assert_eq!((window.losses(), window.len()), (0, 3));
        window.push(true);
        assert_eq!((window.losses(), window.len()), (1, 3));
    }

    proptest! {
        #[test]
        fn equals_a_recount(capacity in 1usize..20, outcomes in proptest::collection::vec(any::<bool>(), 0..80)) {
            let mut window = Window::new(capacity);
            outcomes.iter().for_each(|&lost| window.push(lost));
            let tail = &outcomes[outcomes.len().saturating_sub(capacity)..];
            prop_assert_eq!(window.len(), tail.len() as u64);
            prop_assert_eq!(window.losses(), tail.iter().filter(|&&lost| lost).count() as u64);
        }
    }
}
