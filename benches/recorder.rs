//! How much recording costs: turns made durable in a second, processor time for each, and room on the disk, beside what
//! comes of compressing every body by itself.
//!
//!     cargo bench --bench recorder                 # the numbers of docs/BENCHMARKS.md
//!     cargo bench --bench recorder -- --quick      # a twentieth of it, to see that it runs
//!     cargo bench --bench recorder -- --dir DIR    # on the disk of that folder
//!     cargo bench --bench recorder -- --only TEXT  # of the loads with this text in their names
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[path = "recorder/path.rs"]
mod path;
#[path = "recorder/plain.rs"]
mod plain;
#[path = "recorder/talk.rs"]
mod talk;
#[path = "recorder/threads.rs"]
mod threads;

use serin::fidelity::dye::Registry;
use serin::journal::fs::Real;
use serin::journal::seal::{How, seal};
use serin::journal::{Keychain, segment};
use serin::metrics::Metrics;
use serin::recorder::ledger::{Bare, Ledger};
use serin::recorder::mode::Mode;
use serin::recorder::passive::{self, Passive};
use serin::recorder::{Config, Offered, writer};
use talk::{Answer, Dice, Speech, Talk, Words};

/// A kind of traffic.
struct Load {
    name: &'static str,
    conversations: usize,
    turns: usize,
    /// Conversations that go on at the same time.
    live: usize,
    /// Bytes of what is asked anew in each turn, from and to.
    asked: (usize, usize),
    /// Bytes of system prompt and tools, of which there are eight.
    system: (usize, usize),
    answer: Answer,
    speech: Speech,
}

/// Text that compresses as prose does, and as what agents send each other: code, tools' results, repeated phrases.
const RICH: Speech = Speech { words: 6000, draws: 3 };
const PLAIN: Speech = Speech { words: 600, draws: 4 };

const WHOLE: Load = Load {
    name: "whole answers of 2-8 KB, ten turns",
    conversations: 2000,
    turns: 10,
    live: 200,
    asked: (2000, 8000),
    system: (6000, 20_000),
    answer: Answer::Whole,
    speech: RICH,
};

const LOADS: [Load; 3] = [
    WHOLE,
    Load { name: "the same in plain words", speech: PLAIN, ..WHOLE },
    Load {
        name: "streams of 200 events, requests of 35 KB",
        conversations: 1000,
        turns: 8,
        live: 100,
        asked: (1000, 2000),
        system: (24_000, 28_000),
        answer: Answer::Events(200),
        speech: RICH,
    },
];
/// Exchanges that may wait for the recorder: a load that ran ahead would measure memory.
const AHEAD: u64 = 512;

/// What one run came to.
struct Run {
    turns: u64,
    raw: u64,
    seconds: f64,
    disk: u64,
    /// The same once the last segment was sealed as well, which is `[record] segment_age` later.
    sealed: u64,
    /// Those bytes by the extensions of files.
    kinds: BTreeMap<String, u64>,
    recorder_micros: f64,
    keeper_micros: f64,
    /// Of the thread of the passive checks; 0 without them.
    passive_micros: f64,
    request_bytes: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let part = if arguments.iter().any(|argument| argument == "--quick") { 20 } else { 1 };
    let given = |name: &str| {
        arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1))
    };
    let dir = given("--dir")
        .map_or_else(std::env::temp_dir, PathBuf::from)
        .join(format!("serin-bench-{}", std::process::id()));
    println!(
        "{:<42} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10} {:>8}",
        "load", "turns", "turns/s", "raw MB", "disk %", "sealed %", "recorder", "keeper", "request"
    );
    println!("{:>102} {:>10} {:>8}", "µs/turn", "µs/turn", "KB");
    println!("on the path: {:.1} µs for a request of 35 KB and an answer of 200 events", path::micros());
    let only = given("--only").map_or("", String::as_str);
    for load in LOADS.iter().filter(|load| load.name.contains(only)) {
        let run = record(load, part, &dir, false);
        report(load.name, &run);
        let checked = record(load, part, &dir, true);
        report("  with passive checks", &checked);
        println!("  passive checks: {:.1} µs/turn on a thread of their own", checked.passive_micros);
        let plain = plain::record(load, part, &dir);
        report("  each body compressed by itself", &plain);
        let shares = run
            .kinds
            .iter()
            .map(|(kind, bytes)| format!("{kind} {:.2}", 100.0 * *bytes as f64 / run.raw as f64));
        println!("  disk by kind of file, all sealed, %: {}", shares.collect::<Vec<_>>().join(", "));
        println!(
            "  a text of 5 KB by itself, zstd level 3: {:.2} times smaller",
            plain::smaller(load.speech)
        );
        println!(
            "  ratio to that: {:.2} × turns/s, {:.2} × disk",
            rate(&run) / rate(&plain),
            run.sealed as f64 / plain.disk as f64
        );
    }
    let _ = std::fs::remove_dir_all(&dir);
    ExitCode::SUCCESS
}

fn rate(run: &Run) -> f64 {
    run.turns as f64 / run.seconds
}

fn report(name: &str, run: &Run) {
    println!(
        "{name:<42} {:>8} {:>9.0} {:>9.1} {:>9.2} {:>9.2} {:>10.1} {:>10.1} {:>8.1}",
        run.turns,
        rate(run),
        run.raw as f64 / 1e6,
        100.0 * run.disk as f64 / run.raw as f64,
        100.0 * run.sealed as f64 / run.raw as f64,
        run.recorder_micros,
        run.keeper_micros,
        run.request_bytes as f64 / run.turns as f64 / 1e3
    );
}

