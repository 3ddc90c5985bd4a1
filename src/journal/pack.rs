//! An exchange as records, and back: its bodies become references to pieces that the epoch has already.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};

use super::exchange::{Capture, Exchange, Level, Part};
use super::frame::MAX_RAW;
use super::piece::{self, Run};
use super::record::{List, Record, Stream};
use super::segment::Class;
use super::{Lsn, events};

/// Elements of one list record. A body of ten thousand messages takes three hundred references.
const FAN_OUT: usize = 32;
/// Bytes below which a gap stays where it is.
const INLINE: usize = 128;

/// What of an exchange is kept beside its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Bodies and the assembled answer.
    pub content: bool,
    /// A streamed response, byte by byte.
    pub stream: bool,
}

/// The pieces that this epoch has, by their hash. Holds at most as many as it was told: the older half is forgotten
/// when the newer one is full, and what is forgotten is only written once more.
pub struct Known {
    newer: HashMap<Name, Lsn>,
    older: HashMap<Name, Lsn>,
    half: usize,
}

/// The beginning of a BLAKE3 hash, and whether it is that of a list.
type Name = ([u8; 16], bool);

/// Collects the records of one exchange.
struct Packing<'a> {
    known: &'a mut Known,
    records: Vec<Record>,
    first: Lsn,
}

/// Finds the record of a number and class.
pub type Fetch<'a, E> = dyn FnMut(Lsn, Class) -> Result<Option<Record>, E> + 'a;

enum Target {
    Here(Bytes),
    At(Lsn, bool),
}

impl Keep {
    pub const ALL: Keep = Keep { content: true, stream: true };

    /// Notes in an exchange what of it is not kept. Returns whether that is anything.
    pub fn lower(self, exchange: &mut Exchange) -> bool {
        let stream = self.content && !self.stream && is_stream(exchange);
        if !self.content {
            exchange.set_request_capture(Capture::None);
        }
        if !self.content || stream {
            exchange.set_response_capture(Capture::None);
        }
        let level = match exchange.record_level() {
            _ if !self.content => Level::Meta,
            Level::Full if stream => Level::Shape,
            level => level,
        };
        let lowered = level != exchange.record_level();
        exchange.set_record_level(level);
        lowered
    }
}

impl Known {
    pub fn new(entries: usize) -> Known {
        Known { newer: HashMap::new(), older: HashMap::new(), half: (entries / 2).max(1) }
    }

    pub fn clear(&mut self) {
        self.newer.clear();
        self.older.clear();
    }

    /// Notes where a piece is.
    pub fn note(&mut self, piece: &[u8], lsn: Lsn) {
        self.insert((name(piece), false), lsn);
    }

    fn insert(&mut self, name: Name, lsn: Lsn) {
        if self.newer.len() >= self.half {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(name, lsn);
    }

    fn find(&mut self, name: &Name) -> Option<Lsn> {
        if let Some(lsn) = self.newer.get(name) {
            return Some(*lsn);
        }
        let lsn = self.older.remove(name)?;
        self.insert(*name, lsn);
        Some(lsn)
    }
}

/// Records whose numbers begin at `first` and go up by one; the exchange is the last of them.
pub fn pack(mut exchange: Exchange, keep: Keep, known: &mut Known, first: Lsn) -> Vec<Record> {
    let mut packing = Packing { known, records: Vec::new(), first };
    let (request, response) =
        (std::mem::take(&mut exchange.request_body), std::mem::take(&mut exchange.response_body));
    let answer = std::mem::take(&mut exchange.answer);
    let streamed = is_stream(&exchange);
    keep.lower(&mut exchange);
    let (mut asked, mut answered, mut said, mut stream) = (Vec::new(), Vec::new(), None, None);
    if keep.content {
        asked = packing.body(&request, piece::cut(&request));
        said = (!answer.is_empty()).then(|| packing.push(Record::Answer(answer)));
        if !streamed {
            answered = packing.body(&response, piece::cut_text(&response));
        }
    }
    let edges = (std::mem::take(&mut exchange.edge_lengths), std::mem::take(&mut exchange.edge_micros));
    if keep.stream && streamed && !response.is_empty() {
        let coded = events::encode(&response).into();
        stream =
            Some(packing.push(Record::Stream(Stream { coded, edge_lengths: edges.0, edge_micros: edges.1 })));
    } else if !streamed {
        (exchange.edge_lengths, exchange.edge_micros) = edges;
    }
    let own = packing.next();
    exchange.request_parts = parts(own, asked);
    exchange.response_parts = parts(own, answered);
    exchange.answer_back = said.and_then(|lsn| own.back_to(lsn)).unwrap_or_default();
    exchange.stream_back = stream.and_then(|lsn| own.back_to(lsn)).unwrap_or_default();
    packing.push(Record::Exchange(exchange));
    packing.records
}

/// Whether the response is a stream of events.
fn is_stream(exchange: &Exchange) -> bool {
    let media = exchange.response_header("content-type").unwrap_or_default();
    let encoded = exchange.response_header("content-encoding").is_some();
    !encoded && media.to_ascii_lowercase().starts_with(b"text/event-stream")
}

impl Packing<'_> {
    fn next(&self) -> Lsn {
        self.first.after(self.records.len() as u64)
    }

