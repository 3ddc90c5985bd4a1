//! Whose records are to be erased.

use std::fmt;
use std::str::FromStr;

use super::hint;
use super::projection::Key;
use crate::ids;

/// What a request to erase names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A conversation, by its id.
    Conversation(String),
    /// Every conversation with a turn that carried this session id.
    Session(String),
}

impl Subject {
    /// A name for the receipt, which must not hold what was erased.
    pub fn hidden(&self, key: &Key) -> String {
        match self {
            Subject::Conversation(id) => format!("conversation/{id}"),
            Subject::Session(id) => format!("session/{}", ids::hex(&hint::session_node(key, id.as_bytes()))),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Conversation(id) => write!(out, "conversation/{id}"),
            Subject::Session(id) => write!(out, "session/{id}"),
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Subject, String> {
        match text.split_once('/') {
            Some(("conversation", id)) if !id.is_empty() => Ok(Subject::Conversation(id.to_owned())),
            Some(("session", id)) if !id.is_empty() => Ok(Subject::Session(id.to_owned())),
            _ => Err(format!("{text:?} names nobody; write conversation/ID or session/ID")),
        }
    }
}
