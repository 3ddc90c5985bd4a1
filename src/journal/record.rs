//! The records of the journal. Fields are numbered as in Protocol Buffers, so a reader skips fields it does not know.

use bytes::Bytes;
use prost::Message;

pub use super::exchange::{Capture, End, Exchange, Header, Level, Origin, Part, Phase};
use super::segment::Class;

/// One record of the journal.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    Exchange(Exchange),
    /// An exchange that had begun, as far as it was known then.
    Start(Exchange),
    Link(Link),
    Gap(Gap),
    Flag(Flag),
    /// Bytes of bodies, which exchanges refer to.
    Piece(Bytes),
    /// Parts that come together in many bodies.
    List(List),
    /// A streamed response.
    Stream(Stream),
    /// A record type of a later version; kept as it is.
    Unknown {
        kind: u16,
        payload: Bytes,
    },
}

/// Where a turn belongs. Derived from exchanges by rules, and derivable again.
#[derive(Clone, PartialEq, Message)]
pub struct Link {
    /// The exchange this link is about.
    #[prost(string, tag = "1")]
    pub turn: String,
    /// The id of the conversation: that of its first turn.
    #[prost(string, tag = "2")]
    pub conversation: String,
    /// The turn this one follows (`append`, `branch`) or repeats (`retry`, `regenerate`); empty for a root.
    #[prost(string, tag = "3")]
    pub parent: String,
    #[prost(string, tag = "4")]
    pub kind: String,
    #[prost(float, tag = "5")]
    pub confidence: f32,
    #[prost(string, tag = "6")]
    pub evidence: String,
    #[prost(uint32, tag = "7")]
    pub rules_version: u32,
}

/// A stretch of time in which exchanges went unrecorded.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Gap {
    #[prost(fixed64, tag = "1")]
    pub from_unix_nanos: u64,
    #[prost(fixed64, tag = "2")]
    pub to_unix_nanos: u64,
    #[prost(string, tag = "3")]
    pub reason: String,
    #[prost(uint64, tag = "4")]
    pub count: u64,
}

/// What was found about a turn after it was recorded.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Flag {
    /// The exchange it is about.
    #[prost(string, tag = "1")]
    pub turn: String,
    /// One of a closed list: `conversation::Flags::RECORDED`.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The version of what has found it: counts of two versions do not compare.
    #[prost(uint32, tag = "3")]
    pub version: u32,
    #[prost(fixed64, tag = "4")]
    pub unix_nanos: u64,
}

/// Parts that come together in many bodies.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct List {
    #[prost(message, repeated, tag = "1")]
    pub parts: Vec<Part>,
}

/// A streamed response body with its frames.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Stream {
    /// See [`super::events`].
    #[prost(bytes = "bytes", tag = "1")]
    pub coded: Bytes,
    /// As in [`Exchange`].
    #[prost(uint32, repeated, tag = "2")]
    pub edge_lengths: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub edge_micros: Vec<u32>,
}

impl Record {
    pub const EXCHANGE: u16 = 1;
    pub const LINK: u16 = 2;
    pub const GAP: u16 = 3;
    pub const PIECE: u16 = 4;
    pub const LIST: u16 = 5;
    pub const STREAM: u16 = 6;
    pub const FLAG: u16 = 7;
    pub const START: u16 = 8;

    /// The number that names this record's type on disk.
    pub fn kind(&self) -> u16 {
        match self {
            Record::Exchange(_) => Self::EXCHANGE,
            Record::Start(_) => Self::START,
            Record::Link(_) => Self::LINK,
            Record::Gap(_) => Self::GAP,
            Record::Piece(_) => Self::PIECE,
            Record::List(_) => Self::LIST,
            Record::Stream(_) => Self::STREAM,
            Record::Flag(_) => Self::FLAG,
            Record::Unknown { kind, .. } => *kind,
        }
    }

    /// The class of files that records of a kind are sealed into. What a later version adds is taken for metadata,
    /// which is kept longest.
    pub fn class_of(kind: u16) -> Class {
        match kind {
            Self::PIECE | Self::LIST => Class::Content,
            Self::STREAM => Class::Stream,
            _ => Class::Metadata,
        }
    }

    /// Bytes of the encoded payload.
    pub fn payload_len(&self) -> usize {
        match self {
            Record::Exchange(exchange) | Record::Start(exchange) => exchange.encoded_len(),
            Record::Link(link) => link.encoded_len(),
            Record::Gap(gap) => gap.encoded_len(),
            Record::List(list) => list.encoded_len(),
            Record::Stream(stream) => stream.encoded_len(),
            Record::Flag(flag) => flag.encoded_len(),
            Record::Piece(payload) | Record::Unknown { payload, .. } => payload.len(),
        }
    }

    /// Appends the encoded payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let written = match self {
            Record::Exchange(exchange) | Record::Start(exchange) => exchange.encode(out),
            Record::Link(link) => link.encode(out),
            Record::Gap(gap) => gap.encode(out),
            Record::List(list) => list.encode(out),
            Record::Stream(stream) => stream.encode(out),
            Record::Flag(flag) => flag.encode(out),
            Record::Piece(payload) | Record::Unknown { payload, .. } => {
                out.extend_from_slice(payload);
                Ok(())
            }
        };
        written.expect("encoding fails only where the buffer cannot grow, and a Vec grows");
    }

    /// Reads a payload back. An error means that bytes which passed their checksum are no such record.
    pub fn decode(kind: u16, payload: Bytes) -> Result<Record, prost::DecodeError> {
        match kind {
            Self::EXCHANGE => Exchange::decode(payload).map(Record::Exchange),
            Self::LINK => Link::decode(payload).map(Record::Link),
            Self::GAP => Gap::decode(payload).map(Record::Gap),
            Self::PIECE => Ok(Record::Piece(payload)),
            Self::LIST => List::decode(payload).map(Record::List),
            Self::STREAM => Stream::decode(payload).map(Record::Stream),
            Self::FLAG => Flag::decode(payload).map(Record::Flag),
            Self::START => Exchange::decode(payload).map(Record::Start),
            _ => Ok(Record::Unknown { kind, payload }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_of_a_later_version_are_skipped() {
        let mut bytes = Gap { count: 7, ..Gap::default() }.encode_to_vec();
        prost::encoding::string::encode(900, &"new".to_owned(), &mut bytes);
        assert_eq!(Gap::decode(bytes.as_slice()).map(|gap| gap.count), Ok(7));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(kind in 0u16..10, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode(kind, Bytes::from(bytes));
        }
    }
}
