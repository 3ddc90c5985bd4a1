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
    /// Bytes of the body, framing not counted.
    pub length: usize,
    /// BLAKE3 of the body, where it was asked for.
    pub digest: Option<blake3::Hash>,
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

/// Collects the body's facts while it arrives.
struct Sink {
    length: usize,
    hasher: Option<blake3::Hasher>,
    first_byte: Option<Instant>,
}

const BUFFER: usize = 64 * 1024;

impl Connection {
    pub async fn open(address: SocketAddr) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, buffer: vec![0; BUFFER] })
    }

    /// Sends `request` and reads its whole answer.
    pub async fn exchange(&mut self, request: &[u8], digest: bool) -> Result<Answer, Error> {
        self.stream.write_all(request).await?;
        let (head, mut filled) = self.head().await?;
        let mut framing = head.framing;
        let mut sink = Sink { length: 0, hasher: digest.then(blake3::Hasher::new), first_byte: None };
        let mut from = head.length;
        while !framing.take(&self.buffer[from..filled], &mut sink)? {
            (from, filled) = (0, self.read(0).await?);
        }
        Ok(Answer {
            status: head.status,
            first_byte: sink.first_byte.unwrap_or_else(Instant::now),
            length: sink.length,
            digest: sink.hasher.map(|hasher| hasher.finalize()),
        })
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
            0 if from == BUFFER => Err("the answer's head is too long".into()),
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
    fn take(&mut self, bytes: &[u8], sink: &mut Sink) -> Result<bool, Error> {
        match self {
            Framing::Length(left) => {
                sink.take(bytes);
                *left = left.checked_sub(bytes.len()).ok_or("more bytes than content-length says")?;
                Ok(*left == 0)
            }
            Framing::Chunked(chunked) => Ok(chunked.take(bytes, |payload| sink.take(payload))?),
        }
    }
}

impl Sink {
    fn take(&mut self, payload: &[u8]) {
        if self.first_byte.is_none() && !payload.is_empty() {
            self.first_byte = Some(Instant::now());
        }
        self.length += payload.len();
        if let Some(hasher) = &mut self.hasher {
            hasher.update(payload);
        }
    }
}
