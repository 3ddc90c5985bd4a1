//! Promise: what clients change about history between requests does not tear conversations apart, and nobody's
//! conversation is mixed with another's. Measured on a simulated fleet of six kinds of clients, whose truth is known.

#[path = "support/dialect.rs"]
mod dialect;
#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/fleet.rs"]
mod fleet;
#[path = "support/stitching.rs"]
mod stitching;

use std::collections::HashMap;

use fleet::{Fleet, Truth};
use stitching::Links;

/// How well links agree with the truth.
#[derive(Default)]
struct Score {
    turns: usize,
    right: usize,
    /// The share of turns that are with most of their own, of those they are put with.
    purity: f64,
    /// The share of turns that are with most of their conversation.
    completeness: f64,
    /// By kind: all, with the right parent, with the right kind as well.
    kinds: HashMap<&'static str, [usize; 3]>,
}

fn score(truths: &[Truth]) -> Score {
    let mut links = Links::new(100_000);
    let mut score = Score { turns: truths.len(), ..Score::default() };
    let mut together: HashMap<(String, String), usize> = HashMap::new();
    for truth in truths {
        let link = links.link(&truth.exchange);
        let right = link.parent == truth.parent;
        score.right += usize::from(right);
        let kind = score.kinds.entry(truth.kind).or_default();
        *kind = [
            kind[0] + 1,
            kind[1] + usize::from(right),
            kind[2] + usize::from(right && link.kind == truth.kind),
        ];
        *together.entry((link.conversation, truth.conversation.clone())).or_default() += 1;
    }
    let most = |of: fn(&(String, String)) -> &String| {
        let mut most: HashMap<&String, usize> = HashMap::new();
        for (pair, count) in &together {
            let best = most.entry(of(pair)).or_default();
            *best = (*best).max(*count);
        }
        most.values().sum::<usize>() as f64 / truths.len() as f64
    };
    (score.purity, score.completeness) = (most(|pair| &pair.0), most(|pair| &pair.1));
    score
}

impl Score {
    fn parents(&self) -> f64 {
        self.right as f64 / self.turns as f64
    }

    fn print(&self, name: &str) {
        println!(
            "{name}: {} turns, right parent {:.4}, purity {:.4}, completeness {:.4}",
            self.turns,
            self.parents(),
            self.purity,
            self.completeness
        );
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort();
        for (kind, [all, right, named]) in kinds {
            println!("  {kind:<11} {all:>5}  parent {right:>5}  kind {named:>5}");
        }
    }
}

#[test]
fn a_fleet_without_ids_is_stitched() {
    for seed in [1, 2] {
        let truths = Fleet::new(seed, false).run();
        let score = score(&truths);
        score.print(&format!("seed {seed}, no ids"));
        let count = |kind| score.kinds.get(kind).map_or(0, |[all, ..]| *all);
        assert!(score.turns >= 8960, "{}", score.turns);
        for (kind, least) in [
            ("retry", 105),
            ("branch", 200),
            ("window", 663),
            ("compaction", 196),
            ("spawned", 150),
            ("regenerate", 60),
        ] {
            assert!(count(kind) >= least, "only {} of {kind}", count(kind));
        }
        assert!(score.parents() >= 0.985, "{}", score.parents());
        assert!(score.purity >= 0.998, "{}", score.purity);
        assert!(score.completeness >= 0.95, "{}", score.completeness);
    }
}

#[test]
fn a_fleet_with_ids_is_never_mixed() {
    for seed in [1, 2] {
        let score = score(&Fleet::new(seed, true).run());
        score.print(&format!("seed {seed}, ids"));
        assert!(score.parents() >= 0.985, "{}", score.parents());
        assert!((score.purity - 1.0).abs() < f64::EPSILON, "{}", score.purity);
        assert!(score.completeness >= 0.95, "{}", score.completeness);
    }
}
