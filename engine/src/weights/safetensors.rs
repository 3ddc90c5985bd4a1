//! Hugging Face folders and in-memory safetensors.

use std::path::Path;

use safetensors::{Dtype as Stored, SafeTensors};

use super::arch::{Arch, token_ids};
use super::{Dtype, Source, Tensor, Weights};
use crate::error::Error;

/// Largest side file (config, tokenizer, template) that is read.
const MAX_TEXT: u64 = 64 << 20;

/// A model as files give it, before anything is built from it.
pub struct Parts {
    pub arch: Arch,
    pub weights: Weights,
    /// The content of `tokenizer.json`.
    pub tokenizer: Option<String>,
    /// The Jinja source of the chat template.
    pub template: Option<String>,
    /// Text of the special tokens that templates refer to.
    pub bos: Option<String>,
    pub eos: Option<String>,
}

/// Reads a folder with `config.json`, `model.safetensors` and, where present, `generation_config.json`,
/// `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`.
pub fn open(folder: &Path) -> Result<Parts, Error> {
    let config = text(&folder.join("config.json"))?;
    let mut arch = Arch::from_config(&config)?;
    if let Some(generation) = optional(&folder.join("generation_config.json"))? {
        let value = json("generation_config.json", &generation)?;
        arch.stop.extend(token_ids(&value["eos_token_id"])?);
    }
    let weights = read(Source::open(&folder.join("model.safetensors"))?)?;
    let settings = match optional(&folder.join("tokenizer_config.json"))? {
        Some(settings) => json("tokenizer_config.json", &settings)?,
        None => serde_json::Value::Null,
    };
    let template = match optional(&folder.join("chat_template.jinja"))? {
        Some(template) => Some(template),
        None => settings["chat_template"].as_str().map(str::to_owned),
    };
    let token = |key: &str| {
        let value = &settings[key];
        value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
    };
    let tokenizer = optional(&folder.join("tokenizer.json"))?;
    Ok(Parts { arch, weights, tokenizer, template, bos: token("bos_token"), eos: token("eos_token") })
}

/// The tensors of a safetensors file. Vectors become matrices of one row.
pub fn read(source: Source) -> Result<Weights, Error> {
    let bad = |reason: String| Error::malformed("safetensors file", reason);
    let mut weights = Weights::default();
    let views = SafeTensors::deserialize(source.bytes()).map_err(|e| bad(e.to_string()))?;
    for (name, view) in views.iter() {
        let dtype = match view.dtype() {
            Stored::F32 => Dtype::F32,
            Stored::F16 => Dtype::F16,
            Stored::BF16 => Dtype::Bf16,
            other => return Err(Error::Unsupported(format!("type {other:?} of tensor {name:?}"))),
        };
        let shape = match *view.shape() {
            [cols] => (1, cols),
            [rows, cols] => (rows, cols),
            ref other => return Err(Error::Unsupported(format!("shape {other:?} of tensor {name:?}"))),
        };
        // Both slices lie in the same mapping, so the difference of their addresses is the offset.
        let start = view.data().as_ptr() as usize - source.bytes().as_ptr() as usize;
        weights.insert(name.to_owned(), Tensor::new(name, dtype, shape, source.clone(), start)?)?;
    }
    Ok(weights)
}

fn json(name: &str, text: &str) -> Result<serde_json::Value, Error> {
    serde_json::from_str(text).map_err(|e| Error::malformed(name, e.to_string()))
}

fn optional(path: &Path) -> Result<Option<String>, Error> {
    if path.exists() { text(path).map(Some) } else { Ok(None) }
}

fn text(path: &Path) -> Result<String, Error> {
    let fail = |reason: String| Error::Read { path: path.display().to_string(), reason };
    let size = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?.len();
    if size > MAX_TEXT {
        return Err(fail(format!("{size} bytes is more than the {MAX_TEXT} this file may have")));
    }
    std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))
}
