//! Promise: whatever happens to the disk, offering a record never waits, nothing that was counted as recorded is lost,
//! and every exchange is in one column of the ledger.

#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/faulty.rs"]
mod faulty;

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exchanges::{SECOND, chat, streamed, user};
use faulty::{Act, Faulty};
use serde_json::json;
use serin::journal::fs::Room;
use serin::journal::verify::verify;
use serin::journal::{Capture, Exchange, Gap, Level, Reader, Record, Sync};
use serin::metrics::Metrics;
use serin::recorder::ledger::{Bare, Ledger};
use serin::recorder::mode::Mode;
use serin::recorder::writer::{Writer, start_on};
use serin::recorder::{Config, Offered, Recorder};
use serin::units::{Size, Span};

/// A recorder on a file system that can be made to fail.
struct Rig {
    dir: tempfile::TempDir,
    metrics: Metrics,
    faulty: Faulty,
    recorder: Option<Recorder>,
    writer: Option<Writer>,
    offered: u64,
}

impl Rig {
    fn new(change: impl FnOnce(&mut Config)) -> Rig {
        Self::on(Faulty::default(), change)
    }

    fn on(faulty: Faulty, change: impl FnOnce(&mut Config)) -> Rig {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config { dir: dir.path().to_owned(), ..Config::default() };
        change(&mut config);
        let metrics = Metrics::default();
        let made = start_on(&config, &[], Ledger::new(&metrics, &[]), None, Arc::new(faulty.clone()))
            .expect("starts");
        Rig { dir, metrics, faulty, recorder: Some(made.0), writer: Some(made.1), offered: 0 }
    }

    fn offer(&mut self, exchange: Exchange) {
        self.offered += 1;
        let (why, asked, mode) = (Bare::No, Bare::No, Mode::Redacted);
        let offered =
            Offered { exchange, pieces: Vec::new(), mode, leases: Vec::new(), why, asked, after: None };
        self.recorder.as_ref().expect("runs").offer(offered);
    }

    /// Offers one exchange of a conversation of its own.
    fn offer_one(&mut self) {
        let number = self.offered;
        self.offer(chat(
            &format!("{number:05}"),
            number * SECOND,
            &json!([user(&format!("question {number}"))]),
            "yes",
        ));
    }

    fn column(&self, outcome: &str, reason: &str) -> u64 {
        let name = format!("serin_recorder_turns_total{{outcome=\"{outcome}\",reason=\"{reason}\"}} ");
        self.lines().iter().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
    }

    fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.metrics.text().expect("encodes")).expect("is text");
        text.lines().map(str::to_owned).collect()
    }

    fn sum(&self) -> u64 {
        let columns = self.lines();
        let columns = columns.iter().filter(|line| line.starts_with("serin_recorder_turns_total{"));
        columns
            .map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count"))
            .sum()
    }

    #[track_caller]
    fn until(&self, what: &str, is: impl Fn(&Rig) -> bool) {
        let begun = serin::clock::now();
        while !is(self) {
            assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}; {:#?}", self.lines());
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Ends the recorder and checks that the books agree; returns the exchanges and gaps on disk.
    fn close(&mut self) -> (Vec<Exchange>, Vec<Gap>) {
        self.recorder = None;
        self.writer.take().expect("runs").join();
        assert_eq!(self.sum(), self.offered, "{:#?}", self.lines());
        let (mut exchanges, mut gaps) = (Vec::new(), Vec::new());
        for next in Reader::open(self.dir.path()).expect("opens") {
            match next.expect("reads").1 {
                Record::Exchange(exchange) => exchanges.push(exchange),
                Record::Gap(gap) => gaps.push(gap),
                _ => {}
            }
        }
        assert!(verify(self.dir.path(), &Arc::default()).expect("reads").is_sound());
        (exchanges, gaps)
    }
}

fn room(free_bytes: u64) -> Option<Room> {
    Some(Room { free_bytes, total_bytes: 1 << 40, free_files: 1 << 20 })
}

#[test]
fn a_frozen_disk_holds_up_nobody_and_what_does_not_fit_is_a_gap() {
    let mut rig = Rig::new(|config| {
        config.queue = 50;
        // Each exchange meets the disk: a group would take many of them before it notices.
        config.sync = Sync::Always;
    });
    rig.offer_one();
    rig.until("the first is durable", |rig| rig.column("full", "") == 1);
    rig.faulty.plan(|plan| plan.frozen = true);
    let mut slowest = Duration::ZERO;
    for _ in 0..400 {
        let begun = serin::clock::now();
        rig.offer_one();
        slowest = slowest.max(begun.elapsed());
    }
    // A wait for the frozen disk would be for ever; this is what a busy machine may do to any thread.
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(rig.column("dropped", "queue_full") >= 200, "{:#?}", rig.lines());
    rig.faulty.plan(|plan| plan.frozen = false);
    let (exchanges, gaps) = rig.close();
    let full = rig.column("full", "");
    assert_eq!(exchanges.len() as u64, full);
    assert_eq!(gaps.iter().map(|gap| gap.count).sum::<u64>(), rig.column("dropped", "queue_full"));
    assert!(gaps.iter().all(|gap| gap.reason == "queue_full" && gap.from_unix_nanos <= gap.to_unix_nanos));
}

/// The new journal has a key of its own: what was read under the old one's would be found by nobody.
#[test]
fn a_conversation_that_begins_as_the_journal_is_lost_goes_on_in_the_new_one() {
    let mut rig = Rig::new(|config| config.sync = Sync::Always);
    rig.offer_one();
    rig.until("the first is durable", |rig| rig.column("full", "") == 1);
    std::fs::remove_dir_all(rig.dir.path().join("canary")).expect("removes");
    for entry in std::fs::read_dir(rig.dir.path()).expect("lists") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
            .expect("removes");
    }
    let asked = json!([user("my name is Ada, and this is the beginning")]);
    rig.offer(chat("b", SECOND, &asked, "Hello Ada."));
    let more = json!([asked[0], {"role": "assistant", "content": "Hello Ada."}, user("who am I?")]);
    rig.offer(chat("c", 60 * SECOND, &more, "Ada."));
    rig.until("both are durable", |rig| rig.column("full", "") == 3);
    rig.recorder = None;
    rig.writer.take().expect("runs").join();
    let links =
        Reader::open(rig.dir.path()).expect("opens").filter_map(|next| match next.expect("reads").1 {
            Record::Link(link) => Some((link.turn, link.kind, link.parent)),
            _ => None,
        });
    let links: Vec<_> = links.collect();
    let link = |turn: &str, kind: &str, parent: &str| (turn.to_owned(), kind.to_owned(), parent.to_owned());
    assert_eq!(links, [link("b", "root", ""), link("c", "append", "b")]);
}

#[test]
fn recording_goes_down_the_ladder_with_the_room_and_up_again() {
    let faulty = Faulty::default();
    faulty.plan(|plan| plan.room = room(1 << 40));
    let mut rig = Rig::on(faulty, |_| {});
    let stream = |rig: &mut Rig| {
        let number = rig.offered;
        rig.offer(streamed(
            &format!("{number:05}"),
            number * SECOND,
            &json!([user(&format!("q {number}"))]),
            "a b",
        ));
    };
    let step = |rig: &mut Rig, free, outcome, reason| {
        rig.faulty.plan(|plan| plan.room = room(free));
        let pressure = |rig: &Rig| {
            let lines = rig.lines();
            lines.iter().find_map(|line| line.strip_prefix("serin_recorder_pressure ")?.parse::<u32>().ok())
        };
        let want = match outcome {
            "full" => 0,
            "shape" => 1,
            "meta" => 2,
            _ => 3,
        };
        rig.until("the room is noticed", |rig| pressure(rig) == Some(want));
        stream(rig);
        rig.until(outcome, |rig| rig.column(outcome, reason) >= 1);
    };
    step(&mut rig, 1 << 40, "full", "");
    step(&mut rig, (2 << 30) - 1, "shape", "disk");
    step(&mut rig, (1 << 30) - 1, "meta", "disk");
    step(&mut rig, 0, "dropped", "disk_full");
    step(&mut rig, 1 << 40, "full", "");
    rig.until("the second full one", |rig| rig.column("full", "") == 2);
    let (exchanges, gaps) = rig.close();
    let kept: Vec<_> = exchanges
        .iter()
        .map(|exchange| (exchange.record_level(), exchange.request_capture(), exchange.response_capture()))
        .collect();
    let (whole, none) = (Capture::Whole, Capture::None);
    let want = [
        (Level::Full, whole, whole),
        (Level::Shape, whole, none),
        (Level::Meta, none, none),
        (Level::Full, whole, whole),
    ];
    assert_eq!(kept, want);
    assert!(!exchanges[1].answer.is_empty() && exchanges[1].response_body.is_empty());
    assert!(exchanges[2].request_body.is_empty() && exchanges[2].answer.is_empty());
    assert_eq!(
        gaps.iter().map(|gap| (gap.reason.as_str(), gap.count)).collect::<Vec<_>>(),
        [("disk_full", 1)]
    );
}

