//! The lightning indexer's scores.

use super::simd;
use crate::backend::IndexQuery;
use crate::error::Error;
use crate::kv::IndexCache;

/// Logits of one query row over `slots` (the row's visible positions in order), appended to `out`.
///
/// `I[s] = sum over h of w[h] max(q[h] . k[s], 0)`, f32 throughout. Only the rows named by `slots` are read.
pub fn index_logits_paged(
    query: IndexQuery<'_>,
    cache: &IndexCache,
    slots: &[i64],
    out: &mut Vec<f32>,
) -> Result<(), Error> {
    let dim = cache.dim;
    if query.query.len() != query.weights.len() * dim {
        return Err(Error::Unsupported(format!(
            "an index query of {} elements for {} heads of {dim}",
            query.query.len(),
            query.weights.len()
        )));
    }
    for &slot in slots {
        let start = usize::try_from(slot).ok().and_then(|s| s.checked_mul(dim));
        let key = start.and_then(|start| cache.keys.get(start..start + dim));
        let key = key.ok_or_else(|| Error::Internal(format!("index slot {slot} lies outside the cache")))?;
        let heads = query.query.chunks_exact(dim).zip(query.weights);
        out.push(heads.map(|(q, w)| w * simd::dot(q, key).max(0.0)).sum());
    }
    Ok(())
}
