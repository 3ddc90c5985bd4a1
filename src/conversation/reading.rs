//! What stitching and the index need to know about an exchange, read from its bytes.

mod end;
mod grouping;
mod prompt;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::hint::{self, Hints};
use super::projection::{Environment, Key, Memo, Node, Projection, RULES, Role};
use crate::journal::facts::Facts;
use crate::journal::{Capture, End, Exchange};
use crate::openai::outline::{self, Name, Outline};
use crate::openai::{Answer, Api, Ask, coding};
pub use end::judge;
use grouping::Grouping;
pub use prompt::Prompt;

/// A request with more messages belongs to no conversation: hashing millions of them would keep every other record waiting.
const MOST_MESSAGES: usize = 10_000;
/// The most lines, anchors and openings of one exchange.
const MOST: usize = 64;

/// An exchange as a turn of a conversation.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Whether the request was read; without that a turn can only be a root.
    pub readable: bool,
    /// The request's messages as the chain has them, system messages left out.
    pub groups: Vec<Group>,
    /// The prompt of a request that is one text.
    pub prompt: Option<Prompt>,
    /// Messages of the request.
    pub messages: u32,
    /// Whether the request carries an assistant's messages.
    pub has_history: bool,
    /// What the model has said, for each choice.
    pub said: Vec<Said>,
    /// System messages and tools, which are not part of the chain.
    pub environment: Node,
    /// The same without what changes from day to day.
    pub template: Node,
    /// Lines of the request in which a summary may stand.
    pub lines: Vec<Node>,
    /// The first thing the user says.
    pub opening: Option<Node>,
    pub hints: Hints,
    pub previous: Option<Node>,
    pub response: Option<Node>,
    /// The model as the client asked for it.
    pub model: String,
    pub streaming: bool,
    /// Whether the client let the server store it; `None` where it did not say.
    pub store: Option<bool>,
    pub answer: Answer,
    /// The chain that was asked for last.
    chain: RefCell<Option<(Base, Arc<[Node]>)>>,
}

/// One step of the chain: a message, or several that mean one.
#[derive(Clone, Debug)]
pub struct Group {
    pub hash: Node,
    /// How many messages of the request, system messages counted, the chain covers up to here.
    pub messages: u32,
    pub assistant: bool,
    pub anchors: Vec<Node>,
}

/// One choice of an answer.
#[derive(Clone, Debug)]
pub struct Said {
    /// Its step in the chain; and where the request has begun it, the step that stands for both.
    pub hash: Node,
    pub with_beginning: Option<Node>,
    pub anchors: Vec<Node>,
    pub openings: Vec<Node>,
    /// A prompt and what was made of it.
    pub prompt: Option<Prompt>,
}

/// Where a chain begins: the node, and how many groups of the request come before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    pub node: Node,
    pub groups: usize,
}

/// A request's body with the names of its parts.
struct Named<'a> {
    exchange: &'a Exchange,
    outline: &'a Outline,
}

/// Whether an exchange is a turn of a conversation. Others are recorded and belong to none.
pub fn is_turn(exchange: &Exchange) -> bool {
    exchange.method == "POST" && Api::of_path(exchange.path()).is_some()
}

/// Whether an exchange ended without its whole answer.
pub fn is_failed(exchange: &Exchange) -> bool {
    exchange.end() != End::Complete || !(200..300).contains(&exchange.status)
}

/// Whether the request's body is no longer kept, or never was.
pub fn is_forgotten(exchange: &Exchange) -> bool {
    exchange.request_body.is_empty() && exchange.request_body_len > 0
}

impl Reading {
    /// Reads a turn.
    pub fn of(key: &Key, memo: &mut Memo, exchange: &Exchange) -> Reading {
        Reading::along(key, memo, exchange, &Outline::of(&exchange.request_body))
    }

    /// Reads a turn. `outline` is that of its request's body.
    pub fn along(key: &Key, memo: &mut Memo, exchange: &Exchange, outline: &Outline) -> Reading {
        let api = Api::of_path(exchange.path()).unwrap_or(Api::Chat);
        let mut reading = Reading {
            readable: false,
            groups: Vec::new(),
            prompt: None,
            messages: 0,
            has_history: false,
            said: Vec::new(),
            environment: key.root(),
            template: key.root(),
            lines: Vec::new(),
            opening: None,
            hints: hint::read(key, exchange, None),
            previous: None,
            response: None,
            model: String::new(),
            streaming: false,
            store: None,
            answer: answer_of(exchange),
            chain: RefCell::default(),
        };
        let whole = exchange.request_capture() == Capture::Whole;
        let body = coding::decode(exchange.request_header("content-encoding"), &exchange.request_body);
        if let Some(body) = body.filter(|_| whole)
            && let Some(ask) = Ask::parse(api, &body)
            && ask.messages.len() <= MOST_MESSAGES
        {
            reading.read_request(key, memo, &Named { exchange, outline }, &ask);
            reading.read_answers(key, &ask);
        }
        reading
    }

