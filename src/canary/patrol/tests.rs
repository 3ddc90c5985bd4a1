//! Whole rounds against a scripted front door.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::canary::alarm::{BURST, State};
use crate::canary::driver::door::Limits;
use crate::canary::scripted::{Asked, Scripted, code_in, response, says};
use crate::fidelity::judge::Verdict;
use crate::units::Span;

struct Round {
    server: Scripted,
    registry: crate::metrics::Metrics,
    patrol: Patrol,
}

fn books(metrics: Metrics) -> Books {
    Books { metrics, live: Arc::new(Registry::new(64)), recorder: None }
}

impl Round {
    async fn new(config: Config) -> Self {
        let server = Scripted::start().await;
        let registry = crate::metrics::Metrics::default();
        let metrics = Metrics::new(&registry);
        let patrol = Patrol::seeded(
            11,
            config,
            Door::new(server.address(), Limits::default()),
            tag::Key::new([5; 32]),
            books(metrics),
        );
        Self { server, registry, patrol }
    }

    async fn steps(&mut self, count: usize, answer: impl Fn(usize, &Asked) -> String) -> Vec<Step> {
        let patrol = &mut self.patrol;
        let work = async {
            let mut steps = Vec::new();
            for _ in 0..count {
                steps.push(patrol.step().await);
            }
            steps
        };
        self.server.during(answer, work).await
    }

    fn text(&self) -> String {
        String::from_utf8(self.registry.text().expect("text")).expect("UTF-8")
    }
}

fn named() -> Config {
    Config { model: "m".into(), ..Config::default() }
}

fn verdict(step: &Step) -> Verdict {
    let Step::Probed { outcome, .. } = step else { panic!("{step:?}") };
    outcome.judgement.verdict
}

fn recalls(_: usize, asked: &Asked) -> String {
    says(asked, &code_in(&asked.body))
}

#[tokio::test]
async fn healthy_rounds_stay_quiet_and_meet_the_length() {
    let mut round = Round::new(Config { lengths: vec![1024, 4096], ..named() }).await;
    let steps = round.steps(12, recalls).await;
    for (at, step) in steps.iter().enumerate() {
        let Step::Probed { outcome, pace } = step else { panic!("{step:?}") };
        assert_eq!((outcome.judgement.verdict, *pace), (Verdict::Recalled, Pace::Steady));
        let nominal = [1024, 4096][at % 2];
        // The first two of each length learn what a word costs; then at most 255 tokens are added.
        let least = if at < 4 { nominal * 3 / 4 } else { nominal * 98 / 100 };
        assert!(
            (least..nominal * 102 / 100 + 255).contains(&outcome.prompt_tokens),
            "{}",
            outcome.prompt_tokens
        );
    }
    let text = round.text();
    for length in ["1k", "4k"] {
        let stream = format!("embedded/m/turn_recall/{length}");
        assert_eq!(round.patrol.scoreboard().state(&stream), State::Quiet);
        assert!(
            text.contains(&format!("serin_alarm_state{{state=\"quiet\",stream=\"{stream}\"}} 1")),
            "{text}"
        );
    }
    let ids: std::collections::HashSet<String> = round.server.bodies().iter().map(code_in).collect();
    assert_eq!(ids.len(), 12, "a fresh code for every probe");
}

#[tokio::test]
async fn a_loss_is_confirmed_at_once_in_the_same_cell() {
    let mut round = Round::new(Config { lengths: vec![1024, 4096, 8192], ..named() }).await;
    let steps = round.steps(5, |_, asked| says(asked, "You have not told me.")).await;
    assert!(steps.iter().all(|step| verdict(step) == Verdict::Denied));
    assert!(matches!(steps[0], Step::Probed { pace: Pace::Burst, .. }), "{:?}", steps[0]);
    assert!(matches!(steps[4], Step::Probed { pace: Pace::Quick, .. }), "{:?}", steps[4]);
    assert_eq!(round.patrol.scoreboard().state("embedded/m/turn_recall/1k"), State::Breached);
    assert_eq!(round.server.bodies().len(), 1 + BURST as usize);
    // The burst is over: the rotation goes on with the next length.
    round.steps(1, |_, asked| says(asked, "You have not told me.")).await;
    assert_eq!(round.patrol.scoreboard().state("embedded/m/turn_recall/4k"), State::Suspect);
}

