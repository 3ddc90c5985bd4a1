//! Storage types and their expansion to f32. Block layouts follow ggml's published definitions.
//!
//! Q8_0: blocks of 32, an f16 scale d then 32 signed bytes q; x = d q.
//! Q4_1: blocks of 32, f16 d and m, then 16 bytes; byte i holds element i in its low and i + 16 in its high nibble;
//! x = d q + m.

use half::{bf16, f16};

/// Elements of one quantised block.
pub const BLOCK: usize = 32;
/// Bytes of a Q8_0 block.
pub const Q8_0_BYTES: usize = 34;
/// Bytes of a Q4_1 block.
pub const Q4_1_BYTES: usize = 20;

/// How the elements of a tensor are stored (little-endian throughout).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_1,
}

impl Dtype {
    /// Bytes of a row of `cols` elements; `None` where blocks do not divide it or the size overflows.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let blocks =
            |bytes: usize| cols.is_multiple_of(BLOCK).then(|| (cols / BLOCK).checked_mul(bytes)).flatten();
        match self {
            Dtype::F32 => cols.checked_mul(4),
            Dtype::F16 | Dtype::Bf16 => cols.checked_mul(2),
            Dtype::Q8_0 => blocks(Q8_0_BYTES),
            Dtype::Q4_1 => blocks(Q4_1_BYTES),
        }
    }
}

/// Expands one row. `bytes` holds exactly `dtype.row_bytes(out.len())` bytes.
pub fn row(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::F32 => {
            for (x, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *x = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        Dtype::F16 => {
            for (x, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *x = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        Dtype::Bf16 => {
            for (x, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *x = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        Dtype::Q8_0 => {
            for (x, b) in out.chunks_exact_mut(BLOCK).zip(bytes.chunks_exact(Q8_0_BYTES)) {
                let d = half_at(b, 0);
                for (x, &q) in x.iter_mut().zip(&b[2..]) {
                    *x = d * f32::from(q as i8);
                }
            }
        }
        Dtype::Q4_1 => {
            for (x, b) in out.chunks_exact_mut(BLOCK).zip(bytes.chunks_exact(Q4_1_BYTES)) {
                let (d, m) = (half_at(b, 0), half_at(b, 2));
                let (low, high) = x.split_at_mut(BLOCK / 2);
                for ((l, h), &q) in low.iter_mut().zip(high).zip(&b[4..]) {
                    *l = d * f32::from(q & 15) + m;
                    *h = d * f32::from(q >> 4) + m;
                }
            }
        }
    }
}

/// The f16 stored at byte `at`.
pub fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q4_1_keeps_low_nibbles_first() {
        let mut block = vec![0u8; Q4_1_BYTES];
        block[..2].copy_from_slice(&f16::from_f32(2.0).to_le_bytes());
        block[2..4].copy_from_slice(&f16::from_f32(-1.0).to_le_bytes());
        block[4] = 0x73;
        let mut out = [0.0; BLOCK];
        row(Dtype::Q4_1, &block, &mut out);
        assert_eq!((out[0], out[16], out[1]), (5.0, 13.0, -1.0));
    }

    #[test]
    fn q8_0_is_signed() {
        let mut block = vec![0u8; Q8_0_BYTES];
        block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
        block[2] = 0x80;
        block[33] = 3;
        let mut out = [0.0; BLOCK];
        row(Dtype::Q8_0, &block, &mut out);
        assert_eq!((out[0], out[31]), (-64.0, 1.5));
    }

    #[test]
    fn rows_that_split_a_block_are_refused() {
        assert_eq!(Dtype::Q8_0.row_bytes(33), None);
        assert_eq!(Dtype::Q4_1.row_bytes(64), Some(40));
        assert_eq!(Dtype::F32.row_bytes(usize::MAX), None);
    }
}
