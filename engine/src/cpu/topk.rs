//! Exact selection of the k largest.

use crate::backend::TopkStats;

/// Indices of the `k` largest logits, ascending, appended to `out`.
///
/// With `logits.len() <= k` every index is taken and no logit is read. Otherwise the smallest index wins a tie, +0
/// equals -0, -inf is an ordinary lowest value and NaN is never taken (so fewer than `k` may come out). `keys` is
/// scratch. Threshold by quickselect, then one ordered pass: no candidate buffer, so nothing can be truncated.
pub fn topk_select(logits: &[f32], k: usize, keys: &mut Vec<u32>, out: &mut Vec<i32>) -> TopkStats {
    if logits.len() <= k {
        out.extend(0..logits.len() as i32);
        return TopkStats::default();
    }
    keys.clear();
    keys.extend(logits.iter().filter(|x| !x.is_nan()).map(|&x| order(x)));
    let mut stats = TopkStats { nan: logits.len() - keys.len(), ties_left_out: 0 };
    if k == 0 {
        return stats;
    }
    if keys.len() <= k {
        out.extend((0..logits.len() as i32).filter(|&i| !logits[i as usize].is_nan()));
        return stats;
    }
    let cut = keys.len() - k;
    let (_, &mut threshold, above) = keys.select_nth_unstable(cut);
    let mut ties = k - above.iter().filter(|&&key| key > threshold).count();
    for (i, &x) in logits.iter().enumerate() {
        if x.is_nan() {
            continue;
        }
        let key = order(x);
        if key > threshold {
            out.push(i as i32);
        } else if key == threshold {
            if ties > 0 {
                ties -= 1;
                out.push(i as i32);
            } else {
                stats.ties_left_out += 1;
            }
        }
    }
    stats
}

/// A key whose unsigned order is the order of the floats, with both zeros equal.
fn order(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}
