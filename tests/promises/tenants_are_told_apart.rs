//! Whose a request is decides what is kept of it, where, and who finds it again; a tenant that takes all of its memory
//! takes nothing of another's.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};
use serin::journal::{Capture, Level};

use crate::records_hold_what_they_may::{SECRET, WORDS, all, asked};
use crate::support::journal::of_tenant;
use crate::support::upstream::{Upstream, whole};
use crate::support::wire::{self, Answer, post};
use crate::support::{Serin, base, eventually, program};

/// Files of keys, one for each tenant: of tenant `a` the key is `key-of-a`.
struct Keys(tempfile::TempDir);

impl Keys {
    fn of(names: &[&str]) -> Keys {
        let keys = Keys(tempfile::tempdir().unwrap());
        names
            .iter()
            .for_each(|name| std::fs::write(keys.path(name), format!("# {name}\nkey-of-{name}\n")).unwrap());
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A section for a tenant.
    fn section(&self, name: &str, more: &str) -> String {
        format!("[[tenant]]\nname = \"{name}\"\nkeys_file = {:?}\n{more}\n", self.path(name))
    }
}

fn ask(serin: &Serin, headers: &str, content: &str) -> Answer {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": content}]}).to_string();
    wire::send(serin.traffic(), &post("/v1/chat/completions", headers, body.as_bytes()))
}

fn turns(serin: &Serin, tenant: &str, outcome: &str) -> f64 {
    let series = format!("serin_recorder_tenant_turns_total{{outcome=\"{outcome}\",tenant=\"{tenant}\"}}");
    serin.metric(&series).unwrap_or(0.0)
}

#[test]
fn the_least_of_a_tenants_policy_and_a_wish_is_kept_through_every_interface() {
    let keys = Keys::of(&["a", "b"]);
    let b = keys.section("b", "mode = \"off\"");
    for (record, tenant, wish, kept) in [
        ("full", "mode = \"hash\"", "", (true, false, false, true)),
        ("full", "mode = \"redacted\"", "full", (true, true, false, true)),
        ("meta", "mode = \"full\"", "", (true, true, true, true)),
        ("off", "mode = \"full\"", "meta", (true, false, false, false)),
        ("full", "mode = \"redacted\"", "hash", (true, false, false, true)),
        ("full", "mode = \"off\"", "full", (false, false, false, false)),
        ("full", "", "off", (false, false, false, false)),
        ("full", "mode = \"redacted\"\nopt_out = false", "off", (true, true, false, true)),
        ("full\"\nopt_out = false#", "mode = \"hash\"\nopt_out = true", "meta", (true, false, false, false)),
    ] {
        let settings = format!("[record]\nmode = \"{record}\"\n{}{b}", keys.section("a", tenant));
        let wish = if wish.is_empty() { String::new() } else { format!("x-serin-record: {wish}\r\n") };
        let case = format!("{record} {tenant} {wish}");
        let mut serin = asked(&settings, &format!("Authorization: Bearer key-of-a\r\n{wish}"), |_| {});
        serin.stop();
        let (recorded, words, secret, hashes) = kept;
        let records = of_tenant(&serin, "a");
        assert_eq!(records.len(), if recorded { 10 } else { 0 }, "{case}");
        for record in &records {
            let text = all(record);
            assert_eq!((text.contains(WORDS), text.contains(SECRET)), (words, secret), "{case}: {text}");
            assert_eq!(!record.request_body_hash.is_empty(), hashes, "{case}");
            let captured = [record.request_capture(), record.response_capture()];
            assert_eq!(captured == [Capture::Whole; 2], words, "{case}");
        }
        assert_eq!([of_tenant(&serin, "b").len(), of_tenant(&serin, "default").len()], [0, 0], "{case}");
    }
}

#[test]
fn what_a_tenant_asks_not_to_store_is_kept_as_that_tenant_has_it() {
    let keys = Keys::of(&["a", "b"]);
    let sections = keys.section("a", "unstored = \"redacted\"") + &keys.section("b", "");
    for (name, kept) in [("a", true), ("b", false)] {
        let header = format!("x-api-key: key-of-{name}\r\n");
        let mut serin = asked(&sections, &header, |body| body["store"] = json!(false));
        serin.stop();
        let records = of_tenant(&serin, name);
        assert_eq!(records.len(), 10);
        assert!(records.iter().all(|record| all(record).contains(WORDS) == kept), "{name}");
    }
}

#[test]
fn a_tenant_whose_memory_is_spent_costs_no_other_a_body() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let shut = gate.clone();
    let upstream = Upstream::start(move |_, out| {
        let open = shut.1.wait_while(shut.0.lock().unwrap(), |open| !*open);
        drop(open);
        out.write_all(&whole("200 OK", "application/json", b"{\"choices\":[]}")).is_ok()
    });
    let keys = Keys::of(&["a", "b"]);
    let sections = keys.section("a", "memory = \"1MiB\"") + &keys.section("b", "");
    let mut serin = Serin::before(upstream.address, &format!("{sections}[limits]\nbody_copy = \"1MiB\"\n"));
    let mut clients = Vec::new();
    for (number, name) in (1..).zip(["a", "a", "b", "b"]) {
        let content = "x".repeat(600_000);
        let body = json!({"messages": [{"role": "user", "content": content}]}).to_string();
        let header = format!("Authorization: Bearer key-of-{name}\r\n");
        let mut client = wire::connect(serin.traffic());
        client.write_all(&post("/v1/chat/completions", &header, body.as_bytes())).unwrap();
        eventually("it has gone up", || (upstream.received().len() == number).then_some(()));
        clients.push(client);
    }
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    clients.iter_mut().for_each(|client| assert_eq!(wire::read_answer(client).status, 200));
    assert!(upstream.received().iter().all(|request| request.body.len() > 600_000), "traffic is whole");
    serin.stop();
    let levels =
        |name| of_tenant(&serin, name).iter().map(|record| record.record_level()).collect::<Vec<_>>();
    let mut spent = levels("a");
    spent.sort_by_key(|level| *level as i32);
    assert_eq!(spent, [Level::Full, Level::Shape], "a's second body does not fit into its share");
    assert_eq!(levels("b"), [Level::Full, Level::Full]);
}

