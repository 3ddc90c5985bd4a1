//! Projections, selection and attention of one layer.

use rayon::prelude::*;

use crate::backend::{Attend, IndexQuery, Selection, TopK};
use crate::cpu::attend::sparse_attend_decode;
use crate::cpu::index::index_logits_paged;
use crate::cpu::linear::linear;
use crate::cpu::rope::{frequencies, rotate};
use crate::cpu::topk::topk_select;
use crate::error::Error;
use crate::kv::IndexCache;
use crate::kv::sequence::Sequence;
use crate::weights::arch::LayerArch;
use crate::weights::{Tensor, Weights};

pub struct Attention {
    arch: LayerArch,
    frequencies: Vec<f32>,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sink: Option<Vec<f32>>,
    indexer: Option<Indexer>,
}

/// The weights that score positions for a query.
struct Indexer {
    query: Tensor,
    key: Tensor,
    weights: Tensor,
}

impl Attention {
    pub fn new(
        arch: &LayerArch,
        number: usize,
        hidden: usize,
        weights: &Weights,
    ) -> Result<Attention, Error> {
        let name = |part: &str| format!("model.layers.{number}.self_attn.{part}");
        let matrix = |part: &str, rows, cols| weights.matrix(&name(part), rows, cols);
        let indexer = match arch.indexer {
            None => None,
            Some(shape) => Some(Indexer {
                query: matrix("indexer.q_proj.weight", shape.heads * shape.dim, hidden)?,
                key: matrix("indexer.k_proj.weight", shape.dim, hidden)?,
                weights: matrix("indexer.weights_proj.weight", shape.heads, hidden)?,
            }),
        };
        Ok(Attention {
            frequencies: arch.rope.as_ref().map(frequencies).unwrap_or_default(),
            query: matrix("q_proj.weight", arch.heads * arch.key_dim, hidden)?,
            key: matrix("k_proj.weight", arch.kv_heads * arch.key_dim, hidden)?,
            value: matrix("v_proj.weight", arch.kv_heads * arch.value_dim, hidden)?,
            output: matrix("o_proj.weight", hidden, arch.heads * arch.value_dim)?,
            sink: if arch.sink { Some(weights.vector(&name("sinks"), arch.heads)?) } else { None },
            indexer,
            arch: arch.clone(),
        })
    }

    /// Writes keys, values and index keys of the rows `x` `[T][hidden]`, which stand at the reserved positions.
    pub fn remember(&self, x: &[f32], sequence: &mut Sequence, number: usize) -> Result<(), Error> {
        let rows = x.len() / self.key.cols;
        let first = sequence.len();
        let mut keys = project(&self.key, x, rows);
        if let Some(rope) = &self.arch.rope {
            rotate(rope, &self.frequencies, &mut keys, self.arch.kv_heads, self.arch.key_dim, first);
        }
        let values = project(&self.value, x, rows);
        let slots = sequence.slots()[first..].to_vec();
        let cache = &mut sequence.layers[number];
        cache.kv.kv_append(&keys, &values, &slots)?;
        match (&self.indexer, &mut cache.index) {
            (Some(indexer), Some(index)) => index.index_append(&project(&indexer.key, x, rows), &slots),
            _ => Ok(()),
        }
    }

    /// The attention output of rows `x`, the first of which is row `from` of this pass.
    pub fn forward(
        &self,
        x: &[f32],
        from: usize,
        sequence: &Sequence,
        number: usize,
        top_k: TopK,
    ) -> Result<Vec<f32>, Error> {
        let arch = &self.arch;
        let rows = x.len() / self.query.cols;
        let first = sequence.len() + from;
        let mut queries = project(&self.query, x, rows);
        if let Some(rope) = &arch.rope {
            rotate(rope, &self.frequencies, &mut queries, arch.heads, arch.key_dim, first);
        }
        let visible: Vec<(usize, usize)> =
            (first..first + rows).map(|position| self.visible(position)).collect();
        let cache = &sequence.layers[number];
        let chosen = match (&self.indexer, &cache.index, top_k) {
            (Some(indexer), Some(index), TopK::Limit(k)) if visible.iter().any(|(a, b)| b - a > k.get()) => {
                Some(indexer.select(x, &visible, sequence, index, k.get())?)
            }
            _ => None,
        };
        let (slots, spans) = match &chosen {
            Some((slots, spans)) => (slots.as_slice(), spans.as_slice()),
            None => (sequence.slots(), visible.as_slice()),
        };
        let call = Attend {
            queries: &queries,
            heads: arch.heads,
            scale: 1.0 / (arch.key_dim as f32).sqrt(),
            sink: self.sink.as_deref(),
            selection: Selection { slots, spans, per_group: false },
        };
        let mut mixed = vec![0.0; rows * arch.heads * arch.value_dim];
        let mut lse = vec![0.0; rows * arch.heads];
        sparse_attend_decode(call, &cache.kv, &mut mixed, &mut lse)?;
        Ok(project(&self.output, &mixed, rows))
    }

    /// The positions a query at `position` may see.
    fn visible(&self, position: usize) -> (usize, usize) {
        let end = position + 1;
        (self.arch.window.map_or(0, |window| end.saturating_sub(window)), end)
    }
}

type Chosen = (Vec<i64>, Vec<(usize, usize)>);

impl Indexer {
    /// The slots of the `k` best-scored visible positions of each row, and each row's span of them.
    fn select(
        &self,
        x: &[f32],
        visible: &[(usize, usize)],
        sequence: &Sequence,
        index: &IndexCache,
        k: usize,
    ) -> Result<Chosen, Error> {
        let rows = visible.len();
        let queries = project(&self.query, x, rows);
        let weights = project(&self.weights, x, rows);
        let row = |(row, &(start, end)): (usize, &(usize, usize))| -> Result<Vec<i64>, Error> {
            let (width, heads) = (self.query.rows, self.weights.rows);
            let query = IndexQuery {
                query: &queries[row * width..(row + 1) * width],
                weights: &weights[row * heads..(row + 1) * heads],
            };
            let mut logits = Vec::new();
            if end - start > k {
                index_logits_paged(query, index, &sequence.slots()[start..end], &mut logits)?;
            } else {
                logits.resize(end - start, 0.0);
            }
            let (mut keys, mut chosen, mut slots) = (Vec::new(), Vec::new(), Vec::new());
            topk_select(&logits, k, &mut keys, &mut chosen);
            sequence.table.to_slots(chosen.iter().map(|&i| i + start as i32), &mut slots)?;
            Ok(slots)
        };
        let lists: Vec<Vec<i64>> = visible.par_iter().enumerate().map(row).collect::<Result<_, _>>()?;
        let mut spans = Vec::with_capacity(rows);
        let mut slots = Vec::with_capacity(lists.iter().map(Vec::len).sum());
        for list in lists {
            let start = slots.len();
            slots.extend_from_slice(&list);
            spans.push((start, slots.len()));
        }
        Ok((slots, spans))
    }
}

fn project(matrix: &Tensor, x: &[f32], rows: usize) -> Vec<f32> {
    let mut out = vec![0.0; rows * matrix.rows];
    linear(matrix, x, rows, &mut out);
    out
}
