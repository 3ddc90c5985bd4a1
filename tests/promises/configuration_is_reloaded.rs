//! A new configuration takes over for what begins after it; what runs is not touched, and a bad file changes nothing.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};

use crate::support::program::Program;
use crate::support::upstream::{Upstream, chunk, chunked, until_closed, whole};
use crate::support::wire::{self, Answer, post};
use crate::support::{Serin, base, eventually};

fn upstream(name: &str, address: SocketAddr, more: &str) -> String {
    format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{address}\"\n{more}\n")
}

const ALONE: &str = "[fallback]\nfor = []\n";

fn reload(serin: &Serin, text: &str) -> Answer {
    serin.rewrite(text);
    wire::reload(serin.admin())
}

fn chat(serin: &Serin) -> Answer {
    let body = b"{\"model\": \"m\", \"max_tokens\": 4, \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}";
    wire::send(serin.traffic(), &post("/v1/chat/completions", "", body))
}

#[test]
fn a_running_stream_is_not_cut_and_what_comes_next_goes_the_new_way() {
    let (go_on, wait) = mpsc::sync_channel::<()>(1);
    let wait = Mutex::new(wait);
    let old = Upstream::start(move |_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: one\n\n")].concat());
        let _ = wait.lock().unwrap().recv();
        out.write_all(&[chunk(b"data: two\n\n"), b"0\r\n\r\n".to_vec()].concat()).is_ok()
    });
    let new = Upstream::canned(whole("200 OK", "text/plain", b"the new one"));
    let serin = Serin::start(&format!("{}{ALONE}", upstream("old", old.address, "")));
    let traffic = serin.traffic();
    let mut client = wire::connect(traffic);
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    eventually("the stream runs", || (!old.received().is_empty()).then_some(()));
    let answer = reload(&serin, &format!("{}{ALONE}", upstream("new", new.address, "")));
    assert_eq!(
        (answer.status, answer.json()["changed"].clone()),
        (200, serde_json::json!(["[[upstream]]"])),
        "{}",
        answer.text()
    );
    for _ in 0..8 {
        assert_eq!(chat(&serin).text(), "the new one", "on every thread of the path");
    }
    go_on.send(()).unwrap();
    let answer = wire::read_answer(&mut client);
    assert_eq!((answer.text().as_str(), answer.whole), ("data: one\n\ndata: two\n\n", true));
    // The same connection, kept over the reload, is served the new way too.
    client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
    assert_eq!(wire::read_answer(&mut client).text(), "the new one");
    assert_eq!(serin.traffic(), traffic);
    serin.reaches("serin_proxy_requests_total{outcome=\"complete\",upstream=\"old\"}", 1.0);
    let metrics = serin.metrics();
    assert!(!metrics.contains("serin_upstream_up{upstream=\"old\"}"), "a state nobody looks at any more");
    assert!(metrics.contains("serin_upstream_up{upstream=\"new\"} 1"));
}

#[test]
fn an_upstream_that_did_not_change_keeps_its_connections_and_its_breaker() {
    let peers = Arc::new(Mutex::new(Vec::new()));
    let seen = peers.clone();
    let kept = Upstream::start(move |_, out| {
        seen.lock().unwrap().push(out.peer_addr().unwrap());
        out.write_all(&whole("200 OK", "text/plain", b"kept")).is_ok()
    });
    let nowhere = crate::support::nowhere();
    let failing = upstream("failing", nowhere, "");
    let rest = "[[route]]\npath_prefix = \"/kept\"\nupstreams = [\"kept\"]\n[[route]]\npath_prefix = \"/failing\"\n\
                upstreams = [\"failing\"]\n[breaker]\nfailures = 1\nopen = \"1h\"\n[limits]\nthreads = 1\n\
                pool_idle = \"1h\"\n[fallback]\nfor = []\n";
    let config = |more: &str| format!("{}{failing}{more}{rest}", upstream("kept", kept.address, ""));
    let serin = Serin::start(&config(""));
    assert_eq!(wire::get(serin.traffic(), "/kept").text(), "kept");
    assert_eq!(wire::get(serin.traffic(), "/failing").status, 502);
    assert_eq!(wire::get(serin.traffic(), "/failing").status, 503, "its breaker is open");
    let third = Upstream::canned(whole("200 OK", "text/plain", b"third"));
    assert_eq!(reload(&serin, &config(&upstream("third", third.address, ""))).status, 200);
    assert_eq!(wire::get(serin.traffic(), "/kept").text(), "kept");
    assert_eq!(wire::get(serin.traffic(), "/failing").status, 503, "its breaker is still open");
    let open = "serin_upstream_breaker_state{state=\"open\",upstream=\"failing\"}";
    assert_eq!(serin.metric(open), Some(1.0));
    let changed = config("").replace("name = \"kept\"\n", "name = \"kept\"\nweight = 2\n");
    assert_eq!(reload(&serin, &changed).status, 200);
    assert_eq!(wire::get(serin.traffic(), "/kept").text(), "kept");
    let peers = peers.lock().unwrap();
    assert_eq!(peers[0], peers[1], "the connection was kept over the first reload");
    assert_ne!(peers[1], peers[2], "a changed section makes another upstream");
}

