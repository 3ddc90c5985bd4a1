//! One turn, looked at from all sides.

use std::sync::Arc;

use prometheus::IntCounter;
use serde_json::Value;

use super::accounting::{Accounting, Measure};
use super::finding::OK;
use super::limits::Limits;
use super::tokens::Tokenizers;
use super::turns::Turns;
use super::{Check, Config, Finding, Metrics, Parts, Skipped, Turn};
use crate::fidelity::degeneration::{self, Degeneration, Scripts};
use crate::fidelity::denied::{self, Family};
use crate::fidelity::dye::Registry;
use crate::fidelity::text::normalise;
use crate::fidelity::tools::Offered;
use crate::openai::{Choice, Words};

/// Messages from which a session has something to be forgotten.
const SESSION: u32 = 3;

/// The checks, and what they remember from turn to turn.
pub struct Checks {
    metrics: Metrics,
    dye: Arc<Registry>,
    crosstalk: IntCounter,
    tokenizers: Tokenizers,
    accounting: Accounting,
    turns: Turns,
    limits: Limits,
}

impl Checks {
    /// # Errors
    /// As [`Tokenizers::read`].
    pub fn new(config: &Config, parts: Parts) -> Result<Checks, String> {
        let contexts = config.model.iter().filter(|model| model.context > 0);
        Ok(Checks {
            metrics: parts.metrics,
            dye: parts.dye,
            crosstalk: parts.crosstalk,
            tokenizers: Tokenizers::read(config)?,
            accounting: Accounting::new(config.models),
            turns: Turns::new(config.turns),
            limits: Limits::new(
                contexts.map(|model| (model.name.clone(), model.context)).collect(),
                config.models,
            ),
        })
    }

