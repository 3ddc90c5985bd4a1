//! The description a decoder is built from: sizes of the whole and the parts of each layer.
//!
//! It is read from a Hugging Face `config.json` (Llama family, or the explicit per-layer form of the reference
//! model) or from GGUF metadata. Anything the forward pass does not implement is refused here, by name.

use serde::Deserialize;
use serde_json::Value;

use crate::error::Error;

/// Upper bound on any single size in a configuration: larger values are taken for damage.
const MAX_SIZE: usize = 1 << 24;
/// Upper bound on the number of layers.
const MAX_LAYERS: usize = 1024;

/// A decoder-only transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct Arch {
    pub name: String,
    pub hidden: usize,
    pub vocab: usize,
    /// Longest sequence in tokens, prompt and answer together.
    pub context: usize,
    pub eps: f32,
    /// The output matrix is the embedding matrix.
    pub tied: bool,
    pub layers: Vec<LayerArch>,
    /// Generation ends before printing one of these.
    pub stop: Vec<u32>,
    /// Generation ends after printing one of these.
    pub last: Vec<u32>,
}

/// One layer: attention, then optionally a SwiGLU MLP.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerArch {
    pub heads: usize,
    pub kv_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    #[serde(default)]
    pub rope: Option<Rope>,
    /// Keys visible to a query, itself included; `None` for all earlier ones.
    #[serde(default)]
    pub window: Option<usize>,
    /// A learned logit per head that takes softmax mass and adds no value.
    #[serde(default)]
    pub sink: bool,
    #[serde(default)]
    pub indexer: Option<IndexerArch>,
    /// Inner width of the MLP; `None` for a layer without one.
    #[serde(default)]
    pub mlp: Option<usize>,
}

/// Rotary position encoding over the first `dims` dimensions of a head.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    pub theta: f32,
    pub dims: usize,
    pub pairing: Pairing,
}

/// Which two dimensions turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pairing {
    /// (0, 1), (2, 3), ... as in GGUF's llama files.
    Interleaved,
    /// (0, n/2), (1, n/2 + 1), ... as in Hugging Face files.
    HalfSplit,
}

/// The lightning indexer of one layer: `I[t, s] = sum over h of w[t, h] relu(q[t, h] . k[s])`, one key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexerArch {
    pub heads: usize,
    pub dim: usize,
}

#[derive(Deserialize)]
struct Outline {
    model_type: String,
    hidden_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f32,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    eos_token_id: Value,
    #[serde(default)]
    last_token_id: Value,
}

#[derive(Deserialize)]
struct Llama {
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    rope_theta: Option<f32>,
    #[serde(default)]
    rope_scaling: Value,
    rope_parameters: Option<RopeParameters>,
    hidden_act: Option<String>,
}

#[derive(Deserialize)]
struct RopeParameters {
    rope_theta: f32,
    rope_type: String,
}

impl Arch {
    /// Reads a `config.json`: `model_type` "llama", or "serin" with an explicit `layers` list of [`LayerArch`].
    pub fn from_config(text: &str) -> Result<Arch, Error> {
        let bad = |e: serde_json::Error| Error::malformed("config.json", e.to_string());
        let value: Value = serde_json::from_str(text).map_err(bad)?;
        let outline: Outline = serde_json::from_value(value.clone()).map_err(bad)?;
        let layers = match outline.model_type.as_str() {
            "llama" => llama_layers(&outline, &serde_json::from_value(value).map_err(bad)?)?,
            "serin" => serde_json::from_value(value["layers"].clone()).map_err(bad)?,
            other => {
                return Err(Error::Unsupported(format!(
                    "model_type {other:?} in config.json; this engine runs \"llama\" and \"serin\""
                )));
            }
        };
        let arch = Arch {
            name: outline.model_type,
            hidden: outline.hidden_size,
            vocab: outline.vocab_size,
            context: outline.max_position_embeddings,
            eps: outline.rms_norm_eps,
            tied: outline.tie_word_embeddings,
            layers,
            stop: token_ids(&outline.eos_token_id)?,
            last: token_ids(&outline.last_token_id)?,
        };
        arch.check()?;
        Ok(arch)
    }

