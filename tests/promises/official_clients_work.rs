//! The official clients talk to Serin as to any server.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use crate::support::peer::{self, ANTHROPIC, OPENAI};
use crate::support::{Serin, api, eventually};

#[test]
fn three_turns_whole_and_streamed() {
    let serin = Serin::start("");
    let said = peer::run_python(OPENAI, "python/three_turns.py", &[format!("http://{}/v1", serin.traffic())]);
    assert_eq!(said, "ok");
}

#[test]
fn the_messages_api_passes_and_our_errors_have_its_form() {
    let upstream = api::upstream();
    let nowhere = crate::support::nowhere();
    let (up, down) = (Serin::before(upstream.address, ""), Serin::before(nowhere, ""));
    let urls = [up.traffic(), down.traffic()].map(|address| format!("http://{address}"));
    assert_eq!(peer::run_python(ANTHROPIC, "python/anthropic_errors.py", &urls), "ok");
}

/// What a client understands is the same through Serin as direct.
fn same(run: impl Fn(&[String]) -> String) {
    let upstream = api::upstream();
    let serin = Serin::before(upstream.address, "");
    let [direct, through] =
        [upstream.address, serin.traffic()].map(|address| run(&[format!("http://{address}")]));
    assert!(direct.len() > 500, "{direct}");
    assert_eq!(direct, through);
}

#[test]
fn openai_for_python_understands_the_same() {
    same(|arguments| peer::run_python(OPENAI, "python/openai_all.py", arguments));
}

#[test]
fn anthropic_for_python_understands_the_same() {
    same(|arguments| peer::run_python(ANTHROPIC, "python/anthropic_all.py", arguments));
}

#[test]
fn openai_for_node_understands_the_same() {
    same(|arguments| peer::run_node("node/openai_all.mjs", arguments));
}

#[test]
fn anthropic_for_node_understands_the_same() {
    same(|arguments| peer::run_node("node/anthropic_all.mjs", arguments));
}

/// Runs a client that leaves, for each API and phase; while it still lives the upstream must see its connection closed.
fn aborts(program: impl Fn() -> Command) {
    let upstream = api::upstream();
    let serin = Serin::before(upstream.address, "");
    for api in ["chat", "responses", "messages"] {
        for phase in ["whole", "silent", "stream"] {
            let (before, gone) = (upstream.received().len(), upstream.gone());
            let mut client = program();
            client.args([&format!("http://{}", serin.traffic()), api, phase]);
            let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            eventually("the request arrives", || (upstream.received().len() > before).then_some(()));
            if phase != "stream" {
                assert_eq!(upstream.gone(), gone);
                writeln!(client.stdin.as_mut().unwrap(), "leave").unwrap();
            }
            let mut said = String::new();
            BufReader::new(client.stdout.take().unwrap()).read_line(&mut said).unwrap();
            assert_eq!(said.trim(), "ok", "{api} {phase}");
            eventually("the upstream sees its connection closed", || (upstream.gone() > gone).then_some(()));
            assert!(client.try_wait().unwrap().is_none(), "{api} {phase}: the client was to stay");
            drop(client.stdin.take());
            client.wait().unwrap();
        }
    }
    serin.reaches("serin_proxy_requests_total{outcome=\"client_cancelled\",upstream=\"router\"}", 9.0);
    serin.reaches("serin_proxy_cancel_seconds_count{phase=\"pre_first_byte\"}", 6.0);
    serin.reaches("serin_proxy_cancel_seconds_count{phase=\"response_body\"}", 3.0);
}

#[test]
fn clients_for_python_that_leave_cancel_the_upstream() {
    aborts(|| {
        let mut command = Command::new(peer::python(&[OPENAI, ANTHROPIC].concat()));
        command.arg(peer::script("python/abort.py"));
        command
    });
}

#[test]
fn clients_for_node_that_leave_cancel_the_upstream() {
    aborts(|| {
        let mut command = Command::new("node");
        command.arg(peer::node_script("node/abort.mjs"));
        command
    });
}
