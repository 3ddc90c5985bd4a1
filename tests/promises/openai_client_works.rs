//! The official OpenAI client for Python talks to Serin as to any server.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

use crate::support::Serin;

const OPENAI: &str = "openai==3.57.0";

/// A virtual environment with the client in it, made once below `target/` from the package index.
fn python() -> PathBuf {
    static MADE: Once = Once::new();
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("openai");
    let python = root.join("bin/python");
    MADE.call_once(|| {
        let mark = root.join(OPENAI);
        if mark.exists() {
            return;
        }
        let run = |command: &mut Command| {
            let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
            assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&root));
        run(Command::new(&python).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            OPENAI,
        ]));
        std::fs::write(mark, "").unwrap();
    });
    python
}

#[test]
fn three_turns_whole_and_streamed() {
    let serin = Serin::start("");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/python/three_turns.py");
    let output = Command::new(python())
        .arg(script)
        .arg(format!("http://{}/v1", serin.traffic()))
        .env_remove("OPENAI_BASE_URL")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "ok");
}
