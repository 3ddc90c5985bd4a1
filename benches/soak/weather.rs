//! What goes wrong around the proxy while it works: the upstream restarts, the disk refuses, the configuration is read anew.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::dice::Dice;
use crate::process::config;

/// How long after a restart failures are still its consequence: connections that died unseen.
const AFTERMATH: Duration = Duration::from_millis(1_500);
/// How long an open breaker may refuse after it: its trials are spaced, and some of them are exchanges that fail by plan.
const DOUBT: Duration = Duration::from_secs(6);

/// When the upstream was last away; clients' failures then are excused. Cheap to clone.
#[derive(Clone, Default)]
pub struct Sky(Arc<Mutex<Past>>);

#[derive(Clone, Copy, Default)]
pub struct Past {
    away_until: Option<Instant>,
    pub restarts: u64,
    pub disk_faults: u64,
    pub reloads: u64,
    /// Trouble that could not be made, or not be ended.
    pub failed: u64,
}

/// What is written anew before each reload.
#[derive(Clone)]
pub struct Reload {
    pub file: PathBuf,
    pub upstream: SocketAddr,
}

impl Sky {
    fn with<T>(&self, change: impl FnOnce(&mut Past) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the upstream was away at any time since then, so that an exchange may have failed by it.
    pub fn was_stormy(&self, since: Instant) -> bool {
        self.with(|past| past.away_until.is_some_and(|until| until + AFTERMATH > since))
    }

    /// The same for being refused without a try.
    pub fn was_doubtful(&self, since: Instant) -> bool {
        self.with(|past| past.away_until.is_some_and(|until| until + DOUBT > since))
    }

    /// A soak whose weather fails proves less than it says.
    fn note(&self, what: &str, made: std::io::Result<()>) {
        if let Err(error) = made {
            eprintln!("soak: {what}: {error}");
            self.with(|past| past.failed += 1);
        }
    }

    pub fn past(&self) -> Past {
        self.with(|past| *past)
    }
}

/// Makes weather until it is dropped; whatever trouble it was in the middle of, [`clear`] ends.
pub async fn blow(sky: Sky, mut dice: Dice, up: watch::Sender<bool>, pid: Pid, reload: Option<Reload>) {
    loop {
        sleep(dice.millis(700, 2_500)).await;
        match dice.between(0, if reload.is_some() { 3 } else { 2 }) {
            0 => {
                let away = dice.millis(50, 400);
                sky.with(|past| {
                    past.restarts += 1;
                    past.away_until = Some(Instant::now() + away);
                });
                up.send_replace(false);
                sleep(away).await;
                up.send_replace(true);
            }
            1 => {
                sky.with(|past| past.disk_faults += 1);
                disk(&sky, pid, Some(1));
                sleep(dice.millis(100, 900)).await;
                disk(&sky, pid, None);
            }
            _ => {
                let turn = sky.with(|past| {
                    past.reloads += 1;
                    past.reloads
                });
                let Some(Reload { file, upstream }) = &reload else { continue };
                let asked = std::fs::write(file, config(*upstream, turn))
                    .and_then(|()| Ok(kill_process(pid, Signal::HUP)?));
                sky.note("a reload cannot be asked for", asked);
            }
        }
    }
}

/// Ends all trouble.
pub fn clear(sky: &Sky, up: &watch::Sender<bool>, pid: Pid) {
    up.send_replace(true);
    disk(sky, pid, None);
}

/// The largest size of a file the process may write; this stands for a disk that is full.
fn disk(sky: &Sky, pid: Pid, most: Option<u64>) {
    let set = prlimit(Some(pid), Resource::Fsize, Rlimit { current: most, maximum: None });
    sky.note("the disk cannot be made to fail, or to work again", set.map(drop).map_err(Into::into));
}
