//! Promise: what clients of one tenant say lies in that tenant's journal only, under its own key and for its own time; no
//! other tenant's recordings have anything in common with it, and no other's load costs it a record.

#[path = "support/disk.rs"]
mod disk;
#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/faulty.rs"]
mod faulty;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use disk::files_with;
use exchanges::{SECOND, START, assistant, chat, user, with_session};
use faulty::Faulty;
use serde_json::json;
use serin::conversation::{Conversations, Filter, Subject, Wish};
use serin::journal::fs::Real;
use serin::journal::seal::{How, seal};
use serin::journal::segment::{self, Class, SegmentHeader};
use serin::journal::verify::verify;
use serin::journal::{Exchange, Gap, Keychain, Link, Options, Reader, Record, Sync};
use serin::metrics::Metrics;
use serin::recorder::ledger::{Bare, Ledger};
use serin::recorder::mode::Mode;
use serin::recorder::tenant::{self, Tenant};
use serin::recorder::writer::{Writer, start_on};
use serin::recorder::{Config, Offered, Recorder};
use serin::units::{Size, Span};

/// In the order of their journals in [`Rig::tenants`].
const NAMES: [&str; 3] = ["default", "a", "b"];
const DAY: u64 = 86_400 * SECOND;

/// A recorder of clients, of which some belong to "a" and some to "b".
struct Rig {
    _dir: tempfile::TempDir,
    tenants: Vec<Tenant>,
    metrics: Metrics,
    faulty: Faulty,
    running: Option<(Recorder, Writer)>,
    offered: u64,
}

impl Rig {
    fn new(change: impl FnOnce(&mut Config, &mut [tenant::Config; 2])) -> Rig {
        Self::over(tempfile::tempdir().expect("a directory"), change)
    }

    /// On what lies in a directory already.
    fn over(dir: tempfile::TempDir, change: impl FnOnce(&mut Config, &mut [tenant::Config; 2])) -> Rig {
        let mut config = Config { dir: dir.path().join("data"), ..Config::default() };
        let mut own = ["a", "b"].map(|name| tenant::Config { name: name.to_owned(), ..Default::default() });
        change(&mut config, &mut own);
        let (metrics, faulty) = (Metrics::default(), Faulty::default());
        let ledger = Ledger::new(&metrics, &[]);
        let running = start_on(&config, &own, ledger, None, Arc::new(faulty.clone())).expect("starts");
        let tenants = Tenant::all(&config, &own).expect("keys");
        Rig { _dir: dir, tenants, metrics, faulty, running: Some(running), offered: 0 }
    }

    fn offer(&mut self, tenant: usize, exchange: Exchange) {
        self.offered += 1;
        let (why, asked, mode) = (Bare::No, Bare::No, Mode::Redacted);
        let offered =
            Offered { exchange, pieces: Vec::new(), mode, leases: Vec::new(), why, asked, after: None };
        let (recorder, _) = self.running.as_ref().expect("runs");
        recorder.named(NAMES[tenant]).expect("there is one").offer(offered);
    }

    /// Offers a question that is asked by nobody else.
    fn ask(&mut self, tenant: usize, word: &str) {
        let id = format!("{:05}", self.offered);
        self.offer(tenant, chat(&id, self.offered * SECOND, &json!([user(word)]), &format!("yes, {word}")));
    }

    fn count(&self, series: &str) -> u64 {
        let text = String::from_utf8(self.metrics.text().expect("encodes")).expect("is text");
        let lines = text.lines().filter(|line| line.starts_with(series));
        lines.map(|line| line.rsplit(' ').next().expect("a count").parse::<u64>().expect("a number")).sum()
    }

    fn column(&self, tenant: &str, outcome: &str) -> u64 {
        let labels = format!("outcome=\"{outcome}\",tenant=\"{tenant}\"");
        self.count(&format!("serin_recorder_tenant_turns_total{{{labels}}}"))
    }

