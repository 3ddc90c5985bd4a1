//! Bodies as the journal keeps them: cut into pieces, coded as differences, and put together again.

use std::collections::HashMap;
use std::convert::Infallible;

use bytes::Bytes;
use serin::journal::pack::{self, Found, Keep, Known};
use serin::journal::record::{Exchange, Header, Part, Record};
use serin::journal::segment::Class;
use serin::journal::{Lsn, events};
use serin::openai::outline::Outline;

use super::pieces as cuts;

/// The most bytes of a body, as docs/journal-format.md has it.
const MOST: u64 = 268_435_456;
/// How deep lists may lie in each other, as docs/journal-format.md has it.
const DEPTH: u32 = 4;
/// As many exchanges as are kept one after another.
const TURNS: usize = 6;
/// More steps than this only take long to follow: a test of the journal's own counts that they end.
const STEPS: u64 = 1 << 14;

/// A journal in memory: what is in it was bytes once.
struct Shelf {
    records: Vec<Record>,
}

impl Shelf {
    /// The first number is nobody's, so that nothing refers to it.
    fn new() -> Shelf {
        Shelf { records: vec![Record::Piece(Bytes::new())] }
    }

    fn next(&self) -> Lsn {
        Lsn(self.records.len() as u64)
    }

    fn put(&mut self, record: &Record) {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let read = Record::decode(record.kind(), bytes.into()).expect("its own bytes");
        assert_eq!(&read, record);
        self.records.push(read);
    }

    fn get(&self, lsn: Lsn) -> Option<&Record> {
        self.records.get(usize::try_from(lsn.0).ok()?)
    }

    /// What an exchange of that number comes to.
    fn fill(&self, mut exchange: Exchange, own: Lsn) -> (Exchange, Found) {
        let mut fetch = |lsn: Lsn, _: Class| {
            assert!(lsn < own, "{lsn} is not before {own}");
            Ok::<_, Infallible>(self.get(lsn).cloned())
        };
        let Ok(found) = pack::unpack(&mut exchange, own, &mut fetch);
        (exchange, found)
    }
}

/// Bodies cut into pieces come back as they were; and whatever records refer to, what comes of it is the body they say or
/// none, and nothing endless.
pub fn pieces(input: &[u8]) {
    hostile(input);
    let Some((head, bodies)) = input.split_at_checked(2) else { return };
    let mut known = Known::new(1 + usize::from(head[0]) % 40);
    let keep = match head[1] % 8 {
        0 => Keep { content: false, stream: false },
        1 => Keep { content: true, stream: false },
        _ => Keep::ALL,
    };
    let mut shelf = Shelf::new();
    let mut turns = Vec::new();
    for pair in cuts::parts(bodies).chunks(2).take(TURNS) {
        let exchange = exchange(pair, head[1]);
        // An outline that is not at hand costs room and nothing else.
        let outline =
            if head[1] % 16 == 15 { Outline::default() } else { Outline::of(&exchange.request_body) };
        let records = pack::pack(exchange.clone(), &outline, keep, &mut known, shelf.next());
        for record in &records {
            check_references(record, shelf.next());
            shelf.put(record);
        }
        turns.push((Lsn(shelf.next().0 - 1), exchange));
    }
    for (lsn, exchange) in turns {
        let Some(Record::Exchange(written)) = shelf.get(lsn) else { panic!("no exchange at {lsn}") };
        let (read, found) = shelf.fill(written.clone(), lsn);
        assert_eq!(found, Found::ALL);
        assert_eq!(read, kept(exchange, keep));
    }
}

fn exchange(pair: &[&[u8]], bits: u8) -> Exchange {
    let response = pair.get(1).copied().unwrap_or_default();
    let media = if response.starts_with(b"data:") { "text/event-stream" } else { "application/json" };
    let request = cuts::stretch(pair[0]);
    let response = cuts::stretch(response);
    let said = response.len() * usize::from(bits >> 4) / 16;
    Exchange {
        request_body: request.into(),
        answer: Bytes::copy_from_slice(&response[..said]),
        edge_lengths: vec![response.len() as u32],
        edge_micros: vec![u32::from(bits)],
        response_body: response.into(),
        response_headers: vec![Header { name: "Content-Type".into(), value: media.into() }],
        ..Exchange::default()
    }
}

/// What is left of an exchange of which no more is kept.
fn kept(mut exchange: Exchange, keep: Keep) -> Exchange {
    let streamed = exchange.response_header("content-type") == Some(b"text/event-stream");
    keep.lower(&mut exchange);
    if !keep.content {
        exchange.request_body.clear();
        exchange.answer.clear();
    }
    if if streamed { !keep.stream } else { !keep.content } {
        exchange.response_body.clear();
    }
    if streamed && exchange.response_body.is_empty() {
        exchange.edge_lengths.clear();
        exchange.edge_micros.clear();
    }
    exchange
}

/// Every reference leads to a record before, and says rightly what that is.
fn check_references(record: &Record, own: Lsn) {
    let parts: Vec<&Part> = match record {
        Record::List(list) => list.parts.iter().collect(),
        Record::Exchange(exchange) => {
            assert!(exchange.stream_back < own.0);
            [&exchange.request_parts, &exchange.answer_parts, &exchange.response_parts]
                .into_iter()
                .flatten()
                .collect()
        }
        _ => return,
    };
    for part in parts {
        assert!(part.back < own.0, "{part:?} in {own} leads to nothing");
        assert!(part.back == 0 || part.literal.is_empty(), "{part:?} in {own} is two things");
    }
}

