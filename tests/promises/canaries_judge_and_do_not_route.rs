//! A canary's verdict is about recall. What becomes of it never takes an upstream out of service.

use std::io::Write;

use serde_json::json;

use crate::support::upstream::{Upstream, whole};
use crate::support::wire::{self, post};
use crate::support::{Serin, eventually};

const MINE: &[u8] = b"{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"a client asks\"}]}";

/// Answers clients well and everything else as `other` says.
fn before(other: fn(&mut std::net::TcpStream) -> bool) -> (Upstream, Serin) {
    let upstream = Upstream::start(move |request, out| {
        if wire::find(&request.body, b"a client asks").is_some() {
            return out.write_all(&whole("200 OK", "application/json", b"{\"mine\":1}")).is_ok();
        }
        other(out)
    });
    let serin = Serin::before(
        upstream.address,
        "[canary]\nenabled = true\ninterval = \"100ms\"\nmodel = \"m\"\nlengths = [128]\n[breaker]\nfailures = 2\nopen = \"1h\"\n",
    );
    (upstream, serin)
}

fn keeps_serving(serin: &Serin) {
    for _ in 0..20 {
        let answer = wire::send(serin.traffic(), &post("/v1/chat/completions", "", MINE));
        assert_eq!((answer.status, answer.text().as_str()), (200, "{\"mine\":1}"));
    }
    let state = |name: &str| {
        serin.metric(&format!("serin_upstream_breaker_state{{state=\"{name}\",upstream=\"router\"}}"))
    };
    assert_eq!((state("closed"), state("open")), (Some(1.0), Some(0.0)));
    assert_eq!(serin.metric("serin_upstream_healthy{upstream=\"router\"}"), Some(1.0));
    assert_eq!(wire::get(serin.admin(), "/readyz").status, 200);
}

/// Waits until this many probes have a verdict.
fn judged(serin: &Serin, least: f64) -> String {
    eventually("probes are judged", || {
        let text = serin.metrics();
        let lines = text.lines().filter(|line| line.starts_with("serin_canary_probes_total{"));
        let sum: f64 = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        (sum >= least).then_some(text)
    })
}

#[test]
fn a_worker_that_forgets_stays_in_service() {
    let (_upstream, serin) = before(|out| {
        let message = json!({"role": "assistant", "content": "I was never told."});
        let answer = json!({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                            "usage": {"prompt_tokens": 128, "completion_tokens": 5}});
        out.write_all(&whole("200 OK", "application/json", answer.to_string().as_bytes())).is_ok()
    });
    let text = judged(&serin, 4.0);
    assert!(text.contains("verdict=\"denied\"") || text.contains("verdict=\"lost"), "{text}");
    keeps_serving(&serin);
}

#[test]
fn a_worker_that_refuses_or_drops_canaries_stays_in_service() {
    for other in [
        (|out: &mut std::net::TcpStream| {
            out.write_all(&whole("500 Internal Server Error", "a/b", b"too long")).is_ok()
        }) as fn(&mut _) -> _,
        |_: &mut std::net::TcpStream| false,
    ] {
        let (_upstream, serin) = before(other);
        judged(&serin, 6.0);
        keeps_serving(&serin);
    }
}