    /// Learns from a list of models.
    pub fn models(&mut self, body: &[u8]) {
        self.limits.listed(body);
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Checks a turn and counts what was found.
    pub fn look(&mut self, turn: &Turn) -> Vec<Finding> {
        let findings = match (turn.seen.status, self.why_not(turn)) {
            (400..500, _) => self.limits.refused(turn, &turn.seen.refusal).into_iter().collect(),
            (_, None) => self.answered(turn),
            (_, Some(_)) => Vec::new(),
        };
        if findings.is_empty()
            && let Some(why) = self.why_not(turn)
        {
            self.metrics.skipped(why);
        } else {
            self.metrics.count(&turn.seen.upstream, &turn.reading.model, &findings);
        }
        findings
    }

    /// Why an answer is not looked at.
    fn why_not(&self, turn: &Turn) -> Option<Skipped> {
        let fold = &turn.reading.answer.fold;
        if fold.choices.iter().any(|choice| !choice.is_empty()) {
            return None;
        }
        let refused = turn.seen.failed || fold.error.is_some();
        Some(if refused { Skipped::NoAnswer } else { Skipped::Unread })
    }

    fn answered(&mut self, turn: &Turn) -> Vec<Finding> {
        let words = turn.ask(Words::of).unwrap_or_default();
        let followed = self.turns.follow(turn, &words);
        self.metrics.reasoning_dropped(followed.dropped_reasoning);
        let [length, tokens] = self.count(turn, &words);
        let findings = [
            self.denied(turn),
            degeneration(turn, &words),
            self.crosstalk(turn, &words),
            tools(turn),
            followed.finding,
            length,
            tokens,
        ];
        findings.into_iter().flatten().collect()
    }

    /// Holds the tokens that the server has counted against the words of the request.
    fn count(&mut self, turn: &Turn, words: &Words) -> [Option<Finding>; 2] {
        let model = turn.reading.model.as_str();
        let counted = self.tokenizers.count(model, &words.text);
        let measure = Measure::of(turn, words, counted).filter(|_| !turn.seen.failed);
        let Some(measure) = measure else { return [None, None] };
        let reported = turn.reading.answer.fold.usage.and_then(|usage| usage.prompt_tokens);
        // Without its template a prompt is shorter than with it.
        let least = counted.map(|tokens| tokens as u64).or_else(|| self.accounting.least(model, &measure));
        let length = least.and_then(|least| self.limits.answered(model, least, reported));
        [length, reported.and_then(|tokens| self.accounting.check(model, &measure, tokens))]
    }

    fn denied(&self, turn: &Turn) -> Option<Finding> {
        let reading = &turn.reading;
        let goes_on = reading.has_history && reading.messages >= SESSION || reading.previous.is_some();
        if !goes_on || turn.seen.failed {
            return None;
        }
        let asked = || turn.ask(Words::asked).unwrap_or_default();
        let found = choices(turn).find_map(|choice| {
            let reasoning = || denied::find_in_reasoning(&normalise(&choice.reasoning_content), false);
            denied::find_unasked(&choice.content, asked)
                .or_else(|| reasoning().filter(|_| says_nothing(choice)))
        });
        Some(Check::DeniedContext.came_to(match found {
            None => OK,
            Some(Family::FirstMessage) => "first_message",
            Some(Family::NotTold) => "not_told",
            Some(Family::NoEarlierContent | Family::AsksForGiven) => "no_earlier_content",
        }))
    }

    /// A code that a canary has planted, in an answer to a client who has not sent it.
    fn crosstalk(&self, turn: &Turn, words: &Words) -> Option<Finding> {
        if self.dye.is_empty() {
            return None;
        }
        let mut found = choices(turn).flat_map(|choice| self.dye.codes_in(&normalise(&everything(choice))));
        let Some(first) = found.next() else { return Some(Check::Crosstalk.came_to(OK)) };
        let sent = self.dye.codes_in(&normalise(&words.text));
        let foreign = std::iter::once(first).chain(found).find(|code| !sent.contains(code));
        let Some((_, probe)) = foreign else { return Some(Check::Crosstalk.came_to(OK)) };
        self.crosstalk.inc();
        let (turn, upstream) = (turn.seen.id.as_str(), turn.seen.upstream.as_str());
        tracing::error!(turn, upstream, probe, "a client's answer holds a canary's code");
        Some(Check::Crosstalk.came_to("found"))
    }
}

/// What the model has said, for each choice.
fn choices(turn: &Turn) -> impl Iterator<Item = &Choice> {
    turn.reading.answer.fold.choices.iter().filter(|choice| !choice.is_empty())
}

fn says_nothing(choice: &Choice) -> bool {
    choice.content.trim().is_empty() && choice.tool_calls.is_empty()
}

/// All channels of a choice, one a line.
fn everything(choice: &Choice) -> String {
    let mut text = [choice.content.as_str(), &choice.reasoning_content, &choice.refusal].join("\n");
    for call in &choice.tool_calls {
        text.extend(["\n", &call.name, "\n", &call.arguments]);
    }
    text
}

/// What the request shows itself is not held against its answer.
fn degeneration(turn: &Turn, words: &Words) -> Option<Finding> {
    if words.is_ids {
        return None;
    }
    let scripts = Scripts::of(&words.text);
    let text = choices(turn).map(|choice| [choice.content.as_str(), &choice.reasoning_content].join("\n"));
    let found = text.filter_map(|text| {
        let found = degeneration::find(&text, scripts)?;
        let asked_for = match found {
            // An answer wholly in another script is a translation that was asked for; letters of one among others are not.
            Degeneration::ForeignScript => degeneration::is_other_language(&text, scripts),
            found => degeneration::shows(&words.text, found),
        };
        (!asked_for).then_some(found)
    });
    Some(Check::Degeneration.came_to(match found.into_iter().next() {
        None => OK,
        Some(Degeneration::Loop) => "loop",
        Some(Degeneration::BrokenCharacter) => "broken_character",
        Some(Degeneration::TemplateMark) => "template_mark",
        Some(Degeneration::ForeignScript) => "foreign_script",
    }))
}

/// `None` where no tools are in play, or where the answer was cut off in the middle of a call.
fn tools(turn: &Turn) -> Option<Finding> {
    let calls = choices(turn).any(|choice| !choice.tool_calls.is_empty());
    let (offered, named) = turn.ask(|ask| {
        let tools = ask.tools.and_then(|tools| serde_json::from_str::<Value>(tools.get()).ok());
        (tools.map(|tools| Offered::read(&tools)).unwrap_or_default(), ask.has_functions)
    })?;
    if turn.seen.failed || offered.is_empty() && (named || !calls) {
        return None;
    }
    let cut = |choice: &&Choice| {
        let why = choice.finish_reason.as_deref().unwrap_or_default();
        !matches!(why, "length" | "max_tokens" | "incomplete" | "content_filter")
    };
    let mut whole = choices(turn).filter(cut).peekable();
    whole.peek()?;
    let found = whole.find_map(|choice| match choice.tool_calls.as_slice() {
        [] => offered.missing(&choice.content, &choice.reasoning_content),
        calls => calls.iter().find_map(|call| offered.judge(&call.name, &call.arguments)),
    });
    Some(Check::Tools.came_to(found.map_or(OK, |fault| fault.name())))
}
