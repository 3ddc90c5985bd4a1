//! uvicorn behind, nginx before and behind, curl in front: what other makers' programs do works through Serin.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use crate::support::peer::{curl, nginx, uvicorn};
use crate::support::upstream::{Upstream, chunk, chunked, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually};

/// How often the application behind uvicorn has said this.
fn seen(address: SocketAddr, what: &str) -> usize {
    wire::get(address, "/seen").text().matches(&format!("\"{what}\"")).count()
}

/// A client of `front` that leaves: curl, killed before the first byte and in the middle of a stream.
fn leave(front: SocketAddr, app: SocketAddr) {
    for path in ["/silent", "/endless"] {
        let (came, gone) = (format!("came {path}"), format!("gone {path}"));
        let before = (seen(app, &came), seen(app, &gone));
        let mut client = Command::new("curl")
            .args(["-sN", "-d", "{\"stream\":true}", &format!("http://{front}{path}")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        eventually("the application has the request", || (seen(app, &came) > before.0).then_some(()));
        if path == "/endless" {
            let mut first = [0; 9];
            client.stdout.take().unwrap().read_exact(&mut first).unwrap();
            assert_eq!(&first, b"data: 1\n\n");
        }
        assert_eq!(seen(app, &gone), before.1);
        client.kill().unwrap();
        client.wait().unwrap();
        eventually("the application sees its client leave", || (seen(app, &gone) > before.1).then_some(()));
    }
}

#[test]
fn an_application_behind_uvicorn_sees_each_client_leave() {
    let app = uvicorn(&[]);
    let serin = Serin::before(app.address, "");
    leave(serin.traffic(), app.address);
    serin.reaches("serin_proxy_cancel_seconds_count{phase=\"pre_first_byte\"}", 1.0);
    serin.reaches("serin_proxy_cancel_seconds_count{phase=\"response_body\"}", 1.0);
}

#[test]
fn a_cancel_goes_through_two_hops() {
    let app = uvicorn(&[]);
    let last = Serin::before(app.address, "");
    let twice = Serin::before(last.traffic(), "");
    leave(twice.traffic(), app.address);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let front = nginx(dirs[0].path(), last.traffic(), "");
    leave(front.address, app.address);
    let between = nginx(dirs[1].path(), app.address, "");
    leave(Serin::before(between.address, "").traffic(), app.address);
}

#[test]
fn connections_that_uvicorn_closes_cost_no_request() {
    let app = uvicorn(&["--timeout-keep-alive", "1"]);
    let wait = |millis| std::thread::park_timeout(Duration::from_millis(millis));
    let asked = |serin: &Serin| {
        let answer = wire::send(serin.traffic(), &post("/port", "", b"{}"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    };
    // Given up before uvicorn closes it, as the defaults are (4 s and 5 s).
    let sooner = Serin::before(app.address, "[limits]\nthreads = 1\npool_idle = \"500ms\"\n");
    let first = asked(&sooner);
    assert_eq!(asked(&sooner), first, "a fresh connection is used again");
    wait(700);
    assert_ne!(asked(&sooner), first, "an old one is not");
    // Kept longer than uvicorn keeps it: found closed, and another is opened.
    let later = Serin::before(app.address, "[limits]\nthreads = 1\npool_idle = \"1m\"\n");
    let mut count = 0;
    for millis in [0, 1_300, 980, 1_000, 1_020] {
        wait(millis);
        asked(&later);
        count += 1;
    }
    assert_eq!(seen(app.address, "came /port"), 3 + count, "each request came once");
}

#[test]
fn uvicorn_streams_and_takes_uploads() {
    let app = uvicorn(&[]);
    let serin = Serin::before(app.address, "");
    let url = |path: &str| format!("http://{}{path}", serin.traffic());
    let direct = curl(&["-N", "-d", "{}", &format!("http://{}/stream", app.address)]);
    assert!(direct.ends_with(b"data: 199\n\ndata: [DONE]\n\n"));
    for version in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
        assert!(curl(&[version, "-N", "-d", "{}", &url("/stream")]) == direct, "{version}");
        assert_eq!(curl(&[version, "-d", "{\"a\":1}", &url("/echo")]), b"{\"a\":1}", "{version}");
        let head = String::from_utf8(curl(&[version, "-I", &url("/echo")])).unwrap();
        assert!(
            head.contains("200") && head.to_lowercase().contains("content-type: application/json"),
            "{version}: {head}"
        );
    }
}

#[test]
fn curl_uploads_from_a_pipe_and_waits_for_100_continue() {
    let app = uvicorn(&[]);
    let serin = Serin::before(app.address, "");
    let url = format!("http://{}/echo", serin.traffic());
    let body: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        let mut client = Command::new("curl")
            .args(["-sS", version, "-T", "-", "-X", "POST", &url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, sent) = (client.stdin.take().unwrap(), body.clone());
        let writer = std::thread::spawn(move || input.write_all(&sent));
        let output = client.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(
            output.status.success() && output.stdout == body,
            "{version}: {} bytes came back",
            output.stdout.len()
        );
    }
    let said = String::from_utf8_lossy(&curl(&[
        "-v",
        "--stderr",
        "-",
        "-H",
        "Expect: 100-continue",
        "-d",
        "patient",
        &url,
    ]))
    .into_owned();
    let waited = said.find("HTTP/1.1 100 Continue").unwrap_or_else(|| panic!("no 100: {said}"));
    assert!(said[waited..].contains("HTTP/1.1 200 OK") && said.contains("\npatient"), "{said}");
}

#[test]
fn an_interim_answer_is_not_taken_for_the_answer() {
    let upstream = Upstream::canned(
        [
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n".to_vec(),
            whole("200 OK", "a/b", b"the answer"),
        ]
        .concat(),
    );
    let serin = Serin::before(upstream.address, "");
    for _ in 0..3 {
        let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}"));
        assert_eq!((answer.status, answer.text().as_str()), (200, "the answer"));
    }
}

/// Waits before each event until it is told that the client has the one before.
fn stepwise(header: &'static str) -> (Upstream, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let upstream = Upstream::start(move |_, out| {
        let head = String::from_utf8(chunked("text/event-stream")).unwrap();
        let head = head.replace("\r\n\r\n", &format!("\r\n{header}\r\n"));
        let mut ok = out.write_all(head.as_bytes()).is_ok();
        for number in 0..STEPS {
            let event = chunk(format!("data: {number}\n\n").as_bytes());
            ok &= out.write_all(&event).is_ok() && wait.lock().unwrap().recv().is_ok();
        }
        ok && out.write_all(b"0\r\n\r\n").is_ok()
    });
    (upstream, go)
}

