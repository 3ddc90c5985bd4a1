//! An exchange as records, and back: its bodies become references to pieces that the epoch has already.

use bytes::{Bytes, BytesMut};

use super::exchange::{Capture, Exchange, Level, Part};
use super::frame::MAX_RAW;
use super::piece::{self, Run};
use super::record::{List, Record, Stream};
use super::segment::Class;
use super::{Lsn, events};
use crate::openai::outline::{self, Element, Outline};
use crate::openai::sse;
use crate::recent::Recent;

/// Elements of one list record. A body of ten thousand messages takes six hundred references.
const FAN_OUT: usize = 16;
/// How deep lists may lie in each other: a group of elements, an element, a long text of it.
const DEPTH: u32 = 4;
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

/// The pieces that this epoch has, by their hash. What is forgotten is only written once more.
pub struct Known {
    pieces: Recent<Name, Lsn>,
    /// What elements of requests came to, by their own names: they are not cut again.
    elements: Recent<outline::Name, (Name, Lsn)>,
}

/// The beginning of a BLAKE3 hash, and whether it is that of a list.
type Name = (outline::Name, bool);

/// One part in the making: bytes, or where they are.
enum Item {
    Here(Bytes),
    There(Name, Lsn),
}

/// Collects the records of one exchange.
struct Packing<'a> {
    known: &'a mut Known,
    records: Vec<Record>,
    first: Lsn,
}

/// Finds the record of a number and class.
pub type Fetch<'a, E> = dyn FnMut(Lsn, Class) -> Result<Option<Record>, E> + 'a;

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
    /// Remembers at most so many.
    pub fn new(entries: usize) -> Known {
        Known { pieces: Recent::new(entries), elements: Recent::new(entries) }
    }

    pub fn clear(&mut self) {
        self.pieces.clear();
        self.elements.clear();
    }

    /// Notes where a piece is.
    pub fn note(&mut self, piece: &[u8], lsn: Lsn) {
        self.pieces.insert((outline::name(piece), false), lsn);
    }
}

/// Records whose numbers begin at `first` and go up by one; the exchange is the last of them. `outline` is that of its
/// request's body.
pub fn pack(
    mut exchange: Exchange,
    outline: &Outline,
    keep: Keep,
    known: &mut Known,
    first: Lsn,
) -> Vec<Record> {
    let mut packing = Packing { known, records: Vec::new(), first };
    let (request, response) =
        (std::mem::take(&mut exchange.request_body), std::mem::take(&mut exchange.response_body));
    let answer = std::mem::take(&mut exchange.answer);
    let streamed = is_stream(&exchange);
    keep.lower(&mut exchange);
    let mut made = Vec::new();
    if keep.content {
        made.push(packing.runs(&request, piece::cut(&request, outline)));
        made.push(packing.runs(&answer, piece::cut_text(&answer)));
        if !streamed {
            made.push(packing.runs(&response, piece::cut_text(&response)));
        }
    }
    let edges = (std::mem::take(&mut exchange.edge_lengths), std::mem::take(&mut exchange.edge_micros));
    let mut stream = None;
    if keep.stream && streamed && !response.is_empty() {
        let coded = events::encode(&response).into();
        stream =
            Some(packing.push(Record::Stream(Stream { coded, edge_lengths: edges.0, edge_micros: edges.1 })));
    } else if !streamed {
        (exchange.edge_lengths, exchange.edge_micros) = edges;
    }
    let own = packing.next();
    let mut parts = made.into_iter().map(|made| made.iter().map(|item| item.part(own)).collect());
    exchange.request_parts = parts.next().unwrap_or_default();
    exchange.answer_parts = parts.next().unwrap_or_default();
    exchange.response_parts = parts.next().unwrap_or_default();
    exchange.stream_back = stream.and_then(|lsn| own.back_to(lsn)).unwrap_or_default();
    packing.push(Record::Exchange(exchange));
    packing.records
}

