//! Few numbers for many.

/// Mean and quantiles of a set of durations, in microseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Summary {
    pub mean: f64,
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
}

impl Summary {
    pub fn of(mut samples: Vec<u32>) -> Summary {
        if samples.is_empty() {
            return Summary::default();
        }
        samples.sort_unstable();
        let at = |q: f64| f64::from(samples[((samples.len() - 1) as f64 * q).round() as usize]);
        let sum: f64 = samples.iter().copied().map(f64::from).sum();
        Summary { mean: sum / samples.len() as f64, p50: at(0.5), p99: at(0.99), p999: at(0.999) }
    }

    /// The median of each number.
    pub fn median(rounds: &[Summary]) -> Summary {
        let of = |number: fn(&Summary) -> f64| median(rounds.iter().map(number).collect());
        Summary { mean: of(|s| s.mean), p50: of(|s| s.p50), p99: of(|s| s.p99), p999: of(|s| s.p999) }
    }
}

/// The middle value; the mean of the two middle ones of an even number; 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => values[odd / 2],
        even => (values[even / 2 - 1] + values[even / 2]) / 2.0,
    }
}
