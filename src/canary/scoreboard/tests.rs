//! Outcomes in, evidence, alarms and metrics text out.

use super::*;
use crate::canary::alarm::BURST;

struct Board {
    registry: crate::metrics::Metrics,
    metrics: Metrics,
    board: Scoreboard,
    now: Instant,
}

impl Board {
    fn new() -> Self {
        let registry = crate::metrics::Metrics::default();
        let metrics = Metrics::new(&registry);
        Self { board: Scoreboard::new(metrics.clone()), metrics, registry, now: crate::clock::now() }
    }

    fn record(&mut self, model: &str, verdict: Verdict) -> Advice {
        let cell = self.metrics.cell("router", model, "turn_recall", "1k");
        let stranger = (verdict == Verdict::Crosstalk).then(|| "other".to_owned());
        let base = if stranger.is_some() { Verdict::Recalled } else { verdict };
        let judgement = Judgement { verdict, base, stranger, answer_missing: false };
        let report = Report {
            probe_id: "p".into(),
            turn: "t".into(),
            cell,
            thermal: "cold",
            judgement,
            seconds: 0.3,
            now: self.now,
            unix_seconds: 1_234.5,
        };
        self.board.record(&report)
    }

    fn text(&self) -> String {
        String::from_utf8(self.registry.text().expect("text")).expect("UTF-8")
    }

    fn assert_line(&self, line: &str) {
        let text = self.text();
        assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
    }
}

const STREAM: &str = "router/m/turn_recall/1k";

#[test]
fn ratio_is_absent_until_something_is_known() {
    let mut board = Board::new();
    assert!(!board.text().contains("serin_context_loss_ratio"));
    board.record("m", Verdict::Error);
    let text = board.text();
    assert!(!text.contains("serin_context_loss_ratio{") && !text.contains("last_conclusive"), "{text}");
    board.assert_line("serin_canary_probes_total{kind=\"turn_recall\",length=\"1k\",model_name=\"m\",thermal=\"cold\",upstream=\"router\",verdict=\"error\"} 1");
    board.assert_line(&format!("serin_canary_threshold_nats{{stream=\"{STREAM}\"}} 12"));
    board.assert_line(&format!("serin_canary_evidence_nats{{stream=\"{STREAM}\"}} 0"));
    board.assert_line("serin_crosstalk_total{scope=\"probe\"} 0");
    board.assert_line("serin_canary_skipped_total{reason=\"no_model\"} 0");
}

#[test]
fn metrics_show_outcomes() {
    let mut board = Board::new();
    (0..19).for_each(|_| {
        board.record("m", Verdict::Recalled);
    });
    board.record("m", Verdict::LostWrong);
    let labels = "kind=\"turn_recall\",length=\"1k\",model_name=\"m\",upstream=\"router\"";
    board.assert_line(&format!("serin_context_loss_ratio{{{labels}}} 0.05"));
    let range = wilson(1, 20, interval::Z95).expect("trials");
    board.assert_line(&format!("serin_context_loss_ratio_lower{{{labels}}} {}", range.lower));
    board.assert_line(&format!("serin_context_loss_ratio_upper{{{labels}}} {}", range.upper));
    board.assert_line(
        "serin_canary_last_conclusive_timestamp_seconds{kind=\"turn_recall\",upstream=\"router\"} 1234.5",
    );
    board.assert_line(&format!("serin_alarm_state{{state=\"suspect\",stream=\"{STREAM}\"}} 1"));
    board.assert_line(&format!("serin_alarm_state{{state=\"quiet\",stream=\"{STREAM}\"}} 0"));
    board.assert_line("serin_canary_probe_seconds_count 20");
}

