//! The reference recall model: weights by construction, recall known in advance.
//!
//! Every token t has a random unit code c(t) of 64 elements. The residual stream is divided into named parts: `cur`
//! (the code of this token), `one` (the constant 1), `p1` to `p4` (the codes of the four tokens before) and `out`.
//!
//! * Layer 0 has four heads; head m copies `cur` of the token m places back into `p_m`. Its query and key are one
//!   constant vector, rotary-encoded, the query turned back by m positions, so that the score at distance d is
//!   beta times the sum over frequencies w of cos(w (d - m)).
//! * Layer 1 has one head whose query is (cur, p1, p2, p3) and whose key is (p1, p2, p3, p4): it finds where the last
//!   four tokens stood before and reads the token that followed into `out`. A sink between a match of four and the
//!   best decoys takes the mass where nothing matches; the head then prefers NONE by a small bias.
//! * The indexer of layer 1 knows less: a 16-dimensional projection of the last token against that of the one before
//!   each position, and a quarter of the one before that. Its ranks grow with the haystack.
//!
//! Nothing here looks at text: the model is two matrices of random codes and a pattern of identities.
//!
//! Rank law, measured by bisecting `index_topk` (the smallest that recalls) in sentences where " is" is 9 % of the
//! tokens; a share is the rank divided by the number of tokens " is" in the prompt:
//!
//! | tag | 4,000 tokens | 8,000 | 16,000 |
//! |---|---|---|---|
//! | K4 | 274 of 355 (.77) | 555 of 723 (.77) | 1,110 of 1,446 (.77) |
//! | S3 | 328 of 374 (.88) | 643 of 739 (.87) | 1,267 of 1,475 (.86) |
//!
//! So a prompt of n tokens breaks at `index_topk` = share x density x n, and the share depends on the tag's last digit
//! and on which words stand before " is".

use std::collections::BTreeMap;

use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::{Value, json};

use crate::error::Error;
use crate::random::SplitMix64;

const CODE: usize = 64;
const CUR: usize = 0;
const ONE: usize = 64;
/// Where `p1` begins; `p2` to `p4` follow it.
const PAST: usize = 65;
const OUT: usize = PAST + 4 * CODE;
/// The parts take 385 elements; the width is rounded up to a multiple of 8.
const HIDDEN: usize = 392;
const INDEX: usize = 16;
/// Sharpness of both attention layers.
const BETA: f32 = 40.0;
/// Matching tokens the sink stands for: a whole match has 4, a decoy that shares three tokens about 3.
const SINK: f32 = 3.5;
/// Weight of the second token in an index key.
const EPSILON: f32 = 0.25;
/// Logit of a token that was read with all the attention mass, and of NONE where nothing was read.
const SHARP: f32 = 60.0;
const NONE_BIAS: f32 = 18.0;
const THETA: f64 = 10_000.0;
/// Chosen among 1 to 3,000 so that a stem ending in a digit and " is" behaves alike for all ten digits: before " is",
/// digit d scores below this share of the whole vocabulary in the index (0 to 9: .99 .64 .59 .65 .51 .58 .93 .98 .90
/// .69), and no other token scores above " is" itself. With an arbitrary seed the shares lie anywhere between 0 and 1
/// and the digit alone decides which tag is lost. The rank of a needle is about share x density of " is" x length.
const SEED: u64 = 782;

/// What a model folder would hold.
pub struct Files {
    pub config: String,
    /// The bytes of a safetensors file.
    pub weights: Vec<u8>,
    pub tokenizer: &'static str,
    pub template: &'static str,
}

/// A matrix under construction.
struct Matrix {
    rows: usize,
    cols: usize,
    data: Vec<f32>,
}

impl Matrix {
    fn new(rows: usize, cols: usize) -> Matrix {
        Matrix { rows, cols, data: vec![0.0; rows * cols] }
    }

    fn set(&mut self, row: usize, col: usize, value: f32) {
        self.data[row * self.cols + col] = value;
    }