    fn push(&mut self, record: Record) -> Lsn {
        let lsn = self.next();
        self.records.push(record);
        lsn
    }

    fn body(&mut self, body: &Bytes, runs: Vec<Run>) -> Vec<Target> {
        let mut targets = Vec::new();
        for run in runs {
            match run {
                Run::Gap(range) if range.len() < INLINE => targets.push(Target::Here(body.slice(range))),
                Run::Gap(range) | Run::Value(range) => {
                    targets.push(Target::At(self.piece(body.slice(range)).1, false));
                }
                Run::List(pieces) => {
                    let all: Vec<(Name, Lsn)> =
                        pieces.into_iter().map(|range| self.piece(body.slice(range))).collect();
                    // Only full lists come again as they are while a conversation grows.
                    let (full, rest) = all.as_chunks::<FAN_OUT>();
                    targets.extend(full.iter().map(|group| Target::At(self.list(group), true)));
                    targets.extend(rest.iter().map(|(_, lsn)| Target::At(*lsn, false)));
                }
            }
        }
        targets
    }

    fn piece(&mut self, bytes: Bytes) -> (Name, Lsn) {
        let name = (name(&bytes), false);
        let lsn = self.known.find(&name).unwrap_or_else(|| {
            let lsn = self.push(Record::Piece(bytes));
            self.known.insert(name, lsn);
            lsn
        });
        (name, lsn)
    }

    fn list(&mut self, group: &[(Name, Lsn)]) -> Lsn {
        let names: Vec<u8> = group.iter().flat_map(|(name, _)| name.0).collect();
        let name = (name(&names), true);
        self.known.find(&name).unwrap_or_else(|| {
            let own = self.next();
            let back = group.iter().filter_map(|(_, lsn)| own.back_to(*lsn)).collect();
            let lsn = self.push(Record::List(List { back }));
            self.known.insert(name, lsn);
            lsn
        })
    }
}

fn parts(own: Lsn, targets: Vec<Target>) -> Vec<Part> {
    let part = |target| match target {
        Target::Here(literal) => Part { literal, back: 0, list: false },
        Target::At(lsn, list) => {
            Part { literal: Bytes::new(), back: own.back_to(lsn).unwrap_or_default(), list }
        }
    };
    targets.into_iter().map(part).collect()
}

fn name(bytes: &[u8]) -> [u8; 16] {
    let mut name = [0; 16];
    name.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    name
}

/// Which of the things that were kept were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub request: bool,
    pub response: bool,
    pub answer: bool,
}

impl Found {
    pub const ALL: Found = Found { request: true, response: true, answer: true };
}