#[test]
fn a_total_loss_breaches_within_three_probes_and_clears_after_29() {
    let mut board = Board::new();
    (0..50).for_each(|_| {
        board.record("m", Verdict::Recalled);
    });
    assert_eq!(board.record("m", Verdict::Denied), Advice { burst: BURST, hurry: false });
    board.record("m", Verdict::Denied);
    assert_eq!(board.record("m", Verdict::Denied), Advice { burst: 0, hurry: true });
    assert_eq!(board.board.state(STREAM), State::Breached);
    (0..28).for_each(|_| {
        board.record("m", Verdict::RecalledReasoning);
    });
    assert_eq!(board.board.state(STREAM), State::Recovering);
    board.record("m", Verdict::Recalled);
    assert_eq!(board.board.state(STREAM), State::Quiet);
    board.assert_line(&format!("serin_canary_evidence_nats{{stream=\"{STREAM}\"}} 0"));
    board.record("m", Verdict::Recalled);
    assert_eq!(board.board.state(STREAM), State::Quiet, "forgotten evidence must not page again");
}

#[test]
fn sparse_losses_breach_by_evidence_alone() {
    let mut board = Board::new();
    let mut dice = crate::stats::Dice::new(4);
    // One loss in six, spread so that no four probes after one confirm it by themselves too soon.
    let breached = (0..400).find(|_| {
        let lost = dice.unit() < 0.17;
        board.record("m", if lost { Verdict::LostWrong } else { Verdict::Recalled });
        board.board.state(STREAM) == State::Breached
    });
    assert!(breached.is_some_and(|probes| probes < 200), "{breached:?}");
}

#[test]
fn inconclusive_verdicts_change_no_stream() {
    let mut board = Board::new();
    for verdict in
        [Verdict::Error, Verdict::Refused, Verdict::Truncated, Verdict::Malformed, Verdict::RejectedLength]
    {
        (0..40).for_each(|_| {
            board.record("m", verdict);
        });
    }
    assert_eq!(board.board.state(STREAM), State::Quiet);
    assert!(!board.text().contains("serin_context_loss_ratio{"));
}

#[test]
fn an_empty_answer_is_looked_at_again_and_lost_when_repeated() {
    let mut board = Board::new();
    assert_eq!(board.record("m", Verdict::Empty).burst, BURST);
    assert!(!board.text().contains("serin_context_loss_ratio{"));
    board.record("m", Verdict::Empty);
    assert_eq!(board.board.state(STREAM), State::Suspect);
    let mut board = Board::new();
    board.record("m", Verdict::Empty);
    board.record("m", Verdict::Recalled);
    board.record("m", Verdict::Empty);
    assert_eq!(board.board.state(STREAM), State::Quiet);
}

#[test]
fn crosstalk_is_counted_and_the_base_verdict_kept() {
    let mut board = Board::new();
    board.record("m", Verdict::Crosstalk);
    board.assert_line("serin_crosstalk_total{scope=\"probe\"} 1");
    let labels = "kind=\"turn_recall\",length=\"1k\",model_name=\"m\",upstream=\"router\"";
    board.assert_line(&format!("serin_context_loss_ratio{{{labels}}} 0"));
}

#[test]
fn names_from_outside_are_bounded() {
    let mut board = Board::new();
    (0..40).for_each(|model| {
        board.record(&format!("model-{model}"), Verdict::Recalled);
    });
    let text = board.text();
    let names = text.lines().filter(|line| line.starts_with("serin_canary_probes_total{")).count();
    assert_eq!(names, 17, "sixteen names and one for all others");
    board.assert_line("serin_canary_probes_total{kind=\"turn_recall\",length=\"1k\",model_name=\"other\",thermal=\"cold\",upstream=\"router\",verdict=\"recalled\"} 24");
}

#[test]
fn streams_are_bounded() {
    let mut board = Board::new();
    for upstream in 0..17 {
        for model in 0..17 {
            let cell = board.metrics.cell(&format!("u{upstream}"), &format!("m{model}"), "turn_recall", "1k");
            let judgement = Judgement {
                verdict: Verdict::Recalled,
                base: Verdict::Recalled,
                stranger: None,
                answer_missing: false,
            };
            let report = Report {
                probe_id: "p".into(),
                turn: "t".into(),
                cell,
                thermal: "cold",
                judgement,
                seconds: 0.1,
                now: board.now,
                unix_seconds: 1.0,
            };
            board.board.record(&report);
        }
    }
    assert_eq!(board.board.streams.len(), MAX_STREAMS + 1);
}
