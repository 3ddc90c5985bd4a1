//! The round: wait, choose, send, judge, keep score, until told to stop.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;

use crate::clock;
use crate::conversation::flags;
use crate::fidelity::dye::Registry;
use crate::fidelity::judge;
use crate::fidelity::secret::Minter;
use crate::fidelity::tag;
use crate::journal::{Flag, Origin};
use crate::recorder::Recorder;

use super::config::Config;
use super::driver::door::Door;
use super::driver::{Driver, Outcome, Pressure};
use super::length::{Bucket, LengthLoop};
use super::metrics::{Metrics, Skip};
use super::plan::Plan;
use super::probe::{Probe, REFERENCE_MODEL, Recipe, Slot};
use super::schedule::{Pace, Schedule};
use super::scoreboard::{Advice, Report, Scoreboard};

/// All that is needed to send one probe after the other.
#[derive(Debug)]
pub struct Patrol {
    config: Config,
    driver: Driver,
    plan: Plan,
    lengths: LengthLoop,
    minter: Minter,
    id_key: [u8; 32],
    sent: u64,
    live: Arc<Registry>,
    scoreboard: Scoreboard,
    metrics: Metrics,
    /// Where verdicts are written down.
    recorder: Option<Recorder>,
    /// The slot to repeat at once, and how often.
    burst: Option<(Slot, u32)>,
    /// The slot of a breached stream, which gets every other probe until it is cleared.
    breached: Option<Slot>,
    breached_is_next: bool,
    /// It has been said that no probe can be sent.
    said: bool,
}

/// Where outcomes go, and where codes are registered. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Books {
    pub metrics: Metrics,
    /// The codes of all probes, by which a foreign one is known.
    pub live: Arc<Registry>,
    /// Writes verdicts down.
    pub recorder: Option<Recorder>,
}

/// What one step of the round did.
#[derive(Debug, Clone)]
pub enum Step {
    /// A probe was sent; `pace` says how soon the next one should follow.
    Probed { outcome: Box<Outcome>, pace: Pace },
    /// Nothing was sent.
    Skipped(Skip),
}

