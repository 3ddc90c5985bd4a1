//! Conversations: trees of turns, stitched together from stateless requests.
//!
//! [`Conversations`] joins the three parts: the journal (the truth), the stitcher (which decides where a turn
//! belongs) and the index (what lists and look-ups read). A turn and its link go into one frame of the journal, so
//! neither is ever there without the other. The index follows each commit; where it cannot, it catches up later, and
//! nothing is lost. [`Sessions`] reads the same directory without the writer's lock.

mod catch_up;
mod derive;
mod error;
mod filter;
pub mod flags;
mod follow;
pub mod hint;
pub mod index;
pub mod projection;
pub mod reading;
pub mod render;
mod sessions;
mod source;
mod started;
pub mod stitch;
mod subject;
pub mod view;
mod wish;

use std::path::Path;

pub use catch_up::CaughtUp;
pub use derive::{Restitched, read, rebuild};
pub use error::Error;
pub use filter::Asked;
pub use flags::Flags;
pub use index::Filter;
pub use sessions::Sessions;
pub use stitch::Kind;
pub use subject::Subject;
pub use view::{Session, SessionLine, Turn};
pub use wish::{Lowered, Place, Taken, Wish};

use crate::journal::erase::{self, Erasure};
use crate::journal::{self, Exchange, Flag, Gap, Journal, Level, Link, Lsn, Options, Record};
use crate::openai::outline::Outline;
use crate::{clock, ids};
use follow::Pending;
use index::{Index, TurnRow};
use projection::Memo;
use reading::{Reading, is_turn};
use source::Source;
use stitch::{Footprint, Placed, Stitcher};

/// Bytes of links that stitching again makes durable at once.
const RESTITCH_BATCH: usize = 1 << 20;
/// At a commit every 50 ms a broken index is tried about every 13 s in the end.
const MAX_COMMITS_TO_WAIT: u32 = 255;
/// The index's file in the journal directory.
const INDEX_FILE: &str = "index.sqlite";

