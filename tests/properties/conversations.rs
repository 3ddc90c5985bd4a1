//! Requests and answers as stitching reads them.

use bytes::Bytes;
use serin::conversation::projection::{Key, Memo};
use serin::conversation::reading::{Base, Reading, judge};
use serin::conversation::stitch::{Footprint, Stitcher};
use serin::journal::{Exchange, Header};
use serin::openai::Api;

use super::pieces;

/// As many turns as are linked one after another.
const TURNS: usize = 6;

fn turn(number: usize, request: &[u8], answer: &[u8]) -> Exchange {
    let media = if answer.starts_with(b"{") { "application/json" } else { "text/event-stream" };
    let header = |name: &str, value: &[u8]| Header { name: name.into(), value: value.to_vec().into() };
    Exchange {
        id: format!("turn-{number}"),
        started_unix_nanos: number as u64 * 1_000_000_000,
        method: "POST".into(),
        target: Api::ALL[input_api(request)].path().into(),
        request_headers: vec![header("Session-Id", &request[..request.len().min(3)])],
        request_body: Bytes::copy_from_slice(request),
        request_body_hash: Bytes::copy_from_slice(blake3::hash(request).as_bytes()),
        status: 200,
        response_headers: vec![header("content-type", media.as_bytes())],
        response_body: Bytes::copy_from_slice(answer),
        ..Exchange::default()
    }
}

/// The interface that a request is for: by what it names first.
fn input_api(request: &[u8]) -> usize {
    let names: [&[u8]; 5] = [b"messages", b"input\"", b"system", b"prompt", b"text\""];
    let first = |name: &&[u8]| request.windows(name.len()).position(|window| window == *name);
    let found = names.iter().enumerate().filter_map(|(at, name)| Some((first(name)?, at)));
    found.min().map_or(0, |(_, at)| at)
}

/// Any bodies can be read and linked; reading is repeatable, and a link names a turn that was there before.
pub fn conversations(input: &[u8]) {
    let key = Key::of_tenant("fuzz");
    let mut stitcher = Stitcher::new(key.clone(), TURNS / 2);
    let mut memo = Memo::new(8, 8);
    let bodies = pieces::parts(input);
    for (number, pair) in bodies.chunks(2).take(TURNS).enumerate() {
        let exchange = turn(number, pair[0], pair.get(1).copied().unwrap_or_default());
        let reading = Reading::of(&key, &mut memo, &exchange);
        let again = Reading::of(&key, &mut Memo::new(1, 1), &exchange);
        let root = Base { node: key.root(), groups: 0 };
        assert_eq!(reading.facts(&key, root), again.facts(&key, root));
        assert!(reading.readable || reading.groups.is_empty());
        let placed = stitcher.place(&exchange, &reading);
        let link = &placed.link;
        assert_eq!(link.turn, exchange.id);
        let known = |id: &str| {
            id.strip_prefix("turn-").and_then(|id| id.parse().ok()).is_some_and(|id: usize| id < number)
        };
        assert!(link.parent.is_empty() || known(&link.parent), "{link:?} follows a turn nobody saw");
        assert!((0.0..=1.0).contains(&link.confidence), "{link:?}");
        let facts = reading.facts(&key, placed.base);
        stitcher.insert(Footprint::of(&exchange, &facts, link));
        assert!(stitcher.len() <= TURNS / 2);
        let _ = judge(&exchange, &reading.answer);
    }
}
