//! What a stopped Serin left in its journal.

use serin::journal::{Exchange, Reader, Record};

use super::Serin;

/// All records, in order. Stops Serin first, so that every one is there.
pub fn records(serin: &mut Serin) -> Vec<Record> {
    serin.stop();
    Reader::open(&serin.dir.path().join("data")).unwrap().map(|entry| entry.unwrap().1).collect()
}

/// All exchanges of a tenant of a Serin that has stopped.
pub fn of_tenant(serin: &Serin, name: &str) -> Vec<Exchange> {
    let data = serin.dir.path().join("data");
    let dir = if name == "default" { data } else { data.join("tenants").join(name) };
    let entries = Reader::open(&dir).unwrap().map(|entry| entry.unwrap().1);
    entries
        .filter_map(|record| if let Record::Exchange(exchange) = record { Some(exchange) } else { None })
        .collect()
}

/// All exchanges, in order of their end.
pub fn exchanges(serin: &mut Serin) -> Vec<Exchange> {
    let only = |record| match record {
        Record::Exchange(exchange) => Some(exchange),
        _ => None,
    };
    records(serin).into_iter().filter_map(only).collect()
}
