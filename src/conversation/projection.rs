//! The lossy projection of a message that decides whether two messages are the same turn of a conversation.
//!
//! Clients re-send history with small changes: blanks trimmed, text parts joined, reasoning dropped, reminder tags
//! added, default arguments removed, results of tools in another order. The projection drops what drifts and keeps what
//! a person would call the message. It is used for stitching only, never for storage, display or replay. Its rules are
//! data and have a version; links say which version made them, and a new version means new links.

mod arguments;
mod parts;
mod rules;
mod text;

use std::sync::Arc;

use serde_json::value::RawValue;

use crate::openai::outline::{self, Name};
use crate::openai::{Choice, Message};
use crate::recent::Recent;
pub use rules::{RULES, Rules};

/// A 128-bit keyed hash: of a message's projection, or of a chain of them.
pub type Node = [u8; 16];

/// The key under which one tenant's messages are hashed: equal messages of two tenants have unrelated hashes.
#[derive(Clone)]
pub struct Key([u8; 32]);

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Not part of the chain: it changes while the conversation goes on.
    System,
    User,
    Assistant,
    /// Results of tools, and nothing else.
    Tool,
    /// What is no message, or one of a role that is not known: part of the chain by its bytes or its role.
    Other,
    /// Nothing is left of it, as of reasoning that clients drop.
    Nothing,
}

/// What a message of a request is to stitching.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projection {
    pub role: Role,
    pub text: Option<Node>,
    pub calls: Vec<Node>,
    pub results: Vec<Node>,
    /// By which an assistant's message is recognised without what was before it, the most telling first.
    pub anchors: Vec<Node>,
    /// Lines by which a summary is recognised that a model has written.
    pub lines: Vec<Node>,
    /// By which the argument of a tool call is recognised that a sub-agent begins with.
    pub opening: Option<Node>,
}

/// What was seen lately: most of a request was there in the one before.
pub struct Memo {
    /// The projections of messages, by their bytes.
    messages: Recent<Name, Arc<Projection>>,
    /// What environments come to, by the names of their texts.
    environments: Recent<Name, (Node, Node)>,
}

/// System prompts and tools.
pub struct Environment<'a> {
    texts: Vec<&'a str>,
    names: Vec<u8>,
}

/// The most lines of a message that are looked at.
const MOST_LINES: usize = 64;

impl Memo {
    /// Remembers at most so many of each.
    pub fn new(messages: usize, environments: usize) -> Memo {
        Memo { messages: Recent::new(messages), environments: Recent::new(environments) }
    }
}