    /// `value` times the identity of the size of a code, at (row, col).
    fn identity(mut self, row: usize, col: usize, value: f32) -> Matrix {
        for i in 0..CODE {
            self.set(row + i, col + i, value);
        }
        self
    }

    fn constant(cols: usize, value: f32) -> Matrix {
        Matrix { rows: 1, cols, data: vec![value; cols] }
    }
}

/// Makes the model. The same bytes every time.
pub fn build() -> Result<Files, Error> {
    let tokenizer = include_str!("../../assets/reference/tokenizer.json");
    let template = include_str!("../../assets/reference/chat_template.jinja");
    let (vocab, stop, none) = tokens(tokenizer)?;
    let config = json!({
        "model_type": "serin", "hidden_size": HIDDEN, "vocab_size": vocab, "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-9, "tie_word_embeddings": false, "eos_token_id": stop, "last_token_id": none,
        "layers": [
            {"heads": 4, "kv_heads": 1, "key_dim": CODE, "value_dim": CODE, "window": 8,
             "rope": {"theta": THETA, "dims": CODE, "pairing": "half_split"}},
            {"heads": 1, "kv_heads": 1, "key_dim": 4 * CODE, "value_dim": CODE, "sink": true,
             "indexer": {"heads": 1, "dim": INDEX}},
        ],
    });
    let mut random = SplitMix64::new(SEED);
    let mut tensors = BTreeMap::new();
    embedding(&mut tensors, vocab, none as usize, &mut random);
    previous_tokens(&mut tensors);
    recall(&mut tensors, &mut random);
    Ok(Files { config: config.to_string(), weights: pack(&tensors)?, tokenizer, template })
}

/// Vocabulary size, the ids that end an answer unprinted, and the id of NONE.
fn tokens(tokenizer: &str) -> Result<(usize, Vec<u32>, u32), Error> {
    let bad = |reason: &str| Error::malformed("built-in tokenizer", reason);
    let value: Value = serde_json::from_str(tokenizer).map_err(|e| bad(&e.to_string()))?;
    let vocab = value["model"]["vocab"].as_object().ok_or_else(|| bad("it has no vocabulary"))?;
    // U+010A is the byte-level spelling of the newline.
    let stop =
        [".", "\u{10a}"].iter().map(|&token| vocab.get(token).and_then(Value::as_u64).map(|id| id as u32));
    let stop =
        stop.collect::<Option<Vec<_>>>().ok_or_else(|| bad("the full stop or the newline is missing"))?;
    let added = value["added_tokens"].as_array().map_or(&[][..], Vec::as_slice);
    let none = added.iter().find(|token| token["content"] == "NONE").and_then(|token| token["id"].as_u64());
    let none = none.ok_or_else(|| bad("the token NONE is missing"))?;
    Ok((vocab.len() + added.len(), stop, none as u32))
}

type Tensors = BTreeMap<String, Matrix>;

fn embedding(tensors: &mut Tensors, vocab: usize, none: usize, random: &mut SplitMix64) {
    let mut embed = Matrix::new(vocab, HIDDEN);
    let mut head = Matrix::new(vocab, HIDDEN);
    for token in 0..vocab {
        let code = unit(random);
        embed.set(token, ONE, 1.0);
        for (i, &x) in code.iter().enumerate() {
            embed.set(token, CUR + i, x);
            if token != none {
                head.set(token, OUT + i, SHARP * x);
            }
        }
    }
    head.set(none, ONE, NONE_BIAS);
    tensors.insert("model.embed_tokens.weight".into(), embed);
    tensors.insert("lm_head.weight".into(), head);
    tensors.insert("model.norm.weight".into(), norm(7));
}

