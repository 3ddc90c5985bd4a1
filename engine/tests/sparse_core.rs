//! The operations of the sparse core against float64 oracles and their stated rules.

use serin_engine::backend::{Attend, IndexQuery, Selection};
use serin_engine::cpu::attend::sparse_attend_decode;
use serin_engine::cpu::index::index_logits_paged;
use serin_engine::cpu::topk::topk_select;
use serin_engine::kv::{IndexCache, KvCache, KvShape, PageTable};
use serin_engine::random::SplitMix64;

#[path = "support/golden.rs"]
mod golden;
use golden::Golden;

const SHAPE: KvShape = KvShape { groups: 2, key_dim: 64, value_dim: 64 };
const HEADS: usize = 8;

fn select(logits: &[f32], k: usize) -> Vec<i32> {
    let mut out = Vec::new();
    topk_select(logits, k, &mut Vec::new(), &mut out);
    out
}

#[test]
fn topk_matches_every_golden_case() {
    let golden = Golden::open("kernels/topk.safetensors");
    let cases: Vec<String> = golden
        .names()
        .into_iter()
        .filter_map(|name| name.strip_suffix("/logits").map(str::to_owned))
        .collect();
    assert_eq!(cases.len(), 40);
    for case in cases {
        let logits = golden.f32s(&format!("{case}/logits"));
        let k = golden.i32s(&format!("{case}/k"))[0] as usize;
        let want: Vec<i32> = golden.i32s(&format!("{case}/idx")).into_iter().filter(|&i| i >= 0).collect();
        let mut got = Vec::new();
        let stats = topk_select(&logits, k, &mut Vec::new(), &mut got);
        assert_eq!(got, want, "{case}");
        if logits.len() > k {
            assert_eq!(stats.nan as i32, golden.i32s(&format!("{case}/nan_count"))[0], "{case}");
        }
    }
}

#[test]
fn topk_agrees_with_a_full_sort_on_random_rows_with_ties() {
    let mut random = SplitMix64::new(11);
    for _ in 0..300 {
        let n = 1 + (random.next_u64() % 600) as usize;
        let k = (random.next_u64() % 300) as usize;
        let logits: Vec<f32> = (0..n).map(|_| (random.next_u64() % 40) as f32 - 20.0).collect();
        let mut order: Vec<i32> = (0..n as i32).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        order.truncate(k);
        order.sort_unstable();
        assert_eq!(select(&logits, k), order, "n {n}, k {k}");
    }
}

#[test]
fn a_row_that_fits_is_taken_without_being_read() {
    assert_eq!(select(&[f32::NAN, f32::NAN], 2), [0, 1]);
    assert_eq!(select(&[f32::NAN, 1.0, f32::NAN], 2), [1]);
}

struct Gqa {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    chosen: Vec<i32>,
}

fn gqa(golden: &Golden) -> Gqa {
    Gqa {
        queries: golden.f32s("gqa/q"),
        keys: golden.f32s("gqa/k"),
        values: golden.f32s("gqa/v"),
        chosen: golden.i32s("gqa/idx"),
    }
}

/// Attends through a page table of the given geometry; unread rows are NaN.
fn attend(gqa: &Gqa, page: usize, seed: Option<u64>, per_group: bool) -> (Vec<f32>, Vec<f32>) {
    let tokens = gqa.keys.len() / (SHAPE.groups * SHAPE.key_dim);
    let mut table = PageTable::new(page, seed);
    let mut cache = KvCache::new(SHAPE);
    cache.grow(table.grow(tokens).unwrap()).unwrap();
    cache.keys.fill(f32::NAN);
    cache.values.fill(f32::NAN);
    let mut all = Vec::new();
    table.to_slots(0..tokens as i32, &mut all).unwrap();
    cache.kv_append(&gqa.keys, &gqa.values, &all).unwrap();
    let rows = gqa.queries.len() / (HEADS * SHAPE.key_dim);
    let (slots, spans) = if per_group {
        let mut slots = Vec::new();
        table.to_slots(gqa.chosen.iter().copied(), &mut slots).unwrap();
        let width = gqa.chosen.len() / (rows * SHAPE.groups);
        (slots, (0..rows * SHAPE.groups).map(|i| (i * width, (i + 1) * width)).collect())
    } else {
        (all, vec![(0, tokens); rows])
    };
    let call = Attend {
        queries: &gqa.queries,
        heads: HEADS,
        scale: 0.125,
        sink: None,
        selection: Selection { slots: &slots, spans: &spans, per_group },
    };
    let mut out = vec![f32::NAN; rows * HEADS * SHAPE.value_dim];
    let mut lse = vec![f32::NAN; rows * HEADS];
    sparse_attend_decode(call, &cache, &mut out, &mut lse).unwrap();
    (out, lse)
}

fn close(got: &[f32], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (a, b)) in got.iter().zip(want).enumerate() {
        let same = f64::from(*a) == *b || (f64::from(*a) - b).abs() <= 5e-6;
        assert!(same, "{what} [{i}]: {a} against {b}");
    }
}

#[test]
fn attention_matches_the_grouped_query_goldens() {
    let golden = Golden::open("kernels/attend_gqa.safetensors");
    let gqa = gqa(&golden);
    let (out, lse) = attend(&gqa, 64, None, true);
    close(&out, &golden.f64s("gqa/out_f64"), "sparse out");
    close(&lse, &golden.f64s("gqa/lse_f64"), "sparse lse");
    let (out, lse) = attend(&gqa, 64, None, false);
    close(&out, &golden.f64s("gqa/dense_out_f64"), "dense out");
    close(&lse, &golden.f64s("gqa/dense_lse_f64"), "dense lse");
}

