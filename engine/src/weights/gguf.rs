//! GGUF version 3: a header of typed key-value pairs, a table of tensors, then aligned tensor bytes.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | pairs u64
//! pair   = name, type u32, value          name, text = length u64 + UTF-8
//! tensor = name, dims u32, dim u64 ..., type u32, offset u64 (from the start of the data, aligned)
//! data   = at the next multiple of general.alignment (32 unless said)
//! ```
//!
//! Every count is checked against the bytes that are left before anything is allocated.

use std::collections::HashMap;

use super::arch::{Arch, LayerArch, Pairing, Rope};
use super::{Source, Tensor, Weights};
use crate::error::Error;

mod header;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Array(Vec<Value>),
}

/// A parsed file: metadata and tensors, still in place.
pub struct Gguf {
    pub pairs: HashMap<String, Value>,
    pub weights: Weights,
}

impl Gguf {
    /// Parses the header and checks every tensor against the file's length.
    pub fn read(source: Source) -> Result<Gguf, Error> {
        let (pairs, entries, data) = header::read(source.bytes())?;
        let mut weights = Weights::default();
        for entry in entries {
            let dtype = entry.dtype()?;
            let start = data.checked_add(entry.offset).ok_or_else(|| bad("tensor offset overflows"))?;
            let tensor = Tensor::new(&entry.name, dtype, entry.shape, source.clone(), start)?;
            weights.insert(canonical(&entry.name), tensor)?;
        }
        Ok(Gguf { pairs, weights })
    }

    /// A text value.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.pairs.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A non-negative whole number.
    pub fn size(&self, key: &str) -> Option<usize> {
        match self.pairs.get(key) {
            Some(Value::Unsigned(n)) => usize::try_from(*n).ok(),
            Some(Value::Signed(n)) => usize::try_from(*n).ok(),
            _ => None,
        }
    }

    /// A floating-point number.
    pub fn float(&self, key: &str) -> Option<f32> {
        match self.pairs.get(key) {
            Some(Value::Float(x)) => Some(*x as f32),
            _ => None,
        }
    }

    /// An array.
    pub fn array(&self, key: &str) -> Option<&[Value]> {
        match self.pairs.get(key) {
            Some(Value::Array(values)) => Some(values),
            _ => None,
        }
    }

    /// The decoder this file describes; architecture `llama` only.
    pub fn arch(&self) -> Result<Arch, Error> {
        let family =
            self.text("general.architecture").ok_or_else(|| bad("general.architecture is missing"))?;
        if family != "llama" {
            return Err(Error::Unsupported(format!(
                "GGUF architecture {family:?}; this engine runs \"llama\""
            )));
        }
        if self.weights.contains("rope_freqs.weight")
            || self.text("llama.rope.scaling.type").is_some_and(|t| t != "none")
        {
            return Err(Error::Unsupported("rope scaling in a GGUF file".into()));
        }
        let need = |key: &str| self.size(key).ok_or_else(|| bad(format!("{key} is missing or not a size")));
        let hidden = need("llama.embedding_length")?;
        let heads = need("llama.attention.head_count")?;
        let dim = self.size("llama.attention.key_length").or(hidden.checked_div(heads)).unwrap_or(0);
        let layer = LayerArch {
            heads,
            kv_heads: self.size("llama.attention.head_count_kv").unwrap_or(heads),
            key_dim: dim,
            value_dim: self.size("llama.attention.value_length").unwrap_or(dim),
            rope: Some(Rope {
                theta: self.float("llama.rope.freq_base").unwrap_or(10_000.0),
                dims: self.size("llama.rope.dimension_count").unwrap_or(dim),
                pairing: Pairing::Interleaved,
            }),
            window: None,
            sink: false,
            indexer: None,
            mlp: Some(need("llama.feed_forward_length")?),
        };
        let tokens = self.array("tokenizer.ggml.tokens").map(<[Value]>::len);
        let stop = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"];
        let arch = Arch {
            name: self.text("general.name").unwrap_or(family).to_owned(),
            hidden,
            vocab: tokens.or(self.size("llama.vocab_size")).unwrap_or(0),
            context: need("llama.context_length")?,
            eps: self.float("llama.attention.layer_norm_rms_epsilon").unwrap_or(1e-5),
            tied: !self.weights.contains("lm_head.weight"),
            layers: vec![layer; need("llama.block_count")?.min(1 << 16)],
            stop: stop
                .iter()
                .filter_map(|key| self.size(key))
                .filter_map(|id| u32::try_from(id).ok())
                .collect(),
            last: Vec::new(),
        };
        arch.check()?;
        Ok(arch)
    }
}

/// The Hugging Face name of a GGUF tensor; unknown names stay as they are.
fn canonical(name: &str) -> String {
    let outer = match name {
        "token_embd.weight" => Some("model.embed_tokens.weight"),
        "output_norm.weight" => Some("model.norm.weight"),
        "output.weight" => Some("lm_head.weight"),
        _ => None,
    };
    if let Some(outer) = outer {
        return outer.to_owned();
    }
    let inner = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    let Some((layer, part)) = inner else { return name.to_owned() };
    let part = match part {
        "attn_norm.weight" => "input_layernorm.weight",
        "attn_q.weight" => "self_attn.q_proj.weight",
        "attn_k.weight" => "self_attn.k_proj.weight",
        "attn_v.weight" => "self_attn.v_proj.weight",
        "attn_output.weight" => "self_attn.o_proj.weight",
        "ffn_norm.weight" => "post_attention_layernorm.weight",
        "ffn_gate.weight" => "mlp.gate_proj.weight",
        "ffn_up.weight" => "mlp.up_proj.weight",
        "ffn_down.weight" => "mlp.down_proj.weight",
        other => other,
    };
    format!("model.layers.{layer}.{part}")
}

fn bad(reason: impl Into<String>) -> Error {
    Error::malformed("GGUF file", reason)
}
