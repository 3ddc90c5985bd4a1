//! One layer: norm, attention, residual, and where it has one, norm, MLP, residual.

use std::ops::Range;

use super::attention::Attention;
use crate::backend::TopK;
use crate::cpu::{self, linear::linear};
use crate::error::Error;
use crate::kv::sequence::Sequence;
use crate::weights::arch::LayerArch;
use crate::weights::{Tensor, Weights};

pub struct Layer {
    norm: Vec<f32>,
    attention: Attention,
    mlp: Option<Mlp>,
    eps: f32,
}

struct Mlp {
    norm: Vec<f32>,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

impl Layer {
    pub fn new(
        arch: &LayerArch,
        number: usize,
        hidden: usize,
        eps: f32,
        weights: &Weights,
    ) -> Result<Layer, Error> {
        let name = |part: &str| format!("model.layers.{number}.{part}.weight");
        let mlp = match arch.mlp {
            None => None,
            Some(inner) => Some(Mlp {
                norm: weights.vector(&name("post_attention_layernorm"), hidden)?,
                gate: weights.matrix(&name("mlp.gate_proj"), inner, hidden)?,
                up: weights.matrix(&name("mlp.up_proj"), inner, hidden)?,
                down: weights.matrix(&name("mlp.down_proj"), hidden, inner)?,
            }),
        };
        let norm = weights.vector(&name("input_layernorm"), hidden)?;
        Ok(Layer { norm, attention: Attention::new(arch, number, hidden, weights)?, mlp, eps })
    }

    /// Updates the `rows` of `hidden` `[T][hidden]`; every row leaves its keys and values in layer `number`'s caches.
    pub fn forward(
        &self,
        hidden: &mut [f32],
        rows: Range<usize>,
        sequence: &mut Sequence,
        number: usize,
        top_k: TopK,
    ) -> Result<(), Error> {
        let width = self.norm.len();
        let mut normed = vec![0.0; hidden.len()];
        cpu::rms_norm(hidden, &self.norm, self.eps, &mut normed);
        self.attention.remember(&normed, sequence, number)?;
        if rows.is_empty() {
            return Ok(());
        }
        let span = rows.start * width..rows.end * width;
        let change = self.attention.forward(&normed[span.clone()], rows.start, sequence, number, top_k)?;
        let hidden = &mut hidden[span];
        cpu::add(hidden, &change);
        if let Some(mlp) = &self.mlp {
            let normed = &mut normed[..hidden.len()];
            cpu::rms_norm(hidden, &mlp.norm, self.eps, normed);
            cpu::add(hidden, &mlp.forward(normed, rows.len()));
        }
        Ok(())
    }
}

impl Mlp {
    fn forward(&self, x: &[f32], rows: usize) -> Vec<f32> {
        let mut gate = vec![0.0; rows * self.gate.rows];
        let mut up = vec![0.0; rows * self.up.rows];
        linear(&self.gate, x, rows, &mut gate);
        linear(&self.up, x, rows, &mut up);
        cpu::swiglu(&mut gate, &up);
        let mut out = vec![0.0; rows * self.down.rows];
        linear(&self.down, &gate, rows, &mut out);
        out
    }
}