const STEPS: usize = 50;
/// Asked over HTTP/1.0, an answer without a length is handed on by nginx when a buffer is full, unless it is told not to.
const HOLDS_BACK: &str = "proxy_http_version 1.0;";
const ASKS: &str = "[listen]\nno_buffering = true\n";

/// Through nginx each event arrives before the next is written.
fn in_step_through_nginx(header: &'static str, extra: &str) {
    let (upstream, go) = stepwise(header);
    let serin = Serin::before(upstream.address, extra);
    let dir = tempfile::tempdir().unwrap();
    let front = nginx(dir.path(), serin.traffic(), HOLDS_BACK);
    let mut client = wire::connect(front.address);
    client.write_all(&post("/v1/chat/completions", "", b"{\"stream\":true}")).unwrap();
    for number in 0..STEPS {
        wire::read_until(&mut client, format!("data: {number}\n\n").as_bytes());
        go.send(()).unwrap();
    }
}

#[test]
fn nginx_in_front_streams_where_it_is_asked_to() {
    in_step_through_nginx("X-Accel-Buffering: no\r\n", "");
    in_step_through_nginx("", ASKS);
}

#[test]
fn nginx_in_front_holds_back_what_it_is_not_asked_to_stream() {
    let (upstream, go) = stepwise("");
    let serin = Serin::before(upstream.address, "");
    let dir = tempfile::tempdir().unwrap();
    let front = nginx(dir.path(), serin.traffic(), HOLDS_BACK);
    let mut client = wire::connect(front.address);
    client.write_all(&post("/v1/chat/completions", "", b"{\"stream\":true}")).unwrap();
    // Half of it is sent while the client looks, and none of it comes.
    (0..STEPS / 2).for_each(|_| go.send(()).unwrap());
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut seen = Vec::new();
    while wire::more(&mut client, &mut seen) {}
    assert!(
        wire::find(&seen, b"data: ").is_none(),
        "this nginx holds nothing back, so that it shows nothing"
    );
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    (STEPS / 2..STEPS).for_each(|_| go.send(()).unwrap());
    wire::read_until(&mut client, format!("data: {}\n\n", STEPS - 1).as_bytes());
}

#[test]
fn streams_say_whether_they_may_be_buffered() {
    for (header, extra, expected) in [
        ("", "", None),
        ("", ASKS, Some("no")),
        ("X-Accel-Buffering: no\r\n", "", Some("no")),
        ("X-Accel-Buffering: yes\r\n", ASKS, Some("yes")),
    ] {
        let (upstream, go) = stepwise(header);
        (0..STEPS).for_each(|_| go.send(()).unwrap());
        let serin = Serin::before(upstream.address, extra);
        let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{\"stream\":true}"));
        assert_eq!(answer.header("x-accel-buffering"), expected, "{header:?} {extra:?}");
    }
}

#[test]
fn nginx_behind_gets_and_gives_the_same_bytes() {
    let app = uvicorn(&[]);
    let dir = tempfile::tempdir().unwrap();
    let router = nginx(dir.path(), app.address, "proxy_buffering off; proxy_request_buffering off;");
    let serin = Serin::before(router.address, "");
    let body: Vec<u8> = (0..2_000_000u32).map(|n| (n % 253) as u8).collect();
    for _ in 0..5 {
        assert!(wire::send(serin.traffic(), &post("/echo", "", &body)).body == body);
    }
    let sent = chunk(&body[..70_000]).into_iter().chain(chunk(&body[70_000..90_000])).chain(*b"0\r\n\r\n");
    let head = b"POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = wire::send(serin.traffic(), &head.iter().copied().chain(sent).collect::<Vec<u8>>());
    assert!(answer.body == body[..90_000], "{}", answer.head);
    let brewed = |address: SocketAddr| {
        let url = format!("http://{address}/echo");
        curl(&["-o", "/dev/null", "-w", "%{http_code}", "-X", "BREW", &url])
    };
    assert_eq!(brewed(serin.traffic()), brewed(router.address));
}
