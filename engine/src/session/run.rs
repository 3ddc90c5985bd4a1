//! The work on one request.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::slot::{Held, choose};
use super::stream::Stream;
use super::{Event, FinishReason, Generate, Job, Model, Prompt, Shared, Sink, Slot};
use crate::error::Error;
use crate::forward::{CHUNK, Wanted};
use crate::sampler::Sampler;

/// Nobody waits for this answer any more, or the engine stops; no further event is sent.
struct Gone;

/// How a request ends before its time.
enum Halt {
    Gone,
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Failed(error)
    }
}

impl From<Gone> for Halt {
    fn from(_: Gone) -> Halt {
        Halt::Gone
    }
}

/// Takes requests from the queue until the engine stops.
pub fn worker(shared: &Shared) {
    while let Some(mut job) = next(shared) {
        // A panic is a fault of ours in one request: its cache is dropped, the caller is told, the others go on.
        let end = catch_unwind(AssertUnwindSafe(|| serve(shared, &mut job)));
        let error = match end {
            Ok(Ok(()) | Err(Halt::Gone)) => continue,
            Ok(Err(Halt::Failed(error))) => error,
            Err(_) => Error::Internal("a request panicked; please report its prompt and settings".into()),
        };
        let _ = catch_unwind(AssertUnwindSafe(|| (job.sink)(Event::Failed(error))));
    }
}

fn next(shared: &Shared) -> Option<Job> {
    let mut state = shared.lock();
    loop {
        if state.stopping {
            return None;
        }
        if let Some(job) = state.queue.pop_front() {
            return Some(job);
        }
        state = shared.wake.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
    }
}

/// Gives the slot back whatever happens; one that was not refilled comes back empty.
struct Lease<'a> {
    shared: &'a Shared,
    slot: Slot,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.shared.lock().idle.push(std::mem::take(&mut self.slot));
    }
}

fn serve(shared: &Shared, job: &mut Job) -> Result<(), Halt> {
    let prompt = tokens(&job.model, &job.request.prompt)?;
    let context = job.model.context_length();
    if prompt.len() >= context {
        return Err(Error::TooLong { prompt: prompt.len(), context }.into());
    }
    if prompt.is_empty() {
        return Err(Error::Invalid("the prompt is empty".into()).into());
    }
    let top_k = job.request.index_topk;
    let slot = choose(&mut shared.lock().idle, &job.model, top_k, &prompt);
    let mut lease = Lease { shared, slot };
    let mut held = lease.slot.take(&job.model, top_k, &prompt);
    let cached_tokens = held.tokens.len();
    let mut work = Work { shared, request: &job.request, sink: &mut job.sink };
    let end = work
        .send(Event::Started { prompt_tokens: prompt.len(), cached_tokens })
        .map_err(Halt::from)
        .and_then(|()| work.run(&mut held, &prompt));
    // Whatever is in the cache was computed whole and is worth keeping, even where the client is gone.
    held.tokens.truncate(held.sequence.len());
    lease.slot.keep(held);
    // The slot is back before the end is told: who hears it and asks on at once finds the cache.
    drop(lease);
    Ok(work.send(end?)?)
}

fn tokens(model: &Model, prompt: &Prompt) -> Result<Vec<u32>, Error> {
    match prompt {
        Prompt::Chat(chat) => encode(model, &model.render_chat(chat)?),
        Prompt::Text(text) => encode(model, text),
        Prompt::Tokens(tokens) => Ok(tokens.clone()),
    }
}

/// Token ids of a text that may be far too long: then it is refused after a part of it, because tokenising takes time and
/// memory by the length of the whole.
fn encode(model: &Model, text: &str) -> Result<Vec<u32>, Error> {
    /// Bytes counted at a time.
    const PIECE: usize = 64 * 1024;
    let context = model.context_length();
    // No text has fewer tokens than a fraction of its bytes; one that may fit is tokenised once, whole.
    if text.len() > context.saturating_mul(8) {
        let (mut rest, mut counted, mut cuts) = (text, 0, 0);
        // A cut may split what would have been one token.
        while !rest.is_empty() && counted <= context + cuts {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE.min(rest.len())));
            counted += model.encode(piece)?.len();
            (rest, cuts) = (after, cuts + 1);
        }
        if counted > context + cuts {
            return Err(Error::TooLong { prompt: counted, context });
        }
    }
    model.encode(text)
}

struct Work<'a> {
    shared: &'a Shared,
    request: &'a Generate,
    sink: &'a mut Sink,
}

impl Work<'_> {
    fn send(&mut self, event: Event) -> Result<(), Gone> {
        match (self.sink)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Gone),
        }
    }

    /// Computes and streams the answer; returns the event that tells of its end.
    fn run(&mut self, held: &mut Held, prompt: &[u32]) -> Result<Event, Halt> {
        let Some(mut logits) = self.prefill(held, prompt)? else { return Err(Halt::Gone) };
        let request = self.request;
        let arch = &held.model.decoder.arch;
        let (stop, last, context) = (arch.stop.clone(), arch.last.clone(), arch.context);
        let seed = request.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        let mut sampler = Sampler::new(request.temperature, request.top_p, seed);
        let mut stream = Stream::new(request.stop.clone());
        let mut count = 0;
        let reason = loop {
            let token = sampler.next(&logits);
            count += 1;
            if stop.contains(&token) {
                break FinishReason::Stop;
            }
            let piece = stream.push(held.model.tokenizer.bytes(token));
            if !piece.text.is_empty() {
                self.send(Event::Text(piece.text))?;
            }
            if piece.stopped || last.contains(&token) {
                break FinishReason::Stop;
            }
            if count >= request.max_tokens || held.tokens.len() >= context {
                break FinishReason::Length;
            }
            logits = self.step(held, token)?;
        };
        let rest = stream.finish();
        if !rest.is_empty() {
            self.send(Event::Text(rest))?;
        }
        Ok(Event::Finished { reason, completion_tokens: count })
    }

    /// Computes what the cache lacks of the prompt; `None` where nobody listens any more.
    fn prefill(&mut self, held: &mut Held, prompt: &[u32]) -> Result<Option<Vec<f32>>, Halt> {
        let cached = held.tokens.len();
        held.tokens.extend_from_slice(&prompt[cached..]);
        let (shared, top_k) = (self.shared, self.request.index_topk);
        let Held { model, sequence, .. } = held;
        let mut listening = true;
        let mut after = |done: usize| {
            listening &= !shared.lock().stopping;
            listening &= self.send(Event::Progress { prompt_tokens_done: cached + done }).is_ok();
            listening
        };
        let mut logits = Vec::new();
        for (i, part) in prompt[cached..].chunks(CHUNK).enumerate() {
            let wanted =
                if cached + i * CHUNK + part.len() == prompt.len() { Wanted::Last } else { Wanted::None };
            logits = shared.pool.install(|| model.decoder.forward(part, sequence, top_k, wanted))?;
            if !after(i * CHUNK + part.len()) {
                return Ok(None);
            }
        }
        Ok(Some(logits))
    }

    fn step(&mut self, held: &mut Held, token: u32) -> Result<Vec<f32>, Halt> {
        if self.shared.lock().stopping {
            return Err(Halt::Gone);
        }
        held.tokens.push(token);
        let (decoder, sequence) = (&held.model.decoder, &mut held.sequence);
        let top_k = held.top_k;
        Ok(self.shared.pool.install(|| decoder.forward(&[token], sequence, top_k, Wanted::Last))?)
    }
}
