//! The chat model's way into the engine: fetched and opened on a thread of its own while everything else already runs.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use serin_engine::Model;

use super::{Fault, code};
use crate::upstream::embedded::{Chat, Config, Embedded};
use crate::upstream::fetch::{self, Source};

/// A fetch in progress.
pub struct Fetching {
    cancel: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Fetching {
    /// Starts getting a model that must be fetched; one from a path is in the engine already.
    pub fn start(embedded: Embedded, config: &Config, source: Source) -> Result<Self, Fault> {
        let cancel = Arc::new(AtomicBool::new(false));
        let (cancelled, sha256, name) = (cancel.clone(), config.sha256.clone(), config.model.clone());
        let run = move || bring(&embedded, &source, &sha256, &name, &cancelled);
        let thread = std::thread::Builder::new().name("serin-model".into()).spawn(run);
        let thread = thread.map_err(|error| Fault::new(code::INTERNAL, format!("cannot start: {error}")))?;
        Ok(Self { cancel, thread })
    }

    /// Ends the fetch, if it still runs.
    pub fn stop(self) {
        self.cancel.store(true, Relaxed);
        let _ = self.thread.join();
    }
}

/// Whether the model's name can be understood; nothing is opened or fetched.
pub fn check(config: &Config) -> Result<Option<Source>, Fault> {
    if config.model.is_empty() {
        return Ok(None);
    }
    let named = |error| Fault::new(code::CONFIG, format!("[fallback] model = {:?}: {error}", config.model));
    Source::parse(&config.model).map(Some).map_err(named)
}

/// Reads which model is wanted. One from a path is opened at once, because a mistake in it is a mistake in the
/// configuration; what must be fetched is returned and may take its time.
pub fn prepare(embedded: &Embedded, config: &Config) -> Result<Option<Source>, Fault> {
    let Some(source) = check(config)? else { return Ok(None) };
    let at = |error: String| format!("[fallback] model = {:?}: {error}", config.model);
    if let Source::Path(_) = &source {
        let opened =
            open(&source, &config.sha256).map_err(|error| Fault::new(code::UNREADABLE, at(error)))?;
        put(embedded, opened);
        return Ok(None);
    }
    // Before anything listens: nobody is to be answered by the stand-in only because the fetch has not begun.
    embedded.set_chat(Chat::Coming("starting".into()));
    Ok(Some(source))
}

fn bring(embedded: &Embedded, source: &Source, sha256: &str, name: &str, cancel: &AtomicBool) {
    let got = fetch::cache_dir().map_err(|error| error.to_string()).and_then(|cache| {
        let mut bar = Bar::new(name);
        let mut progress = |done, total| {
            if let Some(text) = bar.show(done, total) {
                embedded.set_chat(Chat::Coming(text));
            }
        };
        let file = fetch::fetch(source, sha256, &cache, cancel, &mut progress);
        bar.end();
        file.and_then(|file| Model::open(&file).map_err(|error| error.to_string()))
    });
    match got {
        Ok(model) => put(embedded, model),
        Err(_) if cancel.load(Relaxed) => {}
        Err(error) => {
            embedded.set_chat(Chat::Absent(error.clone()));
            tracing::warn!(
                "the chat model {name:?} cannot be had: {error}. The built-in reference model answers instead; it \
                 completes recall probes and is no assistant. Set [fallback] model to a GGUF file, or to \"\" to \
                 silence this"
            );
        }
    }
}

fn open(source: &Source, sha256: &str) -> Result<Model, String> {
    let file = fetch::fetch(source, sha256, Path::new(""), &AtomicBool::new(false), &mut |_, _| ())?;
    Model::open(&file).map_err(|error| error.to_string())
}

fn put(embedded: &Embedded, model: Model) {
    let name = model.name().to_owned();
    tracing::info!(model = %name, context = model.context_length(), "the chat model is ready");
    embedded.engine().add(model);
    embedded.set_chat(Chat::Ready(name));
}

/// Progress for people: a bar on a terminal, a log line every tenth elsewhere.
pub struct Bar {
    name: String,
    terminal: bool,
    last: u64,
}

impl Bar {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), terminal: std::io::stderr().is_terminal(), last: u64::MAX }
    }

    /// Shows progress if it has moved; returns it as text.
    pub fn show(&mut self, done: u64, total: u64) -> Option<String> {
        // The expected size is only about right: never claim more than 99 %.
        let percent = (done * 100).checked_div(total).map_or(0, |percent| percent.min(99));
        let step = if self.terminal { percent } else { percent / 10 };
        if step == self.last {
            return None;
        }
        self.last = step;
        let text = format!("{percent} % of {} MB", total.max(done) / 1_000_000);
        if self.terminal {
            let full = (percent / 4) as usize;
            let _ = write!(std::io::stderr(), "\rfetching {} [{:<25}] {text} ", self.name, "#".repeat(full));
            let _ = std::io::stderr().flush();
        } else {
            tracing::info!("fetching {}: {text}", self.name);
        }
        Some(text)
    }

    pub fn end(&self) {
        if self.terminal && self.last != u64::MAX {
            let _ = writeln!(std::io::stderr());
        }
    }
}
