//! Files of other tools.

use bytes::Bytes;
use serin::import::{self, Bad, Format, Input, Outcome};
use serin::journal::{Capture, Exchange};

/// Characters of a complaint: it is a line that somebody reads.
const LINE: usize = 512;

/// Any file is read as any format: what comes of it are exchanges that hold together and are the same the next time, and
/// short complaints.
pub fn imports(input: &[u8]) {
    let input = Input { name: "a.json".into(), stem: "a".into(), bytes: Bytes::copy_from_slice(input) };
    let _ = import::detect(&input.bytes);
    for format in Format::ALL {
        let outcomes = read(format, &input);
        assert_eq!(outcomes, read(format, &input), "read again it is something else");
        let mut ids = std::collections::HashSet::new();
        for outcome in outcomes {
            match outcome {
                Ok(exchange) => {
                    holds_together(&exchange);
                    assert!(ids.insert(exchange.id.clone()), "{} is there twice", exchange.id);
                }
                Err(bad) => is_readable(&bad),
            }
        }
    }
}

fn read(format: Format, input: &Input) -> Vec<Outcome> {
    match import::open(format, input) {
        Ok(outcomes) => outcomes.collect(),
        Err(bad) => vec![Err(bad)],
    }
}

fn is_readable(bad: &Bad) {
    let line = bad.to_string();
    assert!(line.starts_with("a.json") && bad.says.chars().count() <= LINE, "{line}");
    assert!(!line.chars().any(char::is_control), "{line:?}");
}

fn holds_together(exchange: &Exchange) {
    assert_eq!(exchange.edge_lengths.len(), exchange.edge_micros.len());
    let frames: u64 = exchange.edge_lengths.iter().map(|length| u64::from(*length)).sum();
    assert!(frames == 0 || frames == exchange.response_body.len() as u64);
    // Both moments are stored as signed numbers.
    assert!(
        i64::try_from(exchange.started_unix_nanos).is_ok()
            && i64::try_from(exchange.ended_unix_nanos()).is_ok()
    );
    assert_eq!(exchange.request_body_hash.as_ref(), blake3::hash(&exchange.request_body).as_bytes());
    match exchange.response_capture() {
        Capture::Whole => {
            assert_eq!(
                exchange.response_body_hash.as_ref(),
                blake3::hash(&exchange.response_body).as_bytes()
            );
            assert_eq!(exchange.response_body_len, exchange.response_body.len() as u64);
        }
        _ => assert!(exchange.response_body.is_empty() && exchange.response_body_hash.is_empty()),
    }
    for header in exchange.request_headers.iter().chain(&exchange.response_headers) {
        let secret = ["authorization", "cookie", "set-cookie", "x-api-key"].contains(&header.name.as_str());
        assert!(!secret || header.value.starts_with(b"<withheld "), "{header:?}");
    }
}
