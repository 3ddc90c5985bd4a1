//! What was read of an exchange when its bodies were at hand: enough to list it, to count it and to link others to it
//! after its bodies are gone.

use bytes::Bytes;
use prost::Message;

use crate::openai::Usage;

/// Hashes are the first 16 bytes of keyed BLAKE3; where there are several they stand one behind the other.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Facts {
    /// The version of the rules that read it.
    #[prost(uint32, tag = "1")]
    pub rules_version: u32,
    #[prost(uint32, tag = "2")]
    pub flags: u32,
    /// Messages of the request.
    #[prost(uint32, tag = "3")]
    pub messages: u32,
    /// The chain's node behind the request, and behind each answer.
    #[prost(bytes = "bytes", tag = "4")]
    pub head: Bytes,
    #[prost(bytes = "bytes", tag = "5")]
    pub answers: Bytes,
    /// By which the answers are recognised without what was before them.
    #[prost(bytes = "bytes", tag = "6")]
    pub anchors: Bytes,
    /// By which a sub-agent's first message is recognised.
    #[prost(bytes = "bytes", tag = "7")]
    pub openings: Bytes,
    /// The last message of the request.
    #[prost(bytes = "bytes", tag = "8")]
    pub last: Bytes,
    /// Nodes of the request's chain behind its last assistant messages but 0, 1, 3, 7 and so on, for joining the
    /// journals of several replicas.
    #[prost(bytes = "bytes", tag = "9")]
    pub boundaries: Bytes,
    #[prost(bytes = "bytes", tag = "10")]
    pub session: Bytes,
    #[prost(bytes = "bytes", tag = "11")]
    pub thread: Bytes,
    /// System prompt and tools; and the same without what changes from day to day.
    #[prost(bytes = "bytes", tag = "12")]
    pub environment: Bytes,
    #[prost(bytes = "bytes", tag = "13")]
    pub template: Bytes,
    /// The server's id of the answer.
    #[prost(bytes = "bytes", tag = "14")]
    pub response_id: Bytes,
    /// Of a prompt that is one text: the last whole block before its end and before the end of each answer, and how many
    /// bytes follow it.
    #[prost(bytes = "bytes", tag = "15")]
    pub blocks: Bytes,
    #[prost(uint32, repeated, tag = "16")]
    pub tails: Vec<u32>,
    #[prost(uint64, optional, tag = "17")]
    pub prompt_tokens: Option<u64>,
    #[prost(uint64, optional, tag = "18")]
    pub output_tokens: Option<u64>,
    #[prost(uint64, optional, tag = "19")]
    pub cached_tokens: Option<u64>,
    #[prost(uint64, optional, tag = "20")]
    pub reasoning_tokens: Option<u64>,
    #[prost(string, optional, tag = "21")]
    pub finish: Option<String>,
    /// The model as the answer names it.
    #[prost(string, tag = "22")]
    pub model: String,
    /// The first message of the request that is no system message.
    #[prost(bytes = "bytes", tag = "23")]
    pub first: Bytes,
}

impl Facts {
    /// The request was read.
    pub const READABLE: u32 = 1;
    /// All of the answer was read.
    pub const PARSED: u32 = 2;
    /// The client asked for a stream.
    pub const STREAMING: u32 = 4;
    /// The request has an assistant's messages in it.
    pub const HISTORY: u32 = 8;

    pub fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The tokens that the answer has reported; `None` where it reported none.
    pub fn usage(&self) -> Option<Usage> {
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.output_tokens,
            cached_tokens: self.cached_tokens,
            reasoning_tokens: self.reasoning_tokens,
        };
        (usage != Usage::default()).then_some(usage)
    }
}
