//! Seeded chance: splitmix64.

use std::time::Duration;

/// A stream of numbers that depends on its seed alone.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From `low` up to but not including `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.roll() % (high - low)
    }

    /// Once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.roll().is_multiple_of(n)
    }

    pub fn millis(&mut self, low: u64, high: u64) -> Duration {
        Duration::from_micros(self.between(low * 1_000, high * 1_000))
    }

    /// Small ones often, large ones seldom: a size below `2^bits`.
    pub fn size(&mut self, bits: u64) -> u64 {
        let below = 1 << self.between(1, bits + 1);
        self.between(1, below + 1)
    }
}
