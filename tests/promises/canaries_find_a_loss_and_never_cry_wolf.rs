//! The crown test: the engine loses context on purpose, at the length the arithmetic says, and the canary notices; and
//! where nothing is lost, it never says so.
//!
//! The canary is the real one: it goes through the public listener, and the model behind it is the reference model, whose
//! recall is known. With `index_topk = 512` its selecting layer reaches everything at 2k tokens and not at 32k.

use crate::support::upstream::Upstream;
use crate::support::{Serin, eventually, program, value};

/// Verdicts that count as losses.
const LOSSES: [&str; 6] = ["misbound", "corrupted", "denied", "degenerate", "lost_unknown", "lost_wrong"];

fn start(index_topk: &str, length: u32) -> Serin {
    Serin::start(&format!(
        "[fallback]\nindex_topk = {index_topk}\n[canary]\nenabled = true\ninterval = \"100ms\"\nlengths = [{length}]\n"
    ))
}

/// Probes so far by what `wanted` says of their verdict.
fn probes(exposition: &str, wanted: impl Fn(&str) -> bool) -> f64 {
    let lines = exposition.lines().filter(|line| line.starts_with("serin_canary_probes_total{"));
    let counts = lines.filter_map(|line| {
        let verdict = line.split("verdict=\"").nth(1)?.split('"').next()?;
        wanted(verdict).then(|| line.rsplit(' ').next()?.parse::<f64>().ok()).flatten()
    });
    counts.sum()
}

fn losses(exposition: &str) -> f64 {
    probes(exposition, |verdict| LOSSES.contains(&verdict))
}

fn recalled(exposition: &str) -> f64 {
    probes(exposition, |verdict| verdict == "recalled")
}

/// Lets `count` probes be recalled and demands that none was lost meanwhile.
fn healthy(index_topk: &str, length: u32, count: f64) {
    let serin = start(index_topk, length);
    let text = eventually("enough probes", || {
        Some(serin.metrics()).filter(|text| recalled(text) + losses(text) >= count)
    });
    assert_eq!(losses(&text), 0.0, "index_topk {index_topk} at {length}: a false loss\n{text}");
    assert_eq!(probes(&text, |verdict| verdict != "recalled"), 0.0, "{text}");
    let ratio =
        text.lines().find(|line| line.starts_with("serin_context_loss_ratio{")).expect("the ratio is shown");
    assert!(ratio.ends_with(" 0"), "{ratio}");
    assert!(
        ratio.contains("upstream=\"embedded\"") && ratio.contains("model_name=\"serin-reference\""),
        "{ratio}"
    );
}

#[test]
fn at_2k_a_selection_of_512_loses_nothing() {
    healthy("512", 2048, 12.0);
}

#[test]
fn at_32k_a_full_selection_loses_nothing() {
    healthy("\"all\"", 32_768, 4.0);
}

#[test]
fn at_32k_a_selection_of_512_is_a_loss_and_becomes_an_alarm() {
    let serin = start("512", 32_768);
    let (text, stream) = eventually("an alarm", || {
        let text = serin.metrics();
        let breached = text
            .lines()
            .find(|line| line.starts_with("serin_alarm_state{state=\"breached\"") && line.ends_with(" 1"));
        let stream = breached?.split("stream=\"").nth(1)?.split('"').next()?.to_owned();
        Some((text, stream))
    });
    assert!(losses(&text) >= 3.0, "{text}");
    let evidence = value(&text, &format!("serin_canary_evidence_nats{{stream=\"{stream}\"}}"));
    assert!(evidence > Some(3.0), "{stream}: {evidence:?}");
    let (upstream, rest) = stream.split_once('/').unwrap();
    let (rest, length) = rest.rsplit_once('/').unwrap();
    let (model, kind) = rest.rsplit_once('/').unwrap();
    let series = |name: &str| {
        let labels =
            format!("kind=\"{kind}\",length=\"{length}\",model_name=\"{model}\",upstream=\"{upstream}\"");
        value(&text, &format!("{name}{{{labels}}}")).unwrap_or_else(|| panic!("no {name}"))
    };
    let (lower, ratio, upper) = (
        series("serin_context_loss_ratio_lower"),
        series("serin_context_loss_ratio"),
        series("serin_context_loss_ratio_upper"),
    );
    assert!(0.0 < lower && lower < ratio && ratio <= upper && upper <= 1.0, "{lower} {ratio} {upper}");
}

#[test]
fn canaries_are_no_clients_to_anyone_but_us() {
    let body = br#"{"object":"list","data":[{"id":"m"}]}"#;
    let upstream = Upstream::canned(crate::support::upstream::whole("200 OK", "application/json", body));
    let mut serin = Serin::before(upstream.address, "[canary]\nenabled = true\ninterval = \"100ms\"\n");
    let probe = eventually("a probe arrives", || {
        upstream.received().into_iter().find(|request| request.head.starts_with("POST /v1/chat/completions "))
    });
    // Nothing the upstream could know it by.
    let all = format!("{}{}", probe.head, String::from_utf8_lossy(&probe.body)).to_lowercase();
    assert!(!all.contains("canary") && !all.contains("serin"), "{all}");
    let asked: serde_json::Value = serde_json::from_slice(&probe.body).unwrap();
    assert_eq!(asked["messages"][0]["role"], "user");
    assert!(asked["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "a dummy tool goes along");
    assert_eq!(asked["temperature"], 0.6);
    // An answer that is none is no loss.
    let text = eventually("a verdict", || Some(serin.metrics()).filter(|text| probes(text, |_| true) >= 1.0));
    assert_eq!((losses(&text), recalled(&text)), (0.0, 0.0), "{text}");
    // Clients' counters and sessions know nothing of it.
    let clients = value(&text, "serin_proxy_requests_total{outcome=\"complete\",upstream=\"router\"}");
    assert_eq!(clients, Some(0.0));
    serin.stop();
    let sessions = |arguments: &[&str]| {
        let output = program::run(serin.dir.path(), &[&["sessions"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(sessions(&["list", "--json"]), "");
    // By its id, which the log names, its conversation is found all the same.
    let lines = sessions(&["list", "--canary", "--json"]);
    let line: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(sessions(&["show", line["id"].as_str().unwrap()]).contains("user"));
}

#[test]
fn a_forged_tag_makes_nobody_a_canary() {
    let upstream = Upstream::canned(crate::support::upstream::whole("200 OK", "application/json", b"{}"));
    let serin = Serin::before(upstream.address, "");
    let forged = format!("x-serin-canary: probe-1.{}\r\n", "0".repeat(64));
    crate::support::wire::send(
        serin.traffic(),
        &crate::support::wire::post("/v1/chat/completions", &forged, b"{}"),
    );
    serin.reaches("serin_proxy_forged_tags_total", 1.0);
    assert_eq!(
        serin.metric("serin_proxy_requests_total{outcome=\"complete\",upstream=\"router\"}"),
        Some(1.0)
    );
    assert!(upstream.received()[0].headers("x-serin-canary").is_empty());
}
