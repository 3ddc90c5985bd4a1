//! A mistake is one line that says what, where and how to mend it, with its exit code; nothing recorded is touched.

use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use crate::support::upstream::{Upstream, whole};
use crate::support::{Serin, base, program, wire};

/// The one line on standard error and the exit code.
fn complaint(output: &Output) -> (i32, String) {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    let lines: Vec<_> = said.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 1, "one line was expected: {said:?}");
    assert!(!said.contains("panicked"), "{said}");
    (output.status.code().unwrap(), lines[0].to_owned())
}

fn serve(dir: &Path, extra: &str) -> (i32, String) {
    std::fs::write(dir.join("config.toml"), base(dir, extra)).unwrap();
    complaint(&program::run(dir, &["serve"]))
}

#[test]
fn every_kind_of_mistake_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    std::fs::write(dir.path().join("broken.gguf"), b"GGUF\x03\0\0\0 this is no model").unwrap();
    std::fs::write(dir.path().join("data"), b"a file, not a directory").unwrap();
    let cases: [(&str, i32, &[&str]); 10] = [
        (
            "[listen]\nadress = \"x\"\n",
            64,
            &["config.toml:", "unknown key `adress`", "expected one of `address`"],
        ),
        ("[canary]\ninterval = \"often\"\n", 64, &["config.toml:", "often"]),
        (
            &format!("[listen]\naddress = \"{address}\"\n"),
            69,
            &["[listen] address", &address.to_string(), "in use"],
        ),
        (&format!("[admin]\naddress = \"{address}\"\n"), 69, &["[admin] address", "in use"]),
        (
            "[fallback]\nmodel = \"./broken.gguf\"\n[record]\nenabled = false\n",
            66,
            &["[fallback] model", "broken.gguf"],
        ),
        (
            "[fallback]\nmodel = \"./missing.gguf\"\n[record]\nenabled = false\n",
            66,
            &["[fallback] model", "missing.gguf"],
        ),
        (
            "[fallback]\nmodel = \"smollm3\"\n[record]\nenabled = false\n",
            64,
            &["smollm2-135m-instruct", "a path or a URL"],
        ),
        ("[listen]\ncert_file = \"no.pem\"\nkey_file = \"no.pem\"\n", 66, &["no.pem"]),
        (
            "[[upstream]]\nname = \"r\"\nurl = \"localhost:1\"\n",
            64,
            &["[[upstream]] name = \"r\"", "http://"],
        ),
        ("", 74, &["[record] dir"]),
    ];
    for (extra, code, parts) in cases {
        let (found, line) = serve(dir.path(), extra);
        assert_eq!(found, code, "{extra:?}: {line}");
        for part in parts {
            assert!(line.contains(part), "{extra:?}: {line:?} lacks {part:?}");
        }
    }
    // Nothing of this touched what lay in the way of the recordings.
    assert_eq!(std::fs::read(dir.path().join("data")).unwrap(), b"a file, not a directory");
}

#[test]
fn every_kind_of_mistake_about_keys() {
    let dir = tempfile::tempdir().unwrap();
    let recipient = "age1wtwn8lrhax50yhh94ymw4q6vl3q85rmnwy8g8aypp37sa4l55eeqjq63mq";
    let secret = "0f".repeat(32);
    std::fs::write(dir.path().join("wrapping"), &secret).unwrap();
    std::fs::write(dir.path().join("opened"), format!("{} {secret}\n", &secret[..32])).unwrap();
    std::fs::write(dir.path().join("malformed"), format!("{secret} {secret}\n")).unwrap();
    let identity = format!("AGE-SECRET-KEY-1{}", "Q0F0F".repeat(11));
    let named = |recipient: &str| format!("[record]\nrecipient = \"{recipient}\"\n");
    let slip = recipient.replacen("age1", "age1x", 1)[..62].to_owned();
    let cases = [
        (named(&identity), 64, "config.toml: [record] recipient is an identity"),
        (named(&slip), 64, "config.toml: [record] recipient has a checksum"),
        (named(&recipient.to_uppercase()), 64, "config.toml: [record] recipient is no X25519 recipient"),
        (named(recipient) + "key_file = \"wrapping\"\n", 66, "not both: leave one out"),
        ("[record]\nkey_file = \"opened\"\n".to_owned(), 66, "name a [record] recipient as well"),
        ("[record]\nkey_file = \"malformed\"\n".to_owned(), 66, "holds no opened key in line 1"),
        ("[record]\nkey_file = \"absent\"\n".to_owned(), 66, "[record] key_file = \"absent\""),
    ];
    for (extra, code, part) in cases {
        let (found, line) = serve(dir.path(), &extra);
        assert!(found == code && line.contains(part), "{extra}: {found} {line}");
        assert!(!line.to_lowercase().contains("0f0f"), "{line}");
        assert!(!dir.path().join("data").exists(), "{extra}");
    }
}

