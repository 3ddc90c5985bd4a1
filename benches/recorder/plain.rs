//! The baseline: every exchange's bodies, whole, compressed by themselves and appended to a file that is synced as often.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::talk::{Dice, Speech, Words};
use super::{Load, Run, each};

const GROUP: usize = 256 << 10;
const LEVEL: i32 = 3;

pub fn record(load: &Load, part: usize, dir: &Path) -> Run {
    let path = dir.join("plain");
    let _ = std::fs::create_dir_all(dir);
    let mut file = File::create(&path).expect("makes a file");
    let (mut turns, mut raw, mut request_bytes, mut spent) = (0, 0, 0, Duration::ZERO);
    let mut waiting = 0;
    each(load, part, |exchange| {
        turns += 1;
        request_bytes += exchange.request_body_len;
        raw += exchange.request_body_len + exchange.response_body_len;
        let begun = Instant::now();
        for body in [&exchange.request_body, &exchange.response_body] {
            let packed = zstd::bulk::compress(body, LEVEL).expect("compresses");
            file.write_all(&packed).expect("writes");
            waiting += body.len();
        }
        if waiting >= GROUP {
            file.sync_data().expect("syncs");
            waiting = 0;
        }
        spent += begun.elapsed();
    });
    let disk = file.metadata().map_or(0, |found| found.len());
    let recorder_micros = spent.as_secs_f64() * 1e6 / turns as f64;
    let _ = std::fs::remove_file(path);
    let seconds = spent.as_secs_f64();
    Run {
        turns,
        raw,
        seconds,
        disk,
        sealed: disk,
        kinds: BTreeMap::new(),
        recorder_micros,
        keeper_micros: 0.0,
        passive_micros: 0.0,
        request_bytes,
    }
}

/// How many times smaller a text of 5 KB gets by itself.
pub fn smaller(speech: Speech) -> f64 {
    let mut dice = Dice(7);
    let words = Words::new(&mut dice, speech);
    let (mut raw, mut packed) = (0, 0);
    for _ in 0..200 {
        let text = words.text(&mut dice, 5000);
        raw += text.len();
        packed += zstd::bulk::compress(text.as_bytes(), LEVEL).expect("compresses").len();
    }
    raw as f64 / packed as f64
}