/// Gives an exchange its bodies back. `fetch` finds records. A body that is not whole is left empty.
///
/// # Errors
/// Those of `fetch`.
pub fn unpack<E>(exchange: &mut Exchange, own: Lsn, fetch: &mut Fetch<'_, E>) -> Result<Found, E> {
    let mut found = Found::ALL;
    let asked = std::mem::take(&mut exchange.request_parts);
    let answered = std::mem::take(&mut exchange.response_parts);
    for (parts, body, found) in [
        (asked, &mut exchange.request_body, &mut found.request),
        (answered, &mut exchange.response_body, &mut found.response),
    ] {
        if !parts.is_empty() {
            let joined = join(&parts, own, fetch)?;
            *found = joined.is_some();
            *body = joined.unwrap_or_default();
        }
    }
    let mut back = |steps: &mut u64, class| {
        let lsn = own.back(std::mem::take(steps)).filter(|lsn| *lsn < own);
        lsn.map_or(Ok(None), |lsn| fetch(lsn, class))
    };
    if exchange.answer_back > 0 {
        match back(&mut exchange.answer_back, Class::Content)? {
            Some(Record::Answer(answer)) => exchange.answer = answer,
            _ => found.answer = false,
        }
    }
    if exchange.stream_back > 0 {
        let stream = match back(&mut exchange.stream_back, Class::Stream)? {
            Some(Record::Stream(stream)) => events::decode(&stream.coded).map(|body| (stream, body)),
            _ => None,
        };
        found.response = stream.is_some();
        if let Some((stream, body)) = stream {
            exchange.response_body = body.into();
            (exchange.edge_lengths, exchange.edge_micros) = (stream.edge_lengths, stream.edge_micros);
        }
    }
    Ok(found)
}

