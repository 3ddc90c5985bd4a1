//! Files from outside: damage gives an error that says so, never a panic or a huge allocation.

use std::path::Path;

use proptest::prelude::*;
use serin_engine::weights::arch::Arch;
use serin_engine::weights::gguf::{Gguf, Value};
use serin_engine::weights::{Source, safetensors};
use serin_engine::{Error, Model};

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A GGUF file with the given pairs (already encoded) and one tensor of `kind`.
fn gguf(pairs: &[(&str, u32, Vec<u8>)], kind: u32, dims: [u64; 2], bytes: usize) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend(1u64.to_le_bytes());
    out.extend((pairs.len() as u64).to_le_bytes());
    for (key, kind, value) in pairs {
        text(&mut out, key);
        out.extend(kind.to_le_bytes());
        out.extend(value);
    }
    text(&mut out, "token_embd.weight");
    out.extend(2u32.to_le_bytes());
    out.extend(dims.iter().flat_map(|d| d.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32) + bytes, 1);
    out
}

fn pairs() -> Vec<(&'static str, u32, Vec<u8>)> {
    let mut name = Vec::new();
    text(&mut name, "llama");
    let mut array = 8u32.to_le_bytes().to_vec();
    array.extend(2u64.to_le_bytes());
    text(&mut array, "a");
    text(&mut array, "b");
    vec![
        ("general.architecture", 8, name),
        ("llama.context_length", 4, 64u32.to_le_bytes().to_vec()),
        ("llama.rope.freq_base", 6, 1e4f32.to_le_bytes().to_vec()),
        ("tokenizer.ggml.tokens", 9, array),
    ]
}

fn read(bytes: &[u8]) -> Result<Gguf, Error> {
    Gguf::read(Source::Owned(bytes.into()))
}

#[test]
fn a_good_file_is_read() {
    let gguf = read(&gguf(&pairs(), 8, [64, 3], 3 * 68)).unwrap();
    assert_eq!(gguf.text("general.architecture"), Some("llama"));
    assert_eq!(gguf.size("llama.context_length"), Some(64));
    assert_eq!(gguf.array("tokenizer.ggml.tokens").unwrap()[1], Value::Text("b".into()));
    let tensor = gguf.weights.matrix("model.embed_tokens.weight", 3, 64).unwrap();
    // Scale 0x0101 is 1.5318e-5 in f16, every quantum 1.
    assert!((tensor.to_f32()[100] - 1.5318e-5).abs() < 1e-8);
    assert!(gguf.weights.matrix("model.embed_tokens.weight", 64, 3).is_err());
}

#[test]
fn unsupported_types_are_named_with_their_tensor() {
    let Err(Error::Unsupported(what)) = read(&gguf(&pairs(), 12, [256, 2], 288)).map(|_| ()) else {
        panic!()
    };
    assert!(what.contains("Q4_K") && what.contains("token_embd.weight"), "{what}");
}

#[test]
fn sizes_beyond_the_file_are_refused() {
    for dims in [[64, 4], [64, u64::MAX], [u64::MAX / 2, 2], [u64::MAX, u64::MAX], [33, 3]] {
        assert!(read(&gguf(&pairs(), 8, dims, 3 * 68)).is_err(), "{dims:?}");
    }
    let mut counts = gguf(&pairs(), 8, [64, 3], 3 * 68);
    counts[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(read(&counts).is_err());
}

#[test]
fn every_cut_of_a_file_is_an_error() {
    let whole = gguf(&pairs(), 8, [64, 3], 3 * 68);
    for n in 0..whole.len() {
        assert!(read(&whole[..n]).is_err(), "{n} bytes");
    }
}

#[test]
fn a_model_that_is_not_there_or_no_model_says_which() {
    let Err(Error::Read { path, .. }) = Model::open(Path::new("/nonexistent/m.gguf")).map(|_| ()) else {
        panic!()
    };
    assert_eq!(path, "/nonexistent/m.gguf");
    let folder = tempfile::tempdir().unwrap();
    let Err(Error::Read { path, .. }) = Model::open(folder.path()).map(|_| ()) else { panic!() };
    assert!(path.ends_with("config.json"), "{path}");
    let file = folder.path().join("m.gguf");
    std::fs::write(&file, b"not a model").unwrap();
    assert!(matches!(Model::open(&file).map(|_| ()), Err(Error::Malformed { .. })));
    std::fs::write(&file, b"").unwrap();
    assert!(Model::open(&file).is_err());
}

const CONFIG: &str = r#"{"model_type":"llama","hidden_size":96,"vocab_size":512,"max_position_embeddings":2048,
"rms_norm_eps":1e-5,"num_hidden_layers":4,"num_attention_heads":6,"num_key_value_heads":2,"head_dim":32,
"intermediate_size":256,"rope_theta":100000.0,"tie_word_embeddings":true}"#;

#[test]
fn configurations_the_engine_has_no_code_for_are_refused() {
    assert!(Arch::from_config(CONFIG).is_ok());
    let change = |from: &str, to: &str| Arch::from_config(&CONFIG.replace(from, to));
    assert!(matches!(change("\"llama\"", "\"mamba\""), Err(Error::Unsupported(_))));
    let scaled = "\"rope_scaling\":{\"type\":\"yarn\"},\"rope_theta\"";
    assert!(matches!(change("\"rope_theta\"", scaled), Err(Error::Unsupported(_))));
    for (from, to) in [
        ("\"num_attention_heads\":6", "\"num_attention_heads\":0"),
        ("\"num_attention_heads\":6", "\"num_attention_heads\":7"),
        ("\"num_hidden_layers\":4", "\"num_hidden_layers\":4000000000"),
        ("\"vocab_size\":512", "\"vocab_size\":99999999999"),
        ("\"head_dim\":32", "\"head_dim\":31"),
        ("\"rope_theta\":100000.0", "\"rope_theta\":-1.0"),
    ] {
        assert!(change(from, to).is_err(), "{to}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
        let mut headed = b"GGUF\x03\0\0\0".to_vec();
        headed.extend(&bytes);
        let _ = read(&headed);
        let _ = safetensors::read(Source::Owned(bytes.as_slice().into()));
        let _ = Arch::from_config(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn mutated_files_never_panic(changes in proptest::collection::vec((0usize..400, any::<u8>()), 1..6)) {
        let mut bytes = gguf(&pairs(), 8, [64, 3], 3 * 68);
        for (at, value) in changes {
            let n = bytes.len();
            bytes[at % n] = value;
        }
        if let Ok(gguf) = read(&bytes) {
            let _ = gguf.arch();
            let _ = serin_engine::tokenizer::Tokenizer::from_gguf(&gguf);
            let _ = gguf.weights.matrix("model.embed_tokens.weight", 3, 64).map(|tensor| tensor.to_f32());
        }
    }

    #[test]
    fn mutated_configurations_never_panic(at in 0usize..300, value in "[0-9a-z\"{}:,.-]{1,3}") {
        let mut text = CONFIG.to_owned();
        let at = at % text.len();
        text.replace_range(at..at + 1, &value);
        let _ = Arch::from_config(&text);
    }
}
