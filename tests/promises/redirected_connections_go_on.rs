//! Transparent mode, with a real firewall rule in a network namespace of its own.

use std::process::Command;

/// Set to `1`, it leaves this file's test out, on a machine whose kernel forbids namespaces to whoever runs the tests.
const LEFT_OUT: &str = "SERIN_TEST_NO_NAMESPACES";

/// `unshare` into a network of its own; who is not root needs a user namespace for that, with a second user in it.
fn unshare() -> Command {
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let mut command = Command::new("unshare");
    match root {
        true => command.arg("-n"),
        false => command.args(["-rn", "--map-auto"]),
    };
    command
}

#[test]
fn a_redirected_connection_reaches_where_it_was_going() {
    if std::env::var(LEFT_OUT).is_ok_and(|value| value == "1") {
        return eprintln!("NOT TESTED: {LEFT_OUT} is set");
    }
    for (tool, package) in [("nft", "nftables"), ("ip", "iproute2"), ("unshare", "util-linux")] {
        let there = Command::new(tool).arg("-V").output().is_ok();
        assert!(there, "{tool} is missing: install {package}");
    }
    let allowed = unshare().args(["nft", "add", "table", "inet", "t"]).output().unwrap();
    assert!(
        allowed.status.success(),
        "no network namespace with a firewall of its own here ({LEFT_OUT}=1 leaves this out): {}",
        String::from_utf8_lossy(&allowed.stderr)
    );
    let dir = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/python/transparent.py");
    let output = unshare()
        .args(["python3", script, env!("CARGO_BIN_EXE_serin"), dir.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok");
    // Under one name in metrics, and each under its own in the records.
    let reader = serin::journal::Reader::open(&dir.path().join("both/data")).unwrap();
    let destinations: Vec<_> = reader
        .filter_map(|read| match read.unwrap().1 {
            serin::journal::Record::Exchange(exchange) => Some(exchange),
            _ => None,
        })
        .map(|exchange| {
            let label = exchange.labels.iter().find(|label| label.name == "destination").unwrap();
            (exchange.upstream, String::from_utf8(label.value.to_vec()).unwrap())
        })
        .collect();
    let expected = ["10.9.0.9:8000", "[fd09::9]:8000", "10.9.0.9:8009"];
    assert_eq!(destinations, expected.map(|to| ("original".to_owned(), to.to_owned())));
}
