//! The forward pass against logits and greedy tokens of an independent implementation (a 4-layer Llama, f32).

use serin_engine::TopK;
use serin_engine::forward::{Decoder, Wanted};
use serin_engine::kv::PageTable;
use serin_engine::kv::sequence::Sequence;
use serin_engine::sampler::argmax;
use serin_engine::weights::safetensors;

#[path = "support/golden.rs"]
mod golden;
use golden::{Golden, data};

const VOCAB: usize = 512;
/// The golden data's own gate: eight times the largest difference seen between two correct implementations.
const TOLERANCE: f32 = 2e-4;
const LENGTHS: [usize; 12] = [1, 4, 7, 9, 33, 36, 64, 65, 130, 131, 257, 300];

fn model() -> Decoder {
    let parts = safetensors::open(&data("llama")).unwrap();
    Decoder::new(parts.arch, &parts.weights).unwrap()
}

fn prompt(golden: &Golden, n: usize) -> Vec<u32> {
    golden.i32s(&format!("len{n}/input_ids")).into_iter().map(|id| id as u32).collect()
}

fn run(model: &Decoder, tokens: &[u32], sequence: &mut Sequence, wanted: Wanted) -> Vec<f32> {
    model.forward(tokens, sequence, TopK::All, wanted).unwrap()
}

fn close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: shape");
    let worst = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // `<=` is false for NaN as well.
    assert!(worst <= TOLERANCE, "{what}: off by {worst}");
}

#[test]
fn prompt_logits_match() {
    let (model, golden) = (model(), Golden::open("llama/golden.safetensors"));
    for n in LENGTHS {
        let logits = run(&model, &prompt(&golden, n), &mut model.sequence(), Wanted::All);
        let all = format!("len{n}/logits");
        if golden.has(&all) {
            close(&logits, &golden.f32s(&all), &all);
        } else {
            let last = golden.f32s(&format!("len{n}/logits_last8"));
            close(&logits[logits.len() - 8 * VOCAB..], &last, &format!("last 8 of {n}"));
        }
    }
}

#[test]
fn greedy_tokens_match_exactly() {
    let (model, golden) = (model(), Golden::open("llama/golden.safetensors"));
    for n in [1, 7, 33, 64, 130, 131, 257] {
        let tokens = golden.i32s(&format!("dec{n}/tokens"));
        let want = golden.f32s(&format!("dec{n}/logits"));
        let mut sequence = model.sequence();
        let mut logits = run(&model, &prompt(&golden, n), &mut sequence, Wanted::Last);
        close(&logits, &want[..VOCAB], &format!("after the prompt of {n}"));
        for (step, &token) in tokens.iter().enumerate() {
            assert_eq!(argmax(&logits), token as usize, "step {step} after {n}");
            logits = run(&model, &[token as u32], &mut sequence, Wanted::Last);
            close(&logits, &want[(step + 1) * VOCAB..(step + 2) * VOCAB], &format!("step {step} after {n}"));
        }
    }
}

#[test]
fn any_chunking_gives_the_same_logits() {
    let (model, golden) = (model(), Golden::open("llama/golden.safetensors"));
    for (n, chunks) in
        [(64, &[1, 2, 3, 4, 5, 7, 16, 63][..]), (131, &[5, 16, 37, 128, 130]), (300, &[64, 127, 129, 256])]
    {
        let tokens = prompt(&golden, n);
        let whole = run(&model, &tokens, &mut model.sequence(), Wanted::Last);
        for &chunk in chunks {
            let mut sequence = model.sequence();
            let mut logits = Vec::new();
            for part in tokens.chunks(chunk) {
                logits = run(&model, part, &mut sequence, Wanted::Last);
            }
            close(&logits, &whole, &format!("{n} in chunks of {chunk}"));
            assert_eq!(sequence.len(), n);
        }
    }
}

#[test]
fn prefill_equals_prefill_of_one_less_and_a_step() {
    let (model, golden) = (model(), Golden::open("llama/golden.safetensors"));
    for n in [4, 9, 65, 130, 257] {
        let tokens = prompt(&golden, n);
        let whole = run(&model, &tokens, &mut model.sequence(), Wanted::Last);
        let mut sequence = model.sequence();
        run(&model, &tokens[..n - 1], &mut sequence, Wanted::None);
        let step = run(&model, &tokens[n - 1..], &mut sequence, Wanted::Last);
        close(&step, &whole, &format!("length {n}"));
    }
}

#[test]
fn pages_of_any_size_in_any_order_change_no_bit() {
    let (model, golden) = (model(), Golden::open("llama/golden.safetensors"));
    let tokens = prompt(&golden, 131);
    let plain = run(&model, &tokens, &mut model.sequence(), Wanted::All);
    for (page, seed) in [(1, Some(3)), (16, Some(0x1234_5678_9abc_def1)), (64, Some(5)), (256, None)] {
        let mut sequence = model.sequence_with(PageTable::new(page, seed));
        assert_eq!(
            run(&model, &tokens, &mut sequence, Wanted::All),
            plain,
            "page size {page}, order {seed:?}"
        );
    }
}

#[test]
fn truncate_and_replay_equals_never_written() {
    let (model, golden) = (model(), Golden::open("llama/golden.safetensors"));
    let (tokens, other) = (prompt(&golden, 131), prompt(&golden, 300));
    for keep in [0, 1, 63, 64, 65, 130] {
        let mut fresh = model.sequence();
        run(&model, &tokens[..keep], &mut fresh, Wanted::None);
        let want = run(&model, &tokens[keep..], &mut fresh, Wanted::All);
        let mut used = model.sequence();
        run(&model, &tokens[..keep], &mut used, Wanted::None);
        run(&model, &other, &mut used, Wanted::None);
        used.truncate(keep);
        assert_eq!(run(&model, &tokens[keep..], &mut used, Wanted::All), want, "kept {keep}");
    }
}

#[test]
fn a_later_token_changes_no_earlier_row() {
    let (model, golden) = (model(), Golden::open("llama/golden.safetensors"));
    let tokens = prompt(&golden, 65);
    let mut changed = tokens.clone();
    changed[40] = (changed[40] + 1) % VOCAB as u32;
    let (a, b) = (
        run(&model, &tokens, &mut model.sequence(), Wanted::All),
        run(&model, &changed, &mut model.sequence(), Wanted::All),
    );
    assert_eq!(a[..40 * VOCAB], b[..40 * VOCAB]);
    assert_ne!(a[40 * VOCAB..41 * VOCAB], b[40 * VOCAB..41 * VOCAB]);
}

#[test]
fn bad_tokens_and_too_many_are_refused_and_leave_the_sequence_alone() {
    let model = model();
    let mut sequence = model.sequence();
    run(&model, &[3, 4], &mut sequence, Wanted::None);
    assert!(model.forward(&[512], &mut sequence, TopK::All, Wanted::Last).is_err());
    let many = vec![2; model.arch.context - 1];
    assert!(model.forward(&many, &mut sequence, TopK::All, Wanted::Last).is_err());
    assert_eq!(sequence.len(), 2);
}