#[test]
fn a_bad_file_keeps_the_old_one_and_says_so() {
    let up = Upstream::canned(whole("200 OK", "text/plain", b"ok"));
    let good = format!("{}{ALONE}", upstream("router", up.address, ""));
    let serin = Serin::start(&good);
    let hash = wire::get(serin.admin(), "/readyz").json()["config"].clone();
    let begun = serin.metric("serin_config_last_reload_success_timestamp_seconds").unwrap();
    assert!(begun > 1e9, "{begun}");
    for (bad, expected) in [
        ("[limits]\nhead = 5\n", "config.toml:"),
        ("[[upstream]]\nname = \"r\"\nurl = \"nothing\"\n", "http://"),
        ("[[route]]\npath_prefix = \"/\"\nupstreams = [\"nobody\"]\n", "no [[upstream]] is named"),
        (
            "[listen]\nclient_eof = \"honour\"\n[limits]\nthreads = 3\n",
            "[limits] threads, [listen] client_eof cannot change",
        ),
    ] {
        let text = if bad.starts_with("[limits]\nhead") { bad.to_owned() } else { format!("{good}{bad}") };
        let answer = reload(&serin, &text);
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 422 && message.contains(expected), "{}: {message}", answer.status);
        assert_eq!(chat(&serin).text(), "ok");
        assert_eq!(serin.metric("serin_config_last_reload_successful"), Some(0.0));
    }
    assert_eq!(wire::get(serin.admin(), "/readyz").json()["config"], hash);
    std::fs::remove_file(serin.dir.path().join("config.toml")).unwrap();
    let gone = wire::reload(serin.admin());
    assert_eq!(gone.status, 500);
    assert_eq!(serin.metric("serin_config_reloads_total{outcome=\"failure\"}"), Some(5.0));
    assert_eq!(serin.metric("serin_config_last_reload_success_timestamp_seconds"), Some(begun));
    assert_eq!(reload(&serin, &format!("{good}[breaker]\nfailures = 9\n")).status, 200);
    assert_eq!(serin.metric("serin_config_last_reload_successful"), Some(1.0));
    assert_eq!(serin.metric("serin_config_reloads_total{outcome=\"success\"}"), Some(1.0));
    assert!(serin.metric("serin_config_last_reload_success_timestamp_seconds") > Some(begun));
    let now = wire::get(serin.admin(), "/readyz").json()["config"].clone();
    assert_ne!(now, hash);
    assert_eq!(serin.metric(&format!("serin_config_info{{hash={now}}}")), Some(1.0));
    assert_eq!(serin.metric(&format!("serin_config_info{{hash={hash}}}")), None);
    assert_eq!(wire::get(serin.admin(), "/-/reload").status, 405);
}

#[test]
fn limits_and_the_fallback_s_terms_follow() {
    let up = Upstream::start(|_, out| {
        let _ = out.write_all(&[chunked("text/event-stream"), chunk(b"data: 1\n\n")].concat());
        until_closed(out);
        false
    });
    let config = |most: usize| {
        format!(
            "{}{ALONE}[limits]\nin_flight = {most}\ndrain = \"10ms\"\n",
            upstream("router", up.address, "")
        )
    };
    let serin = Serin::start(&config(1));
    let hang = || {
        let mut client = wire::connect(serin.traffic());
        client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
        client
    };
    let _first = hang();
    eventually("the first is in flight", || (up.received().len() == 1).then_some(()));
    assert_eq!(chat(&serin).status, 503);
    assert_eq!(reload(&serin, &config(2)).status, 200);
    let _second = hang();
    eventually("the second is let in", || (up.received().len() == 2).then_some(()));
    assert_eq!(chat(&serin).status, 503);

    let nowhere = crate::support::nowhere();
    let config = |models: &str| format!("{}[fallback]\nfor = [{models}]\n", upstream("router", nowhere, ""));
    let serin = Serin::start(&config("\"*\""));
    assert_eq!(chat(&serin).header("x-serin-served-by"), Some("embedded"));
    assert_eq!(reload(&serin, &config("\"others\"")).status, 200);
    assert_eq!(chat(&serin).status, 502);
    assert_eq!(reload(&serin, &config("")).status, 200);
    assert_eq!(chat(&serin).status, 502);
    assert_eq!(
        reload(&serin, &config("\"m*\"")).status,
        200,
        "the engine is there for as long as the process"
    );
    assert_eq!(chat(&serin).header("x-serin-served-by"), Some("embedded"));
}

