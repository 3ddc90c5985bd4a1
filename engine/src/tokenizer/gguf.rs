//! The tokenizer a GGUF file carries in its metadata, rewritten as a `tokenizer.json`.

use serde_json::{Map, Value, json};

use super::Tokenizer;
use crate::error::Error;
use crate::weights::gguf::{Gguf, Value as Stored};

/// Token types of GGUF that are matched in text before anything else.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

impl Tokenizer {
    /// From `tokenizer.ggml.*`: model `gpt2` with pre-tokenizer `smollm`, `gpt-2` or `default`.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let model = gguf.text("tokenizer.ggml.model").unwrap_or("none");
        if model != "gpt2" {
            return Err(Error::Unsupported(format!(
                "tokenizer.ggml.model {model:?}; this engine reads \"gpt2\""
            )));
        }
        let pre = pre_tokenizer(gguf.text("tokenizer.ggml.pre").unwrap_or("default"))?;
        let missing = |key: &str| Error::malformed("GGUF file", format!("{key} is missing"));
        let tokens = gguf.array("tokenizer.ggml.tokens").ok_or_else(|| missing("tokenizer.ggml.tokens"))?;
        let merges = gguf.array("tokenizer.ggml.merges").ok_or_else(|| missing("tokenizer.ggml.merges"))?;
        let kinds = gguf.array("tokenizer.ggml.token_type").unwrap_or(&[]);
        let mut vocab = Map::new();
        let mut added = Vec::new();
        for (id, token) in tokens.iter().enumerate() {
            let token = text(token)?;
            vocab.insert(token.to_owned(), id.into());
            let kind = match kinds.get(id) {
                Some(Stored::Signed(kind)) => *kind,
                Some(Stored::Unsigned(kind)) => *kind as i64,
                _ => 0,
            };
            if matches!(kind, CONTROL | USER_DEFINED) {
                added.push(json!({
                    "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                    "normalized": false, "special": kind == CONTROL,
                }));
            }
        }
        let merges =
            merges.iter().map(|merge| text(merge).map(Value::from)).collect::<Result<Vec<_>, _>>()?;
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": pre, "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": merges},
        });
        Tokenizer::from_json(&json.to_string())
    }
}

fn text(value: &Stored) -> Result<&str, Error> {
    match value {
        Stored::Text(text) => Ok(text),
        _ => Err(Error::malformed("GGUF file", "a token or merge is not a text")),
    }
}

/// How text is cut before merging, by the name GGUF gives it.
fn pre_tokenizer(name: &str) -> Result<Value, Error> {
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    match name {
        "gpt-2" | "default" => Ok(bytes),
        "smollm" => Ok(json!({
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": true}, bytes],
        })),
        other => Err(Error::Unsupported(format!(
            "tokenizer.ggml.pre {other:?}; this engine knows \"smollm\", \"gpt-2\" and \"default\""
        ))),
    }
}
