//! What is unusual about a turn. This is the one list of flags: those that follow from the exchange itself, and those that
//! somebody has found and written down as FLAG records. Names are for people and filters and never change; bits are the
//! index's own affair.

use super::wish::AMBIGUOUS;
use crate::journal::facts::Facts;
use crate::journal::{Capture, End, Exchange, Link};

/// What is unusual about a turn, or about any turn of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u64);

/// What the name of a canary's verdict begins with.
pub const VERDICT: &str = "verdict:";

impl Flags {
    /// Status 400 or above, or no status at all.
    pub const ERROR: u64 = 1;
    /// It did not end as `complete`.
    pub const INCOMPLETE: u64 = 1 << 1;
    /// A body was not kept whole.
    pub const TRUNCATED: u64 = 1 << 2;
    /// The request or the response was not readable as chat.
    pub const UNPARSED: u64 = 1 << 3;
    /// Answered by the embedded engine.
    pub const EMBEDDED: u64 = 1 << 4;
    /// More than one place in the recordings fitted.
    pub const AMBIGUOUS: u64 = 1 << 5;
    /// Secrets in a body were masked.
    pub const MASKED: u64 = 1 << 6;
    /// The first bit of those that come from FLAG records.
    const FOUND: u32 = 7;

    const OWN: [&str; Self::FOUND as usize] =
        ["error", "incomplete", "truncated", "unparsed", "embedded", "ambiguous", "masked"];

    /// The names that FLAG records may have. Each is a bit; new ones come last.
    pub const RECORDED: [&str; 24] = [
        // What the passive checks find (docs/fidelity.md).
        "denied_context",
        "degenerate",
        "crosstalk",
        "tool_invalid",
        "prompt_short",
        "prompt_long",
        "turn_not_monotonic",
        "silent_truncation",
        // What canaries were judged to have got.
        "verdict:error",
        "verdict:rejected_length",
        "verdict:malformed",
        "verdict:crosstalk",
        "verdict:recalled",
        "verdict:recalled_reasoning",
        "verdict:misbound",
        "verdict:corrupted",
        "verdict:refused",
        "verdict:denied",
        "verdict:tool_detour",
        "verdict:truncated",
        "verdict:degenerate",
        "verdict:empty",
        "verdict:lost_unknown",
        "verdict:lost_wrong",
    ];

    /// Every name, in the order of the bits.
    pub fn all() -> impl Iterator<Item = &'static str> {
        Self::OWN.into_iter().chain(Self::RECORDED)
    }

    /// The names of those that are set.
    pub fn names(self) -> Vec<&'static str> {
        (0u32..).zip(Self::all()).filter(|(bit, _)| self.0 & (1 << bit) != 0).map(|(_, name)| name).collect()
    }

    /// The flag of that name; `None` for one that is not known here.
    pub fn of_name(name: &str) -> Option<Flags> {
        (0u32..).zip(Self::all()).find(|(_, known)| *known == name).map(|(bit, _)| Flags(1 << bit))
    }

    /// The flag that a FLAG record of that name sets. A name of a later version sets none; the record stays.
    pub fn recorded(name: &str) -> Option<Flags> {
        Self::of_name(name).filter(|flags| flags.0 >= 1 << Self::FOUND)
    }

    /// What follows from the exchange itself.
    pub fn of(exchange: &Exchange, facts: &Facts, link: &Link) -> Flags {
        let whole = [exchange.request_capture(), exchange.response_capture()];
        let bits = [
            (exchange.status == 0 || exchange.status >= 400, Self::ERROR),
            (exchange.end() != End::Complete, Self::INCOMPLETE),
            (whole.iter().any(|capture| *capture != Capture::Whole), Self::TRUNCATED),
            (!facts.is(Facts::READABLE) || !facts.is(Facts::PARSED), Self::UNPARSED),
            (exchange.served_by == "embedded", Self::EMBEDDED),
            (link.confidence <= AMBIGUOUS, Self::AMBIGUOUS),
            (!exchange.request_kept_hash.is_empty() || !exchange.response_kept_hash.is_empty(), Self::MASKED),
        ];
        Flags(bits.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::judge::Verdict;

    #[test]
    fn every_name_is_its_own_bit_and_leads_back() {
        let all: Vec<&str> = Flags::all().collect();
        assert!(all.len() < 63, "the index holds signed numbers");
        let mut seen = 0;
        for name in &all {
            let flags = Flags::of_name(name).expect("is known");
            assert_eq!((flags.names(), seen & flags.0), (vec![*name], 0));
            seen |= flags.0;
        }
        assert_eq!(
            (Flags::of_name("masked"), Flags::of_name("invented")),
            (Some(Flags(Flags::MASKED)), None)
        );
    }

    #[test]
    fn only_what_was_found_comes_from_records() {
        assert_eq!((Flags::recorded("error"), Flags::recorded("masked")), (None, None));
        assert!(Flags::RECORDED.iter().all(|name| Flags::recorded(name).is_some()));
    }

    #[test]
    fn every_verdict_has_a_flag() {
        for verdict in Verdict::ALL {
            let name = format!("{VERDICT}{}", verdict.as_str());
            assert!(Flags::recorded(&name).is_some(), "{name}");
        }
    }
}
