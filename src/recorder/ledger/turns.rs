//! How clients' turns stand to each other, and what they took.

use prometheus::IntCounter;

use crate::conversation::{Kind, Place};
use crate::metrics::Metrics;
use crate::openai::Usage;

/// More than any prompt has: what an answer says must not be able to spoil a sum.
const MOST_TOKENS: u64 = 1 << 30;

/// What reading turns has shown.
pub(super) struct Turns {
    /// By kind.
    links: [IntCounter; Kind::ALL.len()],
    ambiguous: IntCounter,
    /// Read, of those from a cache, and written.
    tokens: [IntCounter; 3],
}

impl Turns {
    pub(super) fn register(metrics: &Metrics) -> Turns {
        let links = metrics.counters(
            "serin_recorder_links_total",
            "Clients' turns by how they stand to the turn before (docs/stitching.md).",
            &["kind"],
        );
        let tokens = metrics.counters(
            "serin_recorder_tokens_total",
            "Tokens of clients' turns as answers report them; cached ones are among the prompt's.",
            &["kind"],
        );
        Turns {
            links: Kind::ALL.map(|kind| links.with_label_values(&[kind.name()])),
            ambiguous: metrics.counter(
                "serin_recorder_ambiguous_links_total",
                "Clients' turns for which more than one place in the recordings fitted.",
            ),
            tokens: ["prompt", "cached", "output"].map(|kind| tokens.with_label_values(&[kind])),
        }
    }

    pub(super) fn placed(&self, place: &Place, usage: Option<Usage>) {
        self.links[place.kind as usize].inc();
        self.ambiguous.inc_by(place.ambiguous.into());
        let usage = usage.unwrap_or_default();
        let counts = [usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens];
        for (counter, count) in self.tokens.iter().zip(counts) {
            counter.inc_by(count.unwrap_or(0).min(MOST_TOKENS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_tokens_are_counted_by_kind_and_bounded() {
        let metrics = Metrics::default();
        let turns = Turns::register(&metrics);
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let place = Place { kind, parent: String::new(), ambiguous: at == 0 };
            (0..=at).for_each(|_| turns.placed(&place, None));
        }
        let usage = Usage { prompt_tokens: Some(u64::MAX), completion_tokens: Some(7), ..Usage::default() };
        turns.placed(&Place { kind: Kind::Root, parent: String::new(), ambiguous: false }, Some(usage));
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        for (at, kind) in Kind::ALL.into_iter().enumerate().skip(1) {
            let line = format!("serin_recorder_links_total{{kind=\"{}\"}} {}", kind.name(), at + 1);
            assert!(text.lines().any(|found| found == line), "{line}");
        }
        for line in
            ["ambiguous_links_total 1", "tokens_total{kind=\"output\"} 7", "tokens_total{kind=\"cached\"} 0"]
        {
            assert!(text.contains(&format!("serin_recorder_{line}")), "{line}");
        }
        assert!(text.contains(&format!("serin_recorder_tokens_total{{kind=\"prompt\"}} {MOST_TOKENS}")));
    }
}
