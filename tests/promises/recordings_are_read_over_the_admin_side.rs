//! What was recorded is read over the admin side by whom a token lets, in parts where that is asked for; who has read what
//! is written down; and what is erased is gone.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::upstream::{Upstream, whole};
use crate::support::wire::{self, Answer};
use crate::support::{Serin, eventually, journal, program};

const MARKER: &str = "planted-marker-4Kz";
const TOKENS: &str = "\
scraper metrics a-token-for-the-scraper
lena    meta    a-token-for-lena-who-looks
carl    content a-token-for-carl-who-reads
ann     admin   a-token-for-ann-who-erases
";

/// Serin with four tokens, and a conversation of two turns that has the marker in it, and one that has not.
fn recorded() -> (Upstream, Serin) {
    let message = json!({"role": "assistant", "content": format!("you said {MARKER}")});
    let answer =
        json!({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let upstream = Upstream::canned(whole("200 OK", "application/json", answer.to_string().as_bytes()));
    let dir = tempfile::tempdir().unwrap();
    let tokens = dir.path().join("tokens");
    std::fs::write(&tokens, TOKENS).unwrap();
    let serin = Serin::before(upstream.address, &format!("[admin]\ntoken_file = {tokens:?}\n"));
    let first = json!({"role": "user", "content": format!("remember {MARKER}")});
    let second = json!({"role": "user", "content": "and now?"});
    let other = json!({"role": "user", "content": "a word of somebody else"});
    for (model, messages) in
        [("m", json!([first])), ("m", json!([first, message, second])), ("other", json!([other]))]
    {
        let asked = wire::chat(serin.traffic(), &json!({"model": model, "messages": messages}));
        assert_eq!(asked.status, 200);
    }
    eventually("three records", || {
        let text = ask(&serin, "scraper", "GET /metrics", "").text();
        let full = text.lines().any(|line| {
            line.starts_with("serin_recorder_turns_total{outcome=\"full\"") && line.ends_with(" 3")
        });
        full.then_some(())
    });
    (upstream, serin)
}

/// Asks with the token of somebody.
fn ask(serin: &Serin, who: &str, what: &str, headers: &str) -> Answer {
    let line = TOKENS.lines().find(|line| line.starts_with(who)).unwrap();
    let token = line.split_whitespace().last().unwrap();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n{headers}Content-Length: 0\r\n\r\n"
    );
    wire::send(serin.admin(), request.as_bytes())
}

fn list(serin: &Serin, query: &str) -> Value {
    let answer = ask(serin, "lena", &format!("GET /api/v1/sessions{query}"), "");
    assert_eq!(answer.status, 200, "{query}: {}", answer.text());
    assert!(!answer.text().contains(MARKER), "a list holds what was said");
    answer.json()
}

/// The conversation with the marker.
fn marked(serin: &Serin) -> String {
    let found = list(serin, "?model=m");
    found["sessions"][0]["id"].as_str().unwrap().to_owned()
}

fn audit_lines(serin: &Serin) -> Vec<Value> {
    let text = std::fs::read_to_string(serin.dir.path().join("data/audit.jsonl")).unwrap();
    assert!(!text.contains(MARKER), "what was recorded stands in the audit log");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn lists_are_filtered_and_go_on_where_they_ended() {
    let (_upstream, serin) = recorded();
    let ids = |found: &Value| {
        let sessions = found["sessions"].as_array().unwrap();
        sessions.iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let all = list(&serin, "");
    assert_eq!((ids(&all).len(), &all["cursor"]), (2, &Value::Null));
    assert_eq!(all["sessions"][1]["turns"], 2, "{all:#}");
    let first = list(&serin, "?limit=1");
    let cursor = first["cursor"].as_str().unwrap();
    let second = list(&serin, &format!("?limit=1&cursor={cursor}"));
    assert_eq!([ids(&first), ids(&second)].concat(), ids(&all));
    assert_eq!(ids(&list(&serin, "?model=oth*")), ids(&first));
    for nothing in ["?flag=error", "?upstream=elsewhere", "?until=2020-01-01T00:00:00Z", "?canary=true"] {
        let answer = ask(&serin, "lena", &format!("GET /api/v1/sessions{nothing}"), "");
        let empty = answer.status == 404 || answer.json()["sessions"].as_array().is_some_and(Vec::is_empty);
        assert!(empty, "{nothing}: {}", answer.text());
    }
    for (query, says) in [
        ("?modell=m", "modell"),
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?since=soon", "since"),
        ("?flag=invented", "invented"),
        ("?cursor=x", "cursor"),
    ] {
        let answer = ask(&serin, "lena", &format!("GET /api/v1/sessions{query}"), "");
        assert_eq!(answer.status, 400, "{query}");
        let error = answer.json()["error"].clone();
        assert!(error["message"].as_str().unwrap().contains(says), "{query}: {error}");
        assert!(error["where"].is_string() && error["remedy"].is_string(), "{query}: {error}");
    }
}

#[test]
fn what_was_said_is_for_its_scope_and_every_reading_is_written_down() {
    let (_upstream, serin) = recorded();
    let id = marked(&serin);
    let path = format!("GET /api/v1/sessions/{id}");
    let outline = ask(&serin, "lena", &path, "");
    assert_eq!((outline.status, outline.json()["turns"].as_array().unwrap().len()), (200, 2));
    assert!(!outline.text().contains(MARKER), "without bodies");
    let turn = outline.json()["turns"][1]["id"].as_str().unwrap().to_owned();
    let bodies = format!("{path}?bodies=true");
    let request = format!("GET /api/v1/turns/{turn}/request");
    assert!(!serin.dir.path().join("data/audit.jsonl").exists(), "nothing was read yet");
    for (who, what) in [("lena", &bodies), ("lena", &request), ("scraper", &path)] {
        let refused = ask(&serin, who, what, "");
        assert_eq!(refused.status, 403, "{who}: {what}");
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains("scope"), "{}", refused.text());
    }
    assert!(ask(&serin, "carl", &bodies, "").text().contains(MARKER));
    let body = ask(&serin, "carl", &request, "");
    assert!(body.text().contains("and now?") && body.header("x-serin-capture") == Some("whole"));
    assert_eq!(ask(&serin, "carl", "DELETE /api/v1/subjects/default/conv/x", "").status, 403);
    let told: Vec<_> = audit_lines(&serin)
        .iter()
        .map(|line| ["who", "action", "id", "outcome"].map(|key| line[key].as_str().unwrap().to_owned()))
        .collect();
    let line =
        |who: &str, action: &str, id: &str, outcome: &str| [who, action, id, outcome].map(str::to_owned);
    assert_eq!(
        told,
        [
            line("lena", "read conversation", &id, "refused"),
            line("lena", "read request", &turn, "refused"),
            line("scraper", "read conversation", &id, "refused"),
            line("carl", "read conversation", &id, "given"),
            line("carl", "read request", &turn, "given"),
            line("carl", "delete", "conversation/x", "refused"),
        ]
    );
    chain_holds_until_a_line_is_changed(serin.dir.path());
}

fn chain_holds_until_a_line_is_changed(dir: &Path) {
    let audit = || program::run(dir, &["journal", "audit"]);
    assert_eq!(audit().status.code(), Some(0));
    let file = dir.join("data/audit.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("lena", "carl", 1)).unwrap();
    let found = audit();
    let says = String::from_utf8_lossy(&found.stderr).into_owned();
    assert_eq!(found.status.code(), Some(1), "{says}");
    assert!(says.contains("line 2: it does not name the line before it"), "{says}");
}

#[test]
fn what_cannot_be_written_down_is_not_given_out() {
    let (_upstream, serin) = recorded();
    let id = marked(&serin);
    // A folder where the log should be stands for a disk that refuses it.
    std::fs::create_dir(serin.dir.path().join("data/audit.jsonl")).unwrap();
    let answer = ask(&serin, "carl", &format!("GET /api/v1/sessions/{id}?bodies=true"), "");
    assert_eq!(answer.status, 500);
    assert!(!answer.text().contains(MARKER) && answer.text().contains("audit"), "{}", answer.text());
    let erased = ask(&serin, "ann", &format!("DELETE /api/v1/subjects/default/conv/{id}"), "");
    assert_eq!((erased.status, marked(&serin)), (500, id));
}

#[test]
fn bodies_are_read_in_parts() {
    let (_upstream, serin) = recorded();
    let id = marked(&serin);
    let outline = ask(&serin, "carl", &format!("GET /api/v1/sessions/{id}"), "").json();
    let turn = outline["turns"][0]["id"].as_str().unwrap();
    let part = |headers: &str| ask(&serin, "carl", &format!("GET /api/v1/turns/{turn}/response"), headers);
    let body = part("");
    assert_eq!((body.status, body.header("accept-ranges")), (200, Some("bytes")));
    assert_eq!(body.header("x-content-type-options"), Some("nosniff"));
    let len = body.body.len();
    let some = part("Range: bytes=3-11\r\n");
    assert_eq!((some.status, &some.body[..]), (206, &body.body[3..12]));
    assert_eq!(some.header("content-range"), Some(format!("bytes 3-11/{len}").as_str()));
    let end = part("Range: bytes=-5\r\n");
    assert_eq!((end.status, &end.body[..]), (206, &body.body[len - 5..]));
    let past = part(&format!("Range: bytes={len}-\r\n"));
    assert_eq!((past.status, past.header("content-range")), (416, Some(format!("bytes */{len}").as_str())));
    let stale = part("Range: bytes=3-11\r\nIf-Range: \"of-another\"\r\n");
    assert_eq!((stale.status, stale.body.len()), (200, len));
    let etag = body.header("etag").unwrap();
    assert_eq!(part(&format!("Range: bytes=3-11\r\nIf-Range: {etag}\r\n")).status, 206);
    assert_eq!(ask(&serin, "carl", "GET /api/v1/turns/nobody/response", "").status, 404);
}

#[test]
fn what_is_erased_over_the_admin_side_is_gone_and_has_a_receipt() {
    let (_upstream, mut serin) = recorded();
    let id = marked(&serin);
    let erased = ask(&serin, "ann", &format!("DELETE /api/v1/subjects/default/conv/{id}"), "");
    assert_eq!(erased.status, 202, "{}", erased.text());
    let erasure = erased.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(ask(&serin, "ann", &format!("GET /api/v1/sessions/{id}"), "").status, 404);
    assert_eq!(list(&serin, "")["sessions"].as_array().unwrap().len(), 1);
    let receipt = eventually("a receipt", || {
        let told = ask(&serin, "lena", &format!("GET /api/v1/erasures/{erasure}"), "").json();
        (told["state"] == "rewritten").then(|| told["receipt"].clone())
    });
    assert_eq!(receipt["exchanges"], 2, "{receipt}");
    for (path, status) in [
        (format!("default/conv/{id}"), 404),
        ("elsewhere/conv/x".to_owned(), 404),
        ("default/colour/x".to_owned(), 404),
    ] {
        let answer = ask(&serin, "ann", &format!("DELETE /api/v1/subjects/{path}"), "");
        assert_eq!(answer.status, status, "{path}: {}", answer.text());
    }
    let outcomes: Vec<_> = audit_lines(&serin).iter().map(|line| line["outcome"].clone()).collect();
    assert_eq!(outcomes[..2], [json!("begun"), json!("tombstoned")]);
    let left = journal::exchanges(&mut serin);
    assert_eq!(left.len(), 1, "the other conversation stays");
    assert!(!String::from_utf8_lossy(&left[0].request_body).contains(MARKER));
}

#[test]
fn a_conversation_is_erased_from_the_command_line_where_nobody_records() {
    let (_upstream, mut serin) = recorded();
    let id = marked(&serin);
    let dir = serin.dir.path().to_owned();
    let delete = || program::run(&dir, &["sessions", "delete", &format!("conversation/{id}")]);
    let busy = delete();
    let says = String::from_utf8_lossy(&busy.stderr).into_owned();
    assert_eq!(busy.status.code(), Some(74), "{says}");
    assert!(says.contains(&format!("DELETE /api/v1/subjects/default/conv/{id}")), "{says}");
    serin.stop();
    let done = delete();
    let says = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && says.contains("2 exchanges gone"), "{done:?}");
    assert_eq!(delete().status.code(), Some(66), "there is none any more");
    assert_eq!(journal::exchanges(&mut serin).len(), 1);
}

#[test]
fn who_is_let_in_learns_how_the_recorder_does() {
    let (_upstream, serin) = recorded();
    for path in ["/healthz", "/readyz"] {
        let told = ask(&serin, "scraper", &format!("GET {path}"), "").json();
        assert_eq!(told["recorder"]["state"], "recording", "{told}");
        assert_eq!(told["recorder"]["ledger"]["full"], 3, "{told}");
        assert_eq!(wire::get(serin.admin(), path).json()["recorder"], Value::Null, "{path} without a token");
    }
    let off = Serin::start("[record]\nenabled = false\n");
    assert_eq!(wire::get(off.admin(), "/readyz").json()["recorder"]["state"], "off");
}
