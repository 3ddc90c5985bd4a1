//! A client that goes away cancels its upstream request, in every phase.

use std::io::Write;
use std::net::Shutdown;

use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually};

fn cancelled(serin: &Serin, phase: &str) {
    serin.reaches("serin_proxy_requests_total{outcome=\"client_cancelled\",upstream=\"router\"}", 1.0);
    // A request that breaks off takes its upstream connection with it: there is nothing to wait for.
    if phase != "request_body" {
        serin.reaches(&format!("serin_proxy_cancel_seconds_count{{phase=\"{phase}\"}}"), 1.0);
    }
    serin.reaches(&format!("serin_proxy_cancelled_age_seconds_count{{phase=\"{phase}\"}}"), 1.0);
    eventually("nothing in flight", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
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
    assert_eq!(upstream.gone(), 0);
    drop(client);
    eventually("the upstream sees its connection closed", || (upstream.gone() == 1).then_some(()));
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
    let mut seen = Vec::new();
    while wire::find(&seen, b"data: 1").is_none() {
        assert!(wire::more(&mut client, &mut seen));
    }
    drop(client);
    eventually("the upstream sees its connection closed", || (upstream.gone() == 1).then_some(()));
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
    drop(client);
    eventually("the upstream sees its connection closed", || (upstream.gone() == 1).then_some(()));
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

#[test]
fn a_closed_sending_side_can_be_honoured() {
    let upstream = Upstream::start(|_, out| {
        std::thread::park_timeout(std::time::Duration::from_millis(50));
        out.write_all(&whole("200 OK", "text/plain", b"late")).is_ok()
    });
    let serin = Serin::before(upstream.address, "[listen]\nclient_eof = \"honour\"\n");
    let mut client = wire::connect(serin.traffic());
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(wire::read_answer(&mut client).text(), "late");
}
