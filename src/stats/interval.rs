//! Binomial confidence intervals in closed form.

/// The two-sided 95 % quantile of the standard normal distribution.
pub const Z95: f64 = 1.959_963_984_540_054;

/// A range of plausible probabilities, both ends within `[0, 1]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub lower: f64,
    pub upper: f64,
}

/// The Wilson score interval for `hits` out of `trials` at the normal quantile `z`.
///
/// `None` without trials: nothing is known then, and `[0, 1]` would look like knowledge.
/// Formula: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
/// JASA 22 (1927). Counts above `trials` are taken as `trials`.
///
/// It is right for a number looked at once. Looking again and again calls for [`super::Detector`].
pub fn wilson(hits: u64, trials: u64, z: f64) -> Option<Interval> {
    if trials == 0 {
        return None;
    }
    let n = trials as f64;
    let p = hits.min(trials) as f64 / n;
    let z2 = z * z;
    let scale = 1.0 + z2 / n;
    let centre = (p + z2 / (2.0 * n)) / scale;
    let half = z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt() / scale;
    // At the ends the exact bounds are 0 and 1; rounding must not leave a stray 1e-17 behind.
    let lower = if hits == 0 { 0.0 } else { (centre - half).max(0.0) };
    let upper = if hits >= trials { 1.0 } else { (centre + half).min(1.0) };
    Some(Interval { lower, upper })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn assert_interval(hits: u64, trials: u64, lower: f64, upper: f64) {
        let found = wilson(hits, trials, Z95).expect("there are trials");
        assert!((found.lower - lower).abs() < 6e-4, "lower of {hits}/{trials}: {found:?}");
        assert!((found.upper - upper).abs() < 6e-4, "upper of {hits}/{trials}: {found:?}");
    }

    #[test]
    fn known_values() {
        assert_interval(0, 20, 0.0, 0.161);
        assert_interval(0, 300, 0.0, 0.0126);
        assert_interval(3, 60, 0.017, 0.137);
        assert_interval(20, 20, 1.0 - 0.161, 1.0);
        assert_interval(10, 20, 0.2993, 0.7007);
    }

    #[test]
    fn nothing_is_known_without_trials() {
        assert_eq!(wilson(0, 0, Z95), None);
    }

    proptest! {
        #[test]
        fn holds_the_ratio_and_mirrors(trials in 1u64..5_000, share in 0.0f64..=1.0) {
            let hits = (share * trials as f64) as u64;
            let here = wilson(hits, trials, Z95).expect("there are trials");
            let mirrored = wilson(trials - hits, trials, Z95).expect("there are trials");
            let p = hits as f64 / trials as f64;
            prop_assert!(0.0 <= here.lower && here.lower <= p && p <= here.upper && here.upper <= 1.0);
            prop_assert!((here.lower + mirrored.upper - 1.0).abs() < 1e-12);
        }
    }
}
