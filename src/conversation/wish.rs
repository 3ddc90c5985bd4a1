//! How much of an exchange is recorded, as far as its conversation decides it.

use super::reading::is_failed;
use super::stitch::Kind;
use crate::journal::{Exchange, Keep, Level, Link};

/// How much of an exchange is to be recorded.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub keep: Keep,
    /// The share of conversations that are recorded with their bodies.
    pub sample: f64,
}

/// How much of an exchange was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    pub level: Level,
    /// Where it belongs; `None` for what is no turn.
    pub place: Option<Place>,
    /// Why it is less than was offered.
    pub lowered: Option<Lowered>,
    pub(super) keep: Keep,
}

/// Where a turn belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub kind: Kind,
    /// Empty for a root.
    pub parent: String,
    /// More than one place fitted.
    pub ambiguous: bool,
}

impl Place {
    pub(super) fn of(link: &Link) -> Place {
        let ambiguous = link.confidence <= AMBIGUOUS;
        Place { kind: Kind::of_name(&link.kind), parent: link.parent.clone(), ambiguous }
    }
}

/// The confidence of a link from which it is ambiguous.
pub(super) const AMBIGUOUS: f32 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowered {
    /// The wish was for less.
    Keep,
    /// Its conversation is not among those that are recorded whole.
    Sampled,
}

impl Wish {
    /// For everything.
    pub const ALL: Wish = Wish { keep: Keep::ALL, sample: 1.0 };

    /// Decides, and notes it in the exchange. What failed is recorded whole in any case.
    pub(super) fn apply(self, exchange: &mut Exchange, conversation: Option<&str>) -> Taken {
        let root = conversation.unwrap_or(&exchange.id);
        let sampled_out = self.sample < 1.0 && !is_failed(exchange) && share(root) >= self.sample;
        let keep = if sampled_out { Keep { content: false, stream: false } } else { self.keep };
        let lowered = keep.lower(exchange);
        let why = if sampled_out { Lowered::Sampled } else { Lowered::Keep };
        Taken { level: exchange.record_level(), place: None, lowered: lowered.then_some(why), keep }
    }
}

/// A number from 0 to 1 that a name always has.
fn share(name: &str) -> f64 {
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..8]);
    u64::from_le_bytes(first) as f64 / u64::MAX as f64
}
