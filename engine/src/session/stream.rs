//! From token bytes to pieces of text that are safe to send.

/// Collects bytes and releases whole characters that cannot belong to a stop string any more.
pub struct Stream {
    stops: Vec<String>,
    /// The beginning of a character.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
}

/// What a push made available.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
    /// A stop string was completed; nothing more is to come.
    pub stopped: bool,
}

impl Stream {
    /// A stream that ends at the first occurrence of any of `stops` (none of them empty).
    pub fn new(stops: Vec<String>) -> Stream {
        Stream { stops, bytes: Vec::new(), held: String::new() }
    }

    /// Takes the bytes of one token.
    pub fn push(&mut self, bytes: &[u8]) -> Piece {
        self.bytes.extend_from_slice(bytes);
        let whole = whole_characters(&self.bytes);
        let rest = self.bytes.split_off(whole);
        self.held.push_str(&String::from_utf8_lossy(&self.bytes));
        self.bytes = rest;
        self.release()
    }

    /// Everything still held back, at the end of the answer. A broken last character becomes U+FFFD.
    pub fn finish(mut self) -> String {
        self.held.push_str(&String::from_utf8_lossy(&self.bytes));
        match self.first_stop() {
            Some(at) => self.held[..at].to_owned(),
            None => self.held,
        }
    }

    fn release(&mut self) -> Piece {
        if let Some(at) = self.first_stop() {
            let text = self.held[..at].to_owned();
            self.held.clear();
            self.bytes.clear();
            return Piece { text, stopped: true };
        }
        let longest = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - longest);
        Piece { text: std::mem::replace(&mut self.held, kept), stopped: false }
    }

    fn first_stop(&self) -> Option<usize> {
        self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min()
    }
}

/// Length of the longest proper beginning of `stop` that `text` ends with, in bytes at a character boundary of both.
fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len().saturating_sub(1));
    (1..=longest).rev().find(|&n| stop.is_char_boundary(n) && text.ends_with(&stop[..n])).unwrap_or(0)
}

/// Bytes up to a character that is only begun. Bytes that can never become a character count as whole.
fn whole_characters(bytes: &[u8]) -> usize {
    let mut done = 0;
    loop {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(_) => return bytes.len(),
            Err(e) => match e.error_len() {
                Some(bad) => done += e.valid_up_to() + bad,
                None => return done + e.valid_up_to(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&[u8]]) -> (String, bool) {
        let mut stream = Stream::new(stops.iter().map(|&s| s.to_owned()).collect());
        let mut out = String::new();
        for piece in pieces {
            let piece = stream.push(piece);
            out.push_str(&piece.text);
            if piece.stopped {
                return (out, true);
            }
        }
        out.push_str(&stream.finish());
        (out, false)
    }

    #[test]
    fn a_stop_string_split_over_tokens_does_not_leak() {
        assert_eq!(run(&["\nUser:"], &[b"yes\n", b"Us", b"er", b": no"]), ("yes".into(), true));
        assert_eq!(run(&["\nUser:"], &[b"yes\n", b"Us", b"eful"]), ("yes\nUseful".into(), false));
        assert_eq!(run(&["aab"], &[b"a", b"a", b"a", b"b"]), ("a".into(), true));
    }

    #[test]
    fn characters_are_never_split() {
        let text = "né😀";
        let bytes = text.as_bytes();
        let mut stream = Stream::new(Vec::new());
        let pieces: Vec<String> = bytes.iter().map(|b| stream.push(&[*b]).text).collect();
        assert_eq!(pieces, ["n", "", "é", "", "", "", "😀"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_split_gives_the_text_up_to_the_first_stop(
            text in "[ab😀]{0,40}", stops in proptest::collection::vec("[ab😀]{1,4}", 0..3), cut in 1usize..5,
        ) {
            let refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(cut).collect();
            let (out, stopped) = run(&refs, &pieces);
            // The stop that is completed first wins, as in a reader who sees one character after another.
            let ends = stops.iter().filter_map(|s| text.find(s.as_str()).map(|at| (at, at + s.len())));
            match ends.clone().min_by_key(|(_, end)| *end) {
                None => prop_assert_eq!((out, stopped), (text, false)),
                Some((_, end)) => {
                    prop_assert!(stopped);
                    prop_assert!(text.starts_with(&out));
                    prop_assert!(stops.iter().all(|s| !out.contains(s.as_str())));
                    prop_assert!(out.len() <= end);
                }
            }
        }

        #[test]
        fn arbitrary_bytes_come_out_as_lossy_text(bytes in proptest::collection::vec(any::<u8>(), 0..60), cut in 1usize..7) {
            let pieces: Vec<&[u8]> = bytes.chunks(cut).collect();
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            prop_assert_eq!(run(&[], &pieces).0, whole);
        }
    }
}
