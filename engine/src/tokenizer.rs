//! Text to tokens by the `tokenizers` crate, tokens to bytes by a table.
//!
//! Byte-level BPE only (Llama 3, Qwen, SmolLM, GPT-2 and the reference model): every token then stands for a fixed
//! byte string, and streaming needs no decoder state.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer as Inner;

use crate::error::Error;

mod gguf;

/// A tokenizer of one model.
pub struct Tokenizer {
    inner: Inner,
    /// Bytes each token stands for; special tokens stand for none.
    bytes: Vec<Vec<u8>>,
}

impl Tokenizer {
    /// From the content of a `tokenizer.json`.
    pub fn from_json(text: &str) -> Result<Tokenizer, Error> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| Error::malformed("tokenizer.json", e.to_string()))?;
        if value["model"]["type"] != "BPE" || !byte_level(&value["decoder"]) {
            return Err(Error::Unsupported("a tokenizer that is not byte-level BPE".into()));
        }
        let inner = Inner::from_bytes(text).map_err(|e| Error::malformed("tokenizer.json", e.to_string()))?;
        let bytes = table(&value)?;
        Ok(Tokenizer { inner, bytes })
    }

    /// Token ids of a text; special tokens written out in the text become their ids, none are added.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| Error::Tokenizer(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The bytes a token stands for: possibly part of a character, and empty for special or unknown tokens.
    pub fn bytes(&self, token: u32) -> &[u8] {
        self.bytes.get(token as usize).map_or(&[], Vec::as_slice)
    }

    /// The id of a token by its stored spelling.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

fn byte_level(decoder: &Value) -> bool {
    let parts = decoder["decoders"].as_array();
    decoder["type"] == "ByteLevel"
        || parts.is_some_and(|parts| parts.iter().any(|part| part["type"] == "ByteLevel"))
}

/// The bytes of every token. Ids are bounded so that a hostile file cannot ask for a huge table.
fn table(tokenizer: &Value) -> Result<Vec<Vec<u8>>, Error> {
    const MAX_ID: u64 = 1 << 24;
    let alphabet = alphabet();
    let mut bytes: Vec<Vec<u8>> = Vec::new();
    let mut put = |id: Option<u64>, content: Vec<u8>| -> Result<(), Error> {
        let id = id
            .filter(|&id| id < MAX_ID)
            .ok_or_else(|| Error::malformed("tokenizer", "a token id is out of range"))?;
        let id = id as usize;
        if bytes.len() <= id {
            bytes.resize(id + 1, Vec::new());
        }
        bytes[id] = content;
        Ok(())
    };
    for (token, id) in tokenizer["model"]["vocab"].as_object().into_iter().flatten() {
        let content: Option<Vec<u8>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
        put(id.as_u64(), content.unwrap_or_else(|| token.as_bytes().to_vec()))?;
    }
    for token in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let special = token["special"].as_bool().unwrap_or(false);
        let content = if special { "" } else { token["content"].as_str().unwrap_or("") };
        put(token["id"].as_u64(), content.as_bytes().to_vec())?;
    }
    Ok(bytes)
}

/// GPT-2's printable stand-ins: bytes that print stay themselves, the others take code points from 256 on in order.
fn alphabet() -> HashMap<char, u8> {
    let prints = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256u32;
    let mut alphabet = HashMap::new();
    for byte in 0..=255u8 {
        let stand_in = if prints(byte) {
            char::from(byte)
        } else {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        alphabet.insert(stand_in, byte);
    }
    alphabet
}
