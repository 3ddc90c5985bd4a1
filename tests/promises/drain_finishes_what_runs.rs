//! Told to stop, Serin takes no new connections, lets live streams finish, and makes every record durable.

use std::io::Write;
use std::sync::mpsc;

use crate::support::program::Program;
use crate::support::upstream::{Upstream, chunk, chunked};
use crate::support::{eventually, program, wire};

#[test]
fn a_stream_that_runs_is_finished_and_recorded() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Upstream::start(move |_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        let _ = wait.lock().unwrap().recv();
        let _ = out.write_all(&[chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat());
        false
    });
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::before(upstream.address, dir.path());
    let mut client = wire::connect(serin.traffic);
    client.write_all(&wire::post("/v1/chat/completions", "", b"{\"stream\":true,\"messages\":[]}")).unwrap();
    eventually("the stream runs", || (upstream.received().len() == 1).then_some(()));

    serin.signal("TERM");
    eventually("no new connections", || std::net::TcpStream::connect(serin.traffic).is_err().then_some(()));
    assert!(serin.is_running());
    go.send(()).unwrap();
    let answer = wire::read_answer(&mut client);
    assert_eq!(answer.text(), "data: 1\n\ndata: [DONE]\n\n");
    assert!(answer.whole);
    assert_eq!(serin.wait().0, Some(0));
    let listed = program::run(dir.path(), &["sessions", "list", "--json"]);
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 1);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let upstream = Upstream::start(|_, out| {
        crate::support::upstream::until_closed(out);
        false
    });
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::before(upstream.address, dir.path());
    let mut client = wire::connect(serin.traffic);
    client.write_all(&wire::post("/v1/chat/completions", "", b"{}")).unwrap();
    eventually("it is in flight", || (upstream.received().len() == 1).then_some(()));
    serin.signal("INT");
    serin.says("draining");
    serin.signal("INT");
    assert_eq!(serin.wait().0, Some(1));
}

#[test]
fn what_outlasts_the_drain_is_cut_and_recorded_as_such() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        crate::support::upstream::until_closed(out);
        false
    });
    let mut serin = crate::support::Serin::before(upstream.address, "[limits]\ndrain = \"10ms\"\n");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&wire::post("/v1/chat/completions", "", b"{\"messages\":[],\"stream\":true}")).unwrap();
    wire::read_until(&mut client, b"data: 1");
    serin.stop();
    let reader = serin::journal::Reader::open(&serin.dir.path().join("data")).unwrap();
    let ends: Vec<_> = reader
        .filter_map(|entry| match entry.unwrap().1 {
            serin::journal::Record::Exchange(exchange) => Some(exchange.end()),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [serin::journal::record::End::Shutdown]);
}