fn previous_tokens(tensors: &mut Tensors) {
    let pairs = CODE / 2;
    let mut query = Matrix::new(4 * CODE, HIDDEN);
    let mut key = Matrix::new(CODE, HIDDEN);
    // The attention divides scores by the square root of the key width.
    let scale = f64::from(BETA) * (CODE as f64).sqrt();
    for i in 0..pairs {
        let frequency = THETA.powf(-(i as f64) / pairs as f64);
        key.set(i, ONE, 1.0);
        for head in 0..4 {
            let (sin, cos) = (frequency * (head + 1) as f64).sin_cos();
            query.set(head * CODE + i, ONE, (scale * cos) as f32);
            query.set(head * CODE + pairs + i, ONE, (-scale * sin) as f32);
        }
    }
    let output = (0..4)
        .fold(Matrix::new(HIDDEN, 4 * CODE), |m, head| m.identity(PAST + head * CODE, head * CODE, 1.0));
    let value = Matrix::new(CODE, HIDDEN).identity(0, CUR, 1.0);
    let mut put = |part: &str, matrix| tensors.insert(format!("model.layers.0.{part}"), matrix);
    put("input_layernorm.weight", norm(2));
    put("self_attn.q_proj.weight", query);
    put("self_attn.k_proj.weight", key);
    put("self_attn.v_proj.weight", value);
    put("self_attn.o_proj.weight", output);
}

fn recall(tensors: &mut Tensors, random: &mut SplitMix64) {
    let past = |m: usize| PAST + m * CODE;
    let scale = BETA * (4.0 * CODE as f32).sqrt();
    let mut query = Matrix::new(4 * CODE, HIDDEN).identity(0, CUR, scale);
    let mut key = Matrix::new(4 * CODE, HIDDEN);
    for part in 0..4 {
        key = key.identity(part * CODE, past(part), 1.0);
        if part > 0 {
            query = query.identity(part * CODE, past(part - 1), scale);
        }
    }
    let mut index_query = Matrix::new(INDEX, HIDDEN);
    let mut index_key = Matrix::new(INDEX, HIDDEN);
    for row in 0..INDEX {
        for i in 0..CODE {
            let x = (random.normal() / (INDEX as f64).sqrt()) as f32;
            index_query.set(row, CUR + i, x);
            index_key.set(row, past(0) + i, x);
            index_key.set(row, past(1) + i, EPSILON * x);
        }
    }
    let mut index_weights = Matrix::new(1, HIDDEN);
    index_weights.set(0, ONE, 1.0);
    let value = Matrix::new(CODE, HIDDEN).identity(0, CUR, 1.0);
    let output = Matrix::new(HIDDEN, CODE).identity(OUT, 0, 1.0);
    let mut put = |part: &str, matrix| tensors.insert(format!("model.layers.1.{part}"), matrix);
    put("input_layernorm.weight", norm(6));
    put("self_attn.q_proj.weight", query);
    put("self_attn.k_proj.weight", key);
    put("self_attn.v_proj.weight", value);
    put("self_attn.o_proj.weight", output);
    put("self_attn.sinks", Matrix::constant(1, SINK * BETA));
    put("self_attn.indexer.q_proj.weight", index_query);
    put("self_attn.indexer.k_proj.weight", index_key);
    put("self_attn.indexer.weights_proj.weight", index_weights);
}

/// The norm weight that leaves a row as it is when `parts` parts of it have norm 1 and the rest are zero.
fn norm(parts: usize) -> Matrix {
    Matrix::constant(HIDDEN, (parts as f32 / HIDDEN as f32).sqrt())
}

fn unit(random: &mut SplitMix64) -> Vec<f32> {
    let code: Vec<f64> = (0..CODE).map(|_| random.normal()).collect();
    let length = code.iter().map(|x| x * x).sum::<f64>().sqrt();
    code.iter().map(|x| (x / length) as f32).collect()
}

fn pack(tensors: &Tensors) -> Result<Vec<u8>, Error> {
    let fail = |e: &dyn std::fmt::Display| Error::Internal(format!("the reference model: {e}"));
    let bytes = |matrix: &Matrix| matrix.data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let stored: Vec<(&String, Vec<usize>, Vec<u8>)> =
        tensors.iter().map(|(name, m)| (name, vec![m.rows, m.cols], bytes(m))).collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
    });
    let views = views.collect::<Result<Vec<_>, _>>().map_err(|e| fail(&e))?;
    serialize(views, None).map_err(|e| fail(&e))
}
