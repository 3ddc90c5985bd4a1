//! Tracer dye: every planted code stays registered for a while, and wherever one turns up in an
//! answer that does not belong to its probe, requests have been mixed up.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use dashmap::DashMap;

use super::secret::{Secret, is_code};
use super::text::{Token, tokens};

/// A bounded set of live codes with the probe each belongs to. The oldest leave first.
#[derive(Debug)]
pub struct Registry {
    capacity: usize,
    owners: DashMap<String, String>,
    order: Mutex<VecDeque<String>>,
}

impl Registry {
    /// A registry of at most `capacity` codes (at least one).
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), owners: DashMap::new(), order: Mutex::new(VecDeque::new()) }
    }

    /// Registers a code of `probe_id`, before the first byte that holds it is sent.
    pub fn register(&self, secret: &Secret, probe_id: &str) {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        if self.owners.insert(secret.as_str().to_owned(), probe_id.to_owned()).is_none() {
            order.push_back(secret.as_str().to_owned());
        }
        while order.len() > self.capacity {
            if let Some(oldest) = order.pop_front() {
                self.owners.remove(&oldest);
            }
        }
    }

    /// How many codes are live.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Whether no code is live.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// The probe whose code stands in `text` without belonging to `own` (the probe that was
    /// answered; `None` for a client's exchange). `text` must be normalised by
    /// [`super::text::normalise`].
    pub fn stranger_in(&self, text: &str, own: Option<&str>) -> Option<String> {
        self.codes_in(text).into_iter().map(|(_, owner)| owner).find(|owner| own != Some(owner.as_str()))
    }

    /// The live codes that stand in `text`, each with the probe it belongs to. `text` must be normalised.
    pub fn codes_in(&self, text: &str) -> Vec<(String, String)> {
        if self.is_empty() {
            return Vec::new();
        }
        let tokens = tokens(text);
        let known = |code: String| {
            let owner = self.owners.get(&code)?.clone();
            Some((code, owner))
        };
        tokens.windows(4).filter_map(code_of).filter_map(known).collect()
    }
}

/// Four tokens in a row as a code, if they have the shape of one.
fn code_of(window: &[Token<'_>]) -> Option<String> {
    let segments: [&str; 4] = std::array::from_fn(|i| window[i].text);
    (is_code(segments) && window[1..].iter().all(Token::continues)).then(|| segments.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fidelity::secret::Minter;

    #[test]
    fn finds_codes_of_others_only() {
        let (registry, minter) = (Registry::new(10), Minter::new([1; 32]));
        let (mine, theirs) = (minter.mint("mine", 0), minter.mint("theirs", 0));
        registry.register(&mine, "mine");
        registry.register(&theirs, "theirs");
        let answer = format!("it is {mine}, or {theirs}.");
        assert_eq!(registry.stranger_in(&answer, Some("mine")).as_deref(), Some("theirs"));
        assert_eq!(registry.stranger_in(&format!("it is {mine}"), Some("mine")), None);
        assert_eq!(registry.stranger_in(&format!("it is {mine}"), None).as_deref(), Some("mine"));
        assert_eq!(registry.stranger_in(&format!("x{theirs}"), Some("mine")), None);
    }

    #[test]
    fn keeps_at_most_its_capacity() {
        let (registry, minter) = (Registry::new(3), Minter::new([1; 32]));
        let codes: Vec<_> = (0..5).map(|slot| minter.mint("p", slot)).collect();
        codes.iter().chain(&codes[4..]).for_each(|code| registry.register(code, "p"));
        assert_eq!(registry.len(), 3);
        assert_eq!(registry.stranger_in(codes[1].as_str(), None), None);
        assert_eq!(registry.stranger_in(codes[2].as_str(), None).as_deref(), Some("p"));
    }
}
