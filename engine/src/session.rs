//! The engine as its users see it: models are added, requests queue for a slot, answers stream into a sink.
//!
//! ```text
//! generate --> queue (bounded; full = Busy) --> worker --> slot (its KV cache) --> sink
//!                                               one worker for each slot, all sharing one rayon pool
//! ```
//!
//! A slot keeps its cache after a request. The next request takes the idle slot whose tokens, for the same model and
//! settings, agree with its prompt for longest, and computes only the rest.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::backend::TopK;
use crate::error::Error;
use crate::template::Now;

mod model;
mod run;
mod slot;
mod stream;

pub use model::{Chat, Model, REFERENCE};
use slot::Slot;

/// Most stop strings of one request, and the most bytes of one.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Nice value of the engine's threads, below the threads that carry traffic.
const NICE: i32 = 10;

/// Sizes of an engine; each at least 1 except the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineConfig {
    /// Threads that compute, shared by all requests.
    pub threads: usize,
    /// Requests worked on at the same time, each with its own cache.
    pub slots: usize,
    /// Requests that may wait.
    pub queue: usize,
}

/// A running engine. Dropping it stops every request at its next token and waits for the threads.
pub struct Engine {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// What to continue from.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Messages, rendered by the model's chat template.
    Chat(Chat),
    /// Text, taken as it is.
    Text(String),
    /// Token ids, taken as they are.
    Tokens(Vec<u32>),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Generate {
    /// Name of an added model.
    pub model: String,
    pub prompt: Prompt,
    /// Most tokens to generate, at least 1.
    pub max_tokens: usize,
    /// 0 takes the most probable token; above, draws from the softmax.
    pub temperature: f32,
    /// Draw from the most probable tokens that together hold this share; in (0, 1].
    pub top_p: f32,
    /// Fixes the draws; `None` takes a fresh one.
    pub seed: Option<u64>,
    /// Texts that end the answer and are not part of it.
    pub stop: Vec<String>,
    pub index_topk: TopK,
}

/// What happens to a request, in this order: `Started`, `Progress` and `Text` any number of times, `Finished`; or
/// `Failed` at any point, as the last event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt is tokenised; `cached_tokens` of it need no computing.
    Started {
        prompt_tokens: usize,
        cached_tokens: usize,
    },
    /// So many prompt tokens are done. Sent so that a sink can say that the client is gone.
    Progress {
        prompt_tokens_done: usize,
    },
    /// A piece of the answer: whole characters, never part of a stop string.
    Text(String),
    /// The answer is complete. `completion_tokens` counts every generated token, an ending one included.
    Finished {
        reason: FinishReason,
        completion_tokens: usize,
    },
    Failed(Error),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// The model or a stop string ended it.
    Stop,
    /// `max_tokens` or the context length ended it.
    Length,
}

/// Receives the events of one request on an engine thread. `Break` means that nobody listens any more: the engine
/// stops at once and sends nothing further.
pub type Sink = Box<dyn FnMut(Event) -> ControlFlow<()> + Send>;

struct Job {
    request: Generate,
    model: Arc<Model>,
    sink: Sink,
}

struct Shared {
    config: EngineConfig,
    pool: rayon::ThreadPool,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    models: Vec<Arc<Model>>,
    queue: VecDeque<Job>,
    idle: Vec<Slot>,
    stopping: bool,
}

impl Engine {
    /// Starts the threads; no model is loaded yet.
    pub fn start(config: EngineConfig) -> Result<Engine, Error> {
        let spawn =
            |e: &dyn std::fmt::Display| Error::Internal(format!("cannot start the engine's threads: {e}"));
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(config.threads.max(1))
            .thread_name(|i| format!("engine-{i}"))
            .start_handler(|_| lower_priority())
            .build()
            .map_err(|e| spawn(&e))?;
        let slots = config.slots.max(1);
        let idle = (0..slots).map(|_| Slot::default()).collect();
        let state = State { models: Vec::new(), queue: VecDeque::new(), idle, stopping: false };
        let shared = Arc::new(Shared { config, pool, state: Mutex::new(state), wake: Condvar::new() });
        let mut engine = Engine { shared, workers: Vec::with_capacity(slots) };
        for i in 0..slots {
            let shared = engine.shared.clone();
            let thread = std::thread::Builder::new().name(format!("engine-slot-{i}"));
            let worker = thread.spawn(move || {
                lower_priority();
                run::worker(&shared);
            });
            engine.workers.push(worker.map_err(|e| spawn(&e))?);
        }
        Ok(engine)
    }

    /// Adds a model; one of the same name is replaced, requests that began with the old one end with it.
    pub fn add(&self, model: Model) {
        let mut state = self.shared.lock();
        state.models.retain(|old| old.name() != model.name());
        state.idle.iter_mut().for_each(|slot| slot.forget(model.name()));
        state.models.push(Arc::new(model));
    }

    /// The models that can be asked, in the order they were added.
    pub fn models(&self) -> Vec<Arc<Model>> {
        self.shared.lock().models.clone()
    }

    /// The model of that name.
    pub fn model(&self, name: &str) -> Option<Arc<Model>> {
        self.shared.lock().models.iter().find(|model| model.name() == name).cloned()
    }

    /// Requests that wait for a slot.
    pub fn queued(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Queues a request; never blocks and computes nothing itself. On an error the sink is never called.
    pub fn generate(&self, request: Generate, sink: Sink) -> Result<(), Error> {
        request.check()?;
        let mut state = self.shared.lock();
        if state.stopping {
            return Err(Error::Stopping);
        }
        let model = state.models.iter().find(|model| model.name() == request.model).cloned();
        let model = model.ok_or_else(|| {
            let names: Vec<&str> = state.models.iter().map(|model| model.name()).collect();
            Error::UnknownModel { name: request.model.clone(), loaded: names.join(", ") }
        })?;
        // A worker that is free but has not yet woken counts as room.
        let room = self.shared.config.queue + state.idle.len();
        if state.queue.len() >= room {
            return Err(Error::Busy { queue: state.queue.len() });
        }
        state.queue.push_back(Job { request, model, sink });
        self.shared.wake.notify_one();
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of requests; should one have died all the same, there is nothing to save.
            let _ = worker.join();
        }
    }
}

impl Generate {
    fn check(&self) -> Result<(), Error> {
        let bad = |what: &str| Err(Error::Invalid(what.into()));
        if self.max_tokens == 0 {
            return bad("max_tokens must be at least 1");
        }
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            return bad("temperature must be a number from 0 up");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("top_p must be above 0 and at most 1");
        }
        let stops = self.stop.iter().all(|stop| (1..=MAX_STOP_BYTES).contains(&stop.len()));
        if self.stop.len() > MAX_STOPS || !stops {
            return bad("stop takes at most 16 strings of 1 to 1024 bytes");
        }
        Ok(())
    }
}

impl Shared {
    /// The state. A panic while it was held left it consistent: every change under the lock is a single step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Engine threads stand back behind the threads that carry traffic. On Linux `nice` concerns the calling thread alone;
/// where it is refused the engine still works.
fn lower_priority() {
    let _ = rustix::process::nice(NICE);
}

/// The wall clock, for templates that print a date. The only reading of a clock in this crate.
#[expect(clippy::disallowed_methods, reason = "the one clock of this crate")]
fn now() -> Now {
    Now(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}
