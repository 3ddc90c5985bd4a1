//! Inner loops, written so that the compiler vectorises them, once for the baseline and once for AVX2 with FMA
//! (chosen at run time), and the one call into `gemm`. The loops over many rows are dispatched once, not per row.
//!
//! Each loop keeps eight partial sums; the two builds differ only by fused rounding.

use crate::weights::dequant::{BLOCK, Q4_1_BYTES, Q8_0_BYTES, half_at};

const LANES: usize = 8;

/// Rows of one head group inside a cache: row `slot` begins at `(slot groups + group) width`.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub store: &'a [f32],
    pub groups: usize,
    pub group: usize,
    pub width: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn row(&self, slot: i64) -> &'a [f32] {
        let start = (slot as usize * self.groups + self.group) * self.width;
        &self.store[start..start + self.width]
    }
}

/// Defines `pub fn $name` over the generic body `$body`, with an AVX2 build picked where the processor has it.
macro_rules! dispatched {
    ($(#[$doc:meta])* $name:ident, $fast:ident, $body:ident, ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?) => {
        $(#[$doc])*
        #[inline]
        pub fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                // SAFETY: the two features this function is compiled for were found on this processor just above;
                // it is otherwise ordinary safe code.
                return unsafe { $fast($($arg),*) };
            }
            $body::<false>($($arg),*)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma")]
        fn $fast($($arg: $ty),*) $(-> $ret)? {
            $body::<true>($($arg),*)
        }
    };
}

dispatched!(
    /// Inner product; the shorter length counts.
    dot, dot_avx2, dot_body, (a: &[f32], b: &[f32]) -> f32
);
dispatched!(
    /// `out[i] = scale query . rows[slots[i]]`, -inf where the slot is -1.
    scores, scores_avx2, scores_body, (query: &[f32], rows: Rows<'_>, slots: &[i64], scale: f32, out: &mut [f32])
);
dispatched!(
    /// `out += sum over i of weights[i] rows[slots[i]]`, in that order; a weight of 0 leaves its row unread.
    mix, mix_avx2, mix_body, (weights: &[f32], rows: Rows<'_>, slots: &[i64], out: &mut [f32])
);
dispatched!(
    /// Replaces each x by `exp(x - top)` and returns the sum. For x at most `top`; relative error below 3e-7, and 0
    /// where the result would be below 2^-126.
    exp_sum, exp_sum_avx2, exp_sum_body, (x: &mut [f32], top: f32) -> f32
);
dispatched!(
    /// Inner product of stored little-endian f32 with `x`.
    dot_f32, dot_f32_avx2, dot_f32_body, (row: &[u8], x: &[f32]) -> f32
);
dispatched!(
    /// Inner product of a Q8_0 row with `x`.
    dot_q8_0, dot_q8_0_avx2, dot_q8_0_body, (row: &[u8], x: &[f32]) -> f32
);
dispatched!(
    /// Inner product of a Q4_1 row with `x`.
    dot_q4_1, dot_q4_1_avx2, dot_q4_1_body, (row: &[u8], x: &[f32]) -> f32
);

#[inline(always)]
fn fused<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

/// The sum of the lanes, halves first: a chain of three additions where one after another would take seven.
///
/// The lanes go through memory: seen together with the loop before it, this tree makes the compiler keep them in pairs
/// instead of in one wide register, at half the speed.
#[inline(always)]
fn total(lanes: [f32; LANES]) -> f32 {
    let mut lanes = std::hint::black_box(lanes);
    for half in [4, 2, 1] {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
    }
    lanes[0]
}

#[inline(always)]
fn dot_body<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let n = a.len().min(b.len());
    let (wide_a, rest_a) = a[..n].as_chunks::<LANES>();
    let (wide_b, rest_b) = b[..n].as_chunks::<LANES>();
    let mut acc = [[0.0; LANES]; 2];
    let (pairs_a, last_a) = wide_a.as_chunks::<2>();
    let (pairs_b, last_b) = wide_b.as_chunks::<2>();
    for (a, b) in pairs_a.iter().zip(pairs_b) {
        for i in 0..LANES {
            acc[0][i] = fused::<FMA>(a[0][i], b[0][i], acc[0][i]);
            acc[1][i] = fused::<FMA>(a[1][i], b[1][i], acc[1][i]);
        }
    }
    for (a, b) in last_a.iter().zip(last_b) {
        for i in 0..LANES {
            acc[0][i] = fused::<FMA>(a[i], b[i], acc[0][i]);
        }
    }
    let [mut lanes, second] = acc;
    for i in 0..LANES {
        lanes[i] += second[i];
    }
    let mut sum = total(lanes);
    for (a, b) in rest_a.iter().zip(rest_b) {
        sum += a * b;
    }
    sum
}

#[inline(always)]
fn scores_body<const FMA: bool>(query: &[f32], rows: Rows<'_>, slots: &[i64], scale: f32, out: &mut [f32]) {
    for (&slot, out) in slots.iter().zip(out) {
        *out = if slot == -1 { f32::NEG_INFINITY } else { scale * dot_body::<FMA>(query, rows.row(slot)) };
    }
}

#[inline(always)]
fn mix_body<const FMA: bool>(weights: &[f32], rows: Rows<'_>, slots: &[i64], out: &mut [f32]) {
    let mut waiting: [(f32, &[f32]); 4] = [(0.0, &[]); 4];
    let mut count = 0;
    for (&weight, &slot) in weights.iter().zip(slots) {
        if weight == 0.0 {
            continue;
        }
        waiting[count] = (weight, rows.row(slot));
        count += 1;
        if count == waiting.len() {
            let [(a, x), (b, y), (c, z), (d, w)] = waiting;
            for ((((out, x), y), z), w) in out.iter_mut().zip(x).zip(y).zip(z).zip(w) {
                let first = fused::<FMA>(b, *y, fused::<FMA>(a, *x, *out));
                *out = fused::<FMA>(d, *w, fused::<FMA>(c, *z, first));
            }
            count = 0;
        }
    }
    for (weight, row) in &waiting[..count] {
        for (out, x) in out.iter_mut().zip(*row) {
            *out = fused::<FMA>(*weight, *x, *out);
        }
    }
}

#[inline(always)]
fn exp_sum_body<const FMA: bool>(x: &mut [f32], top: f32) -> f32 {
    let mut acc = [0.0; LANES];
    let mut chunks = x.chunks_exact_mut(LANES);
    for x in &mut chunks {
        for i in 0..LANES {
            x[i] = exp::<FMA>(x[i] - top);
            acc[i] += x[i];
        }
    }
    let mut sum = total(acc);
    for x in chunks.into_remainder() {
        *x = exp::<FMA>(*x - top);
        sum += *x;
    }
    sum
}

/// exp for arguments up to about 0: 2^n times a polynomial in the rest, |rest| at most ln(2) / 2 (Taylor to degree 7).
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    /// 1.5 * 2^23: adding it rounds to a whole number that then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.max(-87.3);
    let shifted = fused::<FMA>(clamped, std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let rest = fused::<FMA>(-whole, LN2_LOW, fused::<FMA>(-whole, LN2_HIGH, clamped));
    let mut sum = 1.0 / 5040.0;
    for factor in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = fused::<FMA>(sum, rest, factor);
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    if x < -87.3 {
        0.0
    } else if x.is_nan() {
        x
    } else {
        sum * power
    }
}

#[inline(always)]
fn dot_f32_body<const FMA: bool>(row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [0.0; LANES];
    let mut blocks = row.chunks_exact(4 * LANES);
    let mut xs = x.chunks_exact(LANES);
    for (row, x) in (&mut blocks).zip(&mut xs) {
        for i in 0..LANES {
            let w = f32::from_le_bytes([row[4 * i], row[4 * i + 1], row[4 * i + 2], row[4 * i + 3]]);
            acc[i] = fused::<FMA>(w, x[i], acc[i]);
        }
    }
    let mut sum = total(acc);
    for (w, x) in blocks.remainder().chunks_exact(4).zip(xs.remainder()) {
        sum += f32::from_le_bytes([w[0], w[1], w[2], w[3]]) * x;
    }
    sum
}

#[inline(always)]
fn dot_q8_0_body<const FMA: bool>(row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [0.0; LANES];
    for (block, x) in row.chunks_exact(Q8_0_BYTES).zip(x.chunks_exact(BLOCK)) {
        let (d, q) = (half_at(block, 0), &block[2..]);
        let mut part = [0.0; LANES];
        for (q, x) in q.chunks_exact(LANES).zip(x.chunks_exact(LANES)) {
            for i in 0..LANES {
                part[i] = fused::<FMA>(f32::from(q[i] as i8), x[i], part[i]);
            }
        }
        for i in 0..LANES {
            acc[i] = fused::<FMA>(d, part[i], acc[i]);
        }
    }
    total(acc)
}

#[inline(always)]
fn dot_q4_1_body<const FMA: bool>(row: &[u8], x: &[f32]) -> f32 {
    let mut acc = [0.0; LANES];
    for (block, x) in row.chunks_exact(Q4_1_BYTES).zip(x.chunks_exact(BLOCK)) {
        let (d, m, q) = (half_at(block, 0), half_at(block, 2), &block[4..Q4_1_BYTES]);
        let (low, high) = x.split_at(BLOCK / 2);
        let (mut part, mut plain) = ([0.0; LANES], [0.0; LANES]);
        for j in [0, LANES] {
            for i in 0..LANES {
                let byte = q[j + i];
                let (l, h) = (low[j + i], high[j + i]);
                part[i] = fused::<FMA>(f32::from(byte & 15), l, part[i]);
                part[i] = fused::<FMA>(f32::from(byte >> 4), h, part[i]);
                plain[i] += l + h;
            }
        }
        for i in 0..LANES {
            acc[i] = fused::<FMA>(d, part[i], fused::<FMA>(m, plain[i], acc[i]));
        }
    }
    total(acc)
}

/// `out[m][n] = x[m][k] . w[n][k]`, all row-major and contiguous, on the current rayon pool.
///
/// Panics where a slice is shorter than its shape: the callers in this crate size them from the same numbers.
pub fn matmul(x: &[f32], w: &[f32], out: &mut [f32], m: usize, n: usize, k: usize) {
    assert!(x.len() >= m * k && w.len() >= n * k && out.len() >= m * n, "matmul operands are too short");
    let threads = gemm::Parallelism::Rayon(rayon::current_num_threads());
    // SAFETY: the three pointers come from live slices that the assertion above proved long enough for the strides
    // given (x: k per row, w: k per row read as its transpose, out: n per row); `out` is borrowed mutably and so
    // overlaps neither input, and `read_dst` is false so its old content is not read.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            false,
            x.as_ptr(),
            1,
            k as isize,
            w.as_ptr(),
            k as isize,
            1,
            0.0f32,
            1.0f32,
            false,
            false,
            false,
            threads,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::dequant::{Dtype, row};

    fn ramp(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 25.0).collect()
    }

    #[test]
    fn quantised_dots_equal_dots_of_expanded_rows() {
        let x = ramp(96);
        for (dtype, bytes) in
            [(Dtype::Q8_0, 3 * Q8_0_BYTES), (Dtype::Q4_1, 3 * Q4_1_BYTES), (Dtype::F32, 96 * 4)]
        {
            let mut stored: Vec<u8> = (0..bytes).map(|i| (i * 73 % 251) as u8).collect();
            let block = bytes / 3;
            for (i, b) in stored.iter_mut().enumerate() {
                // Scales (and the top byte of each f32) are kept to moderate exponents.
                let high = if dtype == Dtype::F32 {
                    i % 4 == 3
                } else {
                    matches!(i % block, 1 | 3) && (dtype == Dtype::Q4_1 || i % block == 1)
                };
                if high {
                    *b = 0x30 | (*b & 0x80);
                }
            }
            let mut expanded = vec![0.0; 96];
            row(dtype, &stored, &mut expanded);
            let exact: f64 = expanded.iter().zip(&x).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            let size: f64 = expanded.iter().zip(&x).map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs()).sum();
            let got = match dtype {
                Dtype::Q8_0 => dot_q8_0(&stored, &x),
                Dtype::Q4_1 => dot_q4_1(&stored, &x),
                _ => dot_f32(&stored, &x),
            };
            assert!((f64::from(got) - exact).abs() <= 1e-6 * size, "{dtype:?}: {got} against {exact}");
        }
    }

    #[test]
    fn exp_is_accurate_from_0_down_to_nothing() {
        for i in 0..200_000 {
            let x = -(i as f32) * 5e-4;
            let mut got = [x; 9];
            let sum = exp_sum(&mut got, 0.0);
            let exact = f64::from(x).exp();
            let fine = |y: f32| (f64::from(y) - exact).abs() <= 3e-7 * exact || (x < -87.3 && y == 0.0);
            assert!(fine(got[0]) && fine(got[8]), "exp({x}) = {} or {}", got[0], got[8]);
            assert!((sum - 9.0 * got[0]).abs() <= 1e-5 * sum);
        }
        let mut special = [f32::NEG_INFINITY, f32::NAN, 0.0];
        exp_sum(&mut special, 0.0);
        assert!(special[0] == 0.0 && special[1].is_nan() && special[2] == 1.0);
    }

    #[test]
    fn scores_and_mix_pass_over_unused_slots() {
        let store = ramp(40);
        let rows = Rows { store: &store, groups: 2, group: 1, width: 4 };
        let slots = [4, -1, 0, 2, 2, 3, 1];
        let mut got = [f32::NAN; 7];
        scores(&[1.0, 0.0, 0.0, 2.0], rows, &slots, 0.5, &mut got);
        let row = |slot: i64| &store[(slot as usize * 2 + 1) * 4..][..4];
        for (&slot, &got) in slots.iter().zip(&got) {
            let want = if slot == -1 { f32::NEG_INFINITY } else { 0.5 * (row(slot)[0] + 2.0 * row(slot)[3]) };
            assert!(got == want || (got - want).abs() < 1e-6);
        }
        let mut out = [1.0; 4];
        let weights = [0.5, 0.0, 0.25, 1.0, 1.0, 2.0, 3.0];
        mix(&weights, rows, &slots, &mut out);
        for (i, got) in out.iter().enumerate() {
            let used = weights.iter().zip(slots).filter(|(w, _)| **w > 0.0);
            let want: f32 = used.map(|(w, slot)| w * row(slot)[i]).sum::<f32>() + 1.0;
            assert!((got - want).abs() < 1e-5);
        }
    }

    #[test]
    fn dot_takes_every_length() {
        for n in 0..70 {
            let (a, b) = (ramp(n), vec![2.0; n]);
            let exact: f32 = a.iter().sum::<f32>() * 2.0;
            assert!((dot(&a, &b) - exact).abs() < 1e-4, "length {n}");
        }
    }

    #[test]
    fn matmul_is_rows_by_rows() {
        let (x, w) = (ramp(3 * 5), ramp(4 * 5));
        let mut out = vec![f32::NAN; 12];
        matmul(&x, &w, &mut out, 3, 4, 5);
        for i in 0..3 {
            for j in 0..4 {
                let exact = dot(&x[i * 5..i * 5 + 5], &w[j * 5..j * 5 + 5]);
                assert!((out[i * 4 + j] - exact).abs() < 1e-5);
            }
        }
    }
}
