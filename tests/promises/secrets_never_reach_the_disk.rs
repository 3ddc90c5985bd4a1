//! Credentials pass to the upstream and never to a disk.

use std::path::Path;

use crate::support::program::{self, Program};
use crate::support::upstream::Upstream;
use crate::support::{Serin, base, h2, wire};

const MARK: &str = "planted-credential-7315";

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_planted_key_is_nowhere_in_the_journal() {
    let answer =
        format!("HTTP/1.1 200 OK\r\nSet-Cookie: s={MARK}\r\nX-Odd: {MARK}\r\nContent-Length: 2\r\n\r\n{{}}");
    let upstream = Upstream::canned(answer.into_bytes());
    let mut serin = Serin::before(upstream.address, "");
    let headers = format!(
        "Authorization: Bearer {MARK}\r\nx-api-key: {MARK}\r\nCookie: a={MARK}\r\nX-New-Secret: {MARK}\r\nUser-Agent: kept-agent\r\n"
    );
    let path = format!("/v1/chat/completions?key={MARK}&api_key={MARK}&model=kept-parameter");
    let through = wire::send(serin.traffic(), &wire::post(&path, &headers, b"{\"messages\":[]}"));
    assert_eq!(through.header("set-cookie"), Some(format!("s={MARK}").as_str()));
    let received = &upstream.received()[0];
    assert_eq!(received.headers("authorization"), [format!("Bearer {MARK}")]);
    assert!(received.head.contains(&format!("key={MARK}&api_key={MARK}&model=kept-parameter")));
    serin.stop();

    let reader = serin::journal::Reader::open(&serin.dir.path().join("data")).unwrap();
    let records: Vec<String> = reader.map(|entry| format!("{:?}", entry.unwrap().1)).collect();
    let all = records.join("\n");
    assert!(all.contains("kept-agent") && all.contains("kept-parameter"), "nothing was recorded: {all}");
    assert!(!all.contains(MARK), "{all}");
    // The index and everything else on disk, uncompressed parts included.
    for file in files(serin.dir.path()) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(wire::find(&bytes, MARK.as_bytes()).is_none(), "{} holds the key", file.display());
    }
}

#[test]
fn a_planted_key_is_in_no_log_line() {
    let upstream =
        Upstream::canned(format!("HTTP/1.1 500 No\r\nSet-Cookie: s={MARK}\r\nContent-Length: 0\r\n\r\n"));
    let dir = tempfile::tempdir().unwrap();
    let upstreams = format!(
        "[[upstream]]\nname = \"router\"\nurl = \"http://{}\"\n[log]\nlevel = \"trace\"\n[fallback]\nfor = []\n[breaker]\nfailures = 2\n",
        upstream.address
    );
    std::fs::write(dir.path().join("config.toml"), base(dir.path(), &upstreams)).unwrap();
    let mut serin = Program::start(program::command(dir.path()));
    let headers = format!("Authorization: Bearer {MARK}\r\nx-api-key: {MARK}\r\nCookie: a={MARK}\r\n");
    let path = format!("/v1/chat/completions?key={MARK}");
    let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{MARK}\"}}]}}");
    for _ in 0..4 {
        wire::send(serin.traffic, &wire::post(&path, &headers, body.as_bytes()));
        let _ = h2::post(serin.traffic, &path, body.as_bytes(), |_| {});
    }
    // What is refused is not told either.
    wire::send(serin.traffic, format!("GET /{MARK} HTTP/1.1\r\nHost: a\r\nHost: {MARK}\r\n\r\n").as_bytes());
    serin.signal("TERM");
    let (code, said) = serin.wait();
    assert_eq!(code, Some(0));
    assert!(said.contains("TRACE") || said.contains("DEBUG"), "nothing was logged at that level: {said}");
    assert!(!said.contains(MARK), "{said}");
}
