//! Metrics and records are told by the same event, and a loss of records is counted, written down and no loss of traffic.

use std::collections::BTreeMap;
use std::io::Write;

use serin::journal::{End, Record};

use crate::support::journal::{exchanges, records};
use crate::support::program::{self, Program};
use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, scale};

#[test]
fn every_outcome_is_counted_as_often_as_it_is_recorded() {
    let upstream = Upstream::start(|request, out| {
        if request.head.contains("/cut") {
            let _ = out.write_all(&[chunked("a/b"), chunk(b"half")].concat());
            return false;
        }
        if request.head.contains("/leave") || request.head.contains("/slow") {
            let _ = out.write_all(&[chunked("a/b"), chunk(b"first")].concat());
            until_closed(out);
            return false;
        }
        if request.head.contains("/never") {
            until_closed(out);
            return false;
        }
        let status = if request.head.contains("/500") { "500 Internal Server Error" } else { "200 OK" };
        out.write_all(&whole(status, "a/b", b"{}")).is_ok()
    });
    let mut serin = Serin::before(
        upstream.address,
        "[limits]\nidle = \"3s\"\nhead = \"3s\"\n[breaker]\nfailures = 1000000\n",
    );
    let paths = ["/ok", "/500", "/cut", "/leave", "/ok", "/never", "/slow"];
    let mut waiting = Vec::new();
    for round in 0..4 * scale() {
        for path in paths {
            let mut client = wire::connect(serin.traffic());
            client.write_all(&post(path, "", format!("{{\"round\":{round}}}").as_bytes())).unwrap();
            match path {
                "/leave" => {
                    wire::read_until(&mut client, b"first");
                }
                "/never" | "/slow" => waiting.push(client),
                _ => drop(wire::read_answer(&mut client)),
            }
        }
    }
    waiting.iter_mut().for_each(|client| drop(wire::read_answer(client)));
    eventually("all are over", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
    let text = serin.metrics();
    let mut counted = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("serin_proxy_requests_total{outcome=\"")) {
        let (outcome, count) = (line.split('"').nth(1).unwrap(), line.rsplit(' ').next().unwrap());
        *counted.entry(outcome.to_owned()).or_insert(0) += count.parse::<f64>().unwrap() as usize;
    }
    counted.retain(|_, count| *count > 0);
    let mut recorded = BTreeMap::new();
    for record in exchanges(&mut serin) {
        *recorded.entry(record.end().name().to_owned()).or_insert(0) += 1;
    }
    assert_eq!(counted, recorded);
    assert_eq!(recorded.values().sum::<usize>(), paths.len() * 4 * scale());
    assert_eq!(recorded.len(), 5, "{recorded:?}");
}

#[test]
fn with_no_disk_and_no_room_records_are_dropped_counted_and_written_down_as_a_gap() {
    let upstream = Upstream::start(|request, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(&request.body[..20])].concat());
        out.write_all(&[chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat()).is_ok()
    });
    let dir = tempfile::tempdir().unwrap();
    let data = format!(
        "[record]\ndir = {:?}\nmemory = \"1MiB\"\nqueue = 16\n[limits]\nbody_copy = \"256KiB\"\n",
        dir.path().join("data")
    );
    let mut serin = Program::with(upstream.address, dir.path(), &data);
    let turns = |outcome: &str| {
        let text = String::from_utf8(wire::get(serin.admin, "/metrics").body).unwrap();
        let start = format!("serin_recorder_turns_total{{outcome=\"{outcome}\"");
        let lines = text.lines().filter(|line| line.starts_with(&start));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let send = |number: usize| {
        // Nothing in it comes twice: what was written before takes no room.
        let words = (0..512).map(|at| blake3::hash(format!("{number} {at}").as_bytes()).to_hex());
        let body =
            format!("data: number {number:06} {}", words.map(|word| word.to_string()).collect::<String>());
        let answer = wire::send(serin.traffic, &post("/v1/chat/completions", "", body.as_bytes()));
        assert!(answer.whole && answer.text() == format!("{}data: [DONE]\n\n", &body[..20]), "{number}");
    };
    send(0);
    eventually("the first is durable", || (turns("full") == 1.0).then_some(()));
    serin.file_limit("1");
    (1..=400).for_each(send);
    eventually("some are dropped", || (turns("dropped") > 0.0).then_some(()));
    assert_eq!(wire::get(serin.admin, "/readyz").status, 200);
    serin.file_limit("unlimited");
    let sum = || ["full", "shape", "meta", "off", "dropped"].map(turns).iter().sum::<f64>();
    eventually("each is accounted for", || (sum() == 401.0).then_some(()));
    let (dropped, kept) = (turns("dropped"), 401.0 - turns("dropped"));
    serin.signal("TERM");
    assert_eq!(serin.wait().0, Some(0));
    let journal = serin::journal::Reader::open(&dir.path().join("data")).unwrap();
    let (mut gaps, mut found) = (0, 0);
    for entry in journal {
        match entry.unwrap().1 {
            Record::Gap(gap) => gaps += gap.count,
            Record::Exchange(_) => found += 1,
            _ => {}
        }
    }
    assert_eq!((gaps as f64, f64::from(found)), (dropped, kept));
}

#[test]
fn a_stop_under_load_finishes_every_stream_and_keeps_every_record() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Upstream::start(move |_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        let _ = wait.lock().unwrap().recv();
        out.write_all(&[chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat()).is_ok()
    });
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::before(upstream.address, dir.path());
    let count = 200;
    let mut clients: Vec<_> = (0..count)
        .map(|number| {
            let mut client = wire::connect(serin.traffic);
            let body =
                format!("{{\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"{number}\"}}]}}");
            client.write_all(&post("/v1/chat/completions", "", body.as_bytes())).unwrap();
            client
        })
        .collect();
    eventually("all run", || (upstream.received().len() == count).then_some(()));
    serin.signal("TERM");
    eventually("no new connections", || std::net::TcpStream::connect(serin.traffic).is_err().then_some(()));
    (0..count).for_each(|_| go.send(()).unwrap());
    for (number, client) in clients.iter_mut().enumerate() {
        let answer = wire::read_answer(client);
        assert!(answer.whole && answer.text() == "data: 1\n\ndata: [DONE]\n\n", "stream {number}");
    }
    assert_eq!(serin.wait().0, Some(0));
    let listed = program::run(dir.path(), &["sessions", "list", "--json", "--limit", "1000"]);
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), count);
}

#[test]
fn no_record_is_missing_between_the_first_and_the_last() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let mut serin = Serin::before(upstream.address, "");
    for number in 0..300 {
        wire::send(serin.traffic(), &post("/v1/chat/completions", "", number.to_string().as_bytes()));
    }
    let mut bodies = Vec::new();
    for record in records(&mut serin) {
        match record {
            Record::Exchange(exchange) => {
                assert_eq!(exchange.end(), End::Complete);
                bodies.push(
                    String::from_utf8(exchange.request_body.to_vec()).unwrap().parse::<usize>().unwrap(),
                );
            }
            Record::Gap(gap) => panic!("{gap:?}"),
            _ => {}
        }
    }
    bodies.sort_unstable();
    assert_eq!(bodies, (0..300).collect::<Vec<_>>());
}
