//! Transparent mode, with a real firewall rule in a network namespace of its own.

use std::process::Command;

/// Whether the command can be run; a tool that is missing is installed, for this cannot be shown without it.
fn tool(name: &str, package: &str) {
    let there = || Command::new(name).arg("-V").output().is_ok();
    if !there() {
        let _ = Command::new("apt-get").args(["install", "-qq", "--no-install-recommends", package]).output();
    }
    assert!(there(), "{name} is missing and could not be installed (apt-get install {package})");
}

#[test]
fn a_redirected_connection_reaches_where_it_was_going() {
    tool("nft", "nftables");
    tool("ip", "iproute2");
    let allowed = Command::new("unshare").args(["-rn", "nft", "add", "table", "inet", "t"]).output().unwrap();
    if !allowed.status.success() {
        // The kernel forbids it to whoever runs this: there is nothing that could be tested.
        let why = String::from_utf8_lossy(&allowed.stderr).into_owned();
        return eprintln!("NOT TESTED: no network namespace with a firewall of its own here: {why}");
    }
    let dir = tempfile::tempdir().unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/python/transparent.py");
    let output = Command::new("unshare")
        .args(["-rn", "python3", script, env!("CARGO_BIN_EXE_serin"), dir.path().to_str().unwrap()])
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
