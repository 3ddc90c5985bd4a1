//! From an answer to a verdict, by string matching alone.
//!
//! Verdicts are tried in one fixed order and the first that fits is given. Text is normalised
//! (NFKC, lower case, one dash) and a code counts as found only between word boundaries, so `8415`
//! is not found inside `841521`. Content, tool arguments and reasoning are searched apart.

mod matching;
mod phrases;

use super::degeneration::{self, Scripts};
use super::denied;
use super::dye::Registry;
use super::secret::Secret;
use super::text::normalise;

/// The version of the rules by which verdicts are found: rates of two versions do not compare.
pub const VERSION: u32 = 1;

/// What a probe wants to hear.
#[derive(Debug, Clone, Copy)]
pub struct Expectation<'a> {
    /// The probe that was asked; codes registered for others are crosstalk.
    pub probe_id: &'a str,
    /// The code that was planted and asked for.
    pub secret: &'a Secret,
    /// Other codes planted in the same prompt.
    pub decoys: &'a [Secret],
    /// Scripts the prompt is written in.
    pub scripts: Scripts,
    /// Whether the probe asks to go on with something given earlier.
    pub continuation: bool,
}

/// What came back, as far as the transport could tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// A well-formed answer that ended as it should.
    Answered(Answer),
    /// The exchange failed before there was an answer.
    Failed(Failure),
    /// A status other than success, with the beginning of the body.
    Refused { status: u16, body: String },
    /// A success that is not an answer: no JSON, no choices, broken events.
    Malformed,
    /// A stream that ended early, with what had arrived by then.
    Interrupted(Answer),
}

/// How an exchange failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// No connection within its time limit.
    Connect,
    /// Connected, and no head of an answer in time.
    TimeoutBeforeAnswer,
    /// The answer stood still for too long.
    TimeoutInAnswer,
    /// The connection broke before the head of an answer.
    Transport,
    /// The answer was larger than the driver takes.
    Oversized,
}

/// The parts of an answer that can hold a code.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// What was said aloud.
    pub content: String,
    /// What was thought, where the server tells.
    pub reasoning: String,
    /// The arguments of all tool calls, joined by newlines.
    pub tool_arguments: String,
    /// Whether a tool was called, with or without arguments.
    pub has_tool_calls: bool,
    /// The server's own field for a refusal.
    pub refusal: String,
    /// `stop`, `length`, `tool_calls`, `content_filter` or whatever the server says.
    pub finish_reason: Option<String>,
}

/// What an answer is worth. The names are label values of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// No answer: connection, time limit, or a status other than success.
    Error,
    /// A 4xx status that names the length of the prompt.
    RejectedLength,
    /// No readable answer, or a stream that ended early.
    Malformed,
    /// A code that belongs to another probe.
    Crosstalk,
    /// The code, in the content or in tool arguments.
    Recalled,
    /// The code, in the reasoning alone.
    RecalledReasoning,
    /// Another code of the same prompt.
    Misbound,
    /// The code with some characters wrong.
    Corrupted,
    /// Declined to answer for reasons other than not knowing.
    Refused,
    /// A claim that nothing was said before.
    Denied,
    /// A tool call in place of an answer.
    ToolDetour,
    /// Cut off by the limit of tokens.
    Truncated,
    /// Loops, broken characters, template marks or a foreign script.
    Degenerate,
    /// Nothing at all.
    Empty,
    /// Says that it does not know.
    LostUnknown,
    /// Anything else.
    LostWrong,
}

/// How a verdict counts in a loss rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weight {
    /// The context was there.
    Pass,
    /// The context was not there.
    Loss,
    /// Says nothing about recall.
    Inconclusive,
    /// Requests were mixed up: a page by itself, whatever else the answer holds.
    Critical,
}

/// A verdict with what it would have been without crosstalk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The verdict that counts.
    pub verdict: Verdict,
    /// Equals `verdict` but for [`Verdict::Crosstalk`].
    pub base: Verdict,
    /// The probe whose code was found, for crosstalk.
    pub stranger: Option<String>,
    /// The code was only in the reasoning and the answer was cut off by its length.
    pub answer_missing: bool,
}

impl Verdict {
    /// Every verdict, in the order of evaluation.
    pub const ALL: [Self; 16] = [
        Self::Error,
        Self::RejectedLength,
        Self::Malformed,
        Self::Crosstalk,
        Self::Recalled,
        Self::RecalledReasoning,
        Self::Misbound,
        Self::Corrupted,
        Self::Refused,
        Self::Denied,
        Self::ToolDetour,
        Self::Truncated,
        Self::Degenerate,
        Self::Empty,
        Self::LostUnknown,
        Self::LostWrong,
    ];

