//! `serin serve`

use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};

use super::lines;
use crate::app::{App, Fault, Setup, code};
use crate::config::Config;
use crate::log;

/// "File size limit exceeded" on Linux, on the architectures we run on.
const SIGXFSZ: i32 = 25;

/// Runs until it is told to stop, then drains. A second signal ends it at once; a hangup reads `file` again.
pub fn run(config: Config, file: PathBuf) -> Result<(), Fault> {
    let cannot = |error: std::io::Error| Fault::new(code::INTERNAL, format!("cannot start the log: {error}"));
    // Dropped at the very end, when everything has been said.
    let (log, _writing) = log::start(config.log.queue).map_err(cannot)?;
    let set_level = lines::install(log.clone(), config.log.level(), config.log.format);
    let internal =
        |error: std::io::Error| Fault::new(code::INTERNAL, format!("cannot wait for signals: {error}"));
    // Signals are caught before anything listens: one that comes early still drains.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal)?;
    let mut signals = {
        let _entered = runtime.enter();
        [
            signal(SignalKind::interrupt()).map_err(internal)?,
            signal(SignalKind::terminate()).map_err(internal)?,
        ]
    };
    // A file-size limit is a full disk to us: the write fails and is counted. Unhandled, this signal would end us.
    let _too_large = {
        let _entered = runtime.enter();
        signal(SignalKind::from_raw(SIGXFSZ)).map_err(internal)?
    };
    let mut hangup = {
        let _entered = runtime.enter();
        signal(SignalKind::hangup()).map_err(internal)?
    };
    if !file.exists() {
        tracing::info!("no {} here: every key has its default", file.display());
    }
    let app = App::start_with(config, Setup { file: Some(file), set_level: Some(Box::new(set_level)), log })?;
    runtime.block_on(async {
        loop {
            tokio::select! {
                biased;
                () = either(&mut signals) => break,
                // Whatever comes of it has been logged and counted.
                _ = hangup.recv() => drop(app.reload()),
            }
        }
    });
    tracing::info!("draining; a second signal ends it at once");
    let stopping =
        std::thread::Builder::new().name("serin-drain".into()).spawn(move || app.stop()).map_err(internal)?;
    runtime.block_on(async {
        while !stopping.is_finished() {
            tokio::select! {
                () = either(&mut signals) => {
                    return Err(Fault::new(code::FINDING, "stopped before everything had drained"));
                }
                () = tokio::time::sleep(std::time::Duration::from_millis(20)) => {}
            }
        }
        Ok(())
    })
}

async fn either([one, two]: &mut [tokio::signal::unix::Signal; 2]) {
    tokio::select! { _ = one.recv() => {} _ = two.recv() => {} }
}
