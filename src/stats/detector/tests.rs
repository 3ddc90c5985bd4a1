//! Known arithmetic, and the delays and false alarms of simulated streams.

use super::*;
use crate::stats::Dice;
use proptest::prelude::*;

/// The same statistic in plain numbers, for short sequences.
fn plain(p0: f64, outcomes: &[bool]) -> f64 {
    let grid: Vec<f64> =
        [2.0 * p0, 4.0 * p0, 8.0 * p0, 0.25, 0.5, 0.9].into_iter().filter(|p1| *p1 >= 1.5 * p0).collect();
    let mut values = vec![0.0; grid.len()];
    for &lost in outcomes {
        for (value, p1) in values.iter_mut().zip(&grid) {
            let ratio = if lost { p1 / p0 } else { (1.0 - p1) / (1.0 - p0) };
            *value = (*value + 1.0) * ratio;
        }
    }
    values.iter().sum::<f64>() / grid.len() as f64
}

#[test]
fn first_loss_is_the_mean_ratio() {
    let mut detector = Detector::new(0.01);
    assert_eq!(detector.evidence_nats(), f64::NEG_INFINITY);
    // (2 + 4 + 8 + 25 + 50 + 90) / 6
    let expected = (179.0f64 / 6.0).ln();
    assert!((detector.observe(true) - expected).abs() < 1e-12);
}

#[test]
fn losses_from_a_fresh_start_page_at_the_fourth() {
    let mut detector = Detector::new(UNCALIBRATED_P0);
    let evidence: Vec<f64> = (0..4).map(|_| detector.observe(true)).collect();
    assert!(evidence[1] < 1e5f64.ln() && evidence[2] > 1e5f64.ln(), "{evidence:?}");
    assert!(evidence[2] < DEFAULT_THRESHOLD_NATS && evidence[3] > DEFAULT_THRESHOLD_NATS, "{evidence:?}");
}

#[test]
fn reset_forgets() {
    let mut detector = Detector::new(0.02);
    detector.observe(true);
    detector.reset();
    let mut fresh = Detector::new(0.02);
    assert_eq!(detector.observe(false), fresh.observe(false));
}

#[test]
fn long_runs_stay_finite() {
    let mut detector = Detector::new(0.005);
    (0..100_000).for_each(|_| {
        detector.observe(true);
    });
    assert!(detector.evidence_nats().is_finite());
    (0..100_000).for_each(|_| {
        detector.observe(false);
    });
    assert!(detector.evidence_nats().is_finite());
}

#[test]
fn odd_settings_do_no_harm() {
    for p0 in [f64::NAN, -1.0, 0.0, 0.4, 0.9, f64::INFINITY] {
        assert!(Detector::new(p0).observe(true).is_finite(), "p0 = {p0}");
    }
    assert_eq!(Detector::with_grid(0.1, &[]).observe(true), f64::NEG_INFINITY);
    assert_eq!(Detector::with_grid(0.1, &[(0.05, 1.0), (0.5, 0.0)]).observe(true), f64::NEG_INFINITY);
}

/// Outcomes between a change of rate, after 1,500 calm ones, and evidence of `ln a`.
fn delay(dice: &mut Dice, p0: f64, p1: f64, ln_a: f64) -> Option<f64> {
    let mut detector = Detector::new(p0);
    for _ in 0..1_500 {
        if detector.observe(dice.unit() < p0) >= ln_a {
            return None;
        }
    }
    (1..=20_000).find(|_| detector.observe(dice.unit() < p1) >= ln_a).map(f64::from)
}

/// Mean delay over 400 streams, with three standard errors of it.
fn mean_delay(seed: u64, p0: f64, p1: f64, a: f64) -> (f64, f64) {
    let mut dice = Dice::new(seed);
    let delays: Vec<f64> = (0..400).filter_map(|_| delay(&mut dice, p0, p1, a.ln())).collect();
    let n = delays.len() as f64;
    let mean = delays.iter().sum::<f64>() / n;
    let variance = delays.iter().map(|delay| (delay - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, 3.0 * (variance / n).sqrt())
}

#[test]
fn simulated_delays_match_the_published_design() {
    // (p0, rate after the change, A, design value of the mean delay, its rounding)
    let table = [
        (0.005, 0.25, 1e4, 11.0, 0.5),
        (0.005, 0.50, 1e4, 4.9, 0.05),
        (0.005, 1.00, 1e5, 3.0, 0.05),
        (0.01, 0.10, 1e4, 47.0, 0.5),
        (0.01, 0.25, 1e5, 19.0, 0.5),
        (0.01, 0.50, 1e5, 7.5, 0.05),
        (0.01, 1.00, 1e4, 2.9, 0.05),
        (0.02, 0.25, 1e5, 24.0, 0.5),
        (0.02, 0.50, 1e5, 9.4, 0.05),
        (0.05, 0.50, 1e5, 13.0, 0.5),
    ];
    for (seed, (p0, p1, a, design, rounding)) in (1..).zip(table) {
        let (mean, error) = mean_delay(seed, p0, p1, a);
        assert!((mean - design).abs() <= error + rounding, "p0 {p0} p1 {p1} A {a}: {mean} +- {error}");
    }
}

#[test]
fn false_alarms_keep_their_distance() {
    // At p = p0 the mean time to an alarm is at least A. Forty streams cut at 2 A: the mean of the
    // cut times is below the true mean, so the test can only be too strict.
    let a = 2_000.0f64;
    let mut dice = Dice::new(99);
    let total: f64 = (0..40)
        .map(|_| {
            let mut detector = Detector::new(0.01);
            (1..=4_000).find(|_| detector.observe(dice.unit() < 0.01) >= a.ln()).map_or(4_000.0, f64::from)
        })
        .sum();
    assert!(total / 40.0 >= a, "mean time to a false alarm: {}", total / 40.0);
}

#[test]
fn a_healthy_stream_never_pages() {
    let mut dice = Dice::new(2_026);
    let mut detector = Detector::new(UNCALIBRATED_P0);
    let top = (0..100_000).map(|_| detector.observe(dice.unit() < 0.005)).fold(0.0, f64::max);
    assert!(top < DEFAULT_THRESHOLD_NATS, "{top}");
}

proptest! {
    #[test]
    fn equals_plain_arithmetic(p0 in 0.005f64..0.1, outcomes in proptest::collection::vec(any::<bool>(), 1..12)) {
        let mut detector = Detector::new(p0);
        let found = outcomes.iter().fold(0.0, |_, &lost| detector.observe(lost));
        let expected = plain(p0, &outcomes).ln();
        prop_assert!((found - expected).abs() < 1e-9, "{} {}", found, expected);
    }

    #[test]
    fn expected_ratio_is_at_most_one_under_the_baseline(p0 in 0.001f64..0.1, share in 0.0f64..=1.0) {
        // One step from nothing: E[M] = E[L] for the mixture.
        let p = p0 * share;
        let after = |lost| Detector::new(p0).observe(lost).exp();
        prop_assert!(p * after(true) + (1.0 - p) * after(false) <= 1.0 + 1e-9);
    }
}
