//! Thousands of clients that leave, dawdle or misname things leave nothing behind and hold nothing up.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::support::program::{self, Program};
use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, scale};

const TURNS: &str = "serin_recorder_turns_total{outcome=";

#[test]
fn thousands_that_open_and_leave_leave_nothing_behind() {
    let upstream = Upstream::start(|request, out| {
        if request.head.contains("/stream") {
            let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        }
        until_closed(out);
        false
    });
    let dir = tempfile::tempdir().unwrap();
    let serin = Program::before(upstream.address, dir.path());
    let open = |number: usize| {
        let mut client = wire::connect(serin.traffic);
        let path = if number.is_multiple_of(2) { "/silent" } else { "/stream" };
        client.write_all(&post(path, "", b"{}")).unwrap();
        client
    };
    let count = |name: &str| {
        let text = String::from_utf8(wire::get(serin.admin, "/metrics").body).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>()
    };
    let first_event = |client: &mut TcpStream| {
        wire::read_until(client, b"data: 1");
    };
    // What is opened once and kept, as the journal's files are, must not be taken for a leak.
    first_event(&mut open(1));
    eventually("a first one is recorded", || (count("serin_recorder_turns_total{") == 1.0).then_some(()));
    let (before, total) = (serin.open_files(), (2_000 * scale()).min(10_000));
    let mut warm = None;
    for batch in (0..total).collect::<Vec<_>>().chunks(200) {
        let mut clients: Vec<TcpStream> = batch.iter().map(|number| open(*number)).collect();
        // Half of them see the first event before they leave, the others leave while their request is on its way.
        clients.iter_mut().skip(1).step_by(2).for_each(first_event);
        // The first half takes the memory that all need; what each of the second kept would come on top.
        if batch[0] >= total / 2 {
            warm.get_or_insert_with(|| serin.kilobytes("VmRSS"));
        }
    }
    let left = eventually("its files are closed", || {
        let (files, sockets) = serin.open_files();
        (files <= before.0 + 8 && sockets <= before.1 + 2).then_some((files, sockets))
    });
    eventually("nothing in flight", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
    let requests = eventually("each is accounted for", || {
        let (requests, turns) = (count("serin_proxy_requests_total{"), count("serin_recorder_turns_total{"));
        (requests == turns).then_some(requests - 1.0)
    });
    println!("{requests} of {total} requests were seen, {} came to the upstream", upstream.received().len());
    assert!(requests >= total as f64 / 2.0 && requests <= total as f64);
    let (warm, now) = (warm.unwrap(), serin.kilobytes("VmRSS"));
    println!("{warm} kB after half of them, {now} kB after all");
    assert!(now < warm + 8 * 1024, "{warm} kB became {now} kB");
    println!("{before:?} open files and sockets before, {left:?} after {total}");
}

/// A client with a small window, so that what it does not read is not simply kept by the kernel.
fn dawdler(address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(8 * 1024).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

#[test]
fn a_thousand_slow_readers_hold_the_upstream_back_and_fill_no_memory() {
    let written = Arc::new(AtomicUsize::new(0));
    let count = written.clone();
    let upstream = Upstream::start(move |_, out| {
        let _ = socket2::SockRef::from(&*out).set_send_buffer_size(16 * 1024);
        let mut ok = out.write_all(&chunked("text/event-stream")).is_ok();
        let piece = chunk(&[b'x'; 4096]);
        // A gigabyte each, if it were taken.
        for _ in 0..(1 << 18) {
            ok = ok && out.write_all(&piece).is_ok();
            if !ok {
                break;
            }
            count.fetch_add(piece.len(), Relaxed);
        }
        false
    });
    let dir = tempfile::tempdir().unwrap();
    let serin = Program::with(upstream.address, dir.path(), "[limits]\nbody_copy = \"64KiB\"\n");
    let before = serin.kilobytes("VmHWM");
    let mut clients: Vec<TcpStream> = (0..1_000)
        .map(|_| {
            let mut client = dawdler(serin.traffic);
            client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
            client
        })
        .collect();
    let mut kilobyte = [0; 1024];
    for _ in 0..3 {
        for client in &mut clients {
            client.read_exact(&mut kilobyte).unwrap();
        }
    }
    // What the upstream could write stands still: it waits for its readers.
    let still = eventually("the upstream is held back", || {
        let before = written.load(Relaxed);
        std::thread::park_timeout(Duration::from_millis(300));
        (written.load(Relaxed) == before).then_some(before)
    });
    let grown = serin.kilobytes("VmHWM") - before;
    println!("{still} bytes written for 1,000 readers, {grown} kB more memory");
    assert!(still / 1_000 < 8 << 20, "{still} bytes were taken for readers of 3 MB");
    assert!(grown < 650_000, "{grown} kB for 1,000 slow readers");
    // Somebody who reads is served meanwhile.
    let mut quick = wire::connect(serin.traffic);
    quick.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    let mut seen = Vec::new();
    while seen.len() < 4 << 20 {
        assert!(wire::more(&mut quick, &mut seen));
    }
    drop((clients, quick));
    eventually("all are over", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
}

#[test]
fn what_clients_write_makes_no_new_series() {
    let upstream = Upstream::start(|request, out| {
        let status = if request.head.contains("odd") { "418 Teapot" } else { "200 OK" };
        out.write_all(&whole(status, "application/json", b"{\"model\":\"x\",\"choices\":[]}")).is_ok()
    });
    let serin = Serin::before(upstream.address, "");
    let send = |number: usize| {
        let body = format!("{{\"model\":\"model-{number}\",\"user\":\"user-{number}\",\"messages\":[]}}");
        let headers = format!(
            "X-Tenant: tenant-{number}\r\nUser-Agent: agent-{number}\r\nX-Request-Id: id-{number}\r\n"
        );
        wire::send(
            serin.traffic(),
            &post(&format!("/v1/chat/completions?n={number}"), &headers, body.as_bytes()),
        );
        let odd = format!("M{number} /odd/{number} HTTP/1.1\r\nHost: host-{number}\r\n\r\n");
        wire::send(serin.traffic(), odd.as_bytes());
    };
    let series = || serin.metrics().lines().filter(|line| !line.starts_with('#')).count();
    (0..20).for_each(send);
    serin.reaches(&format!("{TURNS}\"full\",reason=\"\"}}"), 40.0);
    let before = series();
    (20..400).for_each(send);
    serin.reaches(&format!("{TURNS}\"full\",reason=\"\"}}"), 800.0);
    assert_eq!(series(), before);
    for word in ["model-7", "user-7", "tenant-7", "agent-7", "host-7", "M7"] {
        assert!(!serin.metrics().contains(word), "{word} became a label");
    }
}

#[test]
fn a_list_of_sessions_holds_no_bodies() {
    let large = "marked-text ".repeat(20_000);
    let answer =
        format!("{{\"choices\":[{{\"message\":{{\"role\":\"assistant\",\"content\":\"{large}\"}}}}]}}");
    let upstream = Upstream::canned(whole("200 OK", "application/json", answer.as_bytes()));
    let mut serin = Serin::before(upstream.address, "");
    for number in 0..20 {
        let body = format!(
            "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{number} {large}\"}}]}}"
        );
        assert_eq!(
            wire::send(serin.traffic(), &post("/v1/chat/completions", "", body.as_bytes())).status,
            200
        );
    }
    serin.stop();
    std::fs::write(serin.dir.path().join("config.toml"), crate::support::base(serin.dir.path(), "")).unwrap();
    let listed = program::run(serin.dir.path(), &["sessions", "list", "--json"]).stdout;
    assert_eq!(listed.iter().filter(|byte| **byte == b'\n').count(), 20);
    assert!(listed.len() < 20 * 1_000, "{} bytes for 20 lines", listed.len());
    assert!(wire::find(&listed, b"marked-text").is_none());
}
