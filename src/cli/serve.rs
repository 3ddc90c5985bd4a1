//! `serin serve`

use std::io::IsTerminal;
use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, reload};

use crate::app::{App, Fault, Setup, code};
use crate::config::Config;

/// "File size limit exceeded" on Linux, on the architectures we run on.
const SIGXFSZ: i32 = 25;

/// Runs until it is told to stop, then drains. A second signal ends it at once; a hangup reads `file` again.
pub fn run(config: Config, file: PathBuf) -> Result<(), Fault> {
    let set_level = log_to_stderr(config.log.level());
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
    let app = App::start_with(config, Setup { file: Some(file), set_level: Some(Box::new(set_level)) })?;
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

/// Returns what changes the level later.
fn log_to_stderr(level: LevelFilter) -> impl Fn(LevelFilter) + Send + Sync + 'static {
    let (filter, handle) = reload::Layer::new(level);
    let lines = fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    tracing_subscriber::registry().with(filter).with(lines).init();
    move |level| {
        let _ = handle.reload(level);
    }
}
