//! Attention over selected rows: the one attention of every model, dense ones selecting everything.

use rayon::prelude::*;

use super::simd::{self, Rows};
use crate::backend::Attend;
use crate::error::Error;
use crate::kv::KvCache;

/// The running maximum starts here and not at -inf, so that a row without keys cannot yield inf - inf.
const LOWEST: f32 = -1e30;

/// Softmax attention of each query over the rows its selection names.
///
/// `out` is `[row][head][value_dim]`, `lse` `[row][head]`: the logarithm of the sum of exponentials of the scaled
/// scores, the sink left out. A row that selects nothing gives zeros and -inf. Each place of a span is checked in
/// this order: inside the span, not -1, inside the cache. f32 accumulation in the order of the slots, so the result
/// does not depend on the number of threads, on how rows are batched, or on where pages lie.
pub fn sparse_attend_decode(
    call: Attend<'_>,
    cache: &KvCache,
    out: &mut [f32],
    lse: &mut [f32],
) -> Result<(), Error> {
    let shape = cache.shape;
    check(&call, cache, out, lse)?;
    let share = call.heads / shape.groups;
    let (width, value_width) = (share * shape.key_dim, share * shape.value_dim);
    let tasks = call.queries.par_chunks_exact(width).zip(out.par_chunks_exact_mut(value_width));
    tasks.zip(lse.par_chunks_exact_mut(share)).enumerate().for_each_init(Vec::new, |scores, (task, io)| {
        let ((queries, out), lse) = io;
        let (row, group) = (task / shape.groups, task % shape.groups);
        let span = call.selection.spans[if call.selection.per_group { task } else { row }];
        let slots = &call.selection.slots[span.0..span.1];
        let heads = queries.chunks_exact(shape.key_dim).zip(out.chunks_exact_mut(shape.value_dim)).zip(lse);
        for (i, ((query, out), lse)) in heads.enumerate() {
            let sink = call.sink.map(|sinks| sinks[group * share + i]);
            *lse = one_head(query, cache, group, slots, call.scale, sink, scores, out);
        }
    });
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "one row of one head is exactly these things")]
fn one_head(
    query: &[f32],
    cache: &KvCache,
    group: usize,
    slots: &[i64],
    scale: f32,
    sink: Option<f32>,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) -> f32 {
    let shape = cache.shape;
    let rows = |store, width| Rows { store, groups: shape.groups, group, width };
    scores.clear();
    scores.resize(slots.len(), 0.0);
    simd::scores(query, rows(&cache.keys, shape.key_dim), slots, scale, scores);
    let max = scores.iter().copied().fold(LOWEST, f32::max);
    // The sink may exceed every key; the common factor exp(max) cancels, so the larger of the two is taken out.
    let top = sink.map_or(max, |sink| max.max(sink));
    let keys = if top == max { None } else { Some(simd::exp_sum(&mut scores.clone(), max)) };
    let mut total = simd::exp_sum(scores, top);
    let keys = keys.unwrap_or(total);
    out.fill(0.0);
    simd::mix(scores, rows(&cache.values, shape.value_dim), slots, out);
    if keys == 0.0 {
        return f32::NEG_INFINITY;
    }
    total += sink.map_or(0.0, |sink| (sink - top).exp());
    for x in out.iter_mut() {
        *x /= total;
    }
    max + keys.ln()
}

fn check(call: &Attend<'_>, cache: &KvCache, out: &[f32], lse: &[f32]) -> Result<(), Error> {
    let shape = cache.shape;
    let unsupported = |what: String| Err(Error::Unsupported(format!("attention with {what}")));
    if shape.groups == 0 || call.heads == 0 || !call.heads.is_multiple_of(shape.groups) {
        return unsupported(format!("{} query heads over {} key groups", call.heads, shape.groups));
    }
    let rows = call.queries.len() / (call.heads * shape.key_dim).max(1);
    let spans = if call.selection.per_group { rows * shape.groups } else { rows };
    if call.queries.len() != rows * call.heads * shape.key_dim || call.selection.spans.len() != spans {
        return unsupported(format!("{} query elements and {} spans", call.queries.len(), spans));
    }
    if out.len() != rows * call.heads * shape.value_dim || lse.len() != rows * call.heads {
        return unsupported(format!("outputs of {} and {} elements for {rows} rows", out.len(), lse.len()));
    }
    if call.sink.is_some_and(|sink| sink.len() != call.heads) {
        return unsupported(format!("a sink that is not one logit for each of {} heads", call.heads));
    }
    let len = call.selection.slots.len();
    if let Some(span) = call.selection.spans.iter().find(|(a, b)| a > b || *b > len) {
        return unsupported(format!("span {span:?} of {len} slots"));
    }
    let rows = cache.rows() as i64;
    match call.selection.slots.iter().find(|&&slot| slot < -1 || slot >= rows) {
        Some(slot) => unsupported(format!("slot {slot} of a cache with {rows} rows")),
        None => Ok(()),
    }
}