/// Calls `take` with every exchange of a load.
fn each(load: &Load, part: usize, mut take: impl FnMut(serin::journal::Exchange)) {
    let mut dice = Dice(7);
    let words = Words::new(&mut dice, load.speech);
    let systems: Vec<String> = (0..8)
        .map(|_| {
            let bytes = load.system.0 + dice.below(load.system.1 - load.system.0);
            words.text(&mut dice, bytes)
        })
        .collect();
    let count = load.conversations / part;
    for group in (0..count).collect::<Vec<_>>().chunks(load.live) {
        let mut talks: Vec<Talk> =
            group.iter().map(|number| Talk::new(*number, systems[number % 8].clone())).collect();
        for _ in 0..load.turns {
            for talk in &mut talks {
                let asked = load.asked.0 + dice.below(load.asked.1 - load.asked.0);
                take(talk.next(&words, &mut dice, asked, load.answer));
            }
        }
    }
}

/// Through the recorder. Only the time in which it has something to do counts: making the load takes longer than
/// recording it, so exchanges are made ahead in batches.
fn record(load: &Load, part: usize, dir: &Path, checked: bool) -> Run {
    let _ = std::fs::remove_dir_all(dir);
    let metrics = Metrics::default();
    let config = Config { dir: dir.to_owned(), queue: 2 * AHEAD as usize, ..Config::default() };
    let (recorder, writer) =
        writer::start(&config, &[], Ledger::new(&metrics, &[]), checks(&metrics, checked)).expect("starts");
    let (mut turns, mut raw, mut request_bytes, mut spent) = (0, 0, 0, Duration::ZERO);
    let mut batch = Vec::new();
    let mut flush = |batch: &mut Vec<serin::journal::Exchange>, turns: u64| {
        let begun = Instant::now();
        for exchange in batch.drain(..) {
            let (why, asked, mode) = (Bare::No, Bare::No, Mode::Redacted);
            recorder.offer(Offered {
                exchange,
                pieces: Vec::new(),
                mode,
                leases: Vec::new(),
                why,
                asked,
                after: None,
            });
        }
        while full(&metrics) < turns {
            std::thread::park_timeout(Duration::from_micros(200));
        }
        spent += begun.elapsed();
    };
    each(load, part, |exchange| {
        turns += 1;
        request_bytes += exchange.request_body_len;
        raw += exchange.request_body_len + exchange.response_body_len;
        batch.push(exchange);
        if batch.len() as u64 == AHEAD {
            flush(&mut batch, turns);
        }
    });
    flush(&mut batch, turns);
    while checked && looked_at(&metrics) < turns {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let passive_micros = threads::cpu_micros("serin-passive") / turns as f64;
    let recorder_micros = threads::cpu_micros("serin-recorder") / turns as f64;
    drop(recorder);
    // Sealing goes on until the keeper is told to stop.
    let keeper_micros = threads::cpu_micros("serin-keeper") / turns as f64;
    writer.join();
    let mut kinds = BTreeMap::new();
    sizes(dir, &mut kinds);
    let disk = kinds.values().sum();
    kinds.clear();
    seal_rest(dir, config.seal_level);
    sizes(dir, &mut kinds);
    Run {
        turns,
        raw,
        seconds: spent.as_secs_f64(),
        disk,
        sealed: kinds.values().sum(),
        kinds,
        recorder_micros,
        keeper_micros,
        passive_micros,
        request_bytes,
    }
}

/// Seals what the keeper would have sealed a little later.
fn seal_rest(dir: &Path, level: i32) {
    for file in segment::list(dir).expect("lists") {
        if file.is_open() {
            seal(&file, &Real, &Keychain::default(), How::of_level(level)).expect("seals");
        }
    }
}

/// The passive checks, with a queue that no turn is left out of.
fn checks(metrics: &Metrics, wanted: bool) -> Option<Passive> {
    let config = passive::Config { enabled: wanted, queue: 1 << 20, ..passive::Config::default() };
    let crosstalk = metrics.counter("serin_crosstalk_total", "Crosstalk.");
    let parts = passive::Parts {
        metrics: passive::Metrics::new(metrics),
        dye: Arc::new(Registry::new(64)),
        crosstalk,
    };
    Passive::start(&config, parts).expect("starts")
}

fn looked_at(metrics: &Metrics) -> u64 {
    let text = String::from_utf8(metrics.text().expect("encodes")).expect("is text");
    let lines =
        text.lines().filter(|line| line.starts_with("serin_passive_checks_total{check=\"degeneration\""));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

fn full(metrics: &Metrics) -> u64 {
    let text = String::from_utf8(metrics.text().expect("encodes")).expect("is text");
    let name = "serin_recorder_turns_total{outcome=\"full\",reason=\"\"} ";
    text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap_or(0)
}

/// Bytes of all files but the ballast, by their extensions.
fn sizes(dir: &Path, into: &mut BTreeMap<String, u64>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            sizes(&path, into);
        } else if entry.file_name() != "ballast" {
            let kind = path.extension().map_or_else(String::new, |text| text.to_string_lossy().into_owned());
            *into.entry(kind).or_default() += entry.metadata().map_or(0, |found| found.len());
        }
    }
}
