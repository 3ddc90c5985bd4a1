//! Seeded draws: the same seed gives the same sequence on every machine and in every release.

/// A small deterministic generator (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
///
/// For choosing words, lengths and test data. It is no source of secrets.
#[derive(Debug, Clone)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// A generator that starts at `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// A generator seeded by the first eight bytes of `bytes` (missing bytes count as zero).
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut seed = [0; 8];
        seed.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        Self::new(u64::from_le_bytes(seed))
    }

    /// The next 64 bits.
    pub fn roll(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..bound`; 0 when `bound` is 0. The bias is below `bound / 2^64`.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.roll()) * bound as u128) >> 64) as usize
    }

    /// A number in `[0, 1)` with 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.roll() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// When `choices` is empty: a list to choose from is part of the program, not of its input.
    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sequence() {
        let mut dice = Dice::new(1_234_567);
        assert_eq!(dice.roll(), 6_457_827_717_110_365_317);
        assert_eq!(dice.roll(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn covers_its_range_evenly() {
        let mut dice = Dice::new(7);
        let mut counts = [0u32; 8];
        (0..8_000).for_each(|_| counts[dice.below(8)] += 1);
        assert!(counts.iter().all(|&count| (850..1_150).contains(&count)), "{counts:?}");
        assert_eq!(dice.below(0), 0);
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&dice.unit())));
    }
}
