//! What a record holds. Fields are numbered as in Protocol Buffers, so a reader skips fields it does not know.

use bytes::Bytes;
use prost::Message;

/// One record of the journal.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "half of all records are exchanges, and few exist at a time")]
pub enum Record {
    Exchange(Exchange),
    Link(Link),
    Gap(Gap),
    /// A record type of a later version; kept as it is.
    Unknown {
        kind: u16,
        payload: Bytes,
    },
}

/// A header line, name and value as received (or masked by the recorder). Values need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Header {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// One request and its response.
#[derive(Clone, PartialEq, Message)]
pub struct Exchange {
    /// Unique and sortable by time, see [`crate::ids::sortable`].
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(fixed64, tag = "2")]
    pub started_unix_nanos: u64,
    #[prost(enumeration = "Origin", tag = "3")]
    pub origin: i32,
    #[prost(string, tag = "4")]
    pub method: String,
    /// Path and query as received; secret query values are masked before they come here.
    #[prost(string, tag = "5")]
    pub target: String,
    #[prost(message, repeated, tag = "6")]
    pub request_headers: Vec<Header>,
    #[prost(bytes = "bytes", tag = "7")]
    pub request_body: Bytes,
    /// BLAKE3 of the whole body as forwarded, also where the body itself was not kept.
    #[prost(bytes = "bytes", tag = "8")]
    pub request_body_hash: Bytes,
    #[prost(uint64, tag = "9")]
    pub request_body_len: u64,
    #[prost(enumeration = "Capture", tag = "10")]
    pub request_capture: i32,
    /// HTTP status; 0 when no response head was seen.
    #[prost(uint32, tag = "11")]
    pub status: u32,
    #[prost(message, repeated, tag = "12")]
    pub response_headers: Vec<Header>,
    #[prost(bytes = "bytes", tag = "13")]
    pub response_body: Bytes,
    #[prost(bytes = "bytes", tag = "14")]
    pub response_body_hash: Bytes,
    #[prost(uint64, tag = "15")]
    pub response_body_len: u64,
    #[prost(enumeration = "Capture", tag = "16")]
    pub response_capture: i32,
    /// Length in bytes of each frame of the response body, in order of arrival.
    #[prost(uint32, repeated, tag = "17")]
    pub edge_lengths: Vec<u32>,
    /// Microseconds between each frame and the one before it (the first: since the request began).
    #[prost(uint32, repeated, tag = "18")]
    pub edge_micros: Vec<u32>,
    #[prost(message, repeated, tag = "19")]
    pub trailers: Vec<Header>,
    #[prost(enumeration = "End", tag = "20")]
    pub end: i32,
    #[prost(enumeration = "Phase", tag = "21")]
    pub phase: i32,
    #[prost(string, tag = "22")]
    pub upstream: String,
    #[prost(string, tag = "23")]
    pub served_by: String,
    /// Microseconds from the start of the request to the first byte of the response body.
    #[prost(uint64, tag = "24")]
    pub first_byte_micros: u64,
    /// Microseconds from the start of the request to its end.
    #[prost(uint64, tag = "25")]
    pub end_micros: u64,
    #[prost(message, repeated, tag = "26")]
    pub labels: Vec<Header>,
    /// The model as the client asked for it.
    #[prost(string, tag = "27")]
    pub model: String,
    #[prost(enumeration = "Level", tag = "28")]
    pub record_level: i32,
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

/// Who sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Origin {
    Client = 0,
    Canary = 1,
}

/// How much of a body was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Capture {
    Whole = 0,
    Truncated = 1,
    None = 2,
}

/// How an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum End {
    Complete = 0,
    StreamError = 1,
    ClientCancelled = 2,
    UpstreamCut = 3,
    UpstreamRefused = 4,
    TimeoutHead = 5,
    TimeoutIdle = 6,
    Shutdown = 7,
    ProxyRefused = 8,
}

/// How far an exchange had come when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Phase {
    RequestBody = 0,
    PreFirstByte = 1,
    ResponseBody = 2,
    Done = 3,
}

/// How much of an exchange was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Level {
    Full = 0,
    Shape = 1,
    Meta = 2,
}

impl End {
    /// The name used in JSON, labels and tables.
    pub fn name(self) -> &'static str {
        match self {
            End::Complete => "complete",
            End::StreamError => "stream_error",
            End::ClientCancelled => "client_cancelled",
            End::UpstreamCut => "upstream_cut",
            End::UpstreamRefused => "upstream_refused",
            End::TimeoutHead => "timeout_head",
            End::TimeoutIdle => "timeout_idle",
            End::Shutdown => "shutdown",
            End::ProxyRefused => "proxy_refused",
        }
    }
}

impl Capture {
    /// What was kept of a body: nothing where none was wanted.
    pub fn of(wanted: bool, truncated: bool) -> Self {
        match (wanted, truncated) {
            (false, _) => Self::None,
            (true, true) => Self::Truncated,
            (true, false) => Self::Whole,
        }
    }
}

impl Exchange {
    /// The path of the request target, without its query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// The first request header of that name, compared without regard to case.
    pub fn request_header(&self, name: &str) -> Option<&[u8]> {
        find(&self.request_headers, name)
    }

    /// The first response header of that name, compared without regard to case.
    pub fn response_header(&self, name: &str) -> Option<&[u8]> {
        find(&self.response_headers, name)
    }

    /// When the exchange ended, in nanoseconds since 1970.
    pub fn ended_unix_nanos(&self) -> u64 {
        self.started_unix_nanos.saturating_add(self.end_micros.saturating_mul(1000))
    }
}

impl Record {
    const EXCHANGE: u16 = 1;
    const LINK: u16 = 2;
    const GAP: u16 = 3;

    /// The number that names this record's type on disk.
    pub fn kind(&self) -> u16 {
        match self {
            Record::Exchange(_) => Self::EXCHANGE,
            Record::Link(_) => Self::LINK,
            Record::Gap(_) => Self::GAP,
            Record::Unknown { kind, .. } => *kind,
        }
    }

    /// Bytes of the encoded payload.
    pub fn payload_len(&self) -> usize {
        match self {
            Record::Exchange(exchange) => exchange.encoded_len(),
            Record::Link(link) => link.encoded_len(),
            Record::Gap(gap) => gap.encoded_len(),
            Record::Unknown { payload, .. } => payload.len(),
        }
    }

    /// Appends the encoded payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let written = match self {
            Record::Exchange(exchange) => exchange.encode(out),
            Record::Link(link) => link.encode(out),
            Record::Gap(gap) => gap.encode(out),
            Record::Unknown { payload, .. } => {
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
            _ => Ok(Record::Unknown { kind, payload }),
        }
    }
}

fn find<'a>(headers: &'a [Header], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_are_found_in_any_case_and_the_path_ends_at_the_query() {
        let header = Header { name: "Content-TYPE".into(), value: "x".into() };
        let exchange =
            Exchange { target: "/a?b=/c?d".into(), response_headers: vec![header], ..Exchange::default() };
        assert_eq!(exchange.response_header("content-type"), Some(b"x".as_slice()));
        assert_eq!((exchange.request_header("content-type"), exchange.path()), (None, "/a"));
    }

    #[test]
    fn fields_of_a_later_version_are_skipped() {
        let mut bytes = Gap { count: 7, ..Gap::default() }.encode_to_vec();
        prost::encoding::string::encode(900, &"new".to_owned(), &mut bytes);
        assert_eq!(Gap::decode(bytes.as_slice()).map(|gap| gap.count), Ok(7));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(kind in 0u16..5, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Record::decode(kind, Bytes::from(bytes));
        }
    }
}
