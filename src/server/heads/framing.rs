//! Where requests begin and end in the bytes of a connection, told as hyper tells it.

/// The most that is kept of a line whose end has not come; the names and numbers that matter are far shorter.
const LINE: usize = 128;
/// hyper gives up on a head long before it has this size.
const HEAD: usize = 1 << 20;
/// How HTTP/2 begins.
const PREFACE: &[u8] = b"PRI * HTTP/2.0";

/// What has been seen of a connection.
pub struct Framing {
    at: At,
    /// Heads seen to their end.
    heads: u64,
    head: Head,
}

/// The head that is being read.
#[derive(Default)]
struct Head {
    /// The beginning of a line whose end has not come.
    line: Vec<u8>,
    size: usize,
    begun: bool,
    /// There is a length, readable or not.
    sized: bool,
    length: u64,
    chunked: bool,
    /// It cannot be told how it would be read.
    unclear: bool,
    /// It is HTTP/2.
    foreign: bool,
}

/// What the next byte belongs to.
#[derive(Clone, Copy)]
enum At {
    Head,
    /// A body with a length: bytes left.
    Body(u64),
    Chunk(Chunk),
    /// Nothing that is looked at: HTTP/2, or in doubt already.
    Beyond,
}

/// Where in a chunked body. States and transitions are those of hyper's decoder: where the two differed, something could
/// be hidden.
#[derive(Clone, Copy)]
enum Chunk {
    Start,
    Size(u64),
    SizeLws(u64),
    Extension(u64),
    SizeLf(u64),
    Body(u64),
    BodyCr,
    BodyLf,
    Trailer,
    TrailerLf,
    EndCr,
    EndLf,
    End,
}

impl Default for Framing {
    fn default() -> Self {
        Self { at: At::Head, heads: 0, head: Head::default() }
    }
}

impl Framing {
    /// Takes note of bytes that came. Says, once, from which request on, counted from 0, the framing is in doubt.
    pub fn see(&mut self, mut bytes: &[u8]) -> Option<u64> {
        while !bytes.is_empty() {
            let clear = match self.at {
                At::Beyond => return None,
                At::Head => self.head(&mut bytes),
                At::Body(left) => {
                    let left = skip(left, &mut bytes);
                    self.at = if left == 0 { At::Head } else { At::Body(left) };
                    true
                }
                At::Chunk(chunk) => {
                    let next = chunk.step(&mut bytes);
                    self.at = next.map_or(At::Beyond, |next| match next {
                        Chunk::End => At::Head,
                        next => At::Chunk(next),
                    });
                    next.is_some()
                }
            };
            if !clear {
                self.at = At::Beyond;
                return Some(self.heads);
            }
        }
        None
    }

    /// Reads lines of a head, to its end or the end of the bytes; `false` if it is in doubt.
    fn head(&mut self, bytes: &mut &[u8]) -> bool {
        let ended = loop {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                self.head.keep(bytes);
                *bytes = &[];
                break false;
            };
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            *bytes = rest;
            if self.head.line(line) || self.head.foreign {
                break true;
            }
        };
        if self.head.unclear || self.head.size > HEAD {
            return false;
        }
        if ended {
            let head = std::mem::take(&mut self.head);
            self.at = match (head.chunked, head.sized) {
                _ if head.foreign => At::Beyond,
                (true, true) => return false,
                (true, false) => At::Chunk(Chunk::Start),
                (false, _) if head.length > 0 => At::Body(head.length),
                (false, _) => At::Head,
            };
            self.heads += 1;
        }
        true
    }
}

impl Head {
    /// Keeps the beginning of a line.
    fn keep(&mut self, part: &[u8]) {
        self.size += part.len();
        let room = LINE.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
    }

    /// Takes the rest of a line; `true` if it ends the head.
    fn line(&mut self, rest: &[u8]) -> bool {
        if self.line.is_empty() {
            self.size += rest.len() + 1;
            return self.whole_line(rest);
        }
        self.keep(rest);
        let line = std::mem::take(&mut self.line);
        self.whole_line(&line)
    }

    fn whole_line(&mut self, line: &[u8]) -> bool {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            // Empty lines before a head are skipped.
            return self.begun;
        }
        if !self.begun {
            self.begun = true;
            self.foreign = line == PREFACE;
        } else if matches!(line[0] | 0x20, b'c' | b't') {
            self.field(line);
        }
        false
    }

    fn field(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            self.sized = true;
            let digits = value.iter().all(u8::is_ascii_digit) && line.len() < LINE;
            let length =
                std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
            self.unclear |= length.is_none();
            self.length = length.unwrap_or(0);
        }
    }
}

