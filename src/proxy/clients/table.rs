//! A bounded table of clients: the one that was idle longest makes room, never one with an exchange in flight.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::bucket::{Bucket, Pace};

/// The clients.
#[derive(Debug, Default)]
pub struct Table {
    clients: HashMap<u128, Client>,
    /// Those with nothing in flight, by when they were last seen.
    idle: BTreeMap<u64, u128>,
    /// Counts what happens; orders the idle.
    turn: u64,
}

#[derive(Debug, Default)]
struct Client {
    in_flight: usize,
    bucket: Bucket,
    /// Its place among the idle.
    seen: u64,
}

/// Why a client is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    InFlight,
    /// Until the next request may come.
    Rate(Duration),
}

impl Refused {
    pub const IN_FLIGHT: &str = "in_flight";
    pub const RATE: &str = "rate";
}

impl Table {
    /// Lets `client` begin an exchange. `most` may be in flight at once (0: any number), at this pace; `now` is in
    /// nanoseconds.
    pub fn enter(&mut self, client: u128, most: usize, pace: Option<Pace>, now: u64) -> Result<(), Refused> {
        let known = self.clients.entry(client).or_default();
        self.idle.remove(&known.seen);
        self.turn += 1;
        known.seen = self.turn;
        let entered = if most > 0 && known.in_flight >= most {
            Err(Refused::InFlight)
        } else {
            match pace.map(|pace| known.bucket.take(pace, now)).transpose() {
                Ok(bucket) => {
                    known.bucket = bucket.unwrap_or(known.bucket);
                    known.in_flight += 1;
                    Ok(())
                }
                Err(wait) => Err(Refused::Rate(wait)),
            }
        };
        // One that is refused has been seen too: asking in vain must not make it the first to be forgotten.
        if known.in_flight == 0 {
            self.idle.insert(known.seen, client);
        }
        entered
    }

    /// One exchange of `client` has ended.
    pub fn leave(&mut self, client: u128) {
        let Some(known) = self.clients.get_mut(&client) else { return };
        known.in_flight = known.in_flight.saturating_sub(1);
        if known.in_flight == 0 {
            self.turn += 1;
            known.seen = self.turn;
            self.idle.insert(known.seen, client);
        }
    }

    /// Forgets those idle longest until at most `size` are left; those in flight stay.
    pub fn shrink_to(&mut self, size: usize) {
        while self.clients.len() > size {
            let Some((_, client)) = self.idle.pop_first() else { return };
            self.clients.remove(&client);
        }
    }

    pub fn len(&self) -> usize {
        self.clients.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_client_has_its_own_limits() {
        let mut table = Table::default();
        assert_eq!(table.enter(1, 1, None, 0), Ok(()));
        assert_eq!(table.enter(1, 1, None, 0), Err(Refused::InFlight));
        assert_eq!(table.enter(2, 1, None, 0), Ok(()));
        table.leave(1);
        assert_eq!(table.enter(1, 1, None, 0), Ok(()));
        let pace = Pace::new(1.0, 1);
        assert_eq!(table.enter(3, 0, pace, 0), Ok(()));
        assert_eq!(table.enter(3, 0, pace, 250_000_000), Err(Refused::Rate(Duration::from_millis(750))));
        assert_eq!(table.enter(4, 0, pace, 250_000_000), Ok(()));
    }

    #[test]
    fn the_one_idle_longest_makes_room_and_one_that_asks_in_vain_is_not_idle() {
        let mut table = Table::default();
        let pace = Pace::new(1.0, 1);
        for client in [1, 2, 3] {
            table.enter(client, 0, pace, 0).unwrap();
            table.leave(client);
        }
        assert!(table.enter(1, 0, pace, 1).is_err());
        table.enter(4, 0, pace, 1).unwrap();
        table.shrink_to(3);
        assert!(table.enter(1, 0, pace, 1).is_err(), "1 is still known");
        assert!(table.enter(2, 0, pace, 1).is_ok(), "2 was forgotten");
    }

    proptest! {
        /// Whatever happens: never more in flight than allowed, never one in flight forgotten, and the table within its size
        /// as long as that leaves room for those in flight.
        #[test]
        fn what_is_in_flight_is_never_forgotten(steps in prop::collection::vec((0u128..12, any::<bool>()), 1..300)) {
            let mut table = Table::default();
            let mut live: HashMap<u128, usize> = HashMap::new();
            for (client, enters) in steps {
                let count = live.entry(client).or_default();
                if enters {
                    let entered = table.enter(client, 2, None, 0).is_ok();
                    prop_assert_eq!(entered, *count < 2);
                    *count += usize::from(entered);
                } else if *count > 0 {
                    *count -= 1;
                    table.leave(client);
                }
                table.shrink_to(6);
                let busy = live.values().filter(|count| **count > 0).count();
                prop_assert!(table.len() <= busy.max(6));
                for (client, count) in &live {
                    prop_assert!(*count == 0 || table.clients[client].in_flight == *count);
                }
            }
        }
    }
}
