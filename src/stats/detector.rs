//! Sequential evidence that a loss rate has risen above its baseline.
//!
//! The statistic is a mixture of Shiryaev-Roberts e-detectors. For an outcome `x` (1 = loss), a
//! baseline bound `p0` and an alternative `p1`, the likelihood ratio is
//! `L(x) = (p1/p0)^x ((1-p1)/(1-p0))^(1-x)`, and each alternative keeps `M <- (M + 1) L(x)`. The
//! evidence is the weighted mean of the `M` over the alternatives.
//!
//! For every true rate at or below `p0`, and however the next probe is chosen, `E[L] <= 1`, so an
//! alarm at `M >= A` comes at the earliest after `A` outcomes on average (Shin, Ramdas, Rinaldo,
//! "E-detectors", 2022). That stays true when somebody looks after every single outcome, which a
//! fixed-size interval does not survive. Everything is kept as logarithms.

/// The default threshold: `ln A = 12`, some 160,000 outcomes between false alarms.
pub const DEFAULT_THRESHOLD_NATS: f64 = 12.0;

/// The baseline used before a calibration has measured one.
pub const UNCALIBRATED_P0: f64 = 0.01;

/// A running e-detector over pass-or-fail outcomes.
#[derive(Debug, Clone)]
pub struct Detector {
    arms: Vec<Arm>,
}

/// One alternative rate with the logarithm of its running value.
#[derive(Debug, Clone)]
struct Arm {
    ln_weight: f64,
    gain_on_loss: f64,
    gain_on_pass: f64,
    ln_m: f64,
}

impl Detector {
    /// A detector against the baseline bound `p0`, over the grid `2, 4, 8 p0, 0.25, 0.5, 0.9` with
    /// equal weights, less the alternatives below `1.5 p0`.
    ///
    /// `p0` is held within `[1e-6, 0.5]`: outside it the grid has nothing to say.
    pub fn new(p0: f64) -> Self {
        let p0 = if p0.is_finite() { p0.clamp(1e-6, 0.5) } else { UNCALIBRATED_P0 };
        let grid: Vec<(f64, f64)> = [2.0 * p0, 4.0 * p0, 8.0 * p0, 0.25, 0.5, 0.9]
            .into_iter()
            .filter(|p1| *p1 >= 1.5 * p0 && *p1 < 1.0)
            .map(|p1| (p1, 1.0))
            .collect();
        Self::with_grid(p0, &grid)
    }

    /// A detector with alternatives `(p1, weight)` of the caller's choice; weights are normalised.
    ///
    /// Entries outside `p0 < p1 < 1` or without a positive weight are left out. With no entry left
    /// the evidence stays at nothing for ever.
    pub fn with_grid(p0: f64, grid: &[(f64, f64)]) -> Self {
        let usable = |&&(p1, weight): &&(f64, f64)| p1 > p0 && p1 < 1.0 && weight > 0.0;
        let total: f64 = grid.iter().filter(usable).map(|(_, weight)| weight).sum();
        let arms = grid.iter().filter(usable).map(|&(p1, weight)| Arm {
            ln_weight: (weight / total).ln(),
            gain_on_loss: (p1 / p0).ln(),
            gain_on_pass: ((1.0 - p1) / (1.0 - p0)).ln(),
            ln_m: f64::NEG_INFINITY,
        });
        Self { arms: arms.collect() }
    }

    /// Takes the next outcome and returns the evidence after it, in nats.
    pub fn observe(&mut self, lost: bool) -> f64 {
        for arm in &mut self.arms {
            let gain = if lost { arm.gain_on_loss } else { arm.gain_on_pass };
            arm.ln_m = ln_one_plus_exp(arm.ln_m) + gain;
        }
        self.evidence_nats()
    }

    /// `ln M`, the evidence gathered so far; minus infinity before the first outcome.
    pub fn evidence_nats(&self) -> f64 {
        let terms = || self.arms.iter().map(|arm| arm.ln_weight + arm.ln_m);
        let top = terms().fold(f64::NEG_INFINITY, f64::max);
        if top == f64::NEG_INFINITY {
            return top;
        }
        top + terms().map(|term| (term - top).exp()).sum::<f64>().ln()
    }

    /// Forgets all evidence: after an acknowledged or cleared alarm, or a declared deploy.
    pub fn reset(&mut self) {
        self.arms.iter_mut().for_each(|arm| arm.ln_m = f64::NEG_INFINITY);
    }
}

/// `ln(1 + e^x)` without overflow.
fn ln_one_plus_exp(x: f64) -> f64 {
    if x > 0.0 { x + (-x).exp().ln_1p() } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests;
