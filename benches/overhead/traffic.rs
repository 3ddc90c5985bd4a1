//! Requests and answers. Every request differs from every other, in its text and not only in a number, so that no
//! deduplication is flattered; and both ends can tell from a request's number alone what its bytes and its answer's
//! must be, so that every byte both ways is compared.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

/// What a request asks the mock for. It stands at the beginning of the message's text, where proxies leave it alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub number: u64,
    pub kind: Kind,
    /// Microseconds between two events; 0 sends them as fast as they are taken.
    pub pace: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Json,
    Events,
    /// Events whose sending times are kept by the [`Witness`](crate::witness::Witness).
    Timed,
    /// No answer, ever.
    Hold,
}

/// An answer with room for the request's number in several places.
struct Template {
    bytes: Vec<u8>,
    holes: Vec<usize>,
}

/// Both answers, made once.
pub struct Answers {
    json: Template,
    events: Template,
    ends: Vec<usize>,
}

pub static ANSWERS: LazyLock<Answers> = LazyLock::new(Answers::new);

/// Content chunks of a stream, and words of an answer.
const TOKENS: usize = 200;
const WORDS: [&str; 8] =
    ["one ", "seven ", "eighty ", "ninety ", "hundred ", "fourteen ", "twelve ", "sixty "];
const HOLE: &str = "0000000000000000";
const BEFORE: &str = r#"{"model":"mock","messages":[{"role":"user","content":""#;
const AFTER: &str = r#""}],"max_tokens":200,"stream":false}"#;
const AFTER_STREAM: &str = r#""}],"max_tokens":200,"stream":true}"#;
/// Length of `#NUMBER.K.PACE#`.
const MARK: usize = 28;
/// Proxies that write the body anew may put other fields first.
const MARK_WITHIN: usize = 1024;
static NEXT: AtomicU64 = AtomicU64::new(1);

/// What the requests' texts are cut from: large enough that two of them share nothing by chance.
static TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    const SYLLABLES: [&str; 32] = [
        "ba", "cor", "den", "el", "fi", "gra", "hum", "in", "jo", "kel", "lo", "mar", "ni", "or", "pa",
        "qui", "ro", "ste", "tu", "ul", "ven", "wo", "xa", "yl", "zo", "ch", "tri", "sal", "mun", "per",
        "dis", "con",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut text = Vec::with_capacity(8 << 20);
    while text.len() < 8 << 20 {
        state = mixed(state);
        for syllable in 0..=(state >> 60) % 3 {
            text.extend_from_slice(SYLLABLES[(state >> (syllable * 5)) as usize % 32].as_bytes());
        }
        text.push(b' ');
    }
    text
});

impl Kind {
    fn letter(self) -> char {
        match self {
            Kind::Json => 'j',
            Kind::Events => 'e',
            Kind::Timed => 't',
            Kind::Hold => 'h',
        }
    }

    fn of(letter: u8) -> Option<Kind> {
        [Kind::Json, Kind::Events, Kind::Timed, Kind::Hold]
            .into_iter()
            .find(|kind| kind.letter() == letter.into())
    }

    pub fn streams(self) -> bool {
        matches!(self, Kind::Events | Kind::Timed)
    }
}

impl Ask {
    /// A request that nobody has sent yet.
    pub fn next(kind: Kind, pace: u32) -> Ask {
        Ask { number: NEXT.fetch_add(1, Relaxed), kind, pace }
    }

    /// What the body `length` long consists of.
    fn parts(self, length: usize) -> (String, &'static [u8], &'static str) {
        let Ask { number, kind, pace } = self;
        let before = format!("{BEFORE}#{number:016x}.{}.{pace:07}#", kind.letter());
        let after = if kind.streams() { AFTER_STREAM } else { AFTER };
        let text = length.saturating_sub(before.len() + after.len());
        let from = mixed(number) as usize % (TEXT.len() - text);
        (before, &TEXT[from..from + text], after)
    }

    /// The whole request to `address` with `extra` header lines, its body `length` long.
    pub fn request(self, address: SocketAddr, extra: &str, length: usize) -> Vec<u8> {
        let (before, text, after) = self.parts(length);
        let length = before.len() + text.len() + after.len();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             authorization: Bearer sk-bench\r\ncontent-length: {length}\r\n{extra}\r\n"
        );
        [head.as_bytes(), before.as_bytes(), text, after.as_bytes()].concat()
    }

    /// Reads what a body asks for; `None` where it is not one of ours.
    pub fn read(body: &[u8]) -> Option<Ask> {
        let body = &body[..body.len().min(MARK_WITHIN)];
        let mark = body.windows(MARK).find(|mark| mark[0] == b'#' && mark[MARK - 1] == b'#')?;
        let mark = std::str::from_utf8(&mark[1..MARK - 1]).ok()?;
        let mut fields = mark.split('.');
        let number = u64::from_str_radix(fields.next()?, 16).ok()?;
        let kind = Kind::of(*fields.next()?.as_bytes().first()?)?;
        Some(Ask { number, kind, pace: fields.next()?.parse().ok()? })
    }

    /// Whether `body` is, byte for byte, what the load generator sent.
    pub fn is_in(self, body: &[u8]) -> bool {
        let (before, text, after) = self.parts(body.len());
        let rest = body.strip_prefix(before.as_bytes()).and_then(|rest| rest.strip_prefix(text));
        rest == Some(after.as_bytes())
    }
}

impl Answers {
    fn new() -> Answers {
        let text: String = (0..TOKENS).map(|token| WORDS[token % WORDS.len()]).collect();
        let usage =
            format!(r#"{{"prompt_tokens":32,"completion_tokens":{TOKENS},"total_tokens":{}}}"#, TOKENS + 32);
        let json = format!(
            r#"{{"id":"chatcmpl-{HOLE}","object":"chat.completion","created":1700000000,"model":"mock","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"length"}}],"usage":{usage}}}"#
        );
        let words = (0..TOKENS)
            .map(|token| event(&format!(r#"{{"content":"{}"}}"#, WORDS[token % WORDS.len()]), "null"));
        let mut events = vec![event(r#"{"role":"assistant","content":""}"#, "null")];
        events.extend(words);
        events.push(event("{}", r#""length""#));
        events.push("data: [DONE]\n\n".to_owned());
        let mut ends = Vec::new();
        for event in &events {
            ends.push(ends.last().copied().unwrap_or(0) + event.len());
        }
        Answers { json: Template::new(json), events: Template::new(events.concat()), ends }
    }

    /// The body of the answer to `ask`.
    pub fn to(&self, ask: Ask) -> Bytes {
        let template = if ask.kind.streams() { &self.events } else { &self.json };
        template.fill(ask.number)
    }

    /// Where each event of a stream ends.
    pub fn ends(&self) -> &[usize] {
        &self.ends
    }
}

impl Template {
    fn new(text: String) -> Template {
        let holes = text.match_indices(HOLE).map(|(at, _)| at).collect();
        Template { bytes: text.into(), holes }
    }

    fn fill(&self, number: u64) -> Bytes {
        let number = format!("{number:016x}");
        let mut filled = self.bytes.clone();
        for hole in &self.holes {
            filled[*hole..*hole + HOLE.len()].copy_from_slice(number.as_bytes());
        }
        filled.into()
    }
}

fn event(delta: &str, finish: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-{HOLE}\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\",\
         \"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}]}}\n\n"
    )
}

/// Vigna's splitmix64, the finishing steps.
fn mixed(value: u64) -> u64 {
    let mut value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
