//! The scalar operations: normative for every other backend.

pub mod attend;
pub mod index;
pub mod linear;
pub mod rope;
pub mod simd;
pub mod topk;

/// `out = x / sqrt(mean(x^2) + eps) * weight`, for each row of `weight.len()` elements.
pub fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let mean = simd::dot(x, x) / width as f32;
        let factor = 1.0 / (mean + eps).sqrt();
        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
            *out = x * factor * w;
        }
    }
}

/// `x += y`.
pub fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// `gate = silu(gate) * up`, with silu(z) = z / (1 + exp(-z)).
pub fn swiglu(gate: &mut [f32], up: &[f32]) {
    for (g, u) in gate.iter_mut().zip(up) {
        *g = *g / (1.0 + (-*g).exp()) * u;
    }
}
