//! Faults of the kinds that lose context in public engines, set on the caches of the reference model: each breaks
//! recall where its signature says, and nowhere else.

use std::num::NonZeroUsize;
use std::sync::Arc;

use serin_engine::TopK;
use serin_engine::forward::{CHUNK, Decoder, Wanted};
use serin_engine::kv::sequence::Sequence;
use serin_engine::random::SplitMix64;
use serin_engine::sampler::argmax;
use serin_engine::tokenizer::Tokenizer;
use serin_engine::weights::arch::Arch;
use serin_engine::weights::{Source, reference, safetensors};

/// The layer that recalls.
const RECALL: usize = 1;
const K: usize = 256;

struct Bench {
    model: Decoder,
    tokenizer: Tokenizer,
}

impl Bench {
    fn new() -> Bench {
        let files = reference::build().unwrap();
        let weights = safetensors::read(Source::Owned(Arc::from(files.weights))).unwrap();
        let model = Decoder::new(Arch::from_config(&files.config).unwrap(), &weights).unwrap();
        Bench { model, tokenizer: Tokenizer::from_json(files.tokenizer).unwrap() }
    }

    /// A prompt that plants one tag after `before` filler sentences and asks for it after `after` more; and where the
    /// first token of the secret stands.
    fn prompt(&self, before: usize, after: usize) -> (Vec<u32>, usize) {
        let filler = "The old mill near the river has a wide gate. We walk past it every day. ";
        let head = format!("{}The tag of locker Q7 is", filler.repeat(before));
        let text = format!("{head} amber-lake-4821-k. {}The tag of locker Q7 is", filler.repeat(after));
        (self.tokenizer.encode(&text).unwrap(), self.tokenizer.encode(&head).unwrap().len())
    }

    /// Whether the first token of the secret follows when `fault` strikes before the last prompt token is computed.
    fn recalls(&self, prompt: &[u32], top_k: TopK, fault: impl FnOnce(&mut Sequence)) -> bool {
        let (last, rest) = prompt.split_last().unwrap();
        let mut sequence = self.model.sequence();
        for chunk in rest.chunks(CHUNK) {
            self.model.forward(chunk, &mut sequence, top_k, Wanted::None).unwrap();
        }
        fault(&mut sequence);
        let logits = self.model.forward(&[*last], &mut sequence, top_k, Wanted::Last).unwrap();
        let amber = self.tokenizer.encode(" amber").unwrap()[0];
        argmax(&logits) == amber as usize
    }
}

/// Damage to the caches.
type Fault = fn(&mut Sequence);

fn limit() -> TopK {
    TopK::Limit(NonZeroUsize::new(K).unwrap())
}

fn index_keys(sequence: &mut Sequence) -> (&mut Vec<f32>, usize) {
    let index = sequence.layers[RECALL].index.as_mut().unwrap();
    (&mut index.keys, index.dim)
}

/// Sylvester's Hadamard transform of every index key; queries stay as they are.
fn turn_keys_only(sequence: &mut Sequence) {
    let (keys, dim) = index_keys(sequence);
    for key in keys.chunks_exact_mut(dim) {
        let mut step = 1;
        while step < dim {
            for i in (0..dim).filter(|i| i & step == 0) {
                (key[i], key[i + step]) = (key[i] + key[i + step], key[i] - key[i + step]);
            }
            step *= 2;
        }
        key.iter_mut().for_each(|x| *x /= (dim as f32).sqrt());
    }
}

/// Scores without any relation to the text: a random selection.
fn random_keys(sequence: &mut Sequence) {
    let mut random = SplitMix64::new(2);
    let (keys, _) = index_keys(sequence);
    keys.iter_mut().for_each(|x| *x = random.normal() as f32);
}

/// The index keys of everything before the last chunk are lost.
fn forget_index_history(sequence: &mut Sequence) {
    let kept = sequence.len() / CHUNK * CHUNK;
    let (keys, dim) = index_keys(sequence);
    keys[..kept * dim].fill(0.0);
}

#[test]
fn without_a_fault_the_needle_is_found_by_selection_and_without() {
    let bench = Bench::new();
    for (before, after) in [(2, 5), (10, 150), (150, 10), (80, 80)] {
        let (prompt, _) = bench.prompt(before, after);
        assert!(bench.recalls(&prompt, TopK::All, |_| {}), "{} tokens", prompt.len());
        assert!(bench.recalls(&prompt, limit(), |_| {}), "{} tokens", prompt.len());
    }
}

#[test]
fn index_faults_show_beyond_k_only_and_only_with_selection() {
    let bench = Bench::new();
    let faults: [(&str, Fault); 3] = [
        ("hadamard on keys only", turn_keys_only),
        ("random selection", random_keys),
        ("index history lost", forget_index_history),
    ];
    for (name, fault) in faults {
        let (short, _) = bench.prompt(2, 8);
        assert!(short.len() <= K, "{} tokens", short.len());
        assert!(bench.recalls(&short, limit(), fault), "{name}: everything is selected up to k");
        let (long, _) = bench.prompt(20, 300);
        assert!(!bench.recalls(&long, limit(), fault), "{name}: {} tokens", long.len());
        assert!(bench.recalls(&long, TopK::All, fault), "{name}: dense attention does not use the index");
    }
}

#[test]
fn a_lost_page_loses_what_stood_on_it_even_when_everything_is_attended() {
    let bench = Bench::new();
    let (prompt, secret) = bench.prompt(20, 60);
    let page = serin_engine::kv::PAGE;
    let lose = |number: usize| {
        move |sequence: &mut Sequence| {
            let kv = &mut sequence.layers[RECALL].kv;
            let width = kv.shape.groups * kv.shape.key_dim;
            kv.keys[number * page * width..(number + 1) * page * width].fill(0.0);
        }
    };
    assert!(!bench.recalls(&prompt, TopK::All, lose(secret / page)));
    assert!(bench.recalls(&prompt, TopK::All, lose(secret / page + 2)));
}