/// Whether the response is a stream of events.
fn is_stream(exchange: &Exchange) -> bool {
    let encoded = exchange.response_header("content-encoding").is_some();
    !encoded && sse::is_stream(exchange.response_header("content-type"))
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

    /// The parts that runs come to; pieces that are not known become records.
    fn runs(&mut self, body: &Bytes, runs: Vec<Run>) -> Vec<Item> {
        let mut items = Vec::new();
        for run in runs {
            match run {
                Run::Gap(range) if range.len() < INLINE => items.push(Item::Here(body.slice(range))),
                Run::Gap(range) | Run::Value(range) => items.push(self.piece(body.slice(range))),
                Run::Element(element) => items.push(self.named(body, element)),
                Run::List(elements) => items.extend(self.list(body, elements)),
            }
        }
        items
    }

    /// The elements of a list: as lists where there are enough of them, and what is left by itself. Only full lists come
    /// again as they are while a conversation grows.
    fn list(&mut self, body: &Bytes, elements: Vec<Run>) -> Vec<Item> {
        let mut items: Vec<Item> = elements.into_iter().map(|element| self.element(body, element)).collect();
        let rest = items.split_off(items.len() - items.len() % FAN_OUT);
        let full = items.chunks(FAN_OUT).map(|group| self.group(group)).collect::<Vec<_>>();
        full.into_iter().chain(rest).collect()
    }

    /// One element of a list, as one item.
    fn element(&mut self, body: &Bytes, element: Run) -> Item {
        match element {
            Run::Gap(range) | Run::Value(range) => self.piece(body.slice(range)),
            Run::Element(element) => self.named(body, element),
            Run::List(runs) => {
                let items = self.runs(body, runs);
                self.group(&items)
            }
        }
    }

    /// An element that was put somewhere before, or is now.
    fn named(&mut self, body: &Bytes, element: Element) -> Item {
        if let Some((name, lsn)) = self.known.elements.get(&element.name) {
            return Item::There(*name, *lsn);
        }
        let cut = piece::cut_element(body, element.range);
        let item = self.element(body, cut);
        if let Item::There(name, lsn) = item {
            self.known.elements.insert(element.name, (name, lsn));
        }
        item
    }

    fn piece(&mut self, bytes: Bytes) -> Item {
        let name = (outline::name(&bytes), false);
        let lsn = self.known.pieces.get(&name).copied().unwrap_or_else(|| {
            let lsn = self.push(Record::Piece(bytes));
            self.known.pieces.insert(name, lsn);
            lsn
        });
        Item::There(name, lsn)
    }

    fn group(&mut self, items: &[Item]) -> Item {
        let mut hasher = blake3::Hasher::new();
        items.iter().for_each(|item| item.name(&mut hasher));
        let mut name = ([0; 16], true);
        name.0.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        let lsn = self.known.pieces.get(&name).copied().unwrap_or_else(|| {
            let own = self.next();
            let parts = items.iter().map(|item| item.part(own)).collect();
            let lsn = self.push(Record::List(List { parts }));
            self.known.pieces.insert(name, lsn);
            lsn
        });
        Item::There(name, lsn)
    }
}

impl Item {
    /// As a record of that number refers to it.
    fn part(&self, own: Lsn) -> Part {
        match self {
            Item::Here(literal) => Part { literal: literal.clone(), back: 0, list: false },
            Item::There((_, list), lsn) => {
                Part { literal: Bytes::new(), back: own.back_to(*lsn).unwrap_or_default(), list: *list }
            }
        }
    }

