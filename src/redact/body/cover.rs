//! Sets of ranges, to tell what is masked already.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that do not overlap.
#[derive(Debug, Default)]
pub struct Cover(BTreeMap<usize, usize>);

impl Cover {
    pub fn of(ranges: impl IntoIterator<Item = Range<usize>>) -> Cover {
        let mut cover = Cover::default();
        ranges.into_iter().for_each(|range| cover.add(range));
        cover
    }

    /// Adds a range; what it shares with others is covered once.
    pub fn add(&mut self, range: Range<usize>) {
        for part in self.outside(range) {
            self.0.insert(part.start, part.end);
        }
    }

    /// The parts of a range that are not covered.
    pub fn outside(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let mut parts = Vec::new();
        let mut at = self.0.range(..=range.start).next_back().map_or(range.start, |(_, end)| *end);
        at = at.max(range.start);
        for (start, end) in self.0.range(at..range.end.max(at)) {
            if *start > at {
                parts.push(at..*start);
            }
            at = *end;
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cover_says_what_a_row_of_flags_says(
            ranges in prop::collection::vec((0usize..40, 0usize..12), 0..12),
            asked in (0usize..40, 0usize..20),
        ) {
            let mut flags = [false; 80];
            for (start, length) in &ranges {
                flags[*start..start + length].fill(true);
            }
            let cover = Cover::of(ranges.iter().map(|(start, length)| *start..start + length));
            let asked = asked.0..asked.0 + asked.1;
            let expected: Vec<usize> = asked.clone().filter(|at| !flags[*at]).collect();
            let told: Vec<usize> = cover.outside(asked).into_iter().flatten().collect();
            prop_assert_eq!(told, expected);
        }
    }
}