#[test]
fn every_kind_of_mistake_on_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let usage = program::run(dir.path(), &["sessions", "shwo"]);
    assert_eq!(usage.status.code(), Some(2));
    let absent = complaint(&program::run(dir.path(), &["check-config", "--config", "nowhere.toml"]));
    assert_eq!(absent.0, 66);
    assert!(absent.1.contains("nowhere.toml") && absent.1.contains("--config"), "{}", absent.1);
    // A file that nobody named may be missing: every key has a default.
    let defaults = program::run(dir.path(), &["check-config"]);
    assert!(
        defaults.status.success() && String::from_utf8(defaults.stdout).unwrap().contains("127.0.0.1:8080")
    );
    std::fs::write(dir.path().join("config.toml"), base(dir.path(), "")).unwrap();
    let no_journal = complaint(&program::run(dir.path(), &["sessions", "list"]));
    assert_eq!(no_journal.0, 66, "{}", no_journal.1);
    let checked = program::run(dir.path(), &["check-config"]);
    assert!(checked.status.success() && String::from_utf8(checked.stdout).unwrap().contains("# hash "));
}

#[test]
fn an_unknown_session_is_named() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let mut serin = Serin::before(upstream.address, "");
    wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", b"{\"messages\":[]}"));
    serin.stop();
    let dir = serin.dir.path();
    std::fs::write(dir.join("config.toml"), base(dir, "")).unwrap();
    let (code, line) = complaint(&program::run(dir, &["sessions", "show", "ffff"]));
    assert_eq!(code, 66);
    assert!(line.contains("ffff") && line.contains("sessions list"), "{line}");
}

#[test]
fn a_second_serin_on_one_journal_is_refused_and_harms_nothing() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{}"));
    let mut serin = Serin::before(upstream.address, "");
    let dir = serin.dir.path().to_owned();
    let (code, line) = serve(&dir, "");
    assert_eq!(code, 74, "{line}");
    assert!(line.contains("[record] dir") && line.contains("in use by another process"), "{line}");
    wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", b"{\"messages\":[]}"));
    serin.stop();
    let listed = program::run(&dir, &["sessions", "list", "--json"]);
    assert_eq!(String::from_utf8(listed.stdout).unwrap().lines().count(), 1);
}

#[test]
fn an_upstream_that_refuses_is_said_once_and_answered_honestly() {
    let nowhere = crate::support::nowhere();
    let dir = tempfile::tempdir().unwrap();
    let mut serin = program::Program::before(nowhere, dir.path());
    for _ in 0..3 {
        let answer = wire::send(serin.traffic, &wire::post("/v1/chat/completions", "", b"{\"messages\":[]}"));
        assert_eq!((answer.status, answer.header("content-type")), (502, Some("application/json")));
        let error = answer.json()["error"].clone();
        assert_eq!(error["code"], "upstream_refused");
        assert!(error["message"].as_str().unwrap().contains("router"), "{error}");
    }
    serin.signal("TERM");
    let (code, said) = serin.wait();
    assert_eq!(code, Some(0));
    let lines: Vec<_> = said.lines().filter(|line| line.contains("cannot be reached")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("url in its [[upstream]] section"), "{}", lines[0]);
    let listed = program::run(dir.path(), &["sessions", "list", "--json"]);
    assert_eq!(
        String::from_utf8(listed.stdout).unwrap().lines().count(),
        3,
        "refused requests are recorded too"
    );
}

#[test]
fn what_keeps_an_upstream_from_being_reached_is_told_apart() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain_port = listener.local_addr().unwrap().port();
    // Answers whatever comes in the way of a server that speaks no TLS.
    let _answering = std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let _ = std::io::Write::write_all(
                &mut &stream,
                b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
            );
            let _ = std::io::Read::read(&mut &stream, &mut [0; 1024]);
        }
    });
    let nowhere = crate::support::nowhere();
    for (url, expected) in [
        (format!("http://{nowhere}"), "refused"),
        ("http://no-such-host.invalid:80".to_owned(), "its name \"no-such-host.invalid\" cannot be resolved"),
        (
            format!("https://127.0.0.1:{plain_port}"),
            "does not speak TLS, so its url may have to begin with http://",
        ),
    ] {
        let serin = Serin::start(&format!(
            "[[upstream]]\nname = \"router\"\nurl = \"{url}\"\n[fallback]\nfor = []\n"
        ));
        let answer = wire::send(serin.traffic(), &wire::post("/v1/chat/completions", "", b"{}"));
        let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(answer.status == 502 && message.contains(expected), "{} {message:?}", answer.status);
    }
}

#[test]
fn the_log_says_what_started_and_why_canaries_do_not_run() {
    let upstream = Upstream::canned(whole("401 Unauthorized", "application/json", b"{}"));
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\n[fallback]\nfor = []\n[canary]\nenabled = true\n\
         interval = \"100ms\"\n",
        upstream.address
    );
    std::fs::write(dir.path().join("config.toml"), base(dir.path(), &text)).unwrap();
    let mut child = program::command(dir.path()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut errors = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let mut said = String::new();
    while !said.contains("canaries cannot probe") {
        said.push_str(&errors.next().expect("it ended").unwrap());
    }
    while upstream.received().len() < 4 {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    assert!(std::process::Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    let rest: String = errors.map(Result::unwrap).collect();
    child.wait().unwrap();
    let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
    for part in [
        "starting",
        &version,
        "config=config.toml",
        "hash=",
        "upstreams=\"router\"",
        "record=",
        "canary=true",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.contains("401") && said.contains("[canary] api_key_file"), "{said}");
    assert!(!rest.contains("canaries cannot probe"), "said once: {rest}");
}