#[test]
fn keys_are_read_again_at_a_reload_and_other_tenants_need_a_restart() {
    let upstream = Upstream::canned(whole("200 OK", "application/json", b"{\"choices\":[]}"));
    let keys = Keys::of(&["a", "b"]);
    let door = "header = \"x-front-door\"\nvalue = \"b\"";
    let sections = keys.section("a", "") + &keys.section("b", door);
    let alone = "[fallback]\nfor = []\n";
    let settings = format!("[[upstream]]\nname = \"r\"\nurl = \"http://{}\"\n{sections}", upstream.address);
    let mut serin = Serin::start(&format!("{settings}{alone}"));
    let mut sent = [0.0; 3];
    let mut goes = |serin: &Serin, headers: &str, to: usize| {
        assert_eq!(ask(serin, headers, "hello").status, 200);
        sent[to] += 1.0;
        eventually(&format!("{headers:?} goes to {to}"), || {
            (["default", "a", "b"].map(|name| turns(serin, name, "full")) == sent).then_some(())
        });
    };
    goes(&serin, "Authorization: Bearer key-of-a\r\n", 1);
    goes(&serin, "X-Front-Door: b\r\n", 2);
    assert_eq!(upstream.received().pop().unwrap().headers("x-front-door"), ["b"], "it goes on as it came");
    goes(&serin, "Authorization: Bearer new-key\r\n", 0);
    std::fs::write(keys.path("a"), "new-key\n").unwrap();
    goes(&serin, "Authorization: Bearer new-key\r\n", 0);
    let reloaded = wire::reload(serin.admin());
    assert_eq!(
        (reloaded.status, reloaded.json()["changed"].clone()),
        (200, json!([])),
        "{}",
        reloaded.text()
    );
    goes(&serin, "Authorization: Bearer new-key\r\n", 1);
    goes(&serin, "Authorization: Bearer key-of-a\r\n", 0);

    std::fs::write(keys.path("b"), "new-key\n").unwrap();
    let twice = wire::reload(serin.admin());
    assert_eq!(twice.status, 422, "{}", twice.text());
    assert!(twice.text().contains("this key is") && !twice.text().contains("new-key"), "{}", twice.text());
    std::fs::remove_file(keys.path("b")).unwrap();
    assert_eq!(wire::reload(serin.admin()).status, 500, "a file that is gone");
    goes(&serin, "Authorization: Bearer key-of-b\r\n", 2);
    std::fs::write(keys.path("b"), "").unwrap();
    serin.rewrite(&format!("{settings}{}{alone}", keys.section("c", "")));
    let third = wire::reload(serin.admin());
    assert_eq!(third.status, 422);
    assert!(
        third.text().contains("[[tenant]] cannot change while Serin runs; restart it"),
        "{}",
        third.text()
    );
    goes(&serin, "Authorization: Bearer new-key\r\n", 1);
    serin.stop();
    let counts = ["default", "a", "b"].map(|name| of_tenant(&serin, name).len() as f64);
    assert_eq!(counts, sent, "each lies where it was counted");
}

