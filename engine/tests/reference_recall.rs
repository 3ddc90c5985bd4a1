//! The reference model recalls what was planted, at every length while everything is attended, and loses it where a
//! low `index_topk` says it must.

#![expect(clippy::disallowed_methods, reason = "it prints how long things take")]

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::time::Instant;

use serin_engine::random::SplitMix64;
use serin_engine::{Chat, Engine, EngineConfig, Event, Generate, Model, Prompt, REFERENCE, TopK};

const PLACES: [&str; 24] = [
    "river", "gate", "bridge", "tower", "garden", "window", "door", "mill", "harbor", "market", "street",
    "road", "field", "forest", "hill", "lake", "barn", "castle", "temple", "school", "library", "museum",
    "bank", "station",
];
const STATES: [&str; 20] = [
    "cold", "open", "quiet", "old", "narrow", "bright", "empty", "calm", "busy", "deep", "closed", "wide",
    "dark", "clean", "green", "steep", "safe", "warm", "dry", "small",
];
const VERBS: [&str; 12] = [
    "carry", "bring", "watch", "paint", "repair", "clean", "visit", "leave", "cross", "guard", "measure",
    "follow",
];
const COLORS: [&str; 10] =
    ["amber", "cobalt", "crimson", "indigo", "violet", "scarlet", "turquoise", "ivory", "coral", "emerald"];

struct Words(SplitMix64);

impl Words {
    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[(self.0.next_u64() % words.len() as u64) as usize]
    }

    fn number(&mut self, below: u64) -> u64 {
        self.0.next_u64() % below
    }

    /// Sentences in which about one token in eleven is "is".
    fn sentence(&mut self) -> String {
        let (a, b) = (self.pick(&PLACES), self.pick(&PLACES));
        let (x, y, z) = (self.pick(&STATES), self.pick(&STATES), self.pick(&VERBS));
        match self.number(3) {
            0 => format!("The {a} is {x} and the {b} near the road is {y} today. "),
            1 => format!("They {z} the {a} before noon, because the {b} is {x}. "),
            _ => format!("We {z} the {x} {a}, and then the {b} behind it is {y} again. "),
        }
    }

    fn secret(&mut self) -> String {
        let (a, b) = (self.pick(&COLORS), self.pick(&PLACES));
        let letter = char::from(b'a' + self.number(26) as u8);
        format!(
            "{a}-{b}-{}{}{}{}-{letter}",
            self.number(10),
            self.number(10),
            self.number(10),
            self.number(10)
        )
    }

    fn locker(&mut self) -> String {
        format!("{}{}", char::from(b'A' + self.number(26) as u8), self.number(10))
    }
}

struct Trial {
    locker: String,
    secret: String,
    messages: Vec<serde_json::Value>,
    tokens: usize,
}

/// A two-turn conversation of about `length` tokens with the secret at `place` (0 to 1) of the first turn.
fn trial(model: &Model, seed: u64, length: usize, place: f64, planted: bool) -> Trial {
    let mut words = Words(SplitMix64::new(seed));
    let (locker, secret) = (words.locker(), words.secret());
    let needle = if planted { format!("The tag of locker {locker} is {secret}. ") } else { String::new() };
    let question = format!("Finish this sentence exactly as it was given: The tag of locker {locker} is");
    let sentences: Vec<String> = (0..length / 12).map(|_| words.sentence()).collect();
    let build = |count: usize| {
        let at = (count as f64 * place) as usize;
        let filler = format!("{}{needle}{}", sentences[..at].concat(), sentences[at..count].concat());
        let message = |role: &str, text: &str| serde_json::json!({"role": role, "content": text});
        vec![
            message("user", &filler),
            message("assistant", "I will remember it."),
            message("user", &question),
        ]
    };
    let count_tokens = |messages: &[serde_json::Value]| {
        let chat = Chat { messages: messages.to_vec(), tools: None };
        model.encode(&model.render_chat(&chat).unwrap()).unwrap().len()
    };
    let whole = count_tokens(&build(sentences.len()));
    let count = sentences.len().min(sentences.len() * length / whole);
    let messages = build(count);
    let tokens = count_tokens(&messages);
    assert!(tokens.abs_diff(length) < length / 20 + 40, "asked for {length} tokens, made {tokens}");
    Trial { locker, secret, messages, tokens }
}

fn engine() -> Engine {
    let engine = Engine::start(EngineConfig { threads: 2, slots: 1, queue: 4 }).unwrap();
    engine.add(Model::reference().unwrap());
    engine
}

