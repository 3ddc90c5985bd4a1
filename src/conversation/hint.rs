//! What clients send to say which session a request belongs to. Ids group turns; they do not order them.

use serde::Deserialize;

use super::projection::{Key, Node, RULES};
use crate::journal::Exchange;
use crate::openai::request;

/// The most bytes of an id that count.
const MAX_LEN: usize = 200;

/// Keyed hashes of the ids that a request carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    pub session: Option<Node>,
    /// A thread of that session, as of a sub-agent; `None` for the first.
    pub thread: Option<Node>,
    /// The thread or session that began this one.
    pub parent: Option<Lane>,
}

/// A session and a thread of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    pub session: Node,
    pub thread: Option<Node>,
}

impl Hints {
    /// The lane that a request belongs to.
    pub fn lane(&self) -> Option<Lane> {
        Some(Lane { session: self.session?, thread: self.thread })
    }
}

/// The session id among headers that `find` finds by name.
pub fn id<'a>(find: impl Fn(&str) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    header(&RULES.session_headers, &find)
}

fn header<'a>(names: &[String], find: &impl Fn(&str) -> Option<&'a [u8]>) -> Option<&'a [u8]> {
    let found = |name: &String| Some(find(name)?.trim_ascii()).filter(|value| !value.is_empty());
    let value = names.iter().find_map(found)?;
    Some(&value[..value.len().min(MAX_LEN)])
}

/// The keyed hash of a session id.
pub fn session_node(key: &Key, id: &[u8]) -> Node {
    key.hash(b"session1", &[&id[..id.len().min(MAX_LEN)]])
}

/// What the headers and the body of a request say.
pub fn read(key: &Key, exchange: &Exchange, body: Option<&request::Hints<'_>>) -> Hints {
    let find = |name: &str| exchange.request_header(name);
    let id = id(find).map(<[u8]>::to_vec).or_else(|| body.and_then(session_in_body));
    let session = id.as_deref().map(|id| session_node(key, id));
    let threads = |names: &[String]| {
        let own = |thread: &&[u8]| id.as_deref() != Some(*thread);
        header(names, &find).filter(own).map(|thread| key.hash(b"thread1", &[thread]))
    };
    let thread = threads(&RULES.thread_headers);
    let begun_by = header(&RULES.parent_session_headers, &find).map(|id| session_node(key, id));
    let parent = match (begun_by, session) {
        (Some(session), _) => Some(Lane { session, thread: None }),
        (None, Some(session)) if thread.is_some() => {
            Some(Lane { session, thread: threads(&RULES.parent_thread_headers) })
        }
        _ => None,
    };
    Hints {
        session,
        thread,
        parent: parent.filter(|parent| Some(parent.session) != session || parent.thread != thread),
    }
}

fn session_in_body(hints: &request::Hints<'_>) -> Option<Vec<u8>> {
    let conversation = hints.conversation.and_then(|raw| match serde_json::from_str::<String>(raw.get()) {
        Ok(id) => Some(id),
        Err(_) => serde_json::from_str::<Named>(raw.get()).ok()?.id,
    });
    let from_user = hints.metadata_user.as_deref().and_then(in_user_id);
    let found =
        from_user.or(conversation).or_else(|| hints.prompt_cache_key.as_deref().map(str::to_owned))?;
    (!found.trim().is_empty()).then(|| found.trim().as_bytes().to_vec())
}

#[derive(Deserialize)]
struct Named {
    id: Option<String>,
    session_id: Option<String>,
}

/// `user_<hash>_account_<id>_session_<uuid>`, or a JSON object with `session_id`.
fn in_user_id(user: &str) -> Option<String> {
    if let Ok(named) = serde_json::from_str::<Named>(user) {
        return named.session_id;
    }
    let (_, session) = user.rsplit_once("_session_")?;
    Some(session.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Header;
    use crate::openai::{Api, Ask};

    fn session(headers: &[(&str, &str)], body: &str) -> Option<Node> {
        let header =
            |(name, value): &(&str, &str)| Header { name: (*name).into(), value: (*value).to_owned().into() };
        let exchange =
            Exchange { request_headers: headers.iter().map(header).collect(), ..Exchange::default() };
        let ask = Ask::parse(Api::Chat, body.as_bytes()).expect("is a request");
        read(&Key::of_tenant("default"), &exchange, Some(&ask.hints)).session
    }

    #[test]
    fn every_spelling_names_the_same_session() {
        let wanted = Some(session_node(&Key::of_tenant("default"), b"s-1"));
        for name in &RULES.session_headers {
            assert_eq!(session(&[(name, " s-1 ")], r#"{"messages":[]}"#), wanted, "{name}");
        }
        for body in [
            r#"{"messages":[],"metadata":{"user_id":"user_ab_account_cd_session_s-1"}}"#,
            r#"{"messages":[],"metadata":{"user_id":"{\"session_id\":\"s-1\"}"}}"#,
            r#"{"messages":[],"prompt_cache_key":"s-1"}"#,
            r#"{"messages":[],"conversation":"s-1"}"#,
            r#"{"messages":[],"conversation":{"id":"s-1"}}"#,
        ] {
            assert_eq!(session(&[], body), wanted, "{body}");
            assert_ne!(
                session(&[("x-session-id", "other")], body),
                wanted,
                "a header is more telling: {body}"
            );
        }
        assert_eq!(session(&[("x-session-id", "")], r#"{"messages":[],"user":"u","metadata":{}}"#), None);
    }
}