/// The writing side: records exchanges and keeps the index. One process per directory.
pub struct Conversations {
    source: Source,
    journal: Journal,
    stitcher: Stitcher,
    memo: Memo,
    index: Index,
    /// What was appended since the last commit and goes into the index.
    pending: Vec<(Lsn, Pending)>,
    /// Whether the index has missed a commit and must read the journal.
    index_behind: bool,
    /// Commits to let pass before the index is tried again, and the number after the next failure.
    commits_to_wait: u32,
    next_wait: u32,
    index_faults: u64,
    opened: CaughtUp,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Conversations {
    /// Opens a directory for recording: takes its lock, cuts off a torn tail, and brings the index up to date.
    ///
    /// # Errors
    /// [`journal::Error::Locked`] while another process records there, else what the disk says.
    pub fn open(dir: &Path) -> Result<Conversations> {
        Self::open_with(dir, Options::default())
    }

    /// As [`Conversations::open`], with other limits.
    ///
    /// # Errors
    /// As [`Conversations::open`].
    pub fn open_with(dir: &Path, options: Options) -> Result<Conversations> {
        let mut journal = Journal::open(dir, options.clone())?;
        let source = Source::create(dir, options)?;
        let (mut index, mut stitcher) = (Index::open(&dir.join(INDEX_FILE))?, source.stitcher());
        let opened = match source.follow(&mut index, &mut stitcher) {
            // It opened and cannot be used: derived as it is, it is made anew.
            Err(Error::Index(_)) => {
                drop(index);
                let opened;
                (index, stitcher, opened) = source.anew()?;
                opened
            }
            followed => followed?,
        };
        for link in &opened.missing_links {
            journal.append(&Record::Link(link.clone()))?;
        }
        let mut conversations = Conversations {
            memo: source.memo(),
            source,
            journal,
            stitcher,
            index,
            pending: Vec::new(),
            index_behind: false,
            commits_to_wait: 0,
            next_wait: 0,
            index_faults: 0,
            opened,
        };
        conversations.opened.interrupted = conversations.end_interrupted()?;
        Ok(conversations)
    }

    /// Makes the index anew from the journal, whatever it was. Interrupted, it is finished by whoever opens the directory
    /// next.
    ///
    /// # Errors
    /// As [`Conversations::open`].
    pub fn reindex(&mut self) -> Result<CaughtUp> {
        let found;
        (self.index, self.stitcher, found) = self.source.anew()?;
        Ok(found)
    }

    /// Finds anew where each turn belongs, by the rules of this build, and records the links that are others now.
    ///
    /// # Errors
    /// What the disk says. What was recorded until then stays; the next time goes on.
    pub fn restitch(&mut self) -> Result<Restitched> {
        self.commit()?;
        let (journal, mut links) = (&mut self.journal, Vec::new());
        let mut changed = |link: Link| {
            if journal.pending_bytes() > RESTITCH_BATCH {
                journal.commit()?;
            }
            journal.append(&Record::Link(link.clone()))?;
            links.push(link);
            Ok(())
        };
        let (found, stitcher) = self.source.restitch(&self.index, &mut changed)?;
        self.commit()?;
        self.stitcher = stitcher;
        self.index.batch(|index| links.iter().try_for_each(|link| index.relink(link)))?;
        Ok(found)
    }

    /// Opens a directory for reading, whether or not somebody records there, and whether or not its index is whole.
    ///
    /// # Errors
    /// [`journal::Error::Missing`] where there is no such directory.
    pub fn read_only(dir: &Path) -> Result<Sessions> {
        Self::read_with(dir, Options::default())
    }

    /// As [`Conversations::read_only`], with the keys for what is encrypted, and other limits.
    ///
    /// # Errors
    /// As [`Conversations::read_only`].
    pub fn read_with(dir: &Path, options: Options) -> Result<Sessions> {
        Sessions::open(dir, options)
    }

    /// As [`Conversations::read_with`], where somebody records: what was committed last may not be there yet.
    ///
    /// # Errors
    /// As [`Conversations::read_only`].
    pub fn read_live(dir: &Path, options: Options) -> Result<Sessions> {
        Sessions::open_live(dir, options)
    }

    /// Whether the directory or the segment in it was removed or moved by somebody else.
    pub fn is_gone(&self) -> bool {
        self.journal.is_gone()
    }

    /// Takes an exchange. It is durable once [`Conversations::commit`] has returned.
    ///
    /// # Errors
    /// [`journal::Error::Full`] and [`journal::Error::TooLarge`]; the exchange was not taken then.
    pub fn record(&mut self, exchange: Exchange, wish: Wish) -> Result<Taken> {
        let outline = Outline::of(&exchange.request_body);
        let reading = self.read(&exchange, &outline);
        self.record_read(exchange, &outline, reading.as_ref(), wish)
    }

    /// As [`Conversations::record`], where it was read before by [`Conversations::read`]. `outline` is that of its
    /// request's body as it is now.
    ///
    /// # Errors
    /// As [`Conversations::record`].
    pub fn record_read(
        &mut self,
        mut exchange: Exchange,
        outline: &Outline,
        reading: Option<&Reading>,
        wish: Wish,
    ) -> Result<Taken> {
        let Some(reading) = reading else {
            let taken = wish.apply(&mut exchange, None);
            let id = exchange.id.clone();
            let lsn = self.journal.record_along(outline, exchange, taken.keep, None)?;
            self.pending.push((lsn, Pending::End(id)));
            return Ok(taken);
        };
        let Placed { link, base } = self.stitcher.place(&exchange, reading);
        let facts = reading.facts(&self.source.key, base);
        if exchange.record_level() != Level::Meta {
            exchange.answer = reading::keep_answer(&reading.answer);
        }
        let mut taken = wish.apply(&mut exchange, Some(&link.conversation));
        taken.place = Some(Place::of(&link));
        let row = TurnRow::of(&exchange, &facts, &link);
        let footprint = Footprint::of(&exchange, &facts, &link);
        exchange.facts = Some(facts);
        let lsn = self.journal.record_along(outline, exchange, taken.keep, Some(link))?;
        self.stitcher.insert(footprint);
        self.pending.push((lsn, Pending::Turn(Box::new(row))));
        Ok(taken)
    }

    /// A key for masks in this directory's bodies.
    pub fn mask_key(&self) -> [u8; 32] {
        self.source.key.derive("serin 2026 body mask key")
    }

    /// Reads an exchange as a turn; `None` for one that is none. `outline` is that of its request's body.
    pub fn read(&mut self, exchange: &Exchange, outline: &Outline) -> Option<Reading> {
        is_turn(exchange).then(|| Reading::along(&self.source.key, &mut self.memo, exchange, outline))
    }

    /// The conversation of a turn, as far as the last commit; `None` for one that is not known.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn conversation_of(&self, turn: &str) -> Result<Option<String>> {
        Ok(self.index.link(turn)?.map(|link| link.conversation))
    }

