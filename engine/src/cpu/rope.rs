//! Rotary position encoding.

use crate::weights::arch::{Pairing, Rope};

/// Inverse frequencies `theta^(-2 i / dims)`, one per pair, as f32.
pub fn frequencies(rope: &Rope) -> Vec<f32> {
    (0..rope.dims / 2).map(|i| rope.theta.powf(-((2 * i) as f32) / rope.dims as f32)).collect()
}

/// Turns the first `rope.dims` of every head of `rows` `[T][heads][dim]`; row t stands at position `first + t`.
/// Angles are f32 products, as in the models' own code.
pub fn rotate(rope: &Rope, frequencies: &[f32], rows: &mut [f32], heads: usize, dim: usize, first: usize) {
    let mut turn = vec![(0.0f32, 0.0f32); frequencies.len()];
    for (t, row) in rows.chunks_exact_mut(heads * dim).enumerate() {
        for (turn, frequency) in turn.iter_mut().zip(frequencies) {
            *turn = ((first + t) as f32 * frequency).sin_cos();
        }
        for head in row.chunks_exact_mut(dim) {
            for (i, (sin, cos)) in turn.iter().enumerate() {
                let (a, b) = match rope.pairing {
                    Pairing::Interleaved => (2 * i, 2 * i + 1),
                    Pairing::HalfSplit => (i, i + turn.len()),
                };
                let (x, y) = (head[a], head[b]);
                head[a] = x * cos - y * sin;
                head[b] = x * sin + y * cos;
            }
        }
    }
}
