//! A future beside a busy one: polled when it was woken itself, and not with each turn of its neighbour.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Wraps the future. One that has ended must not be polled again.
pub struct Seldom<F> {
    inner: Pin<Box<F>>,
    woken: Arc<Woken>,
    waker: Waker,
}

struct Woken {
    yes: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl<F: Future> Seldom<F> {
    pub fn new(inner: F) -> Self {
        let woken = Arc::new(Woken { yes: AtomicBool::new(true), task: Mutex::default() });
        Self { inner: Box::pin(inner), waker: woken.clone().into(), woken }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.yes.store(true, Release);
        if let Some(task) = &*self.task.lock().unwrap_or_else(PoisonError::into_inner) {
            task.wake_by_ref();
        }
    }
}

impl<F: Future> Future for Seldom<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut task = self.woken.task.lock().unwrap_or_else(PoisonError::into_inner);
        if !task.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
        drop(task);
        if !self.woken.yes.load(Relaxed) || !self.woken.yes.swap(false, AcqRel) {
            return Poll::Pending;
        }
        let this = &mut *self;
        this.inner.as_mut().poll(&mut Context::from_waker(&this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn it_is_polled_when_it_was_woken_and_only_then() {
        let (polls, inner_waker) = (AtomicUsize::new(0), Mutex::new(None::<Waker>));
        let inner = std::future::poll_fn(|cx: &mut Context<'_>| {
            *inner_waker.lock().unwrap() = Some(cx.waker().clone());
            if polls.fetch_add(1, SeqCst) < 2 { Poll::Pending } else { Poll::Ready(()) }
        });
        let mut seldom = Seldom::new(inner);
        let task = Arc::new(Woken { yes: AtomicBool::new(false), task: Mutex::default() });
        let waker = Waker::from(task.clone());
        let cx = &mut Context::from_waker(&waker);
        for _ in 0..5 {
            assert!(Pin::new(&mut seldom).poll(cx).is_pending());
        }
        assert_eq!(polls.load(SeqCst), 1);
        for expected in [2, 3] {
            let inner = inner_waker.lock().unwrap().take().unwrap();
            inner.wake();
            assert!(task.yes.swap(false, SeqCst), "the task is woken with it");
            assert_eq!(Pin::new(&mut seldom).poll(cx).is_ready(), expected == 3);
            assert_eq!(polls.load(SeqCst), expected);
        }
    }
}
