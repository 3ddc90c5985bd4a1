//! The checks and what each may come to: one list, from which metrics, flags and documents are made.

use crate::fidelity::denied;

/// One check of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Check {
    /// Whether an answer claims that nothing was said before.
    DeniedContext,
    /// Whether an answer is no language any more.
    Degeneration,
    /// Whether an answer holds a code that a canary has planted elsewhere.
    Crosstalk,
    /// Whether tool calls are ones that were offered.
    Tools,
    /// Whether the server has read as many tokens as the prompt should come to.
    PromptTokens,
    /// Whether it has read at least as many as in the turn that this one goes on from.
    Monotonicity,
    /// Whether a prompt that does not fit was refused.
    OverLength,
}

/// What a check of a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    pub check: Check,
    /// One of [`Check::outcomes`].
    pub outcome: &'static str,
}

/// All is well.
pub const OK: &str = "ok";

impl Check {
    pub const ALL: [Check; 7] = [
        Check::DeniedContext,
        Check::Degeneration,
        Check::Crosstalk,
        Check::Tools,
        Check::PromptTokens,
        Check::Monotonicity,
        Check::OverLength,
    ];

    /// The value of labels.
    pub fn name(self) -> &'static str {
        match self {
            Check::DeniedContext => "denied_context",
            Check::Degeneration => "degeneration",
            Check::Crosstalk => "crosstalk",
            Check::Tools => "tools",
            Check::PromptTokens => "prompt_tokens",
            Check::Monotonicity => "turn_monotonicity",
            Check::OverLength => "over_length",
        }
    }

    /// All it may come to.
    pub fn outcomes(self) -> &'static [&'static str] {
        match self {
            Check::DeniedContext => &[OK, "first_message", "not_told", "no_earlier_content"],
            Check::Degeneration => &[OK, "loop", "broken_character", "template_mark", "foreign_script"],
            Check::Crosstalk => &[OK, "found"],
            Check::PromptTokens => &[OK, "short", "long"],
            Check::Monotonicity => &[OK, "shrunk"],
            Check::OverLength => &[OK, "refused", "truncated"],
            Check::Tools => &[OK, "invalid_json", "unknown_name", "schema", "announced", "in_text"],
        }
    }

    /// The flag by which a turn is marked; `None` where all is well. See [`crate::conversation::Flags`].
    pub fn flag(self, outcome: &str) -> Option<&'static str> {
        match (self, outcome) {
            (_, OK) => None,
            (Check::DeniedContext, _) => Some("denied_context"),
            (Check::Degeneration, _) => Some("degenerate"),
            (Check::Crosstalk, _) => Some("crosstalk"),
            (Check::Tools, _) => Some("tool_invalid"),
            (Check::PromptTokens, "long") => Some("prompt_long"),
            (Check::PromptTokens, _) => Some("prompt_short"),
            (Check::Monotonicity, _) => Some("turn_not_monotonic"),
            // Whoever refuses what does not fit does what it should.
            (Check::OverLength, "refused") => None,
            (Check::OverLength, _) => Some("silent_truncation"),
        }
    }

    /// The version of its rules: counts of two versions do not compare.
    pub fn version(self) -> u32 {
        match self {
            Check::DeniedContext => denied::VERSION,
            _ => 1,
        }
    }

    /// This check came to that.
    pub fn came_to(self, outcome: &'static str) -> Finding {
        Finding { check: self, outcome }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Flags;
    use crate::fidelity::tools::Fault;

    #[test]
    fn every_check_has_outcomes_and_a_flag_of_the_list() {
        for check in Check::ALL {
            let outcomes = check.outcomes();
            assert_eq!((outcomes[0], check.flag(OK)), (OK, None));
            for outcome in outcomes[1..].iter().filter(|outcome| **outcome != "refused") {
                let flag = check.flag(outcome).expect("is flagged");
                assert!(Flags::recorded(flag).is_some() && check.version() > 0, "{flag}");
            }
        }
        assert!(Fault::ALL.iter().all(|fault| Check::Tools.outcomes().contains(&fault.name())));
    }
}
