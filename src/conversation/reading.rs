//! What stitching and the index need to know about an exchange, read from its bytes.

mod end;
mod prompt;
#[cfg(test)]
mod tests;

use bytes::Bytes;

use super::hint::{self, Hints};
use super::projection::{Key, Memo, Node, Projection, RULES, Role};
use crate::journal::facts::Facts;
use crate::journal::{Capture, End, Exchange};
use crate::openai::{Answer, Api, Ask, coding};
pub use end::judge;
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
        };
        let whole = exchange.request_capture() == Capture::Whole;
        let body = coding::decode(exchange.request_header("content-encoding"), &exchange.request_body);
        if let Some(body) = body.filter(|_| whole)
            && let Some(ask) = Ask::parse(api, &body)
            && ask.messages.len() <= MOST_MESSAGES
        {
            reading.read_request(key, memo, exchange, &ask);
            reading.read_answers(key, &ask);
        }
        reading
    }

    /// The nodes of the chain from a base on: the base's, then one behind each group.
    pub fn nodes(&self, key: &Key, base: Base) -> Vec<Node> {
        let mut nodes = vec![base.node];
        for group in self.groups.iter().skip(base.groups) {
            nodes.push(key.chain(&nodes[nodes.len() - 1], &group.hash));
        }
        nodes
    }

    /// The node behind the request.
    pub fn head(&self, key: &Key, base: Base) -> Node {
        match &self.prompt {
            Some(prompt) => prompt.node(key),
            None => self.nodes(key, base).pop().unwrap_or(base.node),
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

    fn read_request(&mut self, key: &Key, memo: &mut Memo, exchange: &Exchange, ask: &Ask<'_>) {
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
        let mut environment = vec![ask.tools.map_or("", |tools| tools.get())];
        environment.extend(ask.system.map(|system| system.get()));
        let mut grouping = Grouping { key, groups: Vec::new(), open: None };
        for (messages, raw) in (1u32..).zip(&ask.messages) {
            let projection = key.project(memo, raw);
            match projection.role {
                Role::System => environment.push(raw.get()),
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
        let bytes: Vec<&[u8]> = environment.iter().map(|text| text.as_bytes()).collect();
        self.environment = key.hash(b"env1", &bytes);
        self.template = key.hash(b"env-template1", &[template(&environment).as_bytes()]);
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

/// Puts messages together that mean one: what an assistant says in several items, and results that came in any order.
struct Grouping<'a> {
    key: &'a Key,
    groups: Vec<Group>,
    open: Option<Open>,
}

/// A group to which the next message may belong.
struct Open {
    role: Role,
    texts: Vec<Node>,
    calls: Vec<Node>,
    results: Vec<Node>,
    anchors: Vec<Node>,
    messages: u32,
}

impl Grouping<'_> {
    fn take(&mut self, projection: &Projection, messages: u32) {
        match projection.role {
            Role::System | Role::Nothing => {}
            Role::Tool => self.add(Role::Tool, projection, messages),
            Role::User => {
                if !projection.results.is_empty() {
                    self.add(Role::Tool, &Projection { text: None, ..projection.clone() }, messages);
                }
                if projection.text.is_some() {
                    self.add(Role::User, &Projection { results: Vec::new(), ..projection.clone() }, messages);
                }
            }
            role => self.add(role, projection, messages),
        }
    }

    fn add(&mut self, role: Role, projection: &Projection, messages: u32) {
        let joins = matches!(role, Role::Assistant | Role::Tool);
        if self.open.as_ref().is_none_or(|open| !joins || open.role != role) {
            self.close();
            self.open = Some(Open {
                role,
                texts: Vec::new(),
                calls: Vec::new(),
                results: Vec::new(),
                anchors: Vec::new(),
                messages,
            });
        }
        let Some(open) = &mut self.open else { return };
        open.texts.extend(projection.text);
        open.calls.extend(&projection.calls);
        open.results.extend(&projection.results);
        open.anchors.extend(&projection.anchors);
        open.messages = messages;
    }

    fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let hash = self.key.group(open.role, &open.texts, &open.calls, &open.results);
        let assistant = open.role == Role::Assistant;
        self.groups.push(Group { hash, messages: open.messages, assistant, anchors: open.anchors });
    }

    fn finish(mut self) -> Vec<Group> {
        self.close();
        self.groups
    }
}

fn step(key: &Key, said: &Projection) -> Node {
    key.group(Role::Assistant, said.text.as_slice(), &said.calls, &[])
}

/// A system prompt without what changes from day to day: digits and what hangs together with them, and paths.
fn template(environment: &[&str]) -> String {
    let masked = |word: &str| {
        let changes = word.bytes().any(|byte| byte.is_ascii_digit() || byte == b'/');
        if changes { "*".to_owned() } else { word.to_owned() }
    };
    environment.iter().flat_map(|text| text.split_whitespace()).map(masked).collect::<Vec<_>>().join(" ")
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