#[test]
fn without_an_engine_none_can_be_wished_for() {
    let up = Upstream::canned(whole("200 OK", "text/plain", b"ok"));
    let serin = Serin::start(&format!("{}{ALONE}", upstream("router", up.address, "")));
    let answer = reload(&serin, &upstream("router", up.address, ""));
    assert_eq!(answer.status, 422);
    assert!(
        answer.text().contains("[fallback] for") && answer.text().contains("restart"),
        "{}",
        answer.text()
    );
}

#[test]
fn health_checks_and_canaries_follow() {
    let [old, new] = [(); 2].map(|()| Upstream::canned(whole("404 Not Found", "text/plain", b"")));
    let config = |name: &str, address: SocketAddr, canary: &str| {
        let checked = upstream(name, address, "health = \"/health\"");
        format!("{checked}{ALONE}[breaker]\nhealth_every = \"20ms\"\n[canary]\n{canary}\n")
    };
    let serin = Serin::start(&config("old", old.address, "enabled = false"));
    let checks = |upstream: &Upstream| {
        upstream.received().iter().filter(|request| request.head.starts_with("GET /health ")).count()
    };
    eventually("the old one is checked", || (checks(&old) > 2).then_some(()));
    assert_eq!(serin.metric("serin_canary_skipped_total{reason=\"no_model\"}"), Some(0.0));
    let probing = config("new", new.address, "enabled = true\ninterval = \"100ms\"");
    assert_eq!(reload(&serin, &probing).status, 200);
    eventually("the new one is checked", || (checks(&new) > 2).then_some(()));
    let before = checks(&old);
    let now = checks(&new);
    eventually("the new one is checked on", || (checks(&new) > now + 10).then_some(()));
    assert!(checks(&old) <= before + 1, "the old one is asked no more");
    serin.reaches("serin_canary_skipped_total{reason=\"no_model\"}", 2.0);
}

#[test]
fn a_hangup_reads_the_file_again_and_changes_the_log_level() {
    let up = Upstream::canned(whole("200 OK", "text/plain", b"ok"));
    let dir = tempfile::tempdir().unwrap();
    let mut serin = Program::before(up.address, dir.path());
    let file = dir.path().join("config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, "[log]\nlevel = \"loud\"\n").unwrap();
    serin.signal("HUP");
    let said = serin.says("not reloaded");
    assert!(said.contains("WARN") && said.contains("config.toml:2") && said.contains("loud"), "{said}");
    std::fs::write(&file, format!("{text}\n[log]\nlevel = \"debug\"\n")).unwrap();
    serin.signal("HUP");
    let said = serin.says("is in force");
    assert!(said.contains("[log] level"), "{said}");
    // A connection that brings no request is told of at debug only.
    drop(wire::connect(serin.traffic).write_all(b"nonsense\r\n\r\n"));
    serin.says("DEBUG");
    assert!(serin.is_running());
}

#[test]
fn without_a_file_there_is_nothing_to_read() {
    let dir = tempfile::tempdir().unwrap();
    let config = serin::config::Config::parse(&base(dir.path(), ""), "test").unwrap();
    let app = serin::app::App::start(config).unwrap();
    let answer = wire::reload(app.admin);
    assert!(
        answer.status == 409 && answer.text().contains("without a configuration file"),
        "{}",
        answer.text()
    );
    app.stop();
}

#[test]
fn under_load_no_reload_costs_a_request() {
    let ups = [b"one".as_slice(), b"two"].map(|body| Upstream::canned(whole("200 OK", "text/plain", body)));
    let config = |at: usize| {
        // Another timer too: the upstream is made anew although its section is what it was two reloads ago.
        let limits = format!("[limits]\nidle = \"{}s\"\n", 60 + at);
        format!("{}{ALONE}{limits}", upstream("router", ups[at % 2].address, ""))
    };
    let serin = Serin::start(&config(0));
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut count) = (wire::connect(serin.traffic()), 0);
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        client.write_all(&post("/v1/chat/completions", "", b"{}")).unwrap();
                        let answer = wire::read_answer(&mut client);
                        assert!(answer.status == 200 && answer.whole, "{}", answer.text());
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        for at in 1..=40 {
            assert_eq!(reload(&serin, &config(at)).status, 200);
            assert_eq!(chat(&serin).body, [b"one", b"two"][at % 2], "in force once it was answered");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(clients.into_iter().map(|client| client.join().unwrap()).sum::<usize>() > 40);
    });
    assert_eq!(serin.metric("serin_config_reloads_total{outcome=\"success\"}"), Some(40.0));
    eventually("nothing is in flight", || (serin.metric("serin_proxy_in_flight") == Some(0.0)).then_some(()));
    // Twenty times the second one was in force, each time with connections of its own.
    eventually("the old connections are closed", || (ups[1].gone() >= 20).then_some(()));
}
