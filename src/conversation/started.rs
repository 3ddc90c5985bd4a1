//! Exchanges that had begun when the process that recorded them died.

use super::follow::Pending;
use super::{Conversations, Result, Wish};
use crate::journal::{self, Capture, End, Exchange, Level, Lsn, Record};

impl Conversations {
    /// Notes that an exchange has begun, as far as it is known. What is recorded when it ends takes this one's place.
    ///
    /// # Errors
    /// As [`Conversations::record`].
    pub fn start(&mut self, exchange: Exchange) -> Result<()> {
        let id = exchange.id.clone();
        let lsn = self.journal.append(&Record::Start(exchange))?;
        self.pending.push((lsn, Pending::Start(id)));
        Ok(())
    }

    /// Records those that have begun and not ended: whoever writes here now has begun none of them. Returns how many
    /// there were.
    pub(super) fn end_interrupted(&mut self) -> Result<u64> {
        let started = self.index.started()?;
        if started.is_empty() {
            return Ok(0);
        }
        let reader = self.source.read_from(Lsn::default())?;
        let mut count = 0;
        for (id, lsn) in started {
            match reader.read_at(lsn) {
                Ok(Record::Start(exchange)) => {
                    self.record(interrupted(exchange), Wish::ALL)?;
                    count += 1;
                }
                // It was erased or forgotten.
                Ok(_) | Err(journal::Error::NoRecord(_)) => self.index.end(&id)?,
                // Whoever has the keys finds it.
                Err(journal::Error::KeyMissing { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }
}

/// What is known of an exchange that never ended.
fn interrupted(mut exchange: Exchange) -> Exchange {
    exchange.set_end(End::Interrupted);
    exchange.set_request_capture(Capture::None);
    exchange.set_response_capture(Capture::None);
    exchange.set_record_level(Level::Meta);
    exchange
}