/// Probes through `door` until `stop` holds true or its sender is gone.
///
/// Nothing is spawned here: the caller owns the task and awaits it. `tag_key` is the key the proxy verifies tags under.
pub async fn run(
    config: Config,
    door: Door,
    tag_key: tag::Key,
    books: Books,
    mut stop: watch::Receiver<bool>,
) {
    if !config.enabled {
        return;
    }
    let mut schedule = Schedule::new(&tag_key.derive("canary schedule"), config.interval.0, clock::now());
    let mut patrol = Patrol::new(config, door, tag_key, books);
    let round = async {
        loop {
            tokio::time::sleep_until(schedule.due().into()).await;
            let step = patrol.step().await;
            patrol.settle(&step, &mut schedule, clock::now());
        }
    };
    // An error of the watch means that its sender is gone, and with it the program.
    tokio::select! {
        () = round => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

impl Patrol {
    /// A patrol that sends through `door`, to the public listener. Its draws are its own: no two patrols
    /// send the same text, or a cached prefix would answer for the model.
    pub fn new(config: Config, door: Door, tag_key: tag::Key, books: Books) -> Self {
        let seed = tag_key.derive("canary plan");
        let seed =
            seed[..8].iter().fold(clock::unix_nanos(), |sum, byte| sum.rotate_left(8) ^ u64::from(*byte));
        Self::seeded(seed, config, door, tag_key, books)
    }

    fn seeded(seed: u64, config: Config, door: Door, tag_key: tag::Key, books: Books) -> Self {
        let Books { metrics, live, recorder } = books;
        Self {
            recorder,
            plan: Plan::new(&config, seed),
            minter: Minter::new(tag_key.derive("recall codes")),
            id_key: tag_key.derive("probe ids"),
            driver: Driver::new(door, tag_key),
            lengths: LengthLoop::default(),
            sent: 0,
            scoreboard: Scoreboard::new(metrics.clone()),
            config,
            live,
            metrics,
            burst: None,
            breached: None,
            breached_is_next: false,
            said: false,
        }
    }

    /// The evidence gathered so far.
    pub fn scoreboard(&self) -> &Scoreboard {
        &self.scoreboard
    }

    /// Sends the next probe, or one of a confirm burst.
    pub async fn step(&mut self) -> Step {
        let id = self.next_id();
        let api_key = match self.config.api_key() {
            Ok(api_key) => api_key,
            Err(error) => return self.skip(Skip::ApiKey, &error.to_string()),
        };
        let api_key = api_key.as_deref();
        let model = match self.model(&id, api_key).await {
            Ok(model) => model,
            Err(why) => return self.skip(Skip::NoModel, &why),
        };
        if std::mem::take(&mut self.said) {
            tracing::info!("canaries probe again");
        }
        let (slot, bursting) = self.next_slot();
        let words = self.lengths.words_for(&model, slot.length, slot.length + slot.jitter);
        let recipe = Recipe { id: &id, model: &model, minter: &self.minter, words };
        let probe = Probe::build(&slot, recipe);
        self.live.register(&probe.secret, &probe.id);
        let begun = clock::now();
        let outcome = self.driver.run(&probe, self.config.max_tokens, api_key, &self.live).await;
        self.lengths.learn(&model, slot.length, probe.words, outcome.prompt_tokens);
        let pace = self.score(&model, slot, bursting, &probe, &outcome, begun);
        Step::Probed { outcome: Box::new(outcome), pace }
    }

    /// Sets the next due time by what a step did.
    pub fn settle(&mut self, step: &Step, schedule: &mut Schedule, now: Instant) {
        let (pace, pressure) = match step {
            Step::Probed { outcome, pace } => (*pace, outcome.pressure),
            Step::Skipped(_) => (Pace::Steady, None),
        };
        let Some(Pressure { retry_after }) = pressure else { return schedule.advance(now, pace) };
        self.burst = None;
        for _ in 0..schedule.back_off(now, retry_after).min(1_000) {
            self.metrics.skipped(Skip::Backoff);
        }
    }

    fn score(
        &mut self,
        model: &str,
        slot: Slot,
        bursting: bool,
        probe: &Probe,
        outcome: &Outcome,
        begun: Instant,
    ) -> Pace {
        let now = clock::now();
        // Without a reported count the nominal length is the best there is.
        let tokens = if outcome.prompt_tokens > 0 { outcome.prompt_tokens } else { slot.length };
        let hot = u64::from(outcome.cached_tokens) * 2 > u64::from(tokens);
        let length = Bucket::of(tokens).as_str();
        let report = Report {
            probe_id: probe.id.clone(),
            turn: outcome.turn.clone().unwrap_or_default(),
            cell: self.metrics.cell(&outcome.upstream, model, probe.kind.as_str(), length),
            thermal: if hot { "hot" } else { "cold" },
            judgement: outcome.judgement.clone(),
            seconds: now.saturating_duration_since(begun).as_secs_f64(),
            now,
            unix_seconds: clock::unix_nanos() as f64 / 1e9,
        };
        let (verdict, cause) = (report.judgement.verdict.as_str(), outcome.cause.unwrap_or("none"));
        tracing::debug!(
            probe = probe.id,
            turn = report.turn,
            stream = report.cell.stream(),
            verdict,
            cause,
            tokens,
            "canary probe"
        );
        self.write_down(outcome);
        let advice = self.scoreboard.record(&report);
        self.follow(advice, slot, bursting)
    }

    /// The verdict becomes a flag of the record of the last exchange.
    fn write_down(&self, outcome: &Outcome) {
        if let (Some(recorder), Some(turn)) = (&self.recorder, &outcome.turn) {
            let flag = Flag {
                turn: turn.clone(),
                name: format!("{}{}", flags::VERDICT, outcome.judgement.verdict.as_str()),
                version: judge::VERSION,
                unix_nanos: clock::unix_nanos(),
            };
            recorder.flag(Origin::Canary, flag);
        }
    }

    fn follow(&mut self, advice: Advice, slot: Slot, bursting: bool) -> Pace {
        let same = |other: &Slot| other.kind == slot.kind && other.length == slot.length;
        match &self.breached {
            None if advice.hurry => self.breached = Some(slot.clone()),
            Some(other) if !advice.hurry && same(other) => self.breached = None,
            _ => {}
        }
        if advice.burst > 0 && !bursting {
            self.burst = Some((slot, advice.burst));
        }
        match (&self.burst, &self.breached) {
            (Some(_), _) => Pace::Burst,
            (None, Some(_)) => Pace::Quick,
            (None, None) => Pace::Steady,
        }
    }

    /// The slot to probe, and whether it belongs to a burst.
    fn next_slot(&mut self) -> (Slot, bool) {
        let Some((slot, left)) = self.burst.take() else { return (self.next_in_turn(), false) };
        let again = self.plan.again(&slot);
        self.burst = (left > 1).then_some((slot, left - 1));
        (again, true)
    }

    fn next_in_turn(&mut self) -> Slot {
        let turn = self.breached_is_next;
        self.breached_is_next = self.breached.is_some() && !turn;
        match &self.breached {
            Some(slot) if turn => self.plan.again(slot),
            _ => self.plan.next_slot(),
        }
    }

    /// The model to probe, or why there is none.
    async fn model(&self, id: &str, api_key: Option<&str>) -> Result<String, String> {
        if !self.config.model.is_empty() {
            return Ok(self.config.model.clone());
        }
        let served = self.driver.models(id, api_key).await.map_err(|status| match status {
            401 | 403 => format!(
                "the router answers GET /v1/models with {status}: it wants a key; put one into a file and name it in \
                 [canary] api_key_file"
            ),
            0 => "GET /v1/models brings no answer".to_owned(),
            status => format!("GET /v1/models is answered with {status} and no list; name one in [canary] model"),
        })?;
        let reference = served.iter().find(|model| *model == REFERENCE_MODEL);
        let none = || "GET /v1/models lists none; name one in [canary] model".to_owned();
        reference.or(served.first()).cloned().ok_or_else(none)
    }

    /// Nothing is sent. Said once, and not again until something was.
    fn skip(&mut self, reason: Skip, why: &str) -> Step {
        self.metrics.skipped(reason);
        if !std::mem::replace(&mut self.said, true) {
            tracing::warn!("canaries cannot probe: {why}");
        }
        tracing::debug!(?reason, "canary probe skipped");
        Step::Skipped(reason)
    }

    /// An id nobody can tell from another, of sixteen hexadecimal digits.
    fn next_id(&mut self) -> String {
        self.sent += 1;
        let mut hasher = blake3::Hasher::new_keyed(&self.id_key);
        hasher.update(&self.sent.to_le_bytes());
        hasher.update(&clock::unix_nanos().to_le_bytes());
        hasher.finalize().to_hex()[..16].to_owned()
    }
}

#[cfg(test)]
mod tests;
