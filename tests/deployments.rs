//! The deployment files agree with the program: their configurations are read, and the times they give it fit together.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serin::config::Config;

/// What must be left for records to become durable after the drain is over.
const SPARE: Duration = Duration::from_secs(15);

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn config(name: &str) -> Config {
    Config::parse(&text(name), name).unwrap_or_else(|error| panic!("{error}"))
}

/// The number behind `key` where it first stands.
fn number(text: &str, key: &str) -> u64 {
    let rest = text.split(key).nth(1).unwrap_or_else(|| panic!("no {key}"));
    let digits: String =
        rest.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number behind {key}"))
}

fn assert_fits(config: &Config, given: Duration) {
    assert!(
        config.limits.drain.0 + SPARE <= given,
        "{} of drain do not fit into {given:?}",
        config.limits.drain
    );
}

#[test]
fn a_container_has_the_time_it_needs() {
    let dockerfile = text("docker/Dockerfile");
    assert_fits(&config("docker/config.toml"), Duration::from_secs(number(&dockerfile, "--stop-timeout")));
    assert!(dockerfile.contains("STOPSIGNAL SIGTERM") && dockerfile.contains("USER 10001"));
    // Nobody outside the container could show a token on loopback.
    assert!(config("docker/config.toml").admin.address.ip().is_loopback());
}

#[test]
fn a_service_has_the_time_and_the_files_it_needs() {
    let (unit, config) = (text("systemd/serin.service"), config("systemd/config.toml"));
    assert_fits(&config, Duration::from_secs(number(&unit, "TimeoutStopSec=")));
    assert!(number(&unit, "LimitNOFILE=") >= 2 * config.limits.connections as u64);
    assert!(
        config.record.dir.starts_with(format!("/var/lib/{}", "serin"))
            && unit.contains("StateDirectory=serin\n")
    );
}

#[test]
fn a_pod_has_the_time_it_needs_and_its_probes_reach_it() {
    let (manifest, config) = (text("kubernetes/serin.yaml"), config("kubernetes/config.toml"));
    let grace = Duration::from_secs(number(&manifest, "terminationGracePeriodSeconds:"));
    let before = Duration::from_secs(number(&manifest, "sleep:"));
    assert_fits(&config, grace - before);
    for (port, at) in [("traffic", config.listen.address), ("admin", config.admin.address)] {
        assert!(
            manifest.contains(&format!("- name: {port}\n              containerPort: {}\n", at.port())),
            "{port}"
        );
        assert!(at.ip().is_unspecified(), "{port} is reached from outside the pod");
    }
    let probes = manifest.matches("port: admin, scheme: HTTPS}").count();
    assert_eq!((probes, manifest.matches("httpGet:").count()), (3, 3));
    // What the configuration reads is mounted.
    let admin = &config.admin;
    for file in [&admin.cert_file, &admin.key_file, &admin.token_file, &config.record.dir] {
        let mounted = manifest.match_indices("mountPath: ").any(|(at, key)| {
            let path = manifest[at + key.len()..].split([',', '}']).next().unwrap_or_default();
            file.starts_with(path)
        });
        assert!(mounted, "{} is mounted nowhere", file.display());
    }
}

#[test]
fn what_is_shipped_passes_check_config() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["serin-admin".to_owned()]).unwrap();
    std::fs::write(dir.path().join("tls.crt"), made.cert.pem()).unwrap();
    std::fs::write(dir.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
    std::fs::write(dir.path().join("token"), "0123456789abcdef").unwrap();
    for name in ["docker", "systemd", "kubernetes"] {
        let shipped = text(&format!("{name}/config.toml"));
        let here = dir.path().to_str().unwrap();
        let here = shipped.replace("/etc/serin/admin-tls", here).replace("/etc/serin/admin-token", here);
        let file = dir.path().join(format!("{name}.toml"));
        std::fs::write(&file, here).unwrap();
        let check =
            Command::new(env!("CARGO_BIN_EXE_serin")).arg("check-config").arg("--config").arg(&file).output();
        let check = check.unwrap();
        assert!(check.status.success(), "{name}: {}", String::from_utf8_lossy(&check.stderr));
    }
}