/// Puts parts together. `None` where one is missing, or all of them are longer than any body.
fn join<E>(parts: &[Part], own: Lsn, fetch: &mut Fetch<'_, E>) -> Result<Option<Bytes>, E> {
    let mut body = BytesMut::new();
    for part in parts {
        let pieces = match (part.back, part.list) {
            (0, _) => {
                body.extend_from_slice(&part.literal);
                continue;
            }
            (back, false) => vec![own.back(back)],
            (back, true) => {
                let Some(at) = own.back(back) else { return Ok(None) };
                let Some(Record::List(list)) = fetch(at, Class::Content)? else { return Ok(None) };
                list.back.iter().map(|back| at.back(*back)).collect()
            }
        };
        for at in pieces {
            let Some(at) = at else { return Ok(None) };
            let Some(Record::Piece(piece)) = fetch(at, Class::Content)? else { return Ok(None) };
            if body.len() + piece.len() > MAX_RAW as usize {
                return Ok(None);
            }
            body.extend_from_slice(&piece);
        }
    }
    Ok(Some(body.freeze()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::super::exchange::Header;
    use super::*;
    use proptest::prelude::*;

    /// A journal in memory.
    struct Shelf {
        known: Known,
        records: Vec<Record>,
    }

    impl Shelf {
        fn new(entries: usize) -> Shelf {
            Shelf { known: Known::new(entries), records: vec![Record::Piece(Bytes::new())] }
        }

        /// Takes an exchange; returns its number and how many bytes it added.
        fn put(&mut self, exchange: &Exchange) -> (Lsn, usize) {
            let first = Lsn(self.records.len() as u64);
            let new = pack(exchange.clone(), Keep::ALL, &mut self.known, first);
            let bytes = new.iter().map(Record::payload_len).sum();
            self.records.extend(new);
            (Lsn(self.records.len() as u64 - 1), bytes)
        }

        fn get(&self, lsn: Lsn) -> (Exchange, Found) {
            let mut fetch = |lsn: Lsn, _| Ok::<_, Infallible>(self.records.get(lsn.0 as usize).cloned());
            let Ok(Some(Record::Exchange(mut exchange))) = fetch(lsn, Class::Metadata) else {
                panic!("no exchange at {lsn}")
            };
            let Ok(found) = unpack(&mut exchange, lsn, &mut fetch);
            (exchange, found)
        }
    }

    fn exchange(request: impl Into<Bytes>, response: impl Into<Bytes>, media: &'static str) -> Exchange {
        Exchange {
            request_body: request.into(),
            response_body: response.into(),
            response_headers: vec![Header { name: "Content-Type".into(), value: media.into() }],
            edge_lengths: vec![3, 4],
            edge_micros: vec![1000, 7],
            answer: Bytes::from_static(b"said"),
            ..Exchange::default()
        }
    }

    #[test]
    fn two_hundred_turns_take_less_than_twice_their_unique_bytes() {
        let mut shelf = Shelf::new(1 << 16);
        let word = |at: usize| blake3::hash(&at.to_le_bytes()).to_hex().to_string();
        let (mut messages, mut unique, mut stored) = (Vec::new(), 0, 0);
        let mut numbers = Vec::new();
        for turn in 0..200 {
            let said = format!(r#"{{"role":"user","content":"{}"}}"#, word(turn).repeat(30));
            unique += said.len();
            messages.push(said);
            let request = format!(r#"{{"model":"m","messages":[{}],"stream":true}}"#, messages.join(","));
            let answer = word(turn + 1000).repeat(20);
            let response = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{answer}\"}}}}]}}\n\n");
            unique += response.len();
            let mut one = exchange(request, response, "text/event-stream");
            one.answer = answer.clone().into();
            let (lsn, bytes) = shelf.put(&one);
            stored += bytes;
            numbers.push((lsn, one));
            messages.push(format!(r#"{{"role":"assistant","content":"{answer}"}}"#));
            unique += messages[messages.len() - 1].len();
        }
        for (lsn, one) in &numbers {
            assert_eq!(shelf.get(*lsn), (one.clone(), Found::ALL));
        }
        assert!(stored < 2 * unique, "{stored} bytes for {unique} unique ones");
    }

    #[test]
    fn what_is_not_kept_is_not_there_and_what_is_lost_is_told() {
        let mut shelf = Shelf::new(100);
        let one = exchange("r".repeat(999), "data: x\n\n", "text/event-stream");
        for (keep, records) in [
            (Keep { content: false, stream: false }, 1),
            (Keep { content: true, stream: false }, 3),
            (Keep::ALL, 3),
        ] {
            let made = pack(one.clone(), keep, &mut shelf.known, Lsn(1));
            assert_eq!(made.len(), records, "{keep:?}: the piece is known the third time");
        }
        let mut shelf = Shelf::new(100);
        let (lsn, _) = shelf.put(&one);
        shelf.records[1] = Record::Answer(Bytes::new());
        let (there, found) = shelf.get(lsn);
        assert_eq!(found, Found { request: false, ..Found::ALL });
        assert!(there.request_body.is_empty() && there.response_body == one.response_body);
    }

    proptest! {
        #[test]
        fn any_bodies_come_back(
            turns in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..60), 1usize..80, any::<bool>()), 1..8),
            entries in 1usize..40,
        ) {
            let mut shelf = Shelf::new(entries);
            for (seed, times, stream) in turns {
                let media = if stream { "text/event-stream" } else { "application/json" };
                let mut messages: Vec<String> = (0..times).map(|at| format!("{{\"c\":\"{at} {seed:?}\"}}")).collect();
                let json = format!("{{\"messages\":[{}]}}", messages.join(" ,"));
                messages.truncate(1);
                let one = exchange(if times % 3 == 0 { seed.repeat(times) } else { json.into_bytes() }, seed.clone(), media);
                let (lsn, _) = shelf.put(&one);
                let (mut found, all) = shelf.get(lsn);
                prop_assert_eq!(all, Found::ALL);
                if found.edge_lengths.is_empty() {
                    // An empty stream has no frames to tell of.
                    found.edge_lengths.clone_from(&one.edge_lengths);
                    found.edge_micros.clone_from(&one.edge_micros);
                }
                prop_assert_eq!(found, one);
            }
        }
    }
}