    /// The nodes of the chain from a base on: the base's, then one behind each group. The key is always the same.
    pub fn nodes(&self, key: &Key, base: Base) -> Arc<[Node]> {
        if let Some((_, nodes)) = self.chain.borrow().as_ref().filter(|(known, _)| *known == base) {
            return nodes.clone();
        }
        let mut nodes = vec![base.node];
        for group in self.groups.iter().skip(base.groups) {
            nodes.push(key.chain(&nodes[nodes.len() - 1], &group.hash));
        }
        let nodes: Arc<[Node]> = nodes.into();
        self.chain.replace(Some((base, nodes.clone())));
        nodes
    }

    /// The node behind the request.
    pub fn head(&self, key: &Key, base: Base) -> Node {
        match &self.prompt {
            Some(prompt) => prompt.node(key),
            None => self.nodes(key, base).last().copied().unwrap_or(base.node),
        }
    }

    /// The nodes behind its answers.
    pub fn answers(&self, key: &Key, base: Base) -> Vec<Node> {
        let nodes = self.nodes(key, base);
        let (head, before) = (nodes.len() - 1, nodes.len().saturating_sub(2));
        let mut answers = Vec::new();
        for said in &self.said {
            match &said.prompt {
                Some(prompt) => answers.push(prompt.node(key)),
                None => {
                    answers.push(key.chain(&nodes[head], &said.hash));
                    answers.extend(said.with_beginning.map(|hash| key.chain(&nodes[before], &hash)));
                }
            }
        }
        // What ids come to is not known of an answer's text; what follows repeats the ids that were asked.
        if self.prompt.as_ref().is_some_and(Prompt::is_ids) {
            answers.push(self.head(key, base));
        }
        answers
    }

    /// What is kept of it beside the bodies.
    pub fn facts(&self, key: &Key, base: Base) -> Facts {
        let usage = self.answer.fold.usage.unwrap_or_default();
        let flags = [
            (self.readable, Facts::READABLE),
            (self.answer.parsed, Facts::PARSED),
            (self.streaming, Facts::STREAMING),
            (self.has_history, Facts::HISTORY),
        ];
        let packed = |nodes: &[Node]| Bytes::from(nodes.concat());
        let all = |of: fn(&Said) -> &Vec<Node>| -> Vec<Node> {
            self.said.iter().flat_map(of).copied().take(MOST).collect()
        };
        let prompts: Vec<&Prompt> =
            self.prompt.iter().chain(self.said.iter().filter_map(|said| said.prompt.as_ref())).collect();
        let first = self.answer.fold.choices.first();
        Facts {
            rules_version: RULES.version,
            flags: flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum(),
            messages: self.messages,
            head: packed(&[self.head(key, base)]),
            answers: packed(&self.answers(key, base)),
            anchors: packed(&all(|said| &said.anchors)),
            openings: packed(&all(|said| &said.openings)),
            first: packed(self.groups.first().map(|group| group.hash).as_slice()),
            last: packed(self.groups.last().map(|group| group.hash).as_slice()),
            boundaries: packed(&self.boundaries(key, base)),
            session: packed(self.hints.session.as_slice()),
            thread: packed(self.hints.thread.as_slice()),
            environment: packed(&[self.environment]),
            template: packed(&[self.template]),
            response_id: packed(self.response.as_slice()),
            blocks: packed(&prompts.iter().map(|prompt| prompt.last_block()).collect::<Vec<_>>()),
            tails: prompts.iter().map(|prompt| prompt.tail_len()).collect(),
            prompt_tokens: usage.prompt_tokens,
            output_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
            reasoning_tokens: usage.reasoning_tokens,
            finish: first.and_then(|choice| choice.finish_reason.as_deref()).map(bounded),
            model: bounded(self.answer.fold.model.as_deref().unwrap_or_default()),
        }
    }

    fn boundaries(&self, key: &Key, base: Base) -> Vec<Node> {
        let nodes = self.nodes(key, base);
        let groups = self.groups.iter().skip(base.groups).zip(&nodes[1..]);
        let ends: Vec<Node> = groups.filter(|(group, _)| group.assistant).map(|(_, node)| *node).collect();
        let depths = (0..8).map(|power| (1usize << power) - 1);
        depths.filter_map(|depth| ends.iter().rev().nth(depth).copied()).collect()
    }