impl<'a> Environment<'a> {
    /// An environment of tools, where there are some.
    pub fn new(tools: Option<(Name, &'a RawValue)>) -> Environment<'a> {
        let (name, text) = tools.map_or((Name::default(), ""), |(name, raw)| (name, raw.get()));
        Environment { texts: vec![text], names: name.to_vec() }
    }

    /// Adds a system prompt.
    pub fn add(&mut self, name: Name, raw: &'a RawValue) {
        self.texts.push(raw.get());
        self.names.extend_from_slice(&name);
    }
}

impl Key {
    /// A key that anybody can make: for records that are linked outside of a journal.
    pub fn of_tenant(tenant: &str) -> Key {
        Key(blake3::derive_key("serin 2025 conversation match key v1", tenant.as_bytes()))
    }

    /// The key made from a secret.
    pub fn of_secret(secret: &[u8; 32]) -> Key {
        Key(blake3::derive_key("serin 2026 conversation match key from a secret", secret))
    }

    /// A key for another purpose.
    pub fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }

    /// The start of every chain.
    pub fn root(&self) -> Node {
        self.hash(b"root", &[])
    }

    /// The node behind `parent` over the messages with this hash.
    pub fn chain(&self, parent: &Node, message: &Node) -> Node {
        self.hash(b"mn1", &[parent, message])
    }

    /// A hash of one value for one purpose; `label` keeps purposes apart.
    pub fn hash(&self, label: &[u8], parts: &[&[u8]]) -> Node {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for part in std::iter::once(&label).chain(parts) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let mut node = [0; 16];
        node.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        node
    }

    /// Projects a message of a request, or takes what was found when its bytes, which `name` stands for, were seen before.
    pub fn project(&self, memo: &mut Memo, name: Name, raw: &RawValue) -> Arc<Projection> {
        if let Some(known) = memo.messages.get(&name) {
            return known.clone();
        }
        let made = Arc::new(self.project_anew(raw));
        memo.messages.insert(name, made.clone());
        made
    }

    /// What system prompts and tools come to: as they are, and without what changes from day to day.
    pub fn environment(&self, memo: &mut Memo, environment: &Environment<'_>) -> (Node, Node) {
        let name = outline::name(&environment.names);
        if let Some(known) = memo.environments.get(&name) {
            return *known;
        }
        let texts = &environment.texts;
        let bytes: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        let made =
            (self.hash(b"env1", &bytes), self.hash(b"env-template1", &[text::template(texts).as_bytes()]));
        memo.environments.insert(name, made);
        made
    }

    fn project_anew(&self, raw: &RawValue) -> Projection {
        let Some(message) = Message::parse(raw) else {
            return Projection {
                text: Some(self.hash(b"opaque1", &[raw.get().as_bytes()])),
                ..Projection::of(Role::Other)
            };
        };
        match message.kind.as_deref() {
            Some("function_call") => {
                let call = self.call(message.name.as_deref().unwrap_or_default(), message.arguments);
                let anchors = message.call_id.iter().map(|id| self.call_anchor(id)).collect();
                return Projection { calls: vec![call], anchors, ..Projection::of(Role::Assistant) };
            }
            Some("function_call_output") => {
                let content = parts::read(message.output, true);
                return Projection {
                    results: vec![self.result(&content.text)],
                    ..Projection::of(Role::Tool)
                };
            }
            Some("reasoning") => return Projection::of(Role::Nothing),
            _ => {}
        }
        match message.role.as_ref() {
            "system" | "developer" => {
                let content = parts::read(message.content, true);
                Projection { lines: self.lines(&content.text), ..Projection::of(Role::System) }
            }
            "assistant" | "model" => self.assistant(&message),
            "tool" | "function" => {
                let content = parts::read(message.content, true);
                Projection { results: vec![self.result(&content.text)], ..Projection::of(Role::Tool) }
            }
            "user" => self.user(&parts::read(message.content, true)),
            role => {
                let content = parts::read(message.content, true);
                let text = self.hash(b"role1", &[role.as_bytes(), content.text.as_bytes()]);
                Projection { text: Some(text), ..Projection::of(Role::Other) }
            }
        }
    }

    fn user(&self, content: &parts::Content) -> Projection {
        let results: Vec<Node> = content.results.iter().map(|text| self.result(text)).collect();
        let silent = content.text.is_empty() && !results.is_empty();
        Projection {
            text: (!silent).then(|| self.text(&content.text)),
            results,
            lines: self.lines(&content.text),
            opening: self.opening(&content.text),
            ..Projection::of(Role::User)
        }
    }

    /// What a user has said in a request that is one text.
    pub fn project_text(&self, text: &str) -> Projection {
        let text = text::normalise(&text::without_harness_tags(text));
        self.user(&parts::Content { text, ..parts::Content::default() })
    }

    fn assistant(&self, message: &Message<'_>) -> Projection {
        let content = parts::read(message.content, false);
        let mut calls: Vec<Node> =
            content.calls.iter().map(|call| self.call_of(&call.name, &call.arguments)).collect();
        let mut ids: Vec<&str> = content.calls.iter().map(|call| call.id.as_str()).collect();
        for call in message.tool_calls.iter().flatten() {
            let Some(function) = &call.function else { continue };
            calls.push(self.call(&function.name, function.arguments));
            ids.extend(call.id.as_deref());
        }
        calls.extend(message.function_call.iter().map(|call| self.call(&call.name, call.arguments)));
        let text = (!content.text.is_empty()).then(|| self.text(&content.text));
        if text.is_none() && calls.is_empty() {
            return Projection::of(Role::Nothing);
        }
        let anchors = self.anchors(ids.into_iter(), &content.text);
        Projection { text, calls, anchors, ..Projection::of(Role::Assistant) }
    }

    /// Projects an assembled response, so that it equals the assistant message which the client will send back. `before`
    /// is what the request has put into the model's mouth.
    pub fn project_choice(&self, choice: &Choice, before: &str) -> Projection {
        let text = text::normalise(&[before, &choice.content].concat());
        let calls = choice.tool_calls.iter().map(|call| self.call_of(&call.name, &call.arguments)).collect();
        let mut anchors = self.anchors(choice.tool_calls.iter().map(|call| call.id.as_str()), &text);
        anchors.extend(self.lines(&text).first());
        Projection {
            text: (!text.is_empty()).then(|| self.text(&text)),
            calls,
            anchors,
            ..Projection::of(Role::Assistant)
        }
    }

    /// The texts among a tool call's arguments, as a sub-agent's first message would be recognised by.
    pub fn openings(&self, choice: &Choice) -> Vec<Node> {
        let texts = choice.tool_calls.iter().flat_map(|call| arguments::texts(&call.arguments));
        let normal = texts.map(|text| text::normalise(&text::without_harness_tags(&text)));
        normal.filter_map(|text| self.opening(&text)).take(32).collect()
    }

    /// The text of an assistant's message, as it was sent.
    pub fn prefill(&self, raw: &RawValue) -> Option<String> {
        let message = Message::parse(raw).filter(|message| message.role == "assistant")?;
        Some(parts::read(message.content, false).text)
    }

    /// What an assistant or a group of results comes to in the chain.
    pub fn group(&self, role: Role, texts: &[Node], calls: &[Node], results: &[Node]) -> Node {
        let mut results = results.to_vec();
        results.sort_unstable();
        results.dedup();
        let label: &[u8] = match role {
            Role::Assistant => b"assistant2",
            Role::Tool => b"tool2",
            Role::User => b"user2",
            _ => b"other2",
        };
        self.hash(label, &[&texts.concat(), &calls.concat(), &results.concat()])
    }

    fn text(&self, text: &str) -> Node {
        self.hash(b"text2", &[text.as_bytes()])
    }

    fn result(&self, text: &str) -> Node {
        self.hash(b"result2", &[text.as_bytes()])
    }

    fn call(&self, name: &str, raw: Option<&RawValue>) -> Node {
        let raw = raw.map_or("", RawValue::get);
        match serde_json::from_str::<String>(raw) {
            Ok(text) => self.call_of(name, &text),
            Err(_) => self.call_of(name, raw),
        }
    }

    fn call_of(&self, name: &str, arguments: &str) -> Node {
        self.hash(b"call2", &[name.as_bytes(), arguments::canonical(arguments).as_bytes()])
    }

    fn call_anchor(&self, id: &str) -> Node {
        self.hash(b"call-id2", &[id.as_bytes()])
    }

    fn anchors<'a>(&self, ids: impl Iterator<Item = &'a str>, text: &str) -> Vec<Node> {
        let mut anchors: Vec<Node> =
            ids.filter(|id| !id.is_empty()).take(16).map(|id| self.call_anchor(id)).collect();
        if text.chars().nth(RULES.anchor - 1).is_some() {
            anchors.push(self.hash(b"full2", &[text.as_bytes()]));
        }
        anchors.extend(first(text, RULES.start).map(|start| self.hash(b"start2", &[start.as_bytes()])));
        anchors
    }

    fn lines(&self, text: &str) -> Vec<Node> {
        let long = text.lines().filter_map(|line| first(line.trim(), RULES.line));
        long.take(MOST_LINES).map(|line| self.hash(b"line2", &[line.as_bytes()])).collect()
    }

    fn opening(&self, text: &str) -> Option<Node> {
        text.chars().nth(RULES.argument - 1)?;
        Some(self.hash(b"opening2", &[text.as_bytes()]))
    }
}

/// The first characters of a text that has as many.
fn first(text: &str, count: usize) -> Option<&str> {
    let (last, character) = text.char_indices().nth(count - 1)?;
    Some(&text[..last + character.len_utf8()])
}

impl Projection {
    fn of(role: Role) -> Projection {
        Projection {
            role,
            text: None,
            calls: Vec::new(),
            results: Vec::new(),
            anchors: Vec::new(),
            lines: Vec::new(),
            opening: None,
        }
    }
}

#[cfg(test)]
mod tests;
