//! Several upstreams share a route; one that fails is left alone, another takes over, and it comes back by itself.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::support::upstream::{Upstream, chunk, chunked, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually, nowhere};

fn before(upstreams: &[(&str, std::net::SocketAddr)], extra: &str) -> Serin {
    let sections: String = upstreams
        .iter()
        .map(|(name, address)| format!("[[upstream]]\nname = \"{name}\"\nurl = \"http://{address}\"\n"))
        .collect();
    Serin::start(&format!("{sections}{extra}\n"))
}

fn state(serin: &Serin, upstream: &str) -> String {
    let names = ["closed", "open", "half_open"];
    let is = |name: &&str| {
        serin.metric(&format!("serin_upstream_breaker_state{{state=\"{name}\",upstream=\"{upstream}\"}}"))
            == Some(1.0)
    };
    names.into_iter().filter(|name| is(name)).collect()
}

#[test]
fn both_are_used_and_each_counts_its_own() {
    let one = Upstream::canned(whole("200 OK", "a/b", b"one"));
    let two = Upstream::canned(whole("200 OK", "a/b", b"two"));
    let serin = before(&[("one", one.address), ("two", two.address)], "[fallback]\nfor = []");
    for _ in 0..200 {
        assert_eq!(wire::get(serin.traffic(), "/").status, 200);
    }
    let (ones, twos) = (one.received().len(), two.received().len());
    assert!(ones + twos == 200 && ones > 50 && twos > 50, "{ones} and {twos}");
    let series = "serin_proxy_requests_total{outcome=\"complete\",upstream=\"one\"}";
    serin.reaches(series, ones as f64);
    eventually("nothing in flight", || {
        (serin.metric("serin_upstream_in_flight{upstream=\"one\"}") == Some(0.0)).then_some(())
    });
}

#[test]
fn one_that_is_down_costs_no_client_an_answer() {
    let up = Upstream::canned(whole("200 OK", "a/b", b"up"));
    let serin =
        before(&[("down", nowhere()), ("up", up.address)], "[fallback]\nfor = []\n[breaker]\nopen = \"1h\"");
    for _ in 0..60 {
        assert_eq!(wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"{}")).text(), "up");
    }
    assert_eq!(
        (up.received().len(), state(&serin, "down").as_str(), state(&serin, "up").as_str()),
        (60, "open", "closed")
    );
}

#[test]
fn failures_of_every_kind_open_the_breaker_and_a_good_trial_closes_it() {
    let broken = Arc::new(AtomicBool::new(true));
    let switch = broken.clone();
    let upstream = Upstream::start(move |request, out| {
        if !switch.load(Relaxed) {
            return out.write_all(&whole("200 OK", "a/b", b"well")).is_ok();
        }
        match request.body.as_slice() {
            b"500" => out.write_all(&whole("500 Internal Server Error", "a/b", b"")).is_ok(),
            _ => {
                // A 200 that is cut in the middle is a failure too.
                let _ = out.write_all(&[chunked("a/b"), chunk(b"half")].concat());
                false
            }
        }
    });
    let serin = before(
        &[("router", upstream.address)],
        "[fallback]\nfor = []\n[breaker]\nfailures = 4\nopen = \"200ms\"",
    );
    for body in [b"500", b"cut", b"500", b"cut"] {
        assert_eq!(state(&serin, "router"), "closed");
        wire::send(serin.traffic(), &post("/v1/chat/completions", "", body));
    }
    eventually("it is open", || (state(&serin, "router") == "open").then_some(()));
    let seen = upstream.received().len();
    let refused = wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"500"));
    if upstream.received().len() == seen {
        assert_eq!(
            (refused.status, refused.json()["error"]["code"].as_str()),
            (503, Some("upstream_unavailable"))
        );
        assert!(refused.header("retry-after").is_some());
    }
    broken.store(false, Relaxed);
    eventually("traffic is back", || {
        (wire::send(serin.traffic(), &post("/v1/chat/completions", "", b"x")).text() == "well").then_some(())
    });
    eventually("it is closed", || (state(&serin, "router") == "closed").then_some(()));
}

#[test]
fn client_errors_and_429_never_open_it() {
    let upstream = Upstream::start(|request, out| {
        let status =
            if request.body == b"429" { "429 Too Many Requests" } else { "422 Unprocessable Entity" };
        out.write_all(&whole(status, "a/b", b"{}")).is_ok()
    });
    let serin = before(&[("router", upstream.address)], "[fallback]\nfor = []\n[breaker]\nfailures = 1");
    for body in [b"429", b"422", b"429", b"422"] {
        assert!(
            [422, 429].contains(&wire::send(serin.traffic(), &post("/v1/chat/completions", "", body)).status)
        );
    }
    assert_eq!((upstream.received().len(), state(&serin, "router").as_str()), (4, "closed"));
}

#[test]
fn while_it_is_left_alone_the_engine_answers() {
    let serin = before(&[("router", nowhere())], "[breaker]\nfailures = 1\nopen = \"1h\"");
    let asked = br#"{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"The tag is"}]}"#;
    for _ in 0..2 {
        let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", asked));
        assert_eq!(
            (answer.status, answer.header("x-serin-served-by")),
            (200, Some("embedded")),
            "{}",
            answer.text()
        );
    }
    // Once because it refused, once without asking it again.
    serin.reaches("serin_proxy_fallback_total{reason=\"refused\"}", 1.0);
    serin.reaches("serin_proxy_fallback_total{reason=\"left_alone\"}", 1.0);
}

#[test]
fn one_that_fails_its_health_checks_gets_no_requests_until_it_passes() {
    let ill = Arc::new(AtomicBool::new(true));
    let switch = ill.clone();
    let one = Upstream::start(move |request, out| {
        let status = if switch.load(Relaxed) { "503 Service Unavailable" } else { "200 OK" };
        let body: &[u8] = if request.head.starts_with("GET /health ") { b"" } else { b"one" };
        let status = if body.is_empty() { status } else { "200 OK" };
        out.write_all(&whole(status, "a/b", body)).is_ok()
    });
    let two = Upstream::canned(whole("200 OK", "a/b", b"two"));
    let sections = format!(
        "[[upstream]]\nname = \"one\"\nurl = \"http://{}\"\nhealth = \"/health\"\n[[upstream]]\nname = \"two\"\nurl = \"http://{}\"\n",
        one.address, two.address
    );
    let serin =
        Serin::start(&format!("{sections}[breaker]\nhealth_every = \"20ms\"\n[fallback]\nfor = []\n"));
    let healthy = |wanted: f64| {
        eventually("the checks say so", || {
            (serin.metric("serin_upstream_healthy{upstream=\"one\"}") == Some(wanted)).then_some(())
        });
    };
    healthy(0.0);
    for _ in 0..30 {
        assert_eq!(wire::get(serin.traffic(), "/").text(), "two");
    }
    ill.store(false, Relaxed);
    healthy(1.0);
    eventually("it is used again", || (wire::get(serin.traffic(), "/").text() == "one").then_some(()));
    // Checks are no clients' requests.
    let counted = serin.metric("serin_proxy_requests_total{outcome=\"complete\",upstream=\"one\"}").unwrap();
    let asked = one.received().iter().filter(|request| request.head.starts_with("GET / ")).count();
    assert!(counted <= asked as f64, "{counted} counted, {asked} asked");
}