#[tokio::test]
async fn a_breached_cell_gets_every_other_probe_until_it_is_cleared() {
    let mut round = Round::new(Config { lengths: vec![1024, 4096, 8192], ..named() }).await;
    round.steps(5, |_, asked| says(asked, "You have not told me.")).await;
    let stream = "embedded/m/turn_recall/1k";
    assert_eq!(round.patrol.scoreboard().state(stream), State::Breached);
    // One probe in three of the rotation and all probes between: 29 clean ones take 44 steps.
    let steps = round.steps(43, recalls).await;
    assert_eq!(round.patrol.scoreboard().state(stream), State::Recovering);
    assert!(steps.iter().all(|step| matches!(step, Step::Probed { pace: Pace::Quick, .. })));
    let last = round.steps(1, recalls).await;
    assert_eq!(round.patrol.scoreboard().state(stream), State::Quiet);
    assert!(matches!(last[0], Step::Probed { pace: Pace::Steady, .. }));
}

#[tokio::test]
async fn the_reference_model_is_preferred_then_the_first() {
    for (served, expected) in [(vec!["a", "serin-reference"], "serin-reference"), (vec!["b", "a"], "b")] {
        let mut round = Round::new(Config::default()).await;
        let data: Vec<_> = served.iter().map(|id| json!({"id": id})).collect();
        let list = json!({"data": data}).to_string();
        let steps = round
            .steps(1, |n, asked| if n == 0 { response(200, "", &list) } else { recalls(n, asked) })
            .await;
        assert_eq!(verdict(&steps[0]), Verdict::Recalled);
        assert_eq!(round.server.bodies()[1]["model"], expected);
    }
}

#[tokio::test]
async fn without_a_model_or_key_nothing_is_sent_and_it_is_counted() {
    let mut round = Round::new(Config::default()).await;
    let steps =
        round.steps(2, |n, _| response(200, "", if n == 0 { "{\"data\":[]}" } else { "no list" })).await;
    assert!(steps.iter().all(|step| matches!(step, Step::Skipped(Skip::NoModel))), "{steps:?}");
    assert!(round.text().contains("serin_canary_skipped_total{reason=\"no_model\"} 2"));

    let mut round = Round::new(Config { api_key_file: "/nonexistent/key".into(), ..named() }).await;
    let steps = round.steps(1, recalls).await;
    assert!(matches!(steps[0], Step::Skipped(Skip::ApiKey)));
    assert!(round.server.bodies().is_empty());
}

#[tokio::test]
async fn pressure_makes_room_and_counts_what_is_left_out() {
    let mut round = Round::new(named()).await;
    let start = clock::now();
    let mut schedule = Schedule::new(b"x", Duration::from_secs(60), start);
    let steps = round.steps(1, |_, _| response(503, "retry-after: 200\r\n", "")).await;
    let due = schedule.due();
    round.patrol.settle(&steps[0], &mut schedule, due);
    assert!(schedule.due() >= due + Duration::from_secs(200));
    assert!(round.text().contains("serin_canary_skipped_total{reason=\"backoff\"} 3"), "{}", round.text());
    let steps = round.steps(1, recalls).await;
    round.patrol.settle(&steps[0], &mut schedule, due);
    assert_eq!(schedule.due(), due + Duration::from_secs(60));
}

/// Demands what the owner of the task relies on.
fn is_task<F: Future<Output = ()> + Send + 'static>(future: F) -> F {
    future
}

#[tokio::test]
async fn the_round_goes_on_until_told_to_stop() {
    let server = Scripted::start().await;
    let metrics = Metrics::new(&crate::metrics::Metrics::default());
    let (stop, stopped) = watch::channel(false);
    let config = Config { interval: Span(Duration::from_millis(1)), ..named() };
    let round = is_task(run(
        config,
        Door::new(server.address(), Limits::default()),
        tag::Key::new([5; 32]),
        books(metrics),
        stopped,
    ));
    let answer = |n: usize, asked: &Asked| {
        if n == 2 {
            stop.send_replace(true);
        }
        recalls(n, asked)
    };
    server.during(answer, round).await;
    assert_eq!(server.bodies().len(), 3);
}

#[tokio::test]
async fn switched_off_it_ends_at_once() {
    let metrics = Metrics::new(&crate::metrics::Metrics::default());
    let (_stop, stopped) = watch::channel(false);
    let config = Config { enabled: false, ..named() };
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
    run(config, Door::new(nowhere, Limits::default()), tag::Key::new([5; 32]), books(metrics), stopped).await;
}