#[test]
fn a_full_disk_has_room_for_what_waits_and_for_the_gap() {
    let mut rig = Rig::new(|_| {});
    rig.offer_one();
    rig.until("the first is durable", |rig| rig.column("full", "") == 1);
    assert!(ballast(rig.dir.path()), "room is set aside");
    rig.faulty.plan(|plan| plan.writes = [Act::Fail(ErrorKind::StorageFull)].into());
    rig.offer_one();
    rig.until("the second is durable, where the ballast was", |rig| rig.column("full", "") == 2);
    let (exchanges, _) = rig.close();
    assert_eq!(exchanges.len(), 2);
}

fn ballast(dir: &Path) -> bool {
    std::fs::metadata(dir.join("ballast")).is_ok_and(|found| found.len() == 16 << 20)
}

#[test]
fn what_is_recorded_of_a_conversation_is_recorded_of_all_of_it() {
    let mut rig = Rig::new(|config| config.sample = 0.4);
    let mut messages = vec![vec![]; 40];
    for turn in 0..3u64 {
        for (talk, messages) in messages.iter_mut().enumerate() {
            messages.push(user(&format!("question {turn} of {talk}")));
            let answer = format!("answer {turn} to {talk}");
            rig.offer(chat(&format!("{turn}-{talk:02}"), turn * 100 * SECOND, &json!(messages), &answer));
            messages.push(exchanges::assistant(&answer));
        }
    }
    rig.offer(exchanges::failed("failed", 0, &json!([user("out of luck")])));
    let (exchanges, _) = rig.close();
    let (full, meta) = (rig.column("full", ""), rig.column("meta", "sampled_out"));
    assert!(full + meta == 121 && (30..90).contains(&full), "{full} of 121");
    let whole = |id: &str| {
        let found = exchanges.iter().find(|exchange| exchange.id == id).expect("is there");
        found.record_level() == Level::Full
    };
    for talk in 0..40 {
        let kept = [0, 1, 2].map(|turn| whole(&format!("{turn}-{talk:02}")));
        assert!(kept == [kept[0]; 3], "conversation {talk}: {kept:?}");
    }
    assert!(whole("failed"), "what failed is always kept");
}

#[test]
fn segments_are_sealed_and_forgotten_while_recording_goes_on() {
    let mut rig = Rig::new(|config| {
        config.segment = Size(20_000);
        config.keep_bytes = Size(0);
        config.commit_age = Span(Duration::from_millis(1));
    });
    for _ in 0..300 {
        rig.offer_one();
        if rig.offered.is_multiple_of(20) {
            let offered = rig.offered;
            rig.until("all so far are durable", |rig| rig.column("full", "") == offered);
        }
    }
    rig.until("some are sealed", |rig| {
        let lines = rig.lines();
        lines.iter().any(|line| {
            line.strip_prefix("serin_recorder_sealed_segments_total ").is_some_and(|count| count != "0")
        })
    });
    let (exchanges, _) = rig.close();
    assert_eq!(exchanges.len(), 300);
}
