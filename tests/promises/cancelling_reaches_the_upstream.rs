//! A client that goes away cancels its upstream request, in every phase.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use crate::support::program::Program;
use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, h2};

fn cancelled(serin: &Serin, phase: &str) {
    serin.reaches("serin_proxy_requests_total{outcome=\"client_cancelled\",upstream=\"router\"}", 1.0);
    // A request that breaks off takes its upstream connection with it: there is nothing to wait for.
    if phase != "request_body" {
        serin.reaches(&format!("serin_proxy_cancel_seconds_count{{phase=\"{phase}\"}}"), 1.0);
        let soon = serin.metric(&format!("serin_proxy_cancel_seconds_bucket{{phase=\"{phase}\",le=\"1\"}}"));
        assert_eq!(soon, Some(1.0), "it took longer than a second");
    }
    serin.reaches(&format!("serin_proxy_cancelled_age_seconds_count{{phase=\"{phase}\"}}"), 1.0);
    eventually("nothing in flight", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
}

/// The client leaves; its upstream knows within a second, twenty times the goal.
fn leaves(client: TcpStream, upstream: &Upstream) {
    assert_eq!(upstream.gone(), 0);
    let left = serin::clock::now();
    drop(client);
    eventually("the upstream sees its connection closed", || (upstream.gone() == 1).then_some(()));
    assert!(left.elapsed() < Duration::from_secs(1), "{:?}", left.elapsed());
}

#[test]
fn before_the_first_byte() {
    let upstream = Upstream::start(|_, out| {
        until_closed(out);
        false
    });
    let serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    eventually("the request arrives", || (upstream.received().len() == 1).then_some(()));
    leaves(client, &upstream);
    cancelled(&serin, "pre_first_byte");
}

#[test]
fn in_the_middle_of_a_stream() {
    let upstream = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        until_closed(out);
        false
    });
    let serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    wire::read_until(&mut client, b"data: 1");
    leaves(client, &upstream);
    cancelled(&serin, "response_body");
}

#[test]
fn a_stream_that_is_reset_is_cancelled_and_its_sibling_goes_on() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (both, wait) = (Barrier::new(2), Mutex::new(wait));
    let upstream = Upstream::start(move |request, out| {
        both.wait();
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        if request.head.starts_with("POST /leave ") {
            until_closed(out);
            return false;
        }
        let _ = wait.lock().unwrap().recv();
        out.write_all(&[chunk(b"data: 2\n\n"), b"0\r\n\r\n".to_vec()].concat()).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let address = serin.traffic();
    let client = std::thread::spawn(move || {
        let mut seen = Vec::new();
        let stays = |piece: &[u8]| {
            seen.extend_from_slice(piece);
            true
        };
        let ended = h2::side_by_side(address, ("/leave", |_| false), ("/stay", stays));
        (ended, seen)
    });
    eventually("the upstream sees its connection closed", || (upstream.gone() == 1).then_some(()));
    assert_eq!(serin.reaches("serin_proxy_in_flight", 1.0), 1.0);
    go.send(()).unwrap();
    let ((_, stayed), seen) = client.join().unwrap();
    assert_eq!((stayed, seen.as_slice()), (Ok(200), b"data: 1\n\ndata: 2\n\n".as_slice()));
    assert_eq!(upstream.gone(), 1);
    cancelled(&serin, "response_body");
}

#[test]
fn while_the_request_is_still_being_sent() {
    let upstream = Upstream::start(|_, _| false);
    let serin = Serin::before(upstream.address, "");
    let mut client = wire::connect(serin.traffic());
    client
        .write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{\"half\":")
        .unwrap();
    eventually("it is in flight", || (serin.metric("serin_proxy_in_flight") == Some(1.0)).then_some(()));
    leaves(client, &upstream);
    assert!(upstream.received().is_empty(), "half a request is no request");
    cancelled(&serin, "request_body");
}

#[test]
fn clients_that_break_off_are_not_the_upstreams_fault_without_recording_either() {
    let upstream = Upstream::start(|_, out| out.write_all(&whole("200 OK", "text/plain", b"well")).is_ok());
    let serin = Serin::before(upstream.address, "[record]\nenabled = false\n[breaker]\nfailures = 2\n");
    for gone in 1..=4 {
        let mut client = wire::connect(serin.traffic());
        client
            .write_all(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{\"half\":",
            )
            .unwrap();
        eventually("it is in flight", || (serin.metric("serin_proxy_in_flight") == Some(1.0)).then_some(()));
        drop(client);
        serin.reaches(
            "serin_proxy_requests_total{outcome=\"client_cancelled\",upstream=\"router\"}",
            gone.into(),
        );
    }
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    assert_eq!(wire::read_answer(&mut client).text(), "well");
}

/// What the log says from its start to its end, in lines, where so many clients leave.
fn lines_logged(leaving: usize) -> usize {
    let upstream = Upstream::start(|request, out| {
        if request.head.starts_with("POST /abort_request ") {
            return out.write_all(&whole("200 OK", "text/plain", b"")).is_ok();
        }
        until_closed(out);
        false
    });
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::with(upstream.address, dir.path(), "abort = \"/abort_request\"\n");
    for _ in 0..leaving {
        let came = upstream.received().len();
        let mut client = wire::connect(serin.traffic);
        client.write_all(&post("/v1/chat/completions", "X-Request-Id: x\r\n", b"{}")).unwrap();
        eventually("the request arrives", || (upstream.received().len() > came).then_some(()));
        drop(client);
        eventually("the upstream is told", || (upstream.received().len() > came + 1).then_some(()));
    }
    serin.signal("TERM");
    serin.wait().1.lines().count()
}

#[test]
fn a_client_that_leaves_is_one_line_of_the_log_at_most() {
    let (none, twenty) = (lines_logged(0), lines_logged(20));
    assert!(twenty <= none + 20, "{twenty} lines for 20 clients that left, {none} for none");
}

#[test]
fn a_closed_sending_side_can_be_honoured() {
    let upstream = Upstream::start(|_, out| {
        std::thread::park_timeout(Duration::from_millis(50));
        out.write_all(&whole("200 OK", "text/plain", b"late")).is_ok()
    });
    let serin = Serin::before(upstream.address, "[listen]\nclient_eof = \"honour\"\n");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wire::read_answer(&mut client).text(), "late");
}
