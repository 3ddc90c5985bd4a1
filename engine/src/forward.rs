//! The one forward pass: every model is a list of layer descriptions run by this code.

use std::ops::Range;

use crate::backend::TopK;
use crate::cpu::{self, linear::linear};
use crate::error::Error;
use crate::kv::sequence::Sequence;
use crate::kv::{KvShape, PAGE, PageTable};
use crate::weights::arch::Arch;
use crate::weights::{Tensor, Weights};

mod attention;
mod layer;

use layer::Layer;

/// Prompt tokens per pass where nothing else is asked for.
pub const CHUNK: usize = 256;

/// A model ready to run. Shared between sequences; holds no state of any of them.
pub struct Decoder {
    pub arch: Arch,
    embed: Tensor,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Tensor,
}

/// Which rows of a pass need logits. The last layer computes queries for these alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    None,
    Last,
    All,
}

impl Decoder {
    /// Takes the tensors the description names; a missing or misshapen one is an error that names it.
    pub fn new(arch: Arch, weights: &Weights) -> Result<Decoder, Error> {
        let embed = weights.matrix("model.embed_tokens.weight", arch.vocab, arch.hidden)?;
        let head = if arch.tied {
            embed.clone()
        } else {
            weights.matrix("lm_head.weight", arch.vocab, arch.hidden)?
        };
        let layers = arch.layers.iter().enumerate();
        let layers = layers.map(|(i, layer)| Layer::new(layer, i, arch.hidden, arch.eps, weights));
        Ok(Decoder {
            embed,
            layers: layers.collect::<Result<_, _>>()?,
            norm: weights.vector("model.norm.weight", arch.hidden)?,
            head,
            arch,
        })
    }

    /// An empty sequence with pages of [`PAGE`] tokens.
    pub fn sequence(&self) -> Sequence {
        self.sequence_with(PageTable::new(PAGE, None))
    }

    /// An empty sequence over a given page table.
    pub fn sequence_with(&self, table: PageTable) -> Sequence {
        let shapes = self.arch.layers.iter().map(|layer| {
            let shape =
                KvShape { groups: layer.kv_heads, key_dim: layer.key_dim, value_dim: layer.value_dim };
            (shape, layer.indexer.map(|indexer| indexer.dim))
        });
        Sequence::new(table, shapes)
    }

    /// Appends `tokens` to the sequence in one pass and returns the wanted logits, `[row][vocab]`.
    ///
    /// Runs on the current rayon pool. On an error the sequence is as long as before. Splitting the tokens over
    /// several passes gives the same result up to f32 rounding.
    pub fn forward(
        &self,
        tokens: &[u32],
        sequence: &mut Sequence,
        top_k: TopK,
        wanted: Wanted,
    ) -> Result<Vec<f32>, Error> {
        let count = tokens.len();
        let end = sequence.len() + count;
        if end > self.arch.context {
            return Err(Error::TooLong { prompt: end, context: self.arch.context });
        }
        let mut hidden = self.embed(tokens)?;
        sequence.reserve(count)?;
        let rows = match wanted {
            Wanted::None => count..count,
            Wanted::Last => count.saturating_sub(1)..count,
            Wanted::All => 0..count,
        };
        let last = self.layers.len() - 1;
        for (i, layer) in self.layers.iter().enumerate() {
            let rows = if i == last { rows.clone() } else { 0..count };
            layer.forward(&mut hidden, rows, sequence, i, top_k)?;
        }
        sequence.commit();
        Ok(self.logits(&hidden, rows))
    }

    fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let mut hidden = vec![0.0; tokens.len() * self.arch.hidden];
        for (&token, row) in tokens.iter().zip(hidden.chunks_exact_mut(self.arch.hidden)) {
            if token as usize >= self.arch.vocab {
                let vocab = self.arch.vocab;
                return Err(Error::Invalid(format!("token {token} is outside the vocabulary of {vocab}")));
            }
            self.embed.row_f32(token as usize, row);
        }
        Ok(hidden)
    }

    fn logits(&self, hidden: &[f32], rows: Range<usize>) -> Vec<f32> {
        let (count, width) = (rows.len(), self.arch.hidden);
        let mut normed = vec![0.0; count * width];
        cpu::rms_norm(&hidden[rows.start * width..rows.end * width], &self.norm, self.arch.eps, &mut normed);
        let mut logits = vec![0.0; count * self.arch.vocab];
        if count > 0 {
            linear(&self.head, &normed, count, &mut logits);
        }
        logits
    }
}