    /// Refuses sizes that cannot be: zero, enormous, or not dividing one another.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |reason: String| Err(Error::malformed("model configuration", reason));
        let whole =
            [("hidden size", self.hidden), ("vocabulary", self.vocab), ("context length", self.context)];
        for (what, size) in whole {
            if size == 0 || size > MAX_SIZE {
                return bad(format!("{what} is {size}, outside 1..={MAX_SIZE}"));
            }
        }
        if self.layers.is_empty() || self.layers.len() > MAX_LAYERS {
            return bad(format!("{} layers, outside 1..={MAX_LAYERS}", self.layers.len()));
        }
        self.layers.iter().enumerate().try_for_each(|(number, layer)| match layer.fault() {
            Some(fault) => bad(format!("layer {number}: {fault}")),
            None => Ok(()),
        })
    }
}

impl LayerArch {
    fn fault(&self) -> Option<String> {
        let small = |size: usize| (1..=MAX_SIZE).contains(&size);
        let sizes = [self.heads, self.kv_heads, self.key_dim, self.value_dim];
        if !sizes.iter().all(|&s| (1..=1 << 16).contains(&s)) {
            return Some(format!("head counts and widths {sizes:?} are outside 1..=65536"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Some(format!(
                "{} query heads do not share {} key heads evenly",
                self.heads, self.kv_heads
            ));
        }
        if let Some(rope) = &self.rope {
            let whole = rope.dims.is_multiple_of(2) && small(rope.dims) && rope.dims <= self.key_dim;
            let sane = rope.theta.is_finite() && rope.theta > 0.0;
            if !(whole && sane) {
                return Some(format!("rope over {} dims with theta {}", rope.dims, rope.theta));
            }
        }
        if self.window == Some(0) || self.mlp.is_some_and(|m| !small(m)) {
            return Some("window or mlp width is zero or enormous".into());
        }
        self.indexer
            .filter(|i| !(small(i.heads) && small(i.dim) && i.heads * i.dim <= MAX_SIZE))
            .map(|i| format!("indexer of {} heads x {}", i.heads, i.dim))
    }
}

fn llama_layers(outline: &Outline, llama: &Llama) -> Result<Vec<LayerArch>, Error> {
    let unsupported = |what: &str| Err(Error::Unsupported(format!("{what} in config.json")));
    if llama.attention_bias || llama.mlp_bias {
        return unsupported("attention_bias or mlp_bias");
    }
    if llama.hidden_act.as_deref().is_some_and(|act| act != "silu") {
        return unsupported("a hidden_act other than silu");
    }
    let scaled = llama.rope_parameters.as_ref().is_some_and(|p| p.rope_type != "default");
    if scaled || !llama.rope_scaling.is_null() {
        return unsupported("rope scaling");
    }
    if llama.num_hidden_layers > MAX_LAYERS || llama.num_attention_heads == 0 {
        return Err(Error::malformed("config.json", "too many layers or no attention heads"));
    }
    let theta = llama.rope_parameters.as_ref().map(|p| p.rope_theta).or(llama.rope_theta).unwrap_or(10_000.0);
    let dim = llama.head_dim.unwrap_or(outline.hidden_size / llama.num_attention_heads);
    let layer = LayerArch {
        heads: llama.num_attention_heads,
        kv_heads: llama.num_key_value_heads.unwrap_or(llama.num_attention_heads),
        key_dim: dim,
        value_dim: dim,
        rope: Some(Rope { theta, dims: dim, pairing: Pairing::HalfSplit }),
        window: None,
        sink: false,
        indexer: None,
        mlp: Some(llama.intermediate_size),
    };
    Ok(vec![layer; llama.num_hidden_layers])
}

/// `null`, one id or a list of ids.
pub fn token_ids(value: &Value) -> Result<Vec<u32>, Error> {
    let bad = || Error::malformed("config.json", format!("{value} is not a token id or a list of them"));
    let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(bad);
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(ids) => ids.iter().map(one).collect(),
        single => Ok(vec![one(single)?]),
    }
}
