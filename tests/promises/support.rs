//! What the promises are tested with: Serin in this process or as a program, a scripted upstream, and a raw client.

pub mod api;
pub mod certificates;
pub mod h2;
pub mod http2_upstream;
pub mod journal;
pub mod peer;
pub mod program;
pub mod upstream;
pub mod wire;

use std::path::Path;
use std::time::Duration;

use serin::app::{App, Setup};
use serin::config::Config;

/// Waits until `done` yields something; a promise that is not kept within half a minute is broken.
pub fn eventually<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begun = serin::clock::now();
    loop {
        if let Some(found) = done() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "waited in vain for: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// How much larger than in CI the long tests are to be: `SERIN_TEST_SCALE`, 1 unless it is set.
pub fn scale() -> usize {
    match std::env::var("SERIN_TEST_SCALE") {
        Ok(text) => text.parse().unwrap_or_else(|error| panic!("SERIN_TEST_SCALE={text}: {error}")),
        Err(_) => 1,
    }
}

/// An address where nothing listens, and where nothing will: it is taken until the tests are over.
pub fn nowhere() -> std::net::SocketAddr {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
    let taken = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&taken, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&taken).unwrap()).unwrap();
    std::mem::forget(taken);
    address
}

/// Serin in this process, on free ports, recording into a directory of its own.
pub struct Serin {
    app: Option<App>,
    pub dir: tempfile::TempDir,
}

impl Serin {
    /// Starts with `extra` behind a base that listens on free ports, probes nothing and fetches no model.
    pub fn start(extra: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, base(dir.path(), extra)).unwrap();
        let config = Config::read(&file).unwrap();
        let setup = Setup { file: Some(file), ..Setup::default() };
        let app = App::start_with(config, setup).unwrap_or_else(|fault| panic!("{fault}"));
        Self { app: Some(app), dir }
    }

    /// Writes another configuration where this one was read from.
    pub fn rewrite(&self, extra: &str) {
        std::fs::write(self.dir.path().join("config.toml"), base(self.dir.path(), extra)).unwrap();
    }

    /// In front of `address`, with no engine behind it.
    pub fn before(address: std::net::SocketAddr, extra: &str) -> Self {
        let upstream = format!("[[upstream]]\nname = \"router\"\nurl = \"http://{address}\"\n");
        Self::start(&format!("{upstream}{extra}\n[fallback]\nfor = []\n"))
    }

    fn app(&self) -> &App {
        self.app.as_ref().expect("not stopped yet")
    }

    pub fn traffic(&self) -> std::net::SocketAddr {
        self.app().traffic
    }

    pub fn admin(&self) -> std::net::SocketAddr {
        self.app().admin
    }

    pub fn metrics(&self) -> String {
        String::from_utf8(wire::get(self.admin(), "/metrics").body).unwrap()
    }

    /// Every registered metric family.
    pub fn families(&self) -> Vec<serin::metrics::Family> {
        self.app().metrics.families()
    }

    /// The value of one series, written as in the exposition.
    pub fn metric(&self, series: &str) -> Option<f64> {
        value(&self.metrics(), series)
    }

    /// Waits until a series has at least this value.
    pub fn reaches(&self, series: &str, least: f64) -> f64 {
        eventually(&format!("{series} >= {least}"), || self.metric(series).filter(|found| *found >= least))
    }

    /// Drains, stops and makes everything durable; the directory stays.
    pub fn stop(&mut self) {
        if let Some(app) = self.app.take() {
            app.stop();
        }
    }
}

impl Drop for Serin {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The value of one series in an exposition.
pub fn value(exposition: &str, series: &str) -> Option<f64> {
    let line = exposition
        .lines()
        .find(|line| line.strip_prefix(series).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A configuration that keeps to itself.
pub fn base(dir: &Path, extra: &str) -> String {
    let mut text = extra.to_owned();
    let own = format!("dir = {:?}\n", dir.join("data"));
    for (section, key) in [
        ("[listen]", "address = \"127.0.0.1:0\"\n"),
        ("[admin]", "address = \"127.0.0.1:0\"\n"),
        ("[record]", own.as_str()),
        ("[canary]", "enabled = false\n"),
        ("[fallback]", "model = \"\"\n"),
    ] {
        // A section may stand once only: what the test says goes first, and keys it sets itself are not set again.
        match text.find(section) {
            None => text.push_str(&format!("\n{section}\n{key}")),
            Some(at) => {
                let name = key.split(' ').next().unwrap_or_default();
                let end = text[at + 1..].find("\n[").map_or(text.len(), |next| at + 1 + next);
                if !text[at..end].contains(&format!("\n{name} =")) {
                    text.insert_str(at + section.len(), &format!("\n{key}"));
                }
            }
        }
    }
    text
}