    /// The name as a label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::RejectedLength => "rejected_length",
            Self::Malformed => "malformed",
            Self::Crosstalk => "crosstalk",
            Self::Recalled => "recalled",
            Self::RecalledReasoning => "recalled_reasoning",
            Self::Misbound => "misbound",
            Self::Corrupted => "corrupted",
            Self::Refused => "refused",
            Self::Denied => "denied",
            Self::ToolDetour => "tool_detour",
            Self::Truncated => "truncated",
            Self::Degenerate => "degenerate",
            Self::Empty => "empty",
            Self::LostUnknown => "lost_unknown",
            Self::LostWrong => "lost_wrong",
        }
    }

    /// How the verdict counts. An empty answer is inconclusive once; a second one in a row that
    /// confirms it is a loss, which is for the keeper of the sequence to decide.
    pub fn weight(self) -> Weight {
        match self {
            Self::Recalled | Self::RecalledReasoning => Weight::Pass,
            Self::Misbound
            | Self::Corrupted
            | Self::Denied
            | Self::Degenerate
            | Self::LostUnknown
            | Self::LostWrong => Weight::Loss,
            Self::Crosstalk => Weight::Critical,
            Self::Error
            | Self::RejectedLength
            | Self::Malformed
            | Self::Refused
            | Self::ToolDetour
            | Self::Truncated
            | Self::Empty => Weight::Inconclusive,
        }
    }
}

/// The channels of an answer, normalised once.
struct Reading {
    content: String,
    reasoning: String,
    tools: String,
}

/// Judges one delivery against what was expected.
pub fn judge(delivery: &Delivery, expected: &Expectation<'_>, live: &Registry) -> Judgement {
    let (Delivery::Answered(answer) | Delivery::Interrupted(answer)) = delivery else {
        return Judgement::plain(without_answer(delivery));
    };
    let reading = Reading::of(answer);
    let base = match delivery {
        Delivery::Interrupted(_) => Verdict::Malformed,
        _ => of_answer(answer, &reading, expected),
    };
    let stranger = [&reading.content, &reading.tools, &reading.reasoning]
        .into_iter()
        .find_map(|text| live.stranger_in(text, Some(expected.probe_id)));
    Judgement {
        verdict: if stranger.is_some() { Verdict::Crosstalk } else { base },
        base,
        stranger,
        answer_missing: base == Verdict::RecalledReasoning && answer.is_cut(),
    }
}

fn without_answer(delivery: &Delivery) -> Verdict {
    match delivery {
        Delivery::Refused { status: 400..=499, body } if phrases::names_length(&normalise(body)) => {
            Verdict::RejectedLength
        }
        Delivery::Malformed => Verdict::Malformed,
        _ => Verdict::Error,
    }
}

fn of_answer(answer: &Answer, reading: &Reading, expected: &Expectation<'_>) -> Verdict {
    if matching::holds(&reading.content, expected.secret) || matching::holds(&reading.tools, expected.secret)
    {
        return Verdict::Recalled;
    }
    if matching::holds(&reading.reasoning, expected.secret) {
        return Verdict::RecalledReasoning;
    }
    near_miss(reading, expected).unwrap_or_else(|| without_code(answer, reading, expected))
}

/// Verdicts on an answer that holds another code or a damaged one. The reasoning counts only where
/// nothing was said aloud: it may weigh wrong codes before a right or cut-off answer.
fn near_miss(reading: &Reading, expected: &Expectation<'_>) -> Option<Verdict> {
    let spoken = [&reading.content, &reading.tools];
    if spoken.iter().any(|text| expected.decoys.iter().any(|decoy| matching::holds(text, decoy))) {
        return Some(Verdict::Misbound);
    }
    spoken.iter().any(|text| matching::holds_damaged(text, expected.secret)).then_some(Verdict::Corrupted)
}

fn without_code(answer: &Answer, reading: &Reading, expected: &Expectation<'_>) -> Verdict {
    let spoken = format!("{}\n{}", reading.content, reading.tools);
    if answer.is_refusal() || phrases::refuses(&reading.content) {
        Verdict::Refused
    } else if denied::find(&reading.content, expected.continuation).is_some()
        || denied::find_in_reasoning(&reading.reasoning, expected.continuation).is_some()
    {
        Verdict::Denied
    } else if answer.has_tool_calls {
        Verdict::ToolDetour
    } else if answer.is_cut() {
        Verdict::Truncated
    } else if degeneration::find(&answer.content, expected.scripts).is_some() {
        Verdict::Degenerate
    } else if spoken.trim().is_empty() && reading.reasoning.trim().is_empty() {
        Verdict::Empty
    } else if phrases::knows_nothing(&reading.content) {
        Verdict::LostUnknown
    } else {
        Verdict::LostWrong
    }
}

impl Judgement {
    fn plain(verdict: Verdict) -> Self {
        Self { verdict, base: verdict, stranger: None, answer_missing: false }
    }
}

impl Reading {
    fn of(answer: &Answer) -> Self {
        Self {
            content: normalise(&answer.content),
            reasoning: normalise(&answer.reasoning),
            tools: normalise(&answer.tool_arguments),
        }
    }
}

impl Answer {
    fn is_cut(&self) -> bool {
        self.finish_reason.as_deref() == Some("length")
    }

    fn is_refusal(&self) -> bool {
        !self.refusal.trim().is_empty() || self.finish_reason.as_deref() == Some("content_filter")
    }
}

#[cfg(test)]
mod tests;
