//! The same weights give the same model whatever file they come in.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc;

use serin_engine::forward::{Decoder, Wanted};
use serin_engine::weights::gguf::Gguf;
use serin_engine::weights::{Source, Weights, reference, safetensors};
use serin_engine::{Engine, EngineConfig, Event, Generate, Model, Prompt, TopK};

#[path = "support/golden.rs"]
mod golden;
use golden::{Golden, data};

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn size(out: &mut Vec<u8>, key: &str, value: u32) {
    text(out, key);
    out.extend(4u32.to_le_bytes());
    out.extend(value.to_le_bytes());
}

fn float(out: &mut Vec<u8>, key: &str, value: f32) {
    text(out, key);
    out.extend(6u32.to_le_bytes());
    out.extend(value.to_le_bytes());
}

/// The matrix rows of each head from half-split order to the interleaved order of GGUF.
fn interleave(rows: &[f32], cols: usize, dim: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len());
    for head in rows.chunks(cols * dim) {
        for i in 0..dim {
            let from = i / 2 + (i % 2) * dim / 2;
            out.extend(&head[from * cols..(from + 1) * cols]);
        }
    }
    out
}

/// The golden Llama as a GGUF file.
fn gguf(weights: &Weights) -> Vec<u8> {
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), weights.matrix("model.embed_tokens.weight", 512, 96).unwrap()),
        ("output_norm.weight".to_owned(), weights.matrix("model.norm.weight", 1, 96).unwrap()),
    ];
    for layer in 0..4 {
        for (ours, theirs, rows, cols) in [
            ("attn_norm", "input_layernorm", 1, 96),
            ("attn_q", "self_attn.q_proj", 192, 96),
            ("attn_k", "self_attn.k_proj", 64, 96),
            ("attn_v", "self_attn.v_proj", 64, 96),
            ("attn_output", "self_attn.o_proj", 96, 192),
            ("ffn_norm", "post_attention_layernorm", 1, 96),
            ("ffn_gate", "mlp.gate_proj", 256, 96),
            ("ffn_up", "mlp.up_proj", 256, 96),
            ("ffn_down", "mlp.down_proj", 96, 256),
        ] {
            let name = format!("model.layers.{layer}.{theirs}.weight");
            tensors.push((format!("blk.{layer}.{ours}.weight"), weights.matrix(&name, rows, cols).unwrap()));
        }
    }
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(11u64.to_le_bytes());
    text(&mut out, "general.architecture");
    out.extend(8u32.to_le_bytes());
    text(&mut out, "llama");
    for (key, value) in [
        ("block_count", 4),
        ("context_length", 2048),
        ("embedding_length", 96),
        ("feed_forward_length", 256),
        ("attention.head_count", 6),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 32),
        ("vocab_size", 512),
    ] {
        size(&mut out, &format!("llama.{key}"), value);
    }
    float(&mut out, "llama.rope.freq_base", 1e5);
    float(&mut out, "llama.attention.layer_norm_rms_epsilon", 1e-5);
    let mut values = Vec::new();
    for (name, tensor) in &tensors {
        text(&mut out, name);
        let dims: &[u64] =
            if tensor.rows == 1 { &[tensor.cols as u64] } else { &[tensor.cols as u64, tensor.rows as u64] };
        out.extend((dims.len() as u32).to_le_bytes());
        out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend((values.len() as u64 * 4).to_le_bytes());
        let turned = name.contains("attn_q") || name.contains("attn_k");
        let plain = tensor.to_f32();
        values.extend(if turned { interleave(&plain, tensor.cols, 32) } else { plain });
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    out
}

#[test]
fn a_gguf_file_of_the_golden_llama_gives_the_golden_logits() {
    let parts = safetensors::open(&data("llama")).unwrap();
    let file = Gguf::read(Source::Owned(gguf(&parts.weights).into())).unwrap();
    let model = Decoder::new(file.arch().unwrap(), &file.weights).unwrap();
    let golden = Golden::open("llama/golden.safetensors");
    let tokens: Vec<u32> = golden.i32s("len36/input_ids").into_iter().map(|id| id as u32).collect();
    let got = model.forward(&tokens, &mut model.sequence(), TopK::All, Wanted::All).unwrap();
    let worst = got.iter().zip(golden.f32s("len36/logits")).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 2e-4, "off by {worst}");
}

#[test]
fn a_model_folder_is_opened_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let files = reference::build().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("config.json", files.config.as_bytes());
    write("model.safetensors", &files.weights);
    write("tokenizer.json", files.tokenizer.as_bytes());
    write("chat_template.jinja", files.template.as_bytes());
    assert_eq!(answer(Model::open(folder.path()).unwrap()), " cold-mill-77");
    // Half a weights file is refused when it is opened, not when it is used.
    write("model.safetensors", &files.weights[..files.weights.len() / 2]);
    let error = Model::open(folder.path()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("malformed"), "{error}");
}

#[test]
fn the_reference_model_is_the_same_every_time() {
    let (a, b) = (reference::build().unwrap(), reference::build().unwrap());
    assert!(a.weights == b.weights && a.config == b.config);
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference/tokenizer.json").exists());
}

fn answer(model: Model) -> String {
    let engine = Engine::start(EngineConfig { threads: 1, slots: 1, queue: 1 }).unwrap();
    let request = Generate {
        model: model.name().to_owned(),
        prompt: Prompt::Text(
            "The tag of the gate is cold-mill-77. The sun is up. The tag of the gate is".into(),
        ),
        max_tokens: 20,
        temperature: 0.6,
        top_p: 0.95,
        seed: None,
        stop: Vec::new(),
        index_topk: TopK::All,
    };
    engine.add(model);
    let (send, receive) = mpsc::channel();
    let sink = move |event| match send.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    engine.generate(request, Box::new(sink)).unwrap();
    let texts = receive.into_iter().filter_map(|event| match event {
        Event::Text(text) => Some(text),
        _ => None,
    });
    texts.collect()
}