#[test]
fn page_size_and_order_change_no_bit_and_unread_rows_are_never_touched() {
    let golden = Golden::open("kernels/attend_gqa.safetensors");
    let gqa = gqa(&golden);
    let plain = attend(&gqa, 64, None, true);
    for (page, seed) in [(1, Some(9)), (2, Some(77)), (16, None), (61, Some(5)), (256, Some(3))] {
        assert_eq!(attend(&gqa, page, seed, true), plain, "page size {page}, order {seed:?}");
    }
}

/// One query over given keys, checked by a float64 softmax with a sink.
fn one(scores: &[f32], sink: Option<f32>) -> (f32, f32) {
    let shape = KvShape { groups: 1, key_dim: 1, value_dim: 1 };
    let mut cache = KvCache::new(shape);
    cache.grow(scores.len()).unwrap();
    let slots: Vec<i64> = (0..scores.len() as i64).collect();
    cache.kv_append(scores, &vec![1.0; scores.len()], &slots).unwrap();
    let sink = sink.map(|sink| [sink]);
    let call = Attend {
        queries: &[1.0],
        heads: 1,
        scale: 1.0,
        sink: sink.as_ref().map(<[f32; 1]>::as_slice),
        selection: Selection { slots: &slots, spans: &[(0, slots.len())], per_group: false },
    };
    let (mut out, mut lse) = ([f32::NAN], [f32::NAN]);
    sparse_attend_decode(call, &cache, &mut out, &mut lse).unwrap();
    (out[0], lse[0])
}

#[test]
fn a_sink_takes_mass_and_leaves_the_log_sum_alone() {
    for sink in [-60.0f32, -1.0, 0.0, 2.0, 60.0] {
        let (out, lse) = one(&[1.0, 2.0, -3.0], Some(sink));
        let keys: f64 = [1.0f64, 2.0, -3.0].iter().map(|s| s.exp()).sum();
        let want = keys / (keys + f64::from(sink).exp());
        assert!((f64::from(out) - want).abs() <= 1e-6 * want.max(1e-30), "sink {sink}: {out} against {want}");
        assert!((f64::from(lse) - keys.ln()).abs() < 1e-6);
    }
    assert_eq!(one(&[1.0, 2.0], Some(f32::NEG_INFINITY)).0, one(&[1.0, 2.0], None).0);
    assert_eq!(one(&[], Some(0.0)), (0.0, f32::NEG_INFINITY));
}

#[test]
fn shapes_it_has_no_code_for_are_refused() {
    let mut cache = KvCache::new(SHAPE);
    cache.grow(4).unwrap();
    let queries = vec![0.0; HEADS * SHAPE.key_dim];
    let try_with = |heads: usize, slots: &[i64], span: (usize, usize), sink: Option<&[f32]>| {
        let selection = Selection { slots, spans: &[span], per_group: false };
        let call = Attend { queries: &queries, heads, scale: 1.0, sink, selection };
        let (mut out, mut lse) = (vec![0.0; HEADS * SHAPE.value_dim], vec![0.0; HEADS]);
        sparse_attend_decode(call, &cache, &mut out, &mut lse)
    };
    assert!(try_with(HEADS, &[0, 3, -1], (0, 3), None).is_ok());
    for slot in [4, -2, i64::MIN, i64::MAX] {
        assert!(try_with(HEADS, &[slot], (0, 1), None).is_err(), "slot {slot}");
    }
    assert!(try_with(HEADS, &[0], (0, 2), None).is_err());
    assert!(try_with(7, &[0], (0, 1), None).is_err());
    assert!(try_with(HEADS, &[0], (0, 1), Some(&[0.0])).is_err());
}

#[test]
fn index_logits_are_weighted_rectified_dots_at_any_page_order() {
    let (heads, dim, tokens) = (3, 8, 150);
    let mut random = SplitMix64::new(4);
    let mut draw = |n: usize| (0..n).map(|_| random.normal() as f32).collect::<Vec<_>>();
    let (query, weights, keys) = (draw(heads * dim), draw(heads), draw(tokens * dim));
    let score = |s: usize| -> f64 {
        let dot = |h: usize| -> f64 {
            (0..dim).map(|i| f64::from(query[h * dim + i]) * f64::from(keys[s * dim + i])).sum()
        };
        (0..heads).map(|h| f64::from(weights[h]) * dot(h).max(0.0)).sum()
    };
    for seed in [None, Some(13)] {
        let mut table = PageTable::new(16, seed);
        let mut cache = IndexCache::new(dim);
        cache.grow(table.grow(tokens).unwrap()).unwrap();
        let mut slots = Vec::new();
        table.to_slots(0..tokens as i32, &mut slots).unwrap();
        cache.index_append(&keys, &slots).unwrap();
        let mut logits = Vec::new();
        index_logits_paged(IndexQuery { query: &query, weights: &weights }, &cache, &slots, &mut logits)
            .unwrap();
        for (s, &got) in logits.iter().enumerate() {
            assert!((f64::from(got) - score(s)).abs() < 1e-5, "position {s}");
        }
    }
}
