//! Lines on their way to standard error and standard output, written by a thread of their own: whoever logs never waits
//! for a terminal, a pipe or a disk that does not keep up. What does not fit into the queue is counted and gone.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus::IntCounter;

use crate::metrics::Metrics;

/// Bytes that are written together.
const BATCH: usize = 64 * 1024;
/// How long the end of the process waits for lines that somebody still has to take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The way to the thread. Cheap to clone; the default leads nowhere.
#[derive(Clone, Default)]
pub struct Log(Option<Arc<Queue>>);

struct Queue {
    lines: SyncSender<Line>,
    /// Lines lost before there was a counter for them.
    early: AtomicU64,
    dropped: OnceLock<IntCounter>,
}

/// Renders itself on the thread, so that the path does not pay for it.
type Rendering = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

enum Line {
    /// To standard error, as it is.
    Error(Vec<u8>),
    /// To standard output.
    Output(Rendering),
    /// Everything before this is written.
    Written(SyncSender<()>),
}

/// The thread; dropping this waits a moment until what was logged is written.
pub struct Writing {
    log: Log,
    _thread: JoinHandle<()>,
}

/// Starts the thread; `queue` lines may wait for it.
pub fn start(queue: usize) -> io::Result<(Log, Writing)> {
    let (lines, waiting) = sync_channel(queue);
    let run = move || run(&waiting, &mut io::stderr(), &mut io::stdout());
    let thread = std::thread::Builder::new().name("serin-log".into()).spawn(run)?;
    let log = Log(Some(Arc::new(Queue { lines, early: AtomicU64::new(0), dropped: OnceLock::new() })));
    Ok((log.clone(), Writing { log, _thread: thread }))
}

impl Log {
    /// From now on losses are shown, with those so far.
    pub fn show(&self, metrics: &Metrics) {
        let counter = metrics.counter(
            "serin_log_dropped_total",
            "Lines, of the log and the access log, lost because nobody took them fast enough.",
        );
        if let Some(queue) = &self.0 {
            counter.inc_by(queue.early.swap(0, Relaxed));
            let _ = queue.dropped.set(counter);
        }
    }

    /// One line for standard output, rendered later.
    pub fn output(&self, rendering: impl FnOnce(&mut Vec<u8>) + Send + 'static) {
        self.put(Line::Output(Box::new(rendering)));
    }

    /// One line for standard error.
    pub fn error(&self, line: &[u8]) {
        self.put(Line::Error(line.to_vec()));
    }

    fn put(&self, line: Line) {
        let Some(queue) = &self.0 else { return };
        if queue.lines.try_send(line).is_err() {
            match queue.dropped.get() {
                Some(counter) => counter.inc(),
                None => drop(queue.early.fetch_add(1, Relaxed)),
            }
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Some(queue) = &self.log.0 else { return };
        let (written, told) = sync_channel(1);
        let mut last = Line::Written(written);
        // A full queue empties as soon as somebody reads; one that nobody reads is given up.
        for _ in 0..PATIENCE.as_millis() / 10 {
            match queue.lines.try_send(last) {
                Ok(()) => {
                    let _ = told.recv_timeout(PATIENCE);
                    return;
                }
                Err(TrySendError::Full(line)) => last = line,
                Err(TrySendError::Disconnected(_)) => return,
            }
            if told.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    }
}

/// Writes what waits until nobody can log any more. A place that takes nothing (a closed pipe) loses its lines.
fn run(waiting: &Receiver<Line>, error: &mut dyn Write, output: &mut dyn Write) {
    let (mut errors, mut outputs) = (Vec::new(), Vec::new());
    while let Ok(first) = waiting.recv() {
        let mut told = Vec::new();
        let mut next = Some(first);
        while let Some(line) = next {
            match line {
                Line::Error(bytes) => errors.extend_from_slice(&bytes),
                Line::Output(rendering) => rendering(&mut outputs),
                Line::Written(tell) => told.push(tell),
            }
            let full = errors.len() + outputs.len() >= BATCH;
            next = if full { None } else { waiting.try_recv().ok() };
        }
        write(&mut errors, error);
        write(&mut outputs, output);
        for tell in told {
            let _ = tell.try_send(());
        }
    }
}

/// Writes what has gathered. A reader that is gone is nobody's fault here, and nobody could be told.
fn write(bytes: &mut Vec<u8>, place: &mut dyn Write) {
    if !bytes.is_empty() {
        let _ = place.write_all(bytes).and_then(|()| place.flush());
        bytes.clear();
    }
}

/// A log whose output can be taken instead of written.
#[cfg(test)]
pub fn captured() -> (Log, impl FnOnce() -> Vec<u8>) {
    let (lines, waiting) = sync_channel(1_000);
    let queue = Queue { lines, early: AtomicU64::new(0), dropped: OnceLock::new() };
    let taken = move || {
        let mut output = Vec::new();
        for line in waiting.try_iter() {
            if let Line::Output(rendering) = line {
                rendering(&mut output);
            }
        }
        output
    };
    (Log(Some(Arc::new(queue))), taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_order_and_their_place() {
        let (lines, waiting) = sync_channel(8);
        for line in [
            Line::Error(b"a\n".to_vec()),
            Line::Output(Box::new(|out| out.extend_from_slice(b"x\n"))),
            Line::Error(b"b\n".to_vec()),
        ] {
            lines.send(line).unwrap();
        }
        drop(lines);
        let (mut error, mut output) = (Vec::new(), Vec::new());
        run(&waiting, &mut error, &mut output);
        assert_eq!((error.as_slice(), output.as_slice()), (&b"a\nb\n"[..], &b"x\n"[..]));
    }

    #[test]
    fn what_does_not_fit_is_counted_before_and_after_there_is_a_counter() {
        let (lines, _waiting) = sync_channel(1);
        let queue = Queue { lines, early: AtomicU64::new(0), dropped: OnceLock::new() };
        let log = Log(Some(Arc::new(queue)));
        log.error(b"fits");
        log.error(b"does not");
        let metrics = Metrics::default();
        log.show(&metrics);
        log.output(|_| ());
        let text = String::from_utf8(metrics.text().unwrap()).unwrap();
        assert!(text.contains("serin_log_dropped_total 2"), "{text}");
    }
}
