//! The queue between the path and the recorder's thread: bounded, and with a bound for each tenant besides, so that one
//! that floods it does not take the places of all others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use super::Work;
use super::ledger::Dropped;

/// Something to do, whose it is, and the place it has taken.
pub struct Queued {
    /// By the order of [`super::tenant::Tenant::all`].
    pub tenant: usize,
    pub work: Work,
    _place: Place,
}

/// One tenant's way into the queue. Cheap to clone.
#[derive(Clone)]
pub struct Door {
    queue: SyncSender<Queued>,
    tenant: usize,
    /// Places that are taken, and how many may be.
    taken: Arc<AtomicUsize>,
    most: usize,
}

/// A place in the queue; given back when dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A queue of so many places for so many tenants: their doors, one more for the canaries, and the end that takes.
///
/// Where there are several tenants, none has more than half of the places.
pub fn bounded(places: usize, tenants: usize) -> (Vec<Door>, Door, Receiver<Queued>) {
    let (queue, receiver) = sync_channel(places);
    let most = if tenants > 1 { (places / 2).max(1) } else { places };
    let door = |tenant, most| Door { queue: queue.clone(), tenant, taken: Arc::default(), most };
    let doors = (0..tenants).map(|tenant| door(tenant, most)).collect();
    // Canaries are few, and belong to nobody.
    (doors, door(0, places), receiver)
}

impl Door {
    /// Whose it is.
    pub fn tenant(&self) -> usize {
        self.tenant
    }

    /// Offers something to do. Never waits.
    ///
    /// # Errors
    /// The same, with the reason.
    #[expect(clippy::result_large_err, reason = "what does not fit goes back to who offered it")]
    pub fn offer(&self, work: Work) -> Result<(), (Work, Dropped)> {
        let place = Place(self.taken.clone());
        if self.taken.fetch_add(1, Relaxed) >= self.most {
            return Err((work, Dropped::QueueFull));
        }
        match self.queue.try_send(Queued { tenant: self.tenant, work, _place: place }) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(lost)) => Err((lost.work, Dropped::QueueFull)),
            Err(TrySendError::Disconnected(lost)) => Err((lost.work, Dropped::Shutdown)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::record::{Flag, Origin};

    fn work() -> Work {
        Work::Flag(Origin::Client, Flag::default())
    }

    fn fit(door: &Door) -> usize {
        (0..).take_while(|_| door.offer(work()).is_ok()).count()
    }

    #[test]
    fn who_floods_it_leaves_half_of_it_to_others() {
        let (doors, canaries, queue) = bounded(10, 3);
        assert_eq!((fit(&doors[0]), fit(&doors[1]), fit(&doors[2])), (5, 5, 0));
        assert!(matches!(doors[0].offer(work()), Err((_, Dropped::QueueFull))));
        assert!(queue.try_recv().is_ok_and(|queued| queued.tenant == 0));
        assert_eq!((fit(&doors[0]), fit(&doors[2])), (1, 0), "a place that was given back is taken again");
        drop(queue.try_recv());
        assert_eq!(fit(&canaries), 1);
        drop(queue);
        // The places of what was lost with it are free.
        assert!(matches!(doors[2].offer(work()), Err((_, Dropped::Shutdown))));
    }

    #[test]
    fn one_tenant_alone_has_all_of_it() {
        let (doors, _canaries, _queue) = bounded(10, 1);
        assert_eq!(fit(&doors[0]), 10);
        let (doors, canaries, _queue) = bounded(1, 2);
        assert_eq!((fit(&doors[1]), fit(&canaries)), (1, 0));
    }
}
