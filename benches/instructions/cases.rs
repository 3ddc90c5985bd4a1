//! What is counted: an upstream and a client that do the same thing every time.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::Error;

pub struct Case {
    pub name: &'static str,
    /// How many units one count takes; what they are depends on the shape.
    pub units: usize,
    shape: Shape,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// A unit is a request with a body so long, and its answer.
    Whole { body: usize },
    /// A unit is a stream that the upstream writes at once.
    Burst,
    /// A unit is an event that is sent when the one before it has arrived.
    Paced,
}

pub const CASES: &[Case] = &[
    Case { name: "small_request", units: 1000, shape: Shape::Whole { body: 200 } },
    Case { name: "large_request", units: 60, shape: Shape::Whole { body: 128 * 1024 } },
    Case { name: "burst_of_200_events", units: 100, shape: Shape::Burst },
    Case { name: "paced_event", units: 500, shape: Shape::Paced },
];

const EVENTS: usize = 200;
const EVENT: &str = "data: {\"id\":\"chatcmpl-0\",\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":\
     {\"content\":\"word \"},\"finish_reason\":null}]}\n\n";
const LAST: &str = "data: [DONE]\n\n";
/// Nothing here takes so long, even under valgrind.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The upstream's end of a lock-step: it waits for a word before each event.
pub struct Upstream {
    pub address: SocketAddr,
    next: SyncSender<()>,
}

impl Case {
    /// Starts an upstream that answers in the case's way for the rest of the process's life.
    pub fn upstream(&self, units: usize) -> Result<Upstream, Error> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (next, turn) = sync_channel(1);
        let shape = self.shape;
        std::thread::Builder::new().name("upstream".to_owned()).spawn(move || {
            // Serin keeps one connection; it is served until Serin closes it.
            while let Ok((stream, _)) = listener.accept() {
                let _ = serve(stream, shape, units, &turn);
            }
        })?;
        Ok(Upstream { address, next })
    }

    /// Sends what the case sends, `units` of it.
    pub fn drive(&self, serin: SocketAddr, upstream: &Upstream, units: usize) -> Result<(), Error> {
        let mut client = TcpStream::connect(serin)?;
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(TIMEOUT))?;
        let mut buffer = vec![0; 256 * 1024];
        match self.shape {
            Shape::Whole { body } => (0..units).try_for_each(|number| {
                client.write_all(&request(serin, number, body))?;
                read_until(&mut client, &mut buffer, answer().as_bytes())
            }),
            Shape::Burst => (0..units).try_for_each(|number| {
                client.write_all(&request(serin, number, 200))?;
                read_until(&mut client, &mut buffer, b"\r\n0\r\n\r\n")
            }),
            Shape::Paced => {
                client.write_all(&request(serin, 0, 200))?;
                for _ in 0..units {
                    upstream.next.send(())?;
                    read_until(&mut client, &mut buffer, b"}\n\n\r\n")?;
                }
                upstream.next.send(())?;
                read_until(&mut client, &mut buffer, b"\r\n0\r\n\r\n")
            }
        }
    }
}

fn serve(mut stream: TcpStream, shape: Shape, units: usize, turn: &Receiver<()>) -> Result<(), Error> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 256 * 1024];
    loop {
        read_request(&mut stream, &mut buffer)?;
        match shape {
            Shape::Whole { .. } => stream.write_all(&whole())?,
            Shape::Burst => {
                let mut stream_of_events = head();
                (0..EVENTS).for_each(|_| stream_of_events.extend(chunk(EVENT)));
                stream_of_events.extend(chunk(LAST));
                stream_of_events.extend(b"0\r\n\r\n");
                stream.write_all(&stream_of_events)?;
            }
            Shape::Paced => {
                turn.recv()?;
                stream.write_all(&[head(), chunk(EVENT)].concat())?;
                for _ in 1..units {
                    turn.recv()?;
                    stream.write_all(&chunk(EVENT))?;
                }
                turn.recv()?;
                stream.write_all(&[&chunk(LAST)[..], b"0\r\n\r\n"].concat())?;
            }
        }
    }
}

fn request(host: SocketAddr, number: usize, body: usize) -> Vec<u8> {
    let before = format!(r#"{{"model":"mock","messages":[{{"role":"user","content":"{number:08} "#);
    let after = r#""}],"stream":true}"#;
    let filler = "word ".repeat(body / 5 + 1);
    let filler = &filler[..body - before.len() - after.len()];
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         authorization: Bearer sk-bench\r\ncontent-length: {body}\r\n\r\n{before}{filler}{after}"
    )
    .into()
}

fn answer() -> String {
    let text = "word ".repeat(250);
    format!(
        r#"{{"id":"chatcmpl-0","object":"chat.completion","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}]}}"#
    )
}

fn whole() -> Vec<u8> {
    let body = answer();
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}")
        .into()
}

fn head() -> Vec<u8> {
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".into()
}

fn chunk(event: &str) -> Vec<u8> {
    format!("{:x}\r\n{event}\r\n", event.len()).into()
}

/// Reads until what has come ends with `end`.
fn read_until(stream: &mut TcpStream, buffer: &mut [u8], end: &[u8]) -> Result<(), Error> {
    let mut filled = 0;
    while !buffer[..filled].ends_with(end) {
        match stream.read(&mut buffer[filled..])? {
            0 => return Err("the connection ended early".into()),
            read => filled += read,
        }
    }
    Ok(())
}

fn read_request(stream: &mut TcpStream, buffer: &mut [u8]) -> Result<(), Error> {
    let mut filled = 0;
    let mut whole = usize::MAX;
    while filled < whole {
        match stream.read(&mut buffer[filled..])? {
            0 => return Err("closed".into()),
            read => filled += read,
        }
        if whole == usize::MAX
            && let Some(at) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n")
        {
            let head = std::str::from_utf8(&buffer[..at])?.to_ascii_lowercase();
            let (_, length) = head.split_once("content-length:").ok_or("no content-length")?;
            let length: usize = length.split("\r\n").next().unwrap_or_default().trim().parse()?;
            whole = at + 4 + length;
        }
    }
    Ok(())
}