impl Chunk {
    /// Takes some bytes; `None` where there is no such step.
    fn step(self, bytes: &mut &[u8]) -> Option<Self> {
        if let Self::Body(left) = self {
            return Some(match skip(left, bytes) {
                0 => Self::BodyCr,
                left => Self::Body(left),
            });
        }
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let next = match (self, byte) {
            (Self::Start, byte) => Self::Size(digit(0, byte)?),
            (Self::Size(size), b'\t' | b' ') | (Self::SizeLws(size), b'\t' | b' ') => Self::SizeLws(size),
            (Self::Size(size) | Self::SizeLws(size), b';') => Self::Extension(size),
            (Self::Size(size) | Self::SizeLws(size) | Self::Extension(size), b'\r') => Self::SizeLf(size),
            (Self::Size(size), byte) => Self::Size(digit(size, byte)?),
            (Self::Extension(size), byte) if byte != b'\n' => Self::Extension(size),
            (Self::SizeLf(0), b'\n') => Self::EndCr,
            (Self::SizeLf(size), b'\n') => Self::Body(size),
            (Self::BodyCr, b'\r') => Self::BodyLf,
            (Self::BodyLf, b'\n') => Self::Start,
            (Self::EndCr, b'\r') => Self::EndLf,
            (Self::Trailer, b'\r') => Self::TrailerLf,
            (Self::EndCr | Self::Trailer, _) => Self::Trailer,
            (Self::TrailerLf, b'\n') => Self::EndCr,
            (Self::EndLf, b'\n') => Self::End,
            _ => return None,
        };
        Some(next)
    }
}

/// `size` with one more hexadecimal digit.
fn digit(size: u64, byte: u8) -> Option<u64> {
    let digit = char::from(byte).to_digit(16)?;
    size.checked_mul(16)?.checked_add(digit.into())
}

/// Passes over up to `left` bytes; how many are still to come.
fn skip(left: u64, bytes: &mut &[u8]) -> u64 {
    let here = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
    *bytes = &bytes[here..];
    left - here as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: &str = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &str = "POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
        5;x=\"\t\"\r\nhello\r\n0A \r\n0123456789\r\n0\r\nX-T: a\nb\r\n\r\n";
    const BOTH: &str =
        "POST /c HTTP/1.1\r\nHost: h\r\ncontent-LENGTH:0\r\nTransfer-encoding:chunked\r\n\r\n0\r\n\r\n";
    const OTHER: &str =
        "POST /c HTTP/1.1\nTransfer-Encoding: chunked\nHost: h\nContent-Length: nonsense\n\n0\r\n\r\n";

    /// What is said of `text` when it comes in pieces of `step` bytes.
    fn seen(text: &str, step: usize) -> Option<u64> {
        let mut framing = Framing::default();
        text.as_bytes().chunks(step).filter_map(|piece| framing.see(piece)).next()
    }

    fn always(text: &str, expected: Option<u64>) {
        for step in 1..=text.len() {
            assert_eq!(seen(text, step), expected, "in pieces of {step}: {text:?}");
        }
    }

    #[test]
    fn a_head_with_both_is_found_wherever_it_stands() {
        always(BOTH, Some(0));
        always(OTHER, Some(0));
        always(&format!("\r\n{PLAIN}{CHUNKED}\r\n{PLAIN}{BOTH}"), Some(3));
        always(&format!("GET / HTTP/1.1\r\nHost: h\r\n\r\n{CHUNKED}{CHUNKED}{OTHER}"), Some(3));
    }

    #[test]
    fn what_only_looks_like_one_is_none() {
        for text in [
            format!("{PLAIN}{CHUNKED}{PLAIN}"),
            format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{BOTH}{PLAIN}", BOTH.len()),
            format!(
                "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{BOTH}\r\n0\r\n\r\n{PLAIN}",
                BOTH.len()
            ),
            "POST / HTTP/1.1\r\nHost: h\r\nX: Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n"
                .to_owned(),
            "GET / HTTP/1.1\r\nHost: h\r\nContent-Length-X: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                .to_owned(),
            format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{BOTH}"),
        ] {
            always(&text, None);
        }
    }

    #[test]
    fn where_it_is_lost_all_that_follows_is_in_doubt() {
        always("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", Some(1));
        always("POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\na", Some(0));
        assert_eq!(seen(&"x".repeat(HEAD + 1), 8192), Some(0));
        let long = format!("POST / HTTP/1.1\r\nContent-Length: {}5\r\n\r\nhello{PLAIN}", "0".repeat(200));
        always(&long, Some(0));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400), step in 1_usize..50) {
            let mut framing = Framing::default();
            for piece in bytes.chunks(step) {
                framing.see(piece);
            }
        }
    }
}
