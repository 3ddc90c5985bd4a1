//! A connection that goes on in another protocol passes byte for byte, and stays accounted for to its end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::process::{Command, Stdio};

use crate::support::upstream::{Upstream, whole};
use crate::support::wire::{self, connect, find, more, read_until};
use crate::support::{Serin, eventually, peer};

const WEBSOCKETS: &[&str] = &["websockets==15.0.1"];
const ASK: &[u8] =
    b"GET /v1/realtime HTTP/1.1\r\nHost: h\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";
const AGREE: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Seen: 1\r\n\r\n";

/// Agrees, says something at once, and echoes until the client has ended.
fn echoes() -> Upstream {
    Upstream::start(|_, out| {
        let _ = out.write_all(&[AGREE, b"welcome;"].concat());
        let mut buffer = [0; 4096];
        while let Ok(some @ 1..) = out.read(&mut buffer) {
            let _ = out.write_all(&buffer[..some]);
        }
        let _ = out.write_all(b"goodbye");
        false
    })
}

fn ended(serin: &Serin, outcome: &str) {
    serin.reaches(&format!("serin_proxy_requests_total{{outcome=\"{outcome}\",upstream=\"router\"}}"), 1.0);
    eventually("nothing in flight", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
}

#[test]
fn a_real_websocket_client_and_server_understand_each_other() {
    let python = peer::python(WEBSOCKETS);
    let mut server = Command::new(&python)
        .arg(peer::script("python/ws_server.py"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let serin = Serin::before(format!("127.0.0.1:{}", port.trim()).parse().unwrap(), "");
    let url = format!("ws://{}/v1/realtime", serin.traffic());
    let client = Command::new(&python).arg(peer::script("python/ws_client.py")).arg(url).output();
    server.kill().unwrap();
    server.wait().unwrap();
    let client = client.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&client.stdout).trim(),
        "ok",
        "{}",
        String::from_utf8_lossy(&client.stderr)
    );
}

#[test]
fn bytes_pass_both_ways_and_a_closed_sending_side_is_passed_on() {
    let upstream = echoes();
    let mut serin = Serin::before(upstream.address, "");
    let mut client = connect(serin.traffic());
    // The first bytes of the new protocol may come with the request.
    client.write_all(&[ASK, b"early;"].concat()).unwrap();
    let seen = read_until(&mut client, b"early;");
    let head = String::from_utf8_lossy(&seen[..find(&seen, b"\r\n\r\n").unwrap()]).to_lowercase();
    assert!(head.starts_with("http/1.1 101 ") && head.contains("\r\nupgrade: websocket"), "{head}");
    assert!(head.contains("\r\nconnection: upgrade") && head.contains("x-seen: 1"), "{head}");
    assert!(find(&seen, b"welcome;early;").is_some(), "{:?}", String::from_utf8_lossy(&seen));
    assert_eq!(serin.metric("serin_proxy_in_flight"), Some(1.0));
    client.write_all(b"late;").unwrap();
    read_until(&mut client, b"late;");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_until(&mut client, b"goodbye"), b"goodbye");
    assert!(!more(&mut client, &mut Vec::new()));
    ended(&serin, "complete");
    let request = upstream.received().remove(0);
    assert_eq!(
        (request.headers("upgrade"), request.headers("connection")),
        (vec!["websocket".into()], vec!["upgrade".into()])
    );
    let bytes =
        |direction: &str| serin.metric(&format!("serin_proxy_bytes_total{{direction=\"{direction}\"}}"));
    assert_eq!((bytes("up"), bytes("down")), (Some(11.0), Some(26.0)));
    serin.stop();
}

#[test]
fn a_side_that_breaks_off_is_named() {
    let upstream = echoes();
    let serin = Serin::before(upstream.address, "");
    let mut client = connect(serin.traffic());
    client.write_all(ASK).unwrap();
    read_until(&mut client, b"welcome;");
    socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(client);
    ended(&serin, "client_cancelled");
    eventually("the upstream sees its connection closed", || (upstream.gone() == 1).then_some(()));
}

#[test]
fn silence_has_a_limit_and_a_stop_cuts_what_stays() {
    let upstream = echoes();
    let serin = Serin::before(upstream.address, "[limits]\nidle = \"100ms\"\n");
    let mut client = connect(serin.traffic());
    client.write_all(ASK).unwrap();
    read_until(&mut client, b"welcome;");
    ended(&serin, "timeout_idle");
    let mut serin = Serin::before(upstream.address, "[limits]\ndrain = \"100ms\"\n");
    let mut client = connect(serin.traffic());
    client.write_all(ASK).unwrap();
    read_until(&mut client, b"welcome;");
    serin.stop();
    assert!(!more(&mut client, &mut Vec::new()));
}

#[test]
fn a_refusal_is_an_ordinary_answer() {
    let upstream = Upstream::canned(whole("426 Upgrade Required", "text/plain", b"no sockets here"));
    let serin = Serin::before(upstream.address, "");
    let mut client = connect(serin.traffic());
    for _ in 0..2 {
        client.write_all(ASK).unwrap();
        let answer = wire::read_answer(&mut client);
        assert_eq!((answer.status, answer.text().as_str()), (426, "no sockets here"));
    }
}

#[test]
fn http_is_no_protocol_to_go_on_in() {
    let upstream = Upstream::canned(whole("200 OK", "text/plain", b"plain"));
    let serin = Serin::before(upstream.address, "");
    let ask = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n";
    assert_eq!(wire::send(serin.traffic(), ask).text(), "plain");
    let request = upstream.received().remove(0);
    assert!(request.headers("upgrade").is_empty() && request.headers("http2-settings").is_empty());
    // Two protocols at once are one too many.
    let two = b"GET /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n";
    assert_eq!(wire::send(serin.traffic(), two).text(), "plain");
    assert!(upstream.received()[1].headers("upgrade").is_empty());
}

#[test]
fn a_client_that_breaks_its_own_request_is_no_fault_of_the_upstream() {
    let upstream = echoes();
    let serin = Serin::before(upstream.address, "[breaker]\nfailures = 1\n");
    let broken = b"POST /x HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
    assert_eq!(wire::send(serin.traffic(), broken).status, 400);
    let open = "serin_upstream_breaker_state{state=\"open\",upstream=\"router\"}";
    assert_eq!(serin.metric(open), Some(0.0));
}
