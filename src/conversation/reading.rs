//! What stitching and the index need to know about an exchange, read from its bytes.

use super::hint;
use super::projection::{Key, Node, Projected};
use crate::journal::{Capture, End, Exchange};
use crate::openai::{Answer, CHAT_PATH, ChatRequest};

/// An exchange as a turn of a conversation.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Whether the request was read; without that a turn can only be a root.
    pub readable: bool,
    /// The chain over the request's messages, system messages left out.
    pub chain: Vec<Step>,
    /// Whether the request carries assistant messages.
    pub has_history: bool,
    /// The chain's node behind each response choice.
    pub answers: Vec<Node>,
    /// System messages and tools, which are not part of the chain.
    pub environment: Node,
    pub session: Option<Node>,
    pub answer: Answer,
    pub streaming: bool,
}

/// One message of a request in its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub node: Node,
    /// How many messages of the request, system messages counted, the chain covers up to here.
    pub messages: u32,
}

/// Whether an exchange is a turn of a conversation. Others are recorded and belong to none.
pub fn is_turn(exchange: &Exchange) -> bool {
    exchange.method == "POST" && exchange.path() == CHAT_PATH
}

/// Whether an exchange ended without its whole answer.
pub fn is_failed(exchange: &Exchange) -> bool {
    exchange.end() != End::Complete || !(200..300).contains(&exchange.status)
}

impl Reading {
    /// Reads a turn.
    pub fn of(key: &Key, exchange: &Exchange) -> Reading {
        let mut reading = Reading {
            readable: false,
            chain: Vec::new(),
            has_history: false,
            answers: Vec::new(),
            environment: key.root(),
            session: hint::session(key, exchange),
            answer: answer_of(exchange),
            streaming: false,
        };
        if exchange.request_capture() == Capture::Whole
            && let Some(request) = ChatRequest::parse(&exchange.request_body)
        {
            reading.read_request(key, &request);
            reading.read_answers(key);
        }
        reading
    }

    /// The node behind the request's last message.
    pub fn head(&self, key: &Key) -> Node {
        self.chain.last().map_or_else(|| key.root(), |step| step.node)
    }

    fn read_request(&mut self, key: &Key, request: &ChatRequest<'_>) {
        self.readable = true;
        self.streaming = request.is_streaming();
        let mut node = key.root();
        let mut environment = vec![request.tools.map_or("", |tools| tools.get()).as_bytes()];
        for (messages, raw) in (1u32..).zip(&request.messages) {
            let hash = match key.project(raw) {
                Projected::System => {
                    environment.push(raw.get().as_bytes());
                    continue;
                }
                Projected::Part { hash, assistant } => {
                    self.has_history |= assistant;
                    hash
                }
                Projected::Opaque(hash) => hash,
            };
            node = key.chain(&node, &hash);
            self.chain.push(Step { node, messages });
        }
        self.environment = key.hash(b"env1", &environment);
    }

    fn read_answers(&mut self, key: &Key) {
        let head = self.head(key);
        let spoken = self.answer.fold.choices.iter().filter(|choice| !choice.is_empty());
        self.answers = spoken.map(|choice| key.chain(&head, &key.project_choice(choice))).collect();
    }
}

/// What the model said, as far as the record holds it.
pub fn answer_of(exchange: &Exchange) -> Answer {
    let (media, encoding) =
        (exchange.response_header("content-type"), exchange.response_header("content-encoding"));
    let mut answer = Answer::read(media, encoding, &exchange.response_body);
    answer.parsed &= exchange.response_capture() == Capture::Whole;
    answer
}
