//! Which probe is next: one rotation through all dimensions, without I/O or clock.

use crate::stats::Dice;

use super::config::Config;
use super::probe::{Kind, Slot, wordings};

/// The most tokens by which a prompt aims beyond its nominal length. The jitter makes lengths fall
/// on every residue of the block and page sizes inside an engine.
const MAX_JITTER: u32 = 255;

/// Stride through the wordings; has no factor in common with their number.
const WORDING_STRIDE: usize = 5;

/// Rotates through lengths fastest, then temperatures, then streaming; wordings turn with every
/// probe; jitter and seed are drawn.
#[derive(Debug)]
pub struct Plan {
    lengths: Vec<u32>,
    temperatures: Vec<f64>,
    dice: Dice,
    turn: usize,
}

impl Plan {
    /// A plan over the lengths and temperatures of `config`, with draws from `seed`.
    pub fn new(config: &Config, seed: u64) -> Self {
        let or = |list: &[f64]| if list.is_empty() { vec![0.0] } else { list.to_vec() };
        let lengths = if config.lengths.is_empty() { vec![1024] } else { config.lengths.clone() };
        Self { lengths, temperatures: or(&config.temperature), dice: Dice::new(seed), turn: 0 }
    }

    /// The next probe of the rotation.
    pub fn next_slot(&mut self) -> Slot {
        let turn = self.turn;
        self.turn = self.turn.wrapping_add(1);
        let (by_length, length) = (turn / self.lengths.len(), turn % self.lengths.len());
        let (by_temperature, temperature) =
            (by_length / self.temperatures.len(), by_length % self.temperatures.len());
        Slot {
            kind: Kind::TurnRecall,
            length: self.lengths[length],
            jitter: self.jitter(),
            temperature: self.temperatures[temperature],
            stream: by_temperature % 2 == 1,
            wording: turn.wrapping_mul(WORDING_STRIDE) % wordings(),
            seed: self.dice.roll(),
        }
    }

    fn jitter(&mut self) -> u32 {
        self.dice.below(MAX_JITTER as usize + 1) as u32
    }

    /// The same kind of probe again with fresh salt, filler, code and wording: a confirmation must
    /// not be able to succeed or fail by repetition alone.
    pub fn again(&mut self, slot: &Slot) -> Slot {
        Slot {
            jitter: self.jitter(),
            wording: (slot.wording + WORDING_STRIDE) % wordings(),
            seed: self.dice.roll(),
            ..slot.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn plan() -> Plan {
        Plan::new(&Config { lengths: vec![1024, 4096], ..Config::default() }, 1)
    }

    #[test]
    fn every_combination_comes_up_and_the_first_is_warm() {
        let mut plan = plan();
        let slots: Vec<Slot> = (0..8).map(|_| plan.next_slot()).collect();
        assert_eq!((slots[0].temperature, slots[0].stream), (0.6, false));
        let seen: HashSet<_> =
            slots.iter().map(|slot| (slot.length, slot.temperature.to_bits(), slot.stream)).collect();
        assert_eq!(seen.len(), 8);
    }

    #[test]
    fn wordings_take_turns() {
        let mut plan = plan();
        let seen: HashSet<usize> = (0..wordings()).map(|_| plan.next_slot().wording).collect();
        assert_eq!(seen.len(), wordings());
    }

    #[test]
    fn jitter_reaches_its_whole_range() {
        let mut plan = plan();
        let seen: HashSet<u32> = (0..5_000).map(|_| plan.next_slot().jitter).collect();
        assert_eq!((seen.len(), seen.iter().max()), (256, Some(&255)));
    }

    #[test]
    fn a_repeat_keeps_the_cell_and_changes_the_text() {
        let mut plan = plan();
        let slot = plan.next_slot();
        let again = plan.again(&slot);
        assert_eq!(
            (again.kind, again.length, again.temperature, again.stream),
            (slot.kind, slot.length, slot.temperature, slot.stream)
        );
        assert!(again.seed != slot.seed && again.wording != slot.wording);
    }
}
