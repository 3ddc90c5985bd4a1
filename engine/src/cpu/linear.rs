//! Products with stored matrices: a general matrix product for many rows, direct dots on the stored form for few.

use rayon::prelude::*;

use super::simd;
use crate::weights::{Dtype, Tensor, dequant};

/// Up to this many input rows each output is a dot with the stored row; above, the matrix is expanded once.
const FEW: usize = 4;
/// Output rows expanded at a time, a bound on scratch memory.
const TILE: usize = 4096;
/// Stored rows one task takes.
const TASK: usize = 32;

/// `out[rows][matrix.rows] = x[rows][matrix.cols] . matrix^T`.
pub fn linear(matrix: &Tensor, x: &[f32], rows: usize, out: &mut [f32]) {
    if rows <= FEW {
        for (x, out) in x.chunks_exact(matrix.cols).zip(out.chunks_exact_mut(matrix.rows)).take(rows) {
            few(matrix, x, out);
        }
    } else {
        many(matrix, x, rows, out);
    }
}

fn few(matrix: &Tensor, x: &[f32], out: &mut [f32]) {
    out.par_chunks_mut(TASK).enumerate().for_each(|(task, out)| {
        let mut scratch = Vec::new();
        for (i, out) in out.iter_mut().enumerate() {
            *out = row_dot(matrix, task * TASK + i, x, &mut scratch);
        }
    });
}

fn row_dot(matrix: &Tensor, row: usize, x: &[f32], scratch: &mut Vec<f32>) -> f32 {
    let bytes = matrix.row(row);
    match matrix.dtype {
        Dtype::F32 => simd::dot_f32(bytes, x),
        Dtype::Q8_0 => simd::dot_q8_0(bytes, x),
        Dtype::Q4_1 => simd::dot_q4_1(bytes, x),
        Dtype::F16 | Dtype::Bf16 => {
            scratch.resize(matrix.cols, 0.0);
            dequant::row(matrix.dtype, bytes, scratch);
            simd::dot(scratch, x)
        }
    }
}

fn many(matrix: &Tensor, x: &[f32], rows: usize, out: &mut [f32]) {
    let (n, k) = (matrix.rows, matrix.cols);
    let tile = n.min(TILE);
    let mut expanded = vec![0.0; tile * k];
    let mut part = if n > tile { vec![0.0; rows * tile] } else { Vec::new() };
    for start in (0..n).step_by(tile) {
        let count = tile.min(n - start);
        expanded[..count * k].par_chunks_mut(k).enumerate().with_min_len(TASK).for_each(|(row, out)| {
            matrix.row_f32(start + row, out);
        });
        if n == tile {
            simd::matmul(x, &expanded, out, rows, n, k);
            continue;
        }
        simd::matmul(x, &expanded, &mut part, rows, count, k);
        for (out, part) in out.chunks_exact_mut(n).zip(part.chunks_exact(count)) {
            out[start..start + count].copy_from_slice(part);
        }
    }
}
