//! What a probe is built from.

use crate::fidelity::secret::Minter;

/// The built-in model that completes sentences and holds no conversation; it gets the plain wording.
pub const REFERENCE_MODEL: &str = "serin-reference";

/// The kinds of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A code given in the first turn is asked for in the last.
    TurnRecall,
}

/// What one probe should be like.
#[derive(Debug, Clone, PartialEq)]
pub struct Slot {
    pub kind: Kind,
    /// Nominal prompt length in tokens.
    pub length: u32,
    /// Tokens to aim beyond it.
    pub jitter: u32,
    pub temperature: f64,
    pub stream: bool,
    /// Index into the wordings of the kind.
    pub wording: usize,
    /// Seeds the filler and the place of the code.
    pub seed: u64,
}

/// What a probe is made from, besides its slot.
#[derive(Debug, Clone, Copy)]
pub struct Recipe<'a> {
    pub id: &'a str,
    pub model: &'a str,
    pub minter: &'a Minter,
    /// Words all messages should have together.
    pub words: usize,
}

impl Kind {
    /// The name as a label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TurnRecall => "turn_recall",
        }
    }
}
