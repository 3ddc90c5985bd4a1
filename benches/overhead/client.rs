//! One HTTP/1.1 connection that costs little: it writes prepared bytes and reads the answer in whole buffers,
//! so that the load generator is not what is measured.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Error;
use crate::chunked::Chunked;

pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

/// What came back for one request.
pub struct Answer {
    pub status: u16,
    /// When the first byte of the body was there.
    pub first_byte: Instant,
    /// The body is, byte for byte, the expected one.
    pub as_expected: bool,
}

enum Framing {
    Length(usize),
    Chunked(Chunked),
}

struct Head {
    status: u16,
    framing: Framing,
    /// Bytes of the head in the buffer.
    length: usize,
}

/// Compares the body while it arrives.
struct Sink<'a> {
    expected: &'a [u8],
    length: usize,
    differs: bool,
    first_byte: Option<Instant>,
    /// How much of the body was there, and when.
    arrivals: Option<&'a mut Vec<(usize, Instant)>>,
}

const BUFFER: usize = 64 * 1024;

impl Connection {
    pub async fn open(address: SocketAddr) -> std::io::Result<Connection> {
        Connection::with_buffer(address, BUFFER).await
    }

    pub async fn with_buffer(address: SocketAddr, buffer: usize) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: vec![0; buffer] })
    }

    pub async fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads the whole answer and compares it with the expected one.
    pub async fn answer(
        &mut self,
        expected: &[u8],
        arrivals: Option<&mut Vec<(usize, Instant)>>,
    ) -> Result<Answer, Error> {
        let (status, sink) = self.receive(Sink::new(expected, arrivals), usize::MAX).await?;
        Ok(Answer {
            status,
            first_byte: sink.first_byte.unwrap_or_else(Instant::now),
            as_expected: !sink.differs && sink.length == expected.len(),
        })
    }

    /// Reads an answer up to its first `enough` bytes; fails when they are not the expected ones.
    pub async fn beginning(&mut self, expected: &[u8], enough: usize) -> Result<(), Error> {
        let (status, sink) = self.receive(Sink::new(expected, None), enough).await?;
        match (status, sink.differs) {
            (200, false) => Ok(()),
            (200, true) => Err("the answer differs from what was sent".into()),
            (status, _) => Err(format!("status {status}").into()),
        }
    }

    /// Waits for more of an answer that has begun.
    pub async fn more(&mut self) -> Result<usize, Error> {
        self.read(0).await
    }

    async fn receive<'a>(&mut self, mut sink: Sink<'a>, enough: usize) -> Result<(u16, Sink<'a>), Error> {
        let (head, mut filled) = self.head().await?;
        let mut framing = head.framing;
        let mut from = head.length;
        while !framing.take(&self.buffer[from..filled], &mut sink)? && sink.length < enough {
            (from, filled) = (0, self.read(0).await?);
        }
        Ok((head.status, sink))
    }

    /// Reads until the head is whole; returns it and how much of the buffer is filled.
    async fn head(&mut self) -> Result<(Head, usize), Error> {
        let mut filled = 0;
        loop {
            filled += self.read(filled).await?;
            if let Some(end) = self.buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
                return Ok((Head::parse(&self.buffer[..end], end + 4)?, filled));
            }
        }
    }

    async fn read(&mut self, from: usize) -> Result<usize, Error> {
        match self.stream.read(&mut self.buffer[from..]).await? {
            0 if from == self.buffer.len() => Err("the answer's head is too long".into()),
            0 => Err("the connection ended inside an answer".into()),
            read => Ok(read),
        }
    }
}

impl Head {
    fn parse(bytes: &[u8], length: usize) -> Result<Head, Error> {
        let text = std::str::from_utf8(bytes)?;
        let mut lines = text.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or("no status line")?.parse()?;
        let mut framing = Framing::Length(0);
        for line in lines {
            let (name, value) = line.split_once(':').ok_or("a header without a colon")?;
            if name.eq_ignore_ascii_case("content-length") {
                framing = Framing::Length(value.trim().parse()?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                framing = Framing::Chunked(Chunked::default());
            }
        }
        Ok(Head { status, framing, length })
    }
}

impl Framing {
    /// Returns whether the body has ended.
    fn take(&mut self, bytes: &[u8], sink: &mut Sink<'_>) -> Result<bool, Error> {
        let ended = match self {
            Framing::Length(left) => {
                sink.take(bytes);
                *left = left.checked_sub(bytes.len()).ok_or("more bytes than content-length says")?;
                *left == 0
            }
            Framing::Chunked(chunked) => chunked.take(bytes, |payload| sink.take(payload))?,
        };
        sink.note();
        Ok(ended)
    }
}

impl<'a> Sink<'a> {
    fn new(expected: &'a [u8], arrivals: Option<&'a mut Vec<(usize, Instant)>>) -> Sink<'a> {
        Sink { expected, length: 0, differs: false, first_byte: None, arrivals }
    }

    fn take(&mut self, payload: &[u8]) {
        if self.first_byte.is_none() && !payload.is_empty() {
            self.first_byte = Some(Instant::now());
        }
        let end = self.length + payload.len();
        self.differs |= self.expected.get(self.length..end) != Some(payload);
        self.length = end;
    }

    /// One read has been taken in.
    fn note(&mut self) {
        if let Some(arrivals) = self.arrivals.as_mut() {
            arrivals.push((self.length, Instant::now()));
        }
    }
}
