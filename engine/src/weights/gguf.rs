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
use super::{Dtype, Source, Tensor, Weights};
use crate::error::Error;

/// Arrays inside arrays are followed to this depth.
const MAX_DEPTH: usize = 4;
/// Items one array may have; the largest vocabularies have about a quarter of a million.
const MAX_ITEMS: u64 = 1 << 21;

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
        let (pairs, entries, data) = header(source.bytes())?;
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

struct Entry {
    name: String,
    shape: (usize, usize),
    kind: u32,
    offset: usize,
}

impl Entry {
    fn dtype(&self) -> Result<Dtype, Error> {
        Ok(match self.kind {
            0 => Dtype::F32,
            1 => Dtype::F16,
            3 => Dtype::Q4_1,
            8 => Dtype::Q8_0,
            30 => Dtype::Bf16,
            other => {
                let name = KINDS.iter().find(|(id, _)| *id == other).map_or("unknown", |(_, name)| name);
                return Err(Error::Unsupported(format!(
                    "type {name} ({other}) of tensor {:?}; convert the file to F32, F16, Q4_1 or Q8_0",
                    self.name
                )));
            }
        })
    }
}

const KINDS: [(u32, &str); 9] = [
    (2, "Q4_0"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (12, "Q4_K"),
    (13, "Q5_K"),
    (14, "Q6_K"),
    (15, "Q8_K"),
];

type Header = (HashMap<String, Value>, Vec<Entry>, usize);

fn header(bytes: &[u8]) -> Result<Header, Error> {
    let mut r = Reader { bytes, at: 0 };
    if r.take(4)? != b"GGUF" {
        return Err(bad("the first four bytes are not \"GGUF\""));
    }
    let version = r.u32()?;
    if version != 3 {
        return Err(Error::Unsupported(format!("GGUF version {version}; this engine reads version 3")));
    }
    // A tensor entry takes at least 24 bytes, a pair at least 13.
    let (tensors, pairs) = (r.u64()?, r.u64()?);
    let (tensors, pairs) = (r.count(tensors, 24)?, r.count(pairs, 13)?);
    let mut metadata = HashMap::new();
    for _ in 0..pairs {
        let (key, kind) = (r.text()?, r.u32()?);
        metadata.insert(key, r.value(kind, 0)?);
    }
    let mut entries = Vec::new();
    for _ in 0..tensors {
        entries.push(r.entry()?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(Value::Unsigned(n)) if (1..=1 << 20).contains(n) => *n as usize,
        Some(other) => return Err(bad(format!("general.alignment is {other:?}"))),
    };
    Ok((metadata, entries, r.at.next_multiple_of(alignment)))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], Error> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len());
        let end =
            end.ok_or_else(|| bad(format!("it ends at byte {}, inside the header", self.bytes.len())))?;
        let out = &self.bytes[self.at..end];
        self.at = end;
        Ok(out)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    /// `n` items of at least `least` bytes each, refused where the rest of the file cannot hold them.
    fn count(&self, n: u64, least: usize) -> Result<usize, Error> {
        let room = (self.bytes.len() - self.at) / least;
        usize::try_from(n)
            .ok()
            .filter(|&n| n <= room)
            .ok_or_else(|| bad(format!("{n} items are announced at byte {} but at most {room} fit", self.at)))
    }

    fn text(&mut self) -> Result<String, Error> {
        let n = self.u64()?;
        let n = self.count(n, 1)?;
        let bytes = self.take(n)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| bad("a text is not UTF-8"))
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value, Error> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>()?[0].into()),
            1 => Value::Signed(i64::from(self.array::<1>()?[0] as i8)),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 => self.values(depth)?,
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(bad(format!("value type {other} does not exist"))),
        })
    }

    fn values(&mut self, depth: usize) -> Result<Value, Error> {
        if depth >= MAX_DEPTH {
            return Err(bad("arrays are nested too deeply"));
        }
        let (kind, n) = (self.u32()?, self.u64()?);
        if n > MAX_ITEMS {
            return Err(bad(format!("an array of {n} items is longer than {MAX_ITEMS}")));
        }
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            9 => 12,
            _ => 8,
        };
        let n = self.count(n, least)?;
        // No reservation by the announced count: a value takes more memory than its bytes in the file.
        let mut out = Vec::new();
        for _ in 0..n {
            out.push(self.value(kind, depth + 1)?);
        }
        Ok(Value::Array(out))
    }

    fn entry(&mut self) -> Result<Entry, Error> {
        let name = self.text()?;
        let dims = self.u32()?;
        if !(1..=2).contains(&dims) {
            return Err(Error::Unsupported(format!("{dims} dimensions of tensor {name:?}")));
        }
        let mut size =
            || self.u64().and_then(|n| usize::try_from(n).map_err(|_| bad("a dimension is too large")));
        let cols = size()?;
        let rows = if dims == 2 { size()? } else { 1 };
        let kind = self.u32()?;
        let offset = self.u64()?;
        let offset = usize::try_from(offset).map_err(|_| bad("a tensor offset is too large"))?;
        Ok(Entry { name, shape: (rows, cols), kind, offset })
    }
}

fn bad(reason: impl Into<String>) -> Error {
    Error::malformed("GGUF file", reason)
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