    fn read_request(&mut self, key: &Key, memo: &mut Memo, named: &Named<'_>, ask: &Ask<'_>) {
        let exchange = named.exchange;
        self.readable = true;
        self.model = ask.model.clone().into_owned();
        self.streaming = ask.stream;
        self.store = ask.store;
        self.hints = hint::read(key, exchange, Some(&ask.hints));
        let response = |id: &str| key.hash(b"response1", &[id.as_bytes()]);
        self.previous = ask.hints.previous_response_id.as_deref().map(response);
        let noted = exchange.facts.as_ref().and_then(|facts| facts.response_id.first_chunk().copied());
        self.response = self.answer.fold.id.as_deref().map(response).or(noted);
        self.messages = ask.messages.len() as u32;
        let mut environment = Environment::new(ask.tools.map(|raw| (named.name_of(raw), raw)));
        if let Some(system) = ask.system {
            environment.add(named.name_of(system), system);
        }
        let mut grouping = Grouping::new(key);
        for (messages, raw) in (1u32..).zip(&ask.messages) {
            let name = named.name_of(raw);
            let projection = key.project(memo, name, raw);
            match projection.role {
                Role::System => environment.add(name, raw),
                _ => self.notice(&projection),
            }
            self.lines.extend(projection.lines.iter().take(MOST.saturating_sub(self.lines.len())));
            grouping.take(&projection, messages);
        }
        if let (Api::Responses, Some(text)) = (ask.api, ask.prompt)
            && let Ok(text) = serde_json::from_str::<String>(text.get())
        {
            let projection = key.project_text(&text);
            self.notice(&projection);
            self.lines.extend(projection.lines.iter().take(MOST));
            self.messages = 1;
            grouping.take(&projection, 1);
        } else {
            self.prompt = ask.prompt.and_then(|raw| Prompt::read(key, raw));
        }
        self.groups = grouping.finish();
        (self.environment, self.template) = key.environment(memo, &environment);
    }

    fn notice(&mut self, projection: &Projection) {
        self.has_history |= projection.role == Role::Assistant;
        if !self.has_history && self.opening.is_none() {
            self.opening = projection.opening;
        }
    }

    fn read_answers(&mut self, key: &Key, ask: &Ask<'_>) {
        let beginning = ask.messages.last().and_then(|raw| key.prefill(raw));
        for choice in self.answer.fold.choices.iter().filter(|choice| !choice.is_empty()) {
            let projection = key.project_choice(choice, "");
            let hash = step(key, &projection);
            let with_beginning =
                beginning.as_deref().map(|before| step(key, &key.project_choice(choice, before)));
            let prompt = self.prompt.as_ref().and_then(|prompt| prompt.and(key, &choice.content));
            let openings = key.openings(choice);
            self.said.push(Said { hash, with_beginning, anchors: projection.anchors, openings, prompt });
        }
    }
}

impl Named<'_> {
    /// The name of a value's bytes. Where it lies in the body that the outline is of, it has one.
    fn name_of(&self, raw: &RawValue) -> Name {
        let text = raw.get();
        let begins = text.as_ptr().addr().wrapping_sub(self.exchange.request_body.as_ptr().addr());
        let known = self.outline.name_of(&(begins..begins.wrapping_add(text.len())));
        known.unwrap_or_else(|| outline::name(text.as_bytes()))
    }
}

fn step(key: &Key, said: &Projection) -> Node {
    key.group(Role::Assistant, said.text.as_slice(), &said.calls, &[])
}

/// Text that came from outside, short enough for a table.
fn bounded(text: &str) -> String {
    text.chars().take(200).collect()
}

/// What the model said, as far as the record holds it: where the streamed response is gone, as it was put together when
/// it was there.
pub fn answer_of(exchange: &Exchange) -> Answer {
    if exchange.response_body.is_empty() && !exchange.answer.is_empty() {
        return kept_answer(exchange);
    }
    let api = Api::of_path(exchange.path()).unwrap_or(Api::Chat);
    let (media, encoding) =
        (exchange.response_header("content-type"), exchange.response_header("content-encoding"));
    let mut answer = Answer::read(api, media, encoding, &exchange.response_body);
    answer.parsed &= exchange.response_capture() == Capture::Whole;
    answer
}

fn kept_answer(exchange: &Exchange) -> Answer {
    let facts = exchange.facts.clone().unwrap_or_default();
    let mut answer = Answer { streamed: true, parsed: facts.is(Facts::PARSED), ..Answer::default() };
    answer.fold.choices = serde_json::from_slice(&exchange.answer).unwrap_or_default();
    answer.fold.model = (!facts.model.is_empty()).then(|| facts.model.clone());
    answer.fold.usage = facts.usage();
    answer.fold.done = true;
    answer
}

/// The assembled answer, for when the response itself is no longer kept.
pub fn keep_answer(answer: &Answer) -> Bytes {
    let choices = &answer.fold.choices;
    let json = if choices.is_empty() { Vec::new() } else { serde_json::to_vec(choices).unwrap_or_default() };
    json.into()
}