    /// Notes that exchanges went unrecorded.
    ///
    /// # Errors
    /// As [`Conversations::record`].
    pub fn gap(&mut self, gap: Gap) -> Result<()> {
        let lsn = self.journal.append(&Record::Gap(gap.clone()))?;
        self.pending.push((lsn, Pending::Gap(gap)));
        Ok(())
    }

    /// Notes what was found about a turn. Returns whether it is noted: of a turn that is not known, or no longer, it is not.
    ///
    /// # Errors
    /// As [`Conversations::record`], and [`Error::Index`].
    pub fn flag(&mut self, flag: Flag) -> Result<bool> {
        let Some(flags) = Flags::recorded(&flag.name) else { return Ok(false) };
        if !self.stitcher.knows(&flag.turn) && self.index.link(&flag.turn)?.is_none() {
            return Ok(false);
        }
        let turn = flag.turn.clone();
        let lsn = self.journal.append(&Record::Flag(flag))?;
        self.pending.push((lsn, Pending::Flag(turn, flags)));
        Ok(true)
    }

    /// Makes everything taken so far durable. A fault of the index is no fault of the commit: it is counted, and the
    /// index catches up at a later commit.
    ///
    /// # Errors
    /// What the disk says; what was taken is kept for the next commit.
    pub fn commit(&mut self) -> Result<Lsn> {
        let written = self.journal.pending_bytes() > 0;
        let end = self.journal.commit()?;
        let pending = std::mem::take(&mut self.pending);
        if !written && !self.index_behind {
            return Ok(end);
        }
        if self.index_behind && self.commits_to_wait > 0 {
            self.commits_to_wait -= 1;
            return Ok(end);
        }
        let indexed = if self.index_behind { self.catch_up() } else { self.index_pending(&pending, end) };
        self.note_index(indexed.is_ok());
        Ok(end)
    }

    /// Ends the journal's segment where it is full, old or of another day.
    ///
    /// # Errors
    /// What the disk says.
    pub fn roll_when_due(&mut self) -> Result<()> {
        Ok(self.journal.roll_when_due()?)
    }

    /// Ends the journal's segment.
    ///
    /// # Errors
    /// What the disk says.
    pub fn roll(&mut self) -> Result<()> {
        Ok(self.journal.roll()?)
    }

    /// The segment that is written to or will be next; those before it can be sealed.
    pub fn writing(&self) -> u64 {
        self.journal.writing()
    }

    /// Writes down that what belongs to a subject is to be erased. From here on it is not shown; its bytes go when the
    /// erasure is carried out, for which the segments before [`Conversations::writing`] are ready.
    ///
    /// # Errors
    /// [`Error::Unknown`] where nothing of it is known, and what the disk says.
    pub fn erase(&mut self, subject: &Subject) -> Result<Erasure> {
        self.commit()?;
        let turns = self.index.turns_of(&self.source.key, subject)?;
        if turns.is_empty() {
            return Err(Error::Unknown(subject.to_string()));
        }
        let now = clock::unix_nanos();
        let mut random = [0; 10];
        random.copy_from_slice(&ids::entropy()[..10]);
        let erasure = Erasure {
            id: ids::sortable(now, random),
            subject: subject.hidden(&self.source.key),
            requested_unix_nanos: now,
            turns,
            receipt: None,
        };
        erase::note(&self.source.dir, &*self.source.options.fs, &erasure)?;
        for (turn, _) in &erasure.turns {
            self.stitcher.forget(turn);
        }
        self.journal.forget_pieces();
        self.journal.roll()?;
        self.index.erase(&erasure.turns)?;
        Ok(erasure)
    }

    /// Drops from the index what the journal no longer holds.
    ///
    /// # Errors
    /// [`Error::Index`], and what the disk says.
    pub fn forget_expired(&mut self) -> Result<()> {
        let first = journal::segment::first_kept(&self.source.dir)?;
        self.index.batch(|index| index.forget_before(first))
    }

    /// Bytes that wait for a commit.
    pub fn pending_bytes(&self) -> usize {
        self.journal.pending_bytes()
    }

    /// How often the index could not follow a commit.
    pub fn index_faults(&self) -> u64 {
        self.index_faults
    }

    /// What opening found: damage, and turns without a link.
    pub fn opened(&self) -> &CaughtUp {
        &self.opened
    }

    /// Bytes of a torn write that opening has cut off.
    pub fn torn_bytes(&self) -> u64 {
        self.journal.torn_bytes()
    }

    /// The index as text, for comparison.
    ///
    /// # Errors
    /// [`Error::Index`].
    pub fn dump(&self) -> Result<String> {
        self.index.dump()
    }
}
