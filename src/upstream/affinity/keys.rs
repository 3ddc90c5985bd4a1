//! What a conversation is known by.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

use hyper::HeaderMap;

use crate::conversation::hint;
use crate::openai::field;

/// Fields of a body that name its conversation or the answer it goes on from.
const FIELDS: [&str; 3] = ["previous_response_id", "conversation", "prompt_cache_key"];
/// The shortest beginning that is looked at, in bytes; each further one is twice as long.
const SHORTEST: usize = 256;
const MOST: usize = 12;

/// Clients choose the ids and the bodies: the key keeps them from choosing the hashes.
static HASH: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// What a member is called in the table.
pub fn name(name: &str) -> u64 {
    HASH.hash_one(name)
}

/// Hashes a conversation is known by, the least telling first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    hashes: [u64; MOST],
    count: usize,
}

impl Keys {
    pub fn one(hash: u64) -> Self {
        let mut keys = Self::default();
        keys.push(hash);
        keys
    }

    /// The session id in a request's headers.
    pub fn of_headers(headers: &HeaderMap) -> Option<Self> {
        hint::id(|name| Some(headers.get(name)?.as_bytes())).map(Self::of_id)
    }

    /// An id that a body names, its own or that of the answer it goes on from.
    pub fn of_id(id: &[u8]) -> Self {
        Self::one(HASH.hash_one(id))
    }

    /// The id a body names, else the beginnings of it, up to `most` bytes. It need not be whole.
    pub fn of_body(body: &[u8], most: usize) -> Self {
        if let Some(id) = FIELDS.iter().find_map(|name| field::text(&body[..body.len().min(most)], name)) {
            return Self::of_id(id);
        }
        let mut keys = Self::default();
        let mut hasher = HASH.build_hasher();
        let (mut done, mut next) = (0, SHORTEST);
        while next <= body.len().min(most) && keys.count < MOST {
            hasher.write(&body[done..next]);
            keys.push(hasher.finish());
            (done, next) = (next, next * 2);
        }
        keys
    }

    fn push(&mut self, hash: u64) {
        self.hashes[self.count] = hash;
        self.count += 1;
    }

    pub fn most_telling_first(&self) -> impl Iterator<Item = u64> {
        self.hashes[..self.count].iter().rev().copied()
    }
}

/// The id of an answer whose body begins like this, as a later request will name it: `/v1/responses` in one piece, or its
/// first event.
pub fn answer_id(begin: &[u8]) -> Option<&[u8]> {
    if let Some(id) = field::text(begin, "id") {
        return Some(id);
    }
    let at = begin.windows(5).position(|window| window == b"data:")?;
    let event = begin[at + 5..].trim_ascii_start();
    field::text(event, "id").or_else(|| field::text(field::value(event, "response")?, "id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_or_a_field_names_the_conversation() {
        let mut headers = HeaderMap::new();
        assert_eq!(Keys::of_headers(&headers), None);
        headers.insert("x-opencode-session", " ".parse().unwrap());
        assert_eq!(Keys::of_headers(&headers), None, "an empty id names nothing");
        headers.insert("x-session-id", "s".parse().unwrap());
        assert_eq!(Keys::of_headers(&headers), Some(Keys::of_id(b"s")));
        assert_eq!(Keys::of_body(br#"{"previous_response_id":"r","input":"x"}"#, 1024), Keys::of_id(b"r"));
    }

    #[test]
    fn a_turn_shares_the_keys_of_the_turn_before() {
        let first = "x".repeat(700);
        let second = format!("{first}{}", "y".repeat(2_000));
        let (first, second) =
            (Keys::of_body(first.as_bytes(), 1 << 20), Keys::of_body(second.as_bytes(), 1 << 20));
        assert_eq!((first.count, second.count), (2, 4));
        assert_eq!(first.hashes[..2], second.hashes[..2]);
        assert_eq!(Keys::of_body(b"short", 1 << 20), Keys::default());
    }

    #[test]
    fn an_answer_names_itself() {
        assert_eq!(answer_id(br#"{"id":"resp_1","object":"response"#), Some(&b"resp_1"[..]));
        let event =
            b"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_2\",";
        assert_eq!(answer_id(event), Some(&b"resp_2"[..]));
        assert_eq!(answer_id(b"data: {\"id\":\"cmpl-3\"}\n\n"), Some(&b"cmpl-3"[..]));
        assert_eq!(answer_id(b"plain text"), None);
    }
}