/// Any records, each of them also as what a body is put together from.
fn hostile(input: &[u8]) {
    let mut shelf = Shelf::new();
    let mut rest = input;
    while let [kind, len, after @ ..] = rest {
        let (payload, after) = after.split_at(usize::from(*len).min(after.len()));
        rest = after;
        let kind = [Record::PIECE, Record::LIST, Record::STREAM, Record::EXCHANGE][usize::from(kind % 4)];
        // What is no such record a reader has already passed over.
        let record =
            Record::decode(kind, Bytes::copy_from_slice(payload)).unwrap_or(Record::Piece(Bytes::new()));
        let own = shelf.next();
        match &record {
            Record::List(list) => {
                follow(&shelf, own, Exchange { request_parts: list.parts.clone(), ..Exchange::default() })
            }
            Record::Exchange(exchange) => follow(&shelf, own, exchange.clone()),
            _ => {}
        }
        shelf.records.push(record);
    }
}

/// What hostile references lead to is told by their plain meaning.
fn follow(shelf: &Shelf, own: Lsn, exchange: Exchange) {
    let mut plain = Plain { shelf, seen: HashMap::new() };
    let all = [&exchange.request_parts, &exchange.response_parts, &exchange.answer_parts];
    let meant = all.map(|parts| plain.parts(parts, own, DEPTH));
    let steps = meant.iter().fold(0u64, |steps, (_, more)| steps.saturating_add(*more));
    if steps > STEPS {
        return;
    }
    let streamed = exchange.stream_back > 0 && exchange.stream_back < own.0;
    let given = all.map(|parts| !parts.is_empty());
    let (read, found) = shelf.fill(exchange, own);
    let whole = |at: usize| meant[at].0.filter(|len| *len <= MOST);
    if given[0] {
        assert_eq!(
            (found.request, read.request_body.len() as u64),
            (whole(0).is_some(), whole(0).unwrap_or(0))
        );
    }
    if given[1] && !streamed {
        assert_eq!(
            (found.response, read.response_body.len() as u64),
            (whole(1).is_some(), whole(1).unwrap_or(0))
        );
    }
    if given[2] {
        assert_eq!((found.answer, read.answer.len() as u64), (whole(2).is_some(), whole(2).unwrap_or(0)));
    }
    assert!(read.response_body.len() as u64 <= MOST);
}

/// How long a body is, `None` where it is gone, and in how many steps that is found.
type Length = (Option<u64>, u64);

struct Plain<'a> {
    shelf: &'a Shelf,
    seen: HashMap<(Lsn, u32), Length>,
}

impl Plain<'_> {
    fn parts(&mut self, parts: &[Part], own: Lsn, depth: u32) -> Length {
        let (mut len, mut steps) = (Some(0u64), 0u64);
        for part in parts {
            let (more, further) = self.part(part, own, depth);
            steps = steps.saturating_add(further).saturating_add(1);
            len = len.zip(more).map(|(len, more)| len.saturating_add(more));
        }
        (len, steps)
    }

    fn part(&mut self, part: &Part, own: Lsn, depth: u32) -> Length {
        if part.back == 0 {
            return (Some(part.literal.len() as u64), 0);
        }
        let Some(at) = own.back(part.back) else { return (None, 0) };
        match self.shelf.get(at) {
            Some(Record::Piece(piece)) if !part.list => (Some(piece.len() as u64), 0),
            Some(Record::List(list)) if part.list && depth > 0 => {
                if let Some(known) = self.seen.get(&(at, depth)) {
                    return *known;
                }
                let length = self.parts(&list.parts, at, depth - 1);
                self.seen.insert((at, depth), length);
                length
            }
            _ => (None, 0),
        }
    }
}

/// A streamed response comes back with its frames, however it was cut into them; and any bytes as a coded stream are one or
/// none.
pub fn streams(input: &[u8]) {
    coded(input);
    let (frames, whole) = cuts::cut(input);
    let exchange = Exchange {
        response_body: Bytes::copy_from_slice(whole),
        response_headers: vec![Header { name: "content-type".into(), value: "text/event-stream".into() }],
        edge_lengths: frames.iter().map(|frame| frame.len() as u32).collect(),
        edge_micros: frames.iter().map(|frame| u32::MAX >> (frame.len() % 33).min(31)).collect(),
        ..Exchange::default()
    };
    let mut shelf = Shelf::new();
    for record in
        pack::pack(exchange.clone(), &Outline::default(), Keep::ALL, &mut Known::new(4), shelf.next())
    {
        shelf.put(&record);
    }
    let own = Lsn(shelf.next().0 - 1);
    let Some(Record::Exchange(written)) = shelf.get(own) else { panic!("no exchange") };
    assert!(written.edge_lengths.is_empty(), "the frames are kept for as long as the stream");
    let (read, found) = shelf.fill(written.clone(), own);
    assert_eq!(found, Found::ALL);
    assert_eq!(read, kept(exchange, Keep::ALL));
    let coded = events::encode(whole);
    assert_eq!(events::decode(&coded).as_deref(), Some(whole));
    // Cut off, it is the beginning of the body, or damage.
    for end in (0..coded.len()).step_by(coded.len() / 16 + 1) {
        assert!(events::decode(&coded[..end]).is_none_or(|body| whole.starts_with(&body)));
    }
}

fn coded(input: &[u8]) {
    let Some(body) = events::decode(input) else { return };
    assert!(body.len() as u64 <= MOST);
    assert_eq!(events::decode(&events::encode(&body)), Some(body));
}
