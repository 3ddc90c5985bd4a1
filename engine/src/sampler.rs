//! Choosing the next token from logits.

use crate::random::SplitMix64;

/// Draws tokens: greedy at temperature 0, else from the softmax of `logits / temperature` cut to the nucleus `top_p`.
///
/// One uniform number of SplitMix64 is used per token; candidates are walked from the most probable down (ties by
/// smallest index), so a seed fixes the answer for given logits.
pub struct Sampler {
    temperature: f32,
    top_p: f32,
    random: SplitMix64,
}

impl Sampler {
    /// `temperature` at least 0, `top_p` in (0, 1].
    pub fn new(temperature: f32, top_p: f32, seed: u64) -> Sampler {
        Sampler { temperature, top_p, random: SplitMix64::new(seed) }
    }

    /// The index of the chosen logit. NaN logits are never chosen unless there is nothing else.
    pub fn next(&mut self, logits: &[f32]) -> u32 {
        let best = argmax(logits);
        let top = logits.get(best).copied().unwrap_or(0.0);
        if self.temperature <= 0.0 || !top.is_finite() {
            return best as u32;
        }
        let weigh = |x: f32| f64::from((x - top) / self.temperature).exp();
        let total: f64 = logits.iter().filter(|x| !x.is_nan()).map(|&x| weigh(x)).sum();
        // All tokens below this together weigh less than what the nucleus leaves out.
        let floor = f64::from(1.0 - self.top_p) * total / logits.len() as f64;
        let weights = logits.iter().enumerate().filter(|(_, x)| !x.is_nan()).map(|(i, &x)| (weigh(x), i));
        let mut candidates: Vec<(f64, usize)> = weights.filter(|(w, _)| *w > 0.0 && *w >= floor).collect();
        candidates.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.draw(&mut candidates, total).unwrap_or(best) as u32
    }

    fn draw(&mut self, candidates: &mut Vec<(f64, usize)>, total: f64) -> Option<usize> {
        let (mut mass, mut kept) = (0.0, 0);
        for (weight, _) in candidates.iter() {
            mass += weight;
            kept += 1;
            if mass >= f64::from(self.top_p) * total {
                break;
            }
        }
        candidates.truncate(kept);
        let mut left = self.random.uniform() * mass;
        for (weight, index) in candidates.iter() {
            left -= weight;
            if left < 0.0 {
                return Some(*index);
            }
        }
        candidates.first().map(|(_, index)| *index)
    }
}

/// The smallest index of the largest logit.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    let mut top = f32::NEG_INFINITY;
    for (i, &x) in logits.iter().enumerate() {
        if x > top {
            (best, top) = (i, x);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperature_zero_takes_the_first_best() {
        assert_eq!(Sampler::new(0.0, 1.0, 1).next(&[f32::NAN, 1.0, 3.0, 3.0]), 2);
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let mut sampler = Sampler::new(0.5, 1.0, 9);
        let mut counts = [0; 3];
        for _ in 0..20_000 {
            counts[sampler.next(&[0.0, 0.5, f32::NEG_INFINITY]) as usize] += 1;
        }
        // exp(1) / (1 + exp(1)) = 0.7311; four standard errors are 0.0126.
        assert!((f64::from(counts[1]) / 20_000.0 - 0.7311).abs() < 0.0126, "{counts:?}");
        assert_eq!(counts[2], 0);
    }

    #[test]
    fn the_nucleus_leaves_the_tail_out() {
        let logits: Vec<f32> = (0..50).map(|i| -(i as f32)).collect();
        let mut sampler = Sampler::new(1.0, 0.9, 3);
        // The three most probable hold 0.95 of the mass, the first two 0.86.
        let drawn: Vec<u32> = (0..2000).map(|_| sampler.next(&logits)).collect();
        assert!(drawn.iter().all(|&t| t < 3));
        assert!(drawn.contains(&2));
    }

    #[test]
    fn a_seed_fixes_the_draws() {
        let logits: Vec<f32> = (0..20).map(|i| (i % 7) as f32 * 0.3).collect();
        let draw = |seed| {
            (0..30)
                .map(|_| 0)
                .scan(Sampler::new(1.0, 0.95, seed), |s, _: i32| Some(s.next(&logits)))
                .collect::<Vec<_>>()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
    }
}
