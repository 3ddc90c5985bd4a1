//! An exchange as it is recorded: one request and its response.

use bytes::Bytes;
use prost::Message;

use super::facts::Facts;

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
    /// What the request's body is put together from; on disk it stands for the body.
    #[prost(message, repeated, tag = "29")]
    pub request_parts: Vec<Part>,
    /// The same for the response's, where it was not streamed.
    #[prost(message, repeated, tag = "30")]
    pub response_parts: Vec<Part>,
    #[prost(message, optional, tag = "31")]
    pub facts: Option<Facts>,
    /// How many records back the streamed response is; 0 where there is none.
    #[prost(uint64, tag = "32")]
    pub stream_back: u64,
    /// What the assembled answer is put together from: it outlives the streamed response.
    #[prost(message, repeated, tag = "33")]
    pub answer_parts: Vec<Part>,
    /// BLAKE3 of the bodies as kept, where secrets in them were masked; else empty.
    #[prost(bytes = "bytes", tag = "34")]
    pub request_kept_hash: Bytes,
    #[prost(bytes = "bytes", tag = "35")]
    pub response_kept_hash: Bytes,
    /// In memory: what the response said, as the recorder assembled it.
    #[prost(bytes = "bytes", tag = "36")]
    pub answer: Bytes,
}

/// One part of a body: some bytes, or a record that has them.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Part {
    #[prost(bytes = "bytes", tag = "1")]
    pub literal: Bytes,
    /// How many records back it is; 0 for a literal.
    #[prost(uint64, tag = "2")]
    pub back: u64,
    /// Whether that record is a list.
    #[prost(bool, tag = "3")]
    pub list: bool,
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
    /// It had begun, and its end was never recorded: the process died before.
    Interrupted = 9,
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
    pub const ALL: [End; 10] = [
        End::Complete,
        End::StreamError,
        End::ClientCancelled,
        End::UpstreamCut,
        End::UpstreamRefused,
        End::TimeoutHead,
        End::TimeoutIdle,
        End::Shutdown,
        End::ProxyRefused,
        End::Interrupted,
    ];

    /// The end of that name; one of a later version counts as refused by a proxy.
    pub fn of_name(name: &str) -> End {
        Self::ALL.into_iter().find(|end| end.name() == name).unwrap_or(End::ProxyRefused)
    }

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
            End::Interrupted => "interrupted",
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

fn find<'a>(headers: &'a [Header], name: &str) -> Option<&'a [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_found_in_any_case_and_the_path_ends_at_the_query() {
        let header = Header { name: "Content-TYPE".into(), value: "x".into() };
        let exchange =
            Exchange { target: "/a?b=/c?d".into(), response_headers: vec![header], ..Exchange::default() };
        assert_eq!(exchange.response_header("content-type"), Some(b"x".as_slice()));
        assert_eq!((exchange.request_header("content-type"), exchange.path()), (None, "/a"));
    }
}