    /// Its part of a list's name, which tells content, and not where that is.
    fn name(&self, hasher: &mut blake3::Hasher) {
        match self {
            Item::Here(literal) => {
                hasher.update(&[0]).update(&(literal.len() as u64).to_le_bytes()).update(literal)
            }
            Item::There((name, list), _) => hasher.update(&[1 + u8::from(*list)]).update(name),
        };
    }
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
    let said = std::mem::take(&mut exchange.answer_parts);
    for (parts, body, found) in [
        (asked, &mut exchange.request_body, &mut found.request),
        (answered, &mut exchange.response_body, &mut found.response),
        (said, &mut exchange.answer, &mut found.answer),
    ] {
        if !parts.is_empty() {
            let (mut joined, mut room) = (BytesMut::new(), MAX_RAW as usize);
            *found = join(&parts, own, DEPTH, &mut joined, &mut room, fetch)?;
            *body = if *found { joined.freeze() } else { Bytes::new() };
        }
    }
    if let Some(at) = own.back(std::mem::take(&mut exchange.stream_back)).filter(|at| *at < own) {
        let stream = match fetch(at, Class::Stream)? {
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

/// Puts parts together. Returns whether all were there, and there was room for them.
fn join<E>(
    parts: &[Part],
    own: Lsn,
    depth: u32,
    body: &mut BytesMut,
    room: &mut usize,
    fetch: &mut Fetch<'_, E>,
) -> Result<bool, E> {
    for part in parts {
        if part.back == 0 {
            if !fits(room, part.literal.len()) {
                return Ok(false);
            }
            body.extend_from_slice(&part.literal);
            continue;
        }
        let Some(at) = own.back(part.back) else { return Ok(false) };
        match fetch(at, Class::Content)? {
            Some(Record::List(list)) if part.list && depth > 0 => {
                if (list.parts.is_empty() && !fits(room, 0))
                    || !join(&list.parts, at, depth - 1, body, room, fetch)?
                {
                    return Ok(false);
                }
            }
            Some(Record::Piece(piece)) if !part.list && fits(room, piece.len()) => {
                body.extend_from_slice(&piece);
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Takes room for so many bytes. What is empty takes a byte as well: else a few records could lead to no end of parts.
fn fits(room: &mut usize, bytes: usize) -> bool {
    let left = room.checked_sub(bytes.max(1));
    *room = left.unwrap_or(*room);
    left.is_some()
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
            let new = pack(
                exchange.clone(),
                &Outline::of(&exchange.request_body),
                Keep::ALL,
                &mut self.known,
                first,
            );
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
            (Keep { content: true, stream: false }, 2),
            (Keep::ALL, 2),
        ] {
            let made = pack(one.clone(), &Outline::of(&one.request_body), keep, &mut shelf.known, Lsn(1));
            assert_eq!(made.len(), records, "{keep:?}: the piece is known the third time");
        }
        let mut shelf = Shelf::new(100);
        let (lsn, _) = shelf.put(&one);
        shelf.records[1] = Record::List(List::default());
        let (there, found) = shelf.get(lsn);
        assert_eq!(found, Found { request: false, ..Found::ALL });
        assert!(there.request_body.is_empty() && there.response_body == one.response_body);
    }

    #[test]
    fn few_records_do_not_lead_to_more_than_a_body_holds() {
        let part =
            |literal: &'static [u8], back, list| Part { literal: Bytes::from_static(literal), back, list };
        let list = |part: Part| Record::List(List { parts: vec![part; 100] });
        let lists = || (0..3).map(|_| list(part(b"", 1, true)));
        for (leaf, empty) in [
            (list(part(b"", 0, false)), true),
            (list(part(b"xy", 0, false)), false),
            (Record::List(List::default()), true),
        ] {
            let records: Vec<Record> = [leaf].into_iter().chain(lists()).collect();
            let fetched = std::cell::Cell::new(0);
            let mut fetch = |lsn: Lsn, _| {
                fetched.set(fetched.get() + 1);
                Ok::<_, Infallible>(records.get(lsn.0 as usize).cloned())
            };
            let (mut body, mut room) = (BytesMut::new(), 1000);
            let parts = vec![part(b"", 1, true); 100];
            let Ok(whole) = join(&parts, Lsn(records.len() as u64), DEPTH, &mut body, &mut room, &mut fetch);
            assert!(!whole && body.len() <= 1000 && body.is_empty() == empty);
            assert!(fetched.get() <= 2100, "{} steps", fetched.get());
        }
        let huge = Part { literal: vec![b'x'; MAX_RAW as usize + 1].into(), ..Part::default() };
        let mut exchange = Exchange { request_parts: vec![huge], ..Exchange::default() };
        let Ok(found) = unpack(&mut exchange, Lsn(1), &mut |_, _| Ok::<_, Infallible>(None));
        assert!(!found.request && exchange.request_body.is_empty());
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
