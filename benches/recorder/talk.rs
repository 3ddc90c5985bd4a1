//! What is recorded: conversations of messages like people's, made from a seed.

use std::fmt::Write;

use bytes::Bytes;
use serin::journal::{Exchange, Header, Phase};

/// SplitMix64.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn between(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }
}

/// Words as frequent as in a language: few make up half of a text, thousands the rest.
pub struct Words {
    all: Vec<String>,
    draws: usize,
}

/// How many words there are, and how much a text leans towards the first of them.
#[derive(Clone, Copy)]
pub struct Speech {
    pub words: usize,
    pub draws: usize,
}

impl Words {
    pub fn new(dice: &mut Dice, speech: Speech) -> Words {
        let word = |dice: &mut Dice| {
            let syllables =
                ["ka", "lo", "min", "ter", "es", "vor", "un", "sta", "ri", "go", "pel", "da", "th", "ing"];
            (0..dice.between(1, 4)).map(|_| syllables[dice.below(syllables.len())]).collect()
        };
        Words { all: (0..speech.words).map(|_| word(dice)).collect(), draws: speech.draws }
    }

    /// Text of about so many bytes.
    pub fn text(&self, dice: &mut Dice, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 16);
        while text.len() < bytes {
            // The product of some draws leans towards the first words as Zipf's law does.
            let span = self.all.len();
            let at = (0..self.draws).fold(span, |at, _| at * dice.below(span) / span);
            text.push_str(&self.all[at]);
            text.push(if dice.below(14) == 0 { '.' } else { ' ' });
        }
        text
    }
}

/// How an answer comes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Whole,
    /// As so many events.
    Events(usize),
}

/// One conversation.
pub struct Talk {
    system: String,
    messages: String,
    turn: usize,
    number: usize,
}

impl Talk {
    pub fn new(number: usize, system: String) -> Talk {
        Talk { system, messages: String::new(), turn: 0, number }
    }

    /// Its next turn: what was said is sent again, with `asked` more bytes or so.
    pub fn next(&mut self, words: &Words, dice: &mut Dice, asked: usize, answer: Answer) -> Exchange {
        let said = words.text(dice, asked);
        let _ = write!(self.messages, ",{{\"role\":\"user\",\"content\":\"{said}\"}}");
        let stream = answer != Answer::Whole;
        let body = format!(
            "{{\"model\":\"some-model\",\"messages\":[{{\"role\":\"system\",\"content\":\"{}\"}}{}],\"stream\":{stream}}}",
            self.system, self.messages
        );
        let (text, response) = respond(words, dice, answer);
        let _ = write!(self.messages, ",{{\"role\":\"assistant\",\"content\":\"{text}\"}}");
        self.turn += 1;
        let started = 1_764_633_600_000_000_000 + (self.turn * 1000 + self.number) as u64 * 1_000_000;
        exchange(format!("{:06}-{:03}", self.number, self.turn), started, body, response, stream)
    }
}

fn respond(words: &Words, dice: &mut Dice, answer: Answer) -> (String, String) {
    let Answer::Events(count) = answer else {
        let bytes = dice.between(2000, 8000);
        let text = words.text(dice, bytes);
        let response = format!(
            "{{\"id\":\"chatcmpl-{}\",\"object\":\"chat.completion\",\"model\":\"some-model\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":900,\"completion_tokens\":80}}}}",
            dice.below(1 << 40)
        );
        return (text, response);
    };
    let (mut text, mut response) = (String::new(), String::new());
    let id = dice.below(1 << 40);
    for _ in 0..count {
        let word = words.text(dice, 3);
        let _ = write!(
            response,
            "data: {{\"id\":\"chatcmpl-{id:032x}\",\"object\":\"chat.completion.chunk\",\"created\":1764633600,\"model\":\"some-model\",\"choices\":[{{\"index\":0,\"delta\":{{\"role\":null,\"content\":\"{word}\",\"reasoning_content\":null,\"tool_calls\":null}},\"logprobs\":null,\"finish_reason\":null,\"matched_stop\":null}}],\"usage\":null}}\n\n"
        );
        text.push_str(&word);
    }
    response.push_str(
        "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
    );
    (text, response)
}

fn exchange(id: String, started: u64, body: String, response: String, stream: bool) -> Exchange {
    let header = |name: &str, value: &'static str| Header { name: name.into(), value: value.into() };
    let media = if stream { "text/event-stream; charset=utf-8" } else { "application/json" };
    let events = response.matches("\n\n").count().max(1);
    let edges: Vec<u32> = match stream {
        true => response.split_inclusive("\n\n").map(|event| event.len() as u32).collect(),
        false => vec![response.len() as u32],
    };
    Exchange {
        id,
        started_unix_nanos: started,
        method: "POST".into(),
        target: "/v1/chat/completions".into(),
        request_headers: vec![
            header("content-type", "application/json"),
            header("authorization", "<withheld 51 bytes>"),
            header("user-agent", "OpenAI/Python 3.1.0"),
            header("accept", "application/json"),
        ],
        request_body_len: body.len() as u64,
        request_body: body.into(),
        status: 200,
        response_headers: vec![header("content-type", media), header("x-request-id", "0193b0c2")],
        response_body_len: response.len() as u64,
        response_body: Bytes::from(response),
        edge_micros: (0..events).map(|at| 20_000 + (at as u32 * 7919) % 4000).collect(),
        edge_lengths: edges,
        phase: Phase::Done as i32,
        upstream: "router".into(),
        first_byte_micros: 200_000,
        end_micros: 6_000_000,
        ..Exchange::default()
    }
}
