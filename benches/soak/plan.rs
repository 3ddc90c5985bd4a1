//! How one exchange is to go, agreed between client and upstream in a header, so that both can tell right from wrong.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::SizeHint;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::dice::Dice;

/// The request header that carries a plan.
pub const HEADER: &str = "x-soak-plan";
/// The response header with the digest of the request's body as the upstream received it.
pub const RECEIVED: &str = "x-soak-received";
/// Marks what no upstream may ever see.
pub const MALFORMED: &str = "x-soak-malformed";

/// How the upstream ends its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Whole,
    /// The connection is closed in place of an answer.
    NoHead,
    /// It is closed after this many pieces.
    CutAfter(u32),
    /// Nothing comes until the client leaves.
    Never,
}

/// What the upstream is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub seed: u64,
    pub pieces: u32,
    /// Bytes of one piece.
    pub piece: u32,
    /// Between two pieces.
    pub pace: Duration,
    pub ending: Ending,
    /// With a length, or in chunks.
    pub sized: bool,
}

/// A body on its way: the pieces of a plan, made one by one at its pace, so that a large one needs no memory.
pub struct Pieces {
    plan: Plan,
    taken: u32,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pieces {
    pub fn of(plan: Plan) -> Pieces {
        Pieces { plan, taken: 0, timer: None }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn taken(&self) -> u32 {
        self.taken
    }

    pub fn all_taken(&self) -> bool {
        self.taken == self.plan.pieces
    }

    /// Ready when the next piece is due, or the end.
    pub fn poll_due(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = &mut self.timer {
            ready!(timer.as_mut().poll(cx));
        }
        Poll::Ready(())
    }

    /// The next piece; `None` after the last.
    pub fn take(&mut self) -> Option<Bytes> {
        if self.all_taken() {
            return None;
        }
        let piece = self.plan.bytes(self.taken);
        self.taken += 1;
        let pace = self.plan.pace;
        self.timer = (!pace.is_zero()).then(|| Box::pin(sleep_until(Instant::now() + pace)));
        Some(piece)
    }

    pub fn size_hint(&self) -> SizeHint {
        if self.plan.sized { SizeHint::with_exact(self.plan.length()) } else { SizeHint::default() }
    }
}

impl Plan {
    /// A usual answer: mostly small, seldom megabytes, sometimes paced like a model's.
    pub fn draw(dice: &mut Dice) -> Plan {
        let (paced, large) = (dice.one_in(4), dice.one_in(20));
        Plan {
            seed: dice.roll(),
            pieces: dice.size(if paced { 5 } else { 7 }) as u32,
            piece: dice.size(if large { 17 } else { 11 }) as u32,
            pace: if paced { dice.millis(1, 12) } else { Duration::ZERO },
            ending: Ending::Whole,
            sized: dice.one_in(3),
        }
    }

    pub fn header(&self) -> String {
        let (kind, after) = match self.ending {
            Ending::Whole => ("whole", 0),
            Ending::NoHead => ("nohead", 0),
            Ending::CutAfter(pieces) => ("cut", pieces),
            Ending::Never => ("never", 0),
        };
        let Plan { seed, pieces, piece, sized, .. } = self;
        format!("{seed}:{pieces}:{piece}:{}:{kind}:{after}:{sized}", self.pace.as_micros())
    }

    pub fn parse(text: &str) -> Option<Plan> {
        let parts: Vec<&str> = text.split(':').collect();
        let [seed, pieces, piece, pace, kind, after, sized] = parts[..] else { return None };
        let ending = match kind {
            "whole" => Ending::Whole,
            "nohead" => Ending::NoHead,
            "cut" => Ending::CutAfter(after.parse().ok()?),
            "never" => Ending::Never,
            _ => return None,
        };
        Some(Plan {
            seed: seed.parse().ok()?,
            pieces: pieces.parse().ok()?,
            piece: piece.parse().ok()?,
            pace: Duration::from_micros(pace.parse().ok()?),
            ending,
            sized: sized.parse().ok()?,
        })
    }

    pub fn length(&self) -> u64 {
        u64::from(self.pieces) * u64::from(self.piece)
    }

    /// One piece of the answer.
    pub fn bytes(&self, number: u32) -> Bytes {
        let mut dice = Dice::new(self.seed ^ (u64::from(number) << 32));
        let words = (self.piece as usize).div_ceil(8);
        let mut bytes: Vec<u8> = (0..words).flat_map(|_| dice.roll().to_le_bytes()).collect();
        bytes.truncate(self.piece as usize);
        bytes.into()
    }

    /// The digest of the whole answer.
    pub fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for number in 0..self.pieces {
            hasher.update(&self.bytes(number));
        }
        hasher.finalize()
    }
}