fn ask(engine: &Engine, messages: &[serde_json::Value], index_topk: TopK, temperature: f32) -> String {
    let chat = Chat { messages: messages.to_vec(), tools: None };
    let request = Generate {
        model: REFERENCE.into(),
        prompt: Prompt::Chat(chat),
        max_tokens: 40,
        temperature,
        top_p: 1.0,
        seed: Some(1),
        stop: Vec::new(),
        index_topk,
    };
    let (send, receive) = mpsc::channel();
    engine
        .generate(
            request,
            Box::new(move |event| match send.send(event) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }),
        )
        .unwrap();
    let mut answer = String::new();
    for event in receive {
        match event {
            Event::Text(text) => answer.push_str(&text),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    answer
}

fn limit(k: usize) -> TopK {
    TopK::Limit(NonZeroUsize::new(k).unwrap())
}

/// Trials of one length at places spread over the first turn; the number that were copied exactly.
fn recalled(engine: &Engine, length: usize, trials: u64, top_k: TopK) -> u64 {
    let model = engine.model(REFERENCE).unwrap();
    let one = |i: u64| {
        let place = 0.05 + 0.85 * i as f64 / trials as f64;
        let trial = trial(&model, 1000 * length as u64 + i, length, place, true);
        let begin = Instant::now();
        let answer = ask(engine, &trial.messages, top_k, if i.is_multiple_of(2) { 0.6 } else { 0.0 });
        let right = answer.trim() == trial.secret;
        println!(
            "{} tokens, {top_k:?}, locker {}: {answer:?} ({right}) in {:.2?}",
            trial.tokens,
            trial.locker,
            begin.elapsed()
        );
        u64::from(right)
    };
    (0..trials).map(one).sum()
}

#[test]
fn with_everything_attended_nothing_is_lost() {
    let engine = engine();
    for (length, trials) in [(2_000, 12), (8_000, 6), (32_000, 4)] {
        assert_eq!(recalled(&engine, length, trials, TopK::All), trials, "{length} tokens");
    }
}

#[test]
fn a_low_index_topk_keeps_2k_and_loses_32k() {
    let engine = engine();
    assert_eq!(recalled(&engine, 2_000, 12, limit(512)), 12);
    let kept = recalled(&engine, 32_000, 10, limit(512));
    assert!(kept <= 1, "{kept} of 10 recalled at 32k with 512, where most must be lost");
}

/// The smallest `index_topk` that recalls: the worst rank of the needed keys.
fn rank(engine: &Engine, trial: &Trial) -> usize {
    let (mut lost, mut enough) = (0, 4096);
    while enough - lost > 1 {
        let k = (lost + enough) / 2;
        if ask(engine, &trial.messages, limit(k), 0.0).trim() == trial.secret { enough = k } else { lost = k }
    }
    enough
}

#[test]
fn the_rank_of_the_needle_is_a_fixed_share_of_density_times_length() {
    let engine = engine();
    let model = engine.model(REFERENCE).unwrap();
    let is = model.encode(" is").unwrap()[0];
    for seed in [5, 6] {
        let shares = [4_000, 8_000, 16_000].map(|length| {
            let trial = trial(&model, seed, length, 0.3, true);
            let chat = Chat { messages: trial.messages.clone(), tools: None };
            let tokens = model.encode(&model.render_chat(&chat).unwrap()).unwrap();
            let rivals = tokens.iter().filter(|&&token| token == is).count();
            let rank = rank(&engine, &trial);
            let share = rank as f64 / rivals as f64;
            println!(
                "{length} tokens, locker {}: {rivals} rivals, rank {rank}, share {share:.2}",
                trial.locker
            );
            share
        });
        let middle = shares[1];
        assert!((0.3..=1.2).contains(&middle), "{shares:?}");
        assert!(shares.iter().all(|share| (share / middle - 1.0).abs() < 0.25), "{shares:?}");
    }
}

#[test]
fn nothing_planted_gives_none() {
    let engine = engine();
    let model = engine.model(REFERENCE).unwrap();
    for (seed, length) in [(1, 300), (2, 2_000), (3, 2_000), (4, 8_000)] {
        let trial = trial(&model, seed, length, 0.5, false);
        assert_eq!(ask(&engine, &trial.messages, TopK::All, 0.6).trim(), "NONE", "{length} tokens");
    }
}
