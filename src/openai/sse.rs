//! Server-sent events, read from bytes that arrive in any pieces.
//!
//! The grammar is that of the WHATWG HTML standard, section 9.2.6: lines end in LF, CRLF or CR; a byte-order mark at
//! the start is dropped; a blank line ends an event; an event without data is not dispatched; what stands after the
//! last blank line is not an event. Nothing is decoded: names and data are bytes.

/// Whether a media type is that of server-sent events.
pub fn is_stream(content_type: Option<&[u8]>) -> bool {
    const MEDIA: &[u8] = b"text/event-stream";
    let media = content_type.unwrap_or_default().trim_ascii_start();
    media.get(..MEDIA.len()).is_some_and(|start| start.eq_ignore_ascii_case(MEDIA))
}

/// One event. The slices live until the callback returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The `event` field; empty means `message`.
    pub name: &'a [u8],
    /// The `data` lines, joined by LF.
    pub data: &'a [u8],
    /// The last event id seen, which outlives its event.
    pub id: &'a [u8],
    /// The last reconnection time seen, in milliseconds.
    pub retry: Option<u64>,
}

/// An incremental parser.
#[derive(Clone, Debug)]
pub struct Parser {
    limit: usize,
    line: Vec<u8>,
    line_too_long: bool,
    after_cr: bool,
    at_start: bool,
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    data_too_long: bool,
    id: Vec<u8>,
    retry: Option<u64>,
    dropped: u64,
}

impl Parser {
    /// A parser that holds lines, and the data of an event, of at most `limit` bytes. A longer event is dropped and
    /// counted; the stream goes on behind it.
    pub fn new(limit: usize) -> Parser {
        Parser {
            limit,
            line: Vec::new(),
            line_too_long: false,
            after_cr: false,
            at_start: true,
            name: Vec::new(),
            data: Vec::new(),
            has_data: false,
            data_too_long: false,
            id: Vec::new(),
            retry: None,
            dropped: 0,
        }
    }

    /// Takes the next bytes and calls `emit` for each event they complete.
    pub fn push(&mut self, mut bytes: &[u8], emit: &mut dyn FnMut(Event<'_>)) {
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (line, rest) = bytes.split_at(end);
            self.end_line(line, emit);
            bytes = match rest {
                [b'\r', b'\n', rest @ ..] => rest,
                [b'\r'] => {
                    self.after_cr = true;
                    &[]
                }
                _ => &rest[1..],
            };
        }
        self.keep(bytes);
    }

    /// Events dropped because they were over the limit.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether bytes of an unfinished event are waiting.
    pub fn is_mid_event(&self) -> bool {
        !self.line.is_empty() || self.line_too_long || self.has_data || self.data_too_long
    }

    /// Holds the start of a line whose end has not come yet.
    fn keep(&mut self, part: &[u8]) {
        if self.line_too_long || self.line.len() + part.len() > self.limit {
            self.line_too_long = true;
            self.line.clear();
        } else {
            self.line.extend_from_slice(part);
        }
    }

    fn end_line(&mut self, rest: &[u8], emit: &mut dyn FnMut(Event<'_>)) {
        // A line that came in one piece is read where it lies.
        if self.line.is_empty() && !self.line_too_long && rest.len() <= self.limit {
            return self.whole_line(rest, emit);
        }
        self.keep(rest);
        if std::mem::take(&mut self.line_too_long) {
            self.at_start = false;
            self.data_too_long = true;
            return;
        }
        let mut line = std::mem::take(&mut self.line);
        self.whole_line(&line, emit);
        line.clear();
        self.line = line;
    }

    fn whole_line(&mut self, line: &[u8], emit: &mut dyn FnMut(Event<'_>)) {
        let at_start = std::mem::replace(&mut self.at_start, false);
        let content = match at_start {
            true => line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line),
            false => line,
        };
        match content {
            [] => self.dispatch(emit),
            [b':', ..] => {}
            _ => self.field(content),
        }
    }

    fn field(&mut self, line: &[u8]) {
        let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => self.data_line(value),
            b"event" => replace(&mut self.name, value),
            b"id" if !value.contains(&0) => replace(&mut self.id, value),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                self.retry = value
                    .iter()
                    .try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')));
            }
            _ => {}
        }
    }

    fn data_line(&mut self, value: &[u8]) {
        if self.data_too_long || self.data.len() + value.len() + 1 > self.limit {
            self.data_too_long = true;
            return;
        }
        if self.has_data {
            self.data.push(b'\n');
        }
        self.has_data = true;
        self.data.extend_from_slice(value);
    }

    fn dispatch(&mut self, emit: &mut dyn FnMut(Event<'_>)) {
        if std::mem::take(&mut self.data_too_long) {
            self.dropped += 1;
        } else if self.has_data {
            emit(Event { name: &self.name, data: &self.data, id: &self.id, retry: self.retry });
        }
        self.has_data = false;
        self.data.clear();
        self.name.clear();
    }
}