/// Writes a configuration and has it checked.
fn checked(dir: &Path, text: &str) -> (Option<i32>, String) {
    std::fs::write(dir.join("config.toml"), base(dir, text)).unwrap();
    let output = program::run(dir, &["check-config"]);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn tenants_that_cannot_be_told_apart_are_refused_in_one_line() {
    let keys = Keys::of(&["a", "b"]);
    let both = keys.section("a", "") + &keys.section("b", "");
    assert_eq!(checked(keys.0.path(), &both).0, Some(0));
    std::fs::write(keys.path("b"), "key-of-b\n\nkey-of-a\n").unwrap();
    let (code, says) = checked(keys.0.path(), &both);
    assert_eq!(code, Some(64), "{says}");
    assert!(says.contains("line 3: this key is \"a\"'s as well; a key belongs to one tenant"), "{says}");
    assert!(says.starts_with("serin: [[tenant]] name = \"b\": keys_file "), "{says}");
    assert!(says.lines().count() == 1 && !says.contains("key-of-a"), "{says}");
    std::fs::remove_file(keys.path("b")).unwrap();
    let (code, says) = checked(keys.0.path(), &both);
    assert_eq!((code, says.lines().count()), (Some(66), 1), "{says}");
    let own = keys.section("a", "key_file = \"no-such-key\"");
    let (code, says) = checked(keys.0.path(), &own);
    assert_eq!(code, Some(66), "{says}");
    assert!(says.starts_with("serin: [[tenant]] name = \"a\": key_file = \"no-such-key\": "), "{says}");
}

/// Two tenants, of whom the first is told that it has said nothing before; and somebody of neither.
fn recorded(keys: &Keys) -> (Upstream, Serin) {
    let message = json!({"role": "assistant", "content": "You have not told me who you are."});
    let answer =
        json!({"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    let upstream = Upstream::canned(whole("200 OK", "application/json", answer.to_string().as_bytes()));
    let serin = Serin::before(upstream.address, &(keys.section("a", "") + &keys.section("b", "")));
    for (name, words) in [("a", "a-planted-word"), ("b", "b-planted-word"), ("nobody", "another word")] {
        let messages = json!([
            {"role": "user", "content": format!("I am Ada, {words}")},
            {"role": "assistant", "content": "Hello Ada."},
            {"role": "user", "content": "who am I?"},
        ]);
        let body = json!({"model": "m", "messages": messages}).to_string();
        let header = format!("Authorization: Bearer key-of-{name}\r\n");
        wire::send(serin.traffic(), &post("/v1/chat/completions", &header, body.as_bytes()));
    }
    for name in ["a", "b", "default"] {
        eventually("a record of each", || (turns(&serin, name, "full") == 1.0).then_some(()));
    }
    (upstream, serin)
}

fn api(serin: &Serin, method: &str, path: &str) -> Answer {
    let request = format!("{method} /api/v1/{path} HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    wire::send(serin.admin(), request.as_bytes())
}

/// The id of the one conversation that a list holds.
fn only(list: &Value) -> String {
    let sessions = list["sessions"].as_array().unwrap();
    assert_eq!(sessions.len(), 1, "{list}");
    sessions[0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_tenants_recordings_are_read_and_erased_by_its_name() {
    let keys = Keys::of(&["a", "b"]);
    let (_upstream, serin) = recorded(&keys);
    let list = |query: &str| api(&serin, "GET", &format!("sessions{query}"));
    let ids = ["?tenant=a", "?tenant=b", "?tenant=default"].map(|query| only(&list(query).json()));
    assert_eq!(only(&list("").json()), ids[2]);
    eventually("what was found is with whose turn it is", || {
        (list("?tenant=a&flag=denied_context").json()["sessions"].as_array()?.len() == 1).then_some(())
    });
    for (query, status, says) in [
        ("?tenant=c", 404, "there is no tenant \\\"c\\\"; there is default, a, b"),
        ("?tenant=a&canary=true", 400, "canaries belong to no tenant"),
    ] {
        let refused = list(query);
        assert_eq!(refused.status, status, "{}", refused.text());
        assert!(refused.text().contains(says), "{}", refused.text());
    }
    let body = api(&serin, "GET", &format!("turns/{}/request?tenant=a", ids[0]));
    assert!(body.status == 200 && body.text().contains("a-planted-word"), "{}", body.text());
    for other in ["", "?tenant=b"] {
        assert_eq!(api(&serin, "GET", &format!("turns/{}/request{other}", ids[0])).status, 404);
        assert_eq!(api(&serin, "GET", &format!("sessions/{}{other}", ids[0])).status, 404);
    }
    for tenant in ["b", "default", "c"] {
        let answer = api(&serin, "DELETE", &format!("subjects/{tenant}/conv/{}", ids[0]));
        assert_eq!(answer.status, 404, "{}", answer.text());
    }
    let erased = api(&serin, "DELETE", &format!("subjects/a/conv/{}", ids[0]));
    assert_eq!(erased.status, 202, "{}", erased.text());
    let erasure = erased.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(api(&serin, "GET", &format!("erasures/{erasure}")).status, 404);
    eventually("its bytes are gone", || {
        let told = api(&serin, "GET", &format!("erasures/{erasure}?tenant=a")).json();
        (told["state"] == "rewritten").then_some(())
    });
    assert_eq!(list("?tenant=a").json()["sessions"], json!([]));
    assert_eq!(["?tenant=b", ""].map(|query| only(&list(query).json())), [ids[1].clone(), ids[2].clone()]);
    let audit = std::fs::read_to_string(serin.dir.path().join("data/audit.jsonl")).unwrap();
    assert!(audit.contains(&format!("tenant/a conversation/{}", ids[0])), "{audit}");
    assert!(audit.contains(&format!("tenant/a {}", ids[0])), "{audit}");
}

#[test]
fn commands_are_about_the_tenant_that_is_named() {
    let keys = Keys::of(&["a", "b"]);
    let (_upstream, mut serin) = recorded(&keys);
    serin.stop();
    let dir = serin.dir.path();
    let run = |arguments: &[&str]| {
        let output = program::run(dir, arguments);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let ids = ["a", "b", "default"].map(|name| {
        let (code, lines, _) = run(&["sessions", "list", "--json", "--tenant", name]);
        assert_eq!((code, lines.lines().count()), (Some(0), 1), "{lines}");
        serde_json::from_str::<Value>(&lines).unwrap()["id"].as_str().unwrap().to_owned()
    });
    assert!(run(&["sessions", "list", "--json"]).1.contains(&ids[2]));
    assert!(run(&["sessions", "show", &ids[0], "--tenant", "a"]).1.contains("a-planted-word"));
    assert_eq!(run(&["sessions", "show", &ids[0], "--tenant", "b"]).0, Some(66));
    let (code, _, says) = run(&["sessions", "list", "--tenant", "c"]);
    assert_eq!((code, says.as_str()), (Some(2), "serin: there is no tenant \"c\"; there is default, a, b\n"));
    assert_eq!(run(&["sessions", "list", "--tenant", "a", "--canary"]).0, Some(2));

    let journals = |text: &str| text.lines().filter(|line| line.ends_with(": sound")).count();
    let (code, text, _) = run(&["journal", "verify"]);
    assert_eq!((code, journals(&text)), (Some(0), 4), "canaries' as well: {text}");
    for command in ["rebuild", "restitch", "verify"] {
        let (code, text, says) = run(&["journal", command, "--tenant", "b"]);
        let about = text.lines().filter(|line| line.contains("/data")).collect::<Vec<_>>();
        assert_eq!((code, about.len()), (Some(0), 1), "{text}{says}");
        assert!(about[0].contains("data/tenants/b: "), "{text}");
    }
    std::fs::create_dir_all(dir.join("data/tenants/gone/epoch-2025-12-02")).unwrap();
    let (code, text, says) = run(&["journal", "verify"]);
    assert_eq!((code, journals(&text)), (Some(0), 4));
    assert!(says.contains("tenants/gone belongs to no [[tenant]]"), "{says}");

    let (code, text, says) =
        run(&["sessions", "delete", &format!("conversation/{}", ids[1]), "--tenant", "b"]);
    assert!(code == Some(0) && text.contains("1 exchanges gone"), "{text}{says}");
    assert_eq!(run(&["sessions", "list", "--json", "--tenant", "b"]).1, "");
    let file = dir.join("talks.json");
    std::fs::write(&file, r#"{"conversations":[{"from":"human","value":"x"},{"from":"gpt","value":"y"}]}"#)
        .unwrap();
    assert_eq!(run(&["sessions", "import", "--tenant", "b", file.to_str().unwrap()]).0, Some(0));
    let count = |name| run(&["sessions", "list", "--json", "--tenant", name]).1.lines().count();
    assert_eq!(["a", "b", "default"].map(count), [1, 1, 1]);
}