    #[track_caller]
    fn until(&self, what: &str, is: impl Fn(&Rig) -> bool) {
        let begun = serin::clock::now();
        while !is(self) {
            assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// Ends the recorder and checks that the books agree.
    fn close(&mut self) {
        let (recorder, writer) = self.running.take().expect("runs");
        drop(recorder);
        writer.join();
        let sums = ["serin_recorder_turns_total{", "serin_recorder_tenant_turns_total{"];
        assert_eq!(
            sums.map(|series| self.count(series)),
            [self.offered; 2],
            "every exchange is in both books"
        );
    }

    fn dir(&self, tenant: usize) -> PathBuf {
        self.tenants[tenant].config.dir.clone()
    }

    fn records(&self, tenant: usize) -> Vec<Record> {
        let keys = self.tenants[tenant].options.keys.clone();
        let reader = Reader::open_at(&self.dir(tenant), Default::default(), keys).expect("opens");
        reader.map(|next| next.expect("reads").1).collect()
    }

    fn exchanges(&self, tenant: usize) -> Vec<Exchange> {
        let only = |record| if let Record::Exchange(exchange) = record { Some(exchange) } else { None };
        self.records(tenant).into_iter().filter_map(only).collect()
    }

    fn links(&self, tenant: usize) -> Vec<Link> {
        let only = |record| if let Record::Link(link) = record { Some(link) } else { None };
        self.records(tenant).into_iter().filter_map(only).collect()
    }

    fn gaps(&self, tenant: usize) -> Vec<Gap> {
        let only = |record| if let Record::Gap(gap) = record { Some(gap) } else { None };
        self.records(tenant).into_iter().filter_map(only).collect()
    }
}

/// A file with a key of those digits.
fn key(dir: &tempfile::TempDir, digits: &str) -> PathBuf {
    let path = dir.path().join(format!("key-{digits}"));
    std::fs::write(&path, digits.repeat(32)).expect("writes");
    path
}

#[test]
fn what_a_tenant_says_lies_in_its_own_journal_only() {
    let markers = ["marker-of-nobody-5Tz", "marker-of-a-6Uz", "marker-of-b-7Vz"];
    let mut rig = Rig::new(|_, _| {});
    for (tenant, marker) in markers.iter().enumerate() {
        rig.ask(tenant, marker);
    }
    rig.close();
    let data = rig.dir(0);
    assert_eq!([rig.dir(1), rig.dir(2)], [data.join("tenants/a"), data.join("tenants/b")]);
    for (tenant, marker) in markers.iter().enumerate() {
        let found = files_with(&data, marker);
        let name = if tenant == 0 { String::new() } else { format!("tenants/{}", NAMES[tenant]) };
        let own = data.join(name);
        assert!(!found.is_empty(), "{marker} is nowhere");
        for file in found {
            assert!(
                file.strip_prefix(&own).is_ok_and(|rest| !rest.starts_with("tenants")),
                "{marker} in {file:?}"
            );
        }
        for file in segment::list(&own).expect("lists") {
            let bytes = std::fs::read(file.path(Class::Mixed)).expect("reads");
            let header = SegmentHeader::decode(&bytes, file.number).expect("is whole");
            let mut written = [0; 16];
            if tenant > 0 {
                written[..1].copy_from_slice(NAMES[tenant].as_bytes());
            }
            assert_eq!(header.tenant, written, "the header says whose it is");
        }
    }
}

#[test]
fn each_tenants_journal_opens_with_its_own_key_only() {
    let dir = tempfile::tempdir().expect("a directory");
    let keys = ["0f", "1e", "2d"].map(|digits| key(&dir, digits));
    let mut rig = Rig::over(dir, |record, [a, b]| {
        [record.key_file, a.key_file, b.key_file] = keys;
    });
    (0..3).for_each(|tenant| rig.ask(tenant, "a-word-that-is-planted"));
    rig.close();
    assert_eq!(files_with(&rig.dir(0), "a-word-that-is-planted"), Vec::<PathBuf>::new());
    for whose in 0..3 {
        for by in 0..3 {
            let proof = verify(&rig.dir(whose), &rig.tenants[by].options.keys).expect("reads");
            let read = (proof.exchanges, proof.proven_bodies, proof.damage.locked_segments);
            assert_eq!(read, if whose == by { (1, 2, 0) } else { (0, 0, 1) }, "{whose}'s by {by}");
        }
    }
}

#[test]
fn the_same_words_of_two_tenants_are_two_conversations_without_a_likeness() {
    const SECRET: &str = "ghp_Zq8LmW3nR5tY7uI9oP1aS3dF5gH7jK9lX2cV";
    // Without encryption, and with one key for all of them.
    for shared in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let file = if shared { key(&dir, "0f") } else { PathBuf::new() };
        let mut rig = Rig::over(dir, |record, _| record.key_file = file);
        let first = json!([user(&format!("my name is Ada and the key is {SECRET}"))]);
        let second = json!([first[0], assistant("Hello Ada."), user("who am I?")]);
        for (turn, messages, answer) in [(0u64, &first, "Hello Ada."), (1, &second, "Ada.")] {
            for tenant in 0..3 {
                let (id, at) = (format!("{turn}-{tenant}"), turn * 60 * SECOND);
                rig.offer(
                    tenant,
                    with_session(chat(&id, at, messages, answer), "x-session-id", "one-session"),
                );
            }
        }
        rig.close();
        let mut seen: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> = Vec::new();
        for tenant in 0..3 {
            let links = rig.links(tenant);
            let shape: Vec<_> = links
                .iter()
                .map(|link| {
                    (link.turn.as_str(), link.kind.as_str(), link.parent.as_str(), link.conversation.as_str())
                })
                .collect();
            let (root, next) = (format!("0-{tenant}"), format!("1-{tenant}"));
            let expected = [(&*root, "root", "", &*root), (&*next, "append", &*root, &*root)];
            assert_eq!(shape, expected, "its own and nobody else's");
            let [exchange, _] = &rig.exchanges(tenant)[..] else { panic!("two turns") };
            let body = String::from_utf8_lossy(&exchange.request_body);
            assert!(body.contains("the key is ghp_") && !body.contains(SECRET), "{body}");
            let facts = exchange.facts.as_ref().expect("was read");
            let likeness = (facts.head.to_vec(), facts.session.to_vec(), exchange.request_kept_hash.to_vec());
            assert!(!likeness.0.is_empty() && !likeness.1.is_empty() && !likeness.2.is_empty());
            for other in &seen {
                assert!(likeness.0 != other.0, "{shared}: one hash for what two tenants have said");
                assert!(likeness.1 != other.1, "{shared}: one hash for two tenants' session");
                assert!(likeness.2 != other.2, "{shared}: one mask for two tenants' secret");
            }
            seen.push(likeness);
        }
    }
}

#[test]
fn a_tenant_that_floods_the_queue_costs_no_other_a_record() {
    let mut rig = Rig::new(|record, _| {
        record.queue = 50;
        record.sync = Sync::Always;
    });
    rig.ask(1, "the first");
    rig.until("it is durable", |rig| rig.column("a", "full") == 1);
    rig.faulty.plan(|plan| plan.frozen = true);
    for number in 0..400 {
        rig.ask(1, &format!("flood {number}"));
    }
    let lost = rig.column("a", "dropped");
    assert!(lost >= 300, "{lost}");
    (0..20).for_each(|number| rig.ask(2, &format!("quiet {number}")));
    (0..5).for_each(|number| rig.ask(0, &format!("nobody's {number}")));
    assert_eq!(
        ["b", "default"].map(|name| rig.column(name, "dropped")),
        [0, 0],
        "of 50 places half are theirs"
    );
    rig.faulty.plan(|plan| plan.frozen = false);
    rig.close();
    assert_eq!(rig.column("b", "full"), 20);
    let written = |tenant| rig.gaps(tenant).iter().map(|gap| gap.count).sum::<u64>();
    assert_eq!([written(0), written(1), written(2)], [0, lost, 0], "in the journal of who has lost it");
    assert!(rig.gaps(1).iter().all(|gap| gap.reason == "queue_full"));
    for (tenant, name) in NAMES.iter().enumerate() {
        assert_eq!(rig.exchanges(tenant).len() as u64, rig.column(name, "full"));
    }
}

#[test]
fn each_tenant_forgets_by_its_own_terms() {
    let dir = tempfile::tempdir().expect("a directory");
    // Three days ago each has said something, in a segment that was sealed since.
    let old = || serin::clock::unix_nanos() - 3 * DAY;
    for name in ["data", "data/tenants/a", "data/tenants/b"] {
        let options = Options { unix_nanos: old, ..Options::default() };
        let mut journal = Conversations::open_with(&dir.path().join(name), options).expect("opens");
        journal
            .record(chat("old", 0, &json!([user(&"long ago ".repeat(99))]), "yes"), Wish::ALL)
            .expect("records");
        journal.commit().expect("commits");
        drop(journal);
        for file in segment::list(&dir.path().join(name)).expect("lists") {
            seal(&file, &Real, &Keychain::default(), How::of_level(3)).expect("seals");
        }
    }
    let mut rig = Rig::over(dir, |_, [a, b]| {
        (a.keep_streams, a.keep_content) = (Some(Span::seconds(0)), Some(Span::seconds(86_400)));
        (b.keep_streams, b.keep_content) = (Some(Span::seconds(0)), Some(Span::seconds(0)));
        b.keep_metadata = Some(Span::seconds(0));
    });
    let data = rig.dir(0);
    let segments = |rig: &Rig, tenant| segment::list(&rig.dir(tenant)).expect("lists").len();
    rig.until("b's day is gone", |rig| segments(rig, 2) == 0);
    let content = |rig: &Rig, tenant| {
        let files = segment::list(&rig.dir(tenant)).expect("lists");
        files.iter().filter(|file| file.classes.contains(&Class::Content)).count()
    };
    rig.until("a's words are gone", |rig| content(rig, 1) == 0);
    assert_eq!(files_with(&data.join("tenants/a"), "long ago"), Vec::<PathBuf>::new());
    let metadata = |tenant: usize| rig.exchanges(tenant).len();
    assert_eq!([metadata(0), metadata(1), metadata(2)], [1, 1, 0]);
    assert!(rig.exchanges(0)[0].request_body.starts_with(b"{"), "the default one keeps its words for a week");
    assert!(rig.exchanges(1)[0].request_body.is_empty());
    rig.close();
}

#[test]
fn what_is_erased_of_one_tenant_stays_with_the_other() {
    let mut rig = Rig::new(|_, _| {});
    let said = |tenant: usize| {
        let talk = chat(&format!("talk-{tenant}"), SECOND, &json!([user("planted-marker-9Xz")]), "noted");
        with_session(talk, "x-session-id", "one-session")
    };
    (0..3).for_each(|tenant| rig.offer(tenant, said(tenant)));
    rig.until("all are durable", |rig| rig.count("serin_recorder_turns_total{outcome=\"full\"") == 3);
    let (recorder, _) = rig.running.as_ref().expect("runs");
    let of_a = recorder.named("a").expect("there is one");
    let origin = serin::journal::Origin::Client;
    let erasure = of_a.erase(origin, Subject::Session("one-session".into())).expect("is known");
    assert_eq!(erasure.turns.len(), 1, "of the three that carry this session's id");
    assert!(
        of_a.erase(origin, Subject::Conversation("talk-2".into())).is_err(),
        "another's is nobody it knows"
    );
    drop(of_a);
    rig.until("it is carried out", |rig| rig.count("serin_recorder_erased_exchanges_total ") == 1);
    rig.close();
    assert_eq!(files_with(&rig.dir(1), "planted-marker-9Xz"), Vec::<PathBuf>::new());
    assert!(!files_with(&rig.dir(2), "planted-marker-9Xz").is_empty());
    for (tenant, left) in [(0, 1), (1, 0), (2, 1)] {
        let options = rig.tenants[tenant].options.clone();
        let sessions = Conversations::read_with(&rig.dir(tenant), options).expect("opens");
        assert_eq!(sessions.list(&Filter::default()).expect("lists").len(), left, "{}", NAMES[tenant]);
        assert!(verify(&rig.dir(tenant), &Arc::default()).expect("reads").is_sound());
    }
}

#[test]
fn a_tenant_is_sampled_and_reduced_by_its_own_rules() {
    let mut rig = Rig::new(|record, [a, b]| {
        record.unstored = Mode::Redacted;
        (a.sample, b.unstored) = (Some(0.0), Some(Mode::Meta));
        b.memory = Some(Size::mib(20));
    });
    for tenant in 0..3 {
        let mut exchange = chat(&format!("{tenant}"), SECOND, &json!([user("keep this to yourself")]), "yes");
        exchange.started_unix_nanos = START;
        let body = String::from_utf8(exchange.request_body.to_vec()).expect("is text");
        exchange.request_body = body.replacen('{', "{\"store\":false,", 1).into();
        rig.offer(tenant, exchange);
    }
    rig.close();
    let kept = |tenant: usize| !rig.exchanges(tenant)[0].request_body.is_empty();
    assert_eq!([kept(0), kept(1), kept(2)], [true, false, false]);
    let meta = |reason: &str| {
        rig.count(&format!("serin_recorder_turns_total{{outcome=\"meta\",reason=\"{reason}\"}}"))
    };
    assert_eq!((meta("sampled_out"), meta("unstored")), (1, 1));
}
