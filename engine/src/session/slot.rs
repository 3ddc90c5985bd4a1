//! Slots: caches kept between requests.

use std::sync::Arc;

use super::Model;
use crate::backend::TopK;
use crate::kv::sequence::Sequence;

/// A cache and what it holds. A fresh slot holds nothing.
#[derive(Default)]
pub struct Slot {
    held: Option<Held>,
    /// Rises with each use of any slot; the smallest was used least recently.
    used: u64,
}

/// A sequence that was computed with one model under one setting.
pub struct Held {
    pub model: Arc<Model>,
    pub top_k: TopK,
    /// The tokens whose keys and values `sequence` holds.
    pub tokens: Vec<u32>,
    pub sequence: Sequence,
}

impl Slot {
    fn common(&self, model: &Arc<Model>, top_k: TopK, prompt: &[u32]) -> usize {
        match &self.held {
            Some(held) if Arc::ptr_eq(&held.model, model) && held.top_k == top_k => {
                held.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count()
            }
            _ => 0,
        }
    }

    /// Drops what was computed with a model of that name.
    pub fn forget(&mut self, name: &str) {
        self.held = self.held.take().filter(|held| held.model.name() != name);
    }

    /// Puts a sequence back for later requests.
    pub fn keep(&mut self, held: Held) {
        self.held = Some(held);
    }

    /// A sequence whose content is a proper prefix of `prompt`: the slot's own, cut back to what agrees, or a new one.
    /// At least the last prompt token is left to compute, for its logits are needed.
    pub fn take(&mut self, model: &Arc<Model>, top_k: TopK, prompt: &[u32]) -> Held {
        let common = self.common(model, top_k, prompt).min(prompt.len().saturating_sub(1));
        match self.held.take() {
            Some(mut held) if common > 0 => {
                held.sequence.truncate(common);
                held.tokens.truncate(common);
                held
            }
            _ => Held { model: model.clone(), top_k, tokens: Vec::new(), sequence: model.decoder.sequence() },
        }
    }
}

/// Takes the idle slot that agrees with `prompt` for longest, among equals the one least recently used.
pub fn choose(idle: &mut Vec<Slot>, model: &Arc<Model>, top_k: TopK, prompt: &[u32]) -> Slot {
    let newest = idle.iter().map(|slot| slot.used).max().unwrap_or(0);
    let rank = |slot: &Slot| (slot.common(model, top_k, prompt), u64::MAX - slot.used);
    let best = (0..idle.len()).max_by_key(|&i| rank(&idle[i]));
    let mut slot = best.map(|i| idle.swap_remove(i)).unwrap_or_default();
    slot.used = newest + 1;
    slot
}
