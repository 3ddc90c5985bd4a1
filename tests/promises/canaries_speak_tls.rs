//! With TLS on the listener canaries go through it as before, trusting its own certificate and no other.

use crate::support::certificates::Authority;
use crate::support::{Serin, eventually};

const CANARY: &str = "[canary]\nenabled = true\ninterval = \"100ms\"\nlengths = [64]\n";

/// Waits until a probe has recalled what it was told.
fn recalls(serin: &Serin, times: usize) {
    eventually("a canary that recalls", || {
        let text = serin.metrics();
        let passes = text.lines().filter(|line| {
            line.starts_with("serin_canary_probes_total{") && line.contains("verdict=\"recalled\"")
        });
        let count: f64 = passes.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
        (count >= times as f64).then_some(())
    });
}

#[test]
fn a_canary_goes_through_a_listener_that_speaks_tls_and_follows_a_new_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let server = authority.issue(dir.path(), "server", &["name.of.the.service"], 2040);
    let extra = format!("[listen]\n{}{CANARY}[limits]\nfiles_every = \"20ms\"\n", server.keys());
    let serin = Serin::start(&extra);
    recalls(&serin, 1);
    Authority::new().issue(dir.path(), "server", &["name.of.the.service"], 2041);
    serin.reaches("serin_tls_reloads_total{outcome=\"loaded\",section=\"listen\"}", 1.0);
    let so_far = serin.metric("serin_canary_probe_seconds_count").unwrap();
    serin.reaches("serin_canary_probe_seconds_count", so_far + 2.0);
    recalls(&serin, so_far as usize + 1);
    let failed = "serin_server_handshake_failures_total{listener=\"listen\",reason=\"refused_by_client\"}";
    // One may have been shaking hands in the very moment of the change.
    assert!(serin.metric(failed).unwrap() <= 1.0);
}

#[test]
fn a_canary_shows_a_certificate_where_one_is_required() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let ca = authority.write(dir.path(), "ca");
    let server = authority.issue(dir.path(), "server", &["it.test"], 2040);
    let client = authority.issue(dir.path(), "canary", &["canary"], 2040);
    let listen =
        format!("[listen]\n{}client_ca_file = {ca:?}\nclient_certificates = \"required\"\n", server.keys());
    let serin = Serin::start(&format!("{listen}{CANARY}{}", client.keys()));
    recalls(&serin, 1);
    let expiry = format!(
        "serin_tls_certificate_expiry_timestamp_seconds{{file=\"{}\",section=\"canary\"}}",
        client.cert.display()
    );
    assert_eq!(serin.metric(&expiry), Some(2_208_988_800.0));
}
