//! Reading a chunked body as it arrives, whatever the split.

/// Where in the framing the reader stands.
#[derive(Default)]
pub struct Chunked {
    state: State,
    /// Of the chunk being read: bytes still to come.
    left: usize,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    /// After the digits: an extension, up to the line's end.
    SizeEnd,
    Payload,
    PayloadEnd,
    /// The line after the last chunk. Only an empty trailer is understood.
    Trailer,
    Done,
}

impl Chunked {
    /// Takes what arrived and hands the payload on. Returns whether the body has ended.
    pub fn take(&mut self, mut bytes: &[u8], mut payload: impl FnMut(&[u8])) -> Result<bool, &'static str> {
        while let Some(first) = bytes.first().copied() {
            if self.state == State::Payload {
                let (now, later) = bytes.split_at(self.left.min(bytes.len()));
                payload(now);
                self.left -= now.len();
                bytes = later;
                if self.left == 0 {
                    self.state = State::PayloadEnd;
                }
            } else {
                self.framing(first)?;
                bytes = &bytes[1..];
            }
        }
        Ok(self.state == State::Done)
    }

    fn framing(&mut self, byte: u8) -> Result<(), &'static str> {
        let digit = char::from(byte).to_digit(16);
        self.state = match (self.state, byte, digit) {
            (State::Size, _, Some(digit)) => {
                self.left = self.left.checked_mul(16).ok_or("a chunk is too large")? + digit as usize;
                State::Size
            }
            (State::Size, b'\r' | b';', _) => State::SizeEnd,
            (State::SizeEnd, b'\n', _) if self.left == 0 => State::Trailer,
            (State::SizeEnd, b'\n', _) => State::Payload,
            (State::SizeEnd, ..) => State::SizeEnd,
            (State::PayloadEnd, b'\r', _) => State::PayloadEnd,
            (State::PayloadEnd, b'\n', _) => State::Size,
            (State::Trailer, b'\r', _) => State::Trailer,
            (State::Trailer, b'\n', _) => State::Done,
            _ => return Err("the chunked framing is broken"),
        };
        Ok(())
    }
}
