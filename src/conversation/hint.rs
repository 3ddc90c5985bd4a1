//! Session ids that clients send in headers. They group turns; they do not order them.

use super::projection::{Key, Node};
use crate::journal::Exchange;

/// The headers that may name a session, most telling first. `x-correlation-id` is not among them: most who send it make a
/// new one for each request.
const SESSION_HEADERS: [&str; 10] = [
    "x-claude-code-session-id",
    "x-opencode-session",
    "x-session-id",
    "session-id",
    "session_id",
    "x-session-affinity",
    "x-dynamo-session-id",
    "x-litellm-session-id",
    "helicone-session-id",
    "x-openwebui-chat-id",
];

/// The most bytes of an id that count.
const MAX_LEN: usize = 200;

/// The session id among headers that `find` finds by name.
pub fn id<'a>(find: impl Fn(&str) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    let found = |name: &&str| Some(find(name)?.trim_ascii()).filter(|value| !value.is_empty());
    let value = SESSION_HEADERS.iter().find_map(found)?;
    Some(&value[..value.len().min(MAX_LEN)])
}

/// The keyed hash of the session id that a request carries.
pub fn session(key: &Key, exchange: &Exchange) -> Option<Node> {
    Some(session_node(key, id(|name| exchange.request_header(name))?))
}

/// The keyed hash of a session id.
pub fn session_node(key: &Key, id: &[u8]) -> Node {
    key.hash(b"session1", &[&id[..id.len().min(MAX_LEN)]])
}
