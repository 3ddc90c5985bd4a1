//! What stitching and the index need to know about an exchange, read from its bytes.

use super::hint;
use super::projection::{Key, Node, Projected};
use crate::journal::{Capture, End, Exchange};
use crate::openai::{Answer, CHAT_PATH, ChatRequest};

/// A request with more messages belongs to no conversation: hashing millions of them would keep every other record waiting.
const MOST_MESSAGES: usize = 10_000;

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
            && request.messages.len() <= MOST_MESSAGES
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Header;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn turn(request: impl Into<Bytes>, response: impl Into<Bytes>, media: &'static str) -> Exchange {
        Exchange {
            method: "POST".into(),
            target: "/v1/chat/completions?trace=1".into(),
            request_body: request.into(),
            status: 200,
            response_headers: vec![Header { name: "Content-Type".into(), value: media.into() }],
            response_body: response.into(),
            ..Exchange::default()
        }
    }

    #[test]
    fn only_posted_chat_is_a_turn() {
        let mut exchange = turn("", "", "");
        assert!(is_turn(&exchange));
        exchange.method = "OPTIONS".into();
        assert!(!is_turn(&exchange));
        exchange.method = "POST".into();
        exchange.target = "/v1/embeddings?x=/v1/chat/completions".into();
        assert!(!is_turn(&exchange));
    }

    #[test]
    fn system_messages_count_but_stand_outside_the_chain() {
        let key = Key::of_tenant("default");
        let read = |system: &str| {
            let body = format!(
                r#"{{"messages":[{{"role":"system","content":"{system}"}},{{"role":"user","content":"a"}}]}}"#
            );
            Reading::of(
                &key,
                &turn(
                    body,
                    r#"{"choices":[{"message":{"content":"b"}},{"message":{"content":"c"}}]}"#,
                    "application/json",
                ),
            )
        };
        let (one, two) = (read("x"), read("y"));
        assert_eq!(
            (one.chain.len(), one.chain[0].messages, one.has_history, one.answers.len()),
            (1, 2, false, 2)
        );
        assert_eq!((&one.chain, &one.answers), (&two.chain, &two.answers));
        assert_ne!(one.environment, two.environment);
        assert_ne!(one.answers[0], one.answers[1]);
    }

    #[test]
    fn a_body_that_was_not_kept_whole_is_not_read() {
        let mut cut = turn(r#"{"messages":[]}"#, "{}", "application/json");
        cut.set_request_capture(Capture::Truncated);
        assert!(!Reading::of(&Key::of_tenant("default"), &cut).readable);
    }

    #[test]
    fn a_body_of_ever_so_many_messages_is_not_read() {
        let read = |count: usize| {
            let body = format!(r#"{{"messages":[{}]}}"#, vec!["1"; count].join(","));
            Reading::of(&Key::of_tenant("default"), &turn(body, "{}", "application/json")).readable
        };
        assert!(read(MOST_MESSAGES) && !read(MOST_MESSAGES + 1));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            prop::sample::select(vec![
                "user",
                "assistant",
                "system",
                "text",
                "<system-reminder>",
                "{\"a\":1}",
                "\u{0}é"
            ])
            .prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            let names = prop::sample::select(vec![
                "role",
                "content",
                "type",
                "text",
                "tool_calls",
                "function",
                "name",
                "arguments",
            ]);
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
                prop::collection::btree_map(names.prop_map(str::to_owned), inner, 0..6)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(request in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(!Reading::of(&Key::of_tenant("default"), &turn(request, "", "")).readable);
        }

        #[test]
        fn arbitrary_messages_never_panic(messages in prop::collection::vec(json(), 0..5)) {
            let body = serde_json::json!({"messages": messages}).to_string();
            let reading = Reading::of(&Key::of_tenant("default"), &turn(body, "", ""));
            prop_assert!(reading.readable && reading.chain.len() <= messages.len());
        }
    }
}