fn replace(field: &mut Vec<u8>, value: &[u8]) {
    field.clear();
    field.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Owned = (Vec<u8>, Vec<u8>, Vec<u8>, Option<u64>);

    fn parse<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limit: usize) -> (Vec<Owned>, Parser) {
        let mut parser = Parser::new(limit);
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece, &mut |event| {
                events.push((event.name.to_vec(), event.data.to_vec(), event.id.to_vec(), event.retry));
            });
        }
        (events, parser)
    }

    fn data(text: &str) -> Vec<String> {
        let (events, _) = parse([text.as_bytes()], 1 << 16);
        events.into_iter().map(|event| String::from_utf8_lossy(&event.1).into_owned()).collect()
    }

    #[test]
    fn the_three_line_ends_are_alike() {
        for end in ["\n", "\r\n", "\r"] {
            let text = "data: a\n\n: note\ndata:b\ndata: c\n\n\ndata\n\nother: x\n\n".replace('\n', end);
            assert_eq!(data(&text), ["a", "b\nc", ""], "{end:?}");
        }
    }

    #[test]
    fn fields_and_mark() {
        let text =
            "\u{feff}event: error\nid: 7\nretry: 1500\ndata:  two spaces\n\nid: a\0b\nretry: 1x\ndata: z\n\n";
        let (events, _) = parse([text.as_bytes()], 1 << 16);
        assert_eq!(events[0], (b"error".to_vec(), b" two spaces".to_vec(), b"7".to_vec(), Some(1500)));
        assert_eq!(events[1], (b"".to_vec(), b"z".to_vec(), b"7".to_vec(), Some(1500)));
    }

    #[test]
    fn an_event_without_its_blank_line_is_not_one() {
        let (events, parser) = parse([b"data: a\n\ndata: [DONE]\n".as_slice()], 100);
        assert_eq!((events.len(), parser.is_mid_event()), (1, true));
    }

    #[test]
    fn an_event_over_the_limit_is_dropped_and_the_next_is_read() {
        let text =
            format!("data: {}\n\ndata: ok\n\ndata: 12345678\ndata: 12345678\n\ndata: ok\n\n", "x".repeat(50));
        let (events, parser) = parse([text.as_bytes()], 16);
        assert_eq!(events.iter().map(|event| event.1.as_slice()).collect::<Vec<_>>(), [b"ok", b"ok"]);
        assert_eq!(parser.dropped(), 2);
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            tokens in proptest::collection::vec(
                prop::sample::select(vec!["data: ", "data", ":", "\n", "\r", "\r\n", "x", " ", "event: e", "id: 1", "é", "\u{feff}"]),
                0..60,
            ),
            cuts in proptest::collection::vec(1usize..9, 1..40),
        ) {
            let text = tokens.concat().into_bytes();
            let mut pieces = Vec::new();
            let mut rest = text.as_slice();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() { break; }
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            let (split, parser) = parse(pieces, 24);
            let (whole, reference) = parse([text.as_slice()], 24);
            prop_assert_eq!(split, whole);
            prop_assert_eq!(parser.dropped(), reference.dropped());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            let (_, parser) = parse(bytes.chunks(7), 32);
            prop_assert!(parser.data.len() <= 32 && parser.line.len() <= 32);
        }
    }
}
