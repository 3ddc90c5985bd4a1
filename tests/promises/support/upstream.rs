//! A scripted upstream: it keeps what it received to the byte and answers what the script writes.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::wire::{find, more};

/// One request as it arrived.
#[derive(Clone, Debug, Default)]
pub struct Received {
    pub head: String,
    pub body: Vec<u8>,
}

impl Received {
    /// The values of all header lines of that name, in order.
    pub fn headers(&self, name: &str) -> Vec<String> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines
            .filter(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .collect()
    }
}

/// Answers requests on loopback until dropped with the test.
pub struct Upstream {
    pub address: SocketAddr,
    log: Arc<Mutex<Vec<Received>>>,
    gone: Arc<Mutex<usize>>,
}

impl Upstream {
    /// `script` writes the answer; returning `false` closes the connection.
    pub fn start(script: impl Fn(&Received, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let gone = Arc::new(Mutex::new(0));
        let shared = (Arc::new(script), log.clone(), gone.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, log, gone) = shared.clone();
                std::thread::spawn(move || {
                    let mut stream = stream;
                    let _ = stream.set_nodelay(true);
                    while let Some(request) = read_request(&mut stream) {
                        log.lock().unwrap().push(request.clone());
                        if !script(&request, &mut stream) {
                            break;
                        }
                    }
                    *gone.lock().unwrap() += 1;
                });
            }
        });
        Self { address, log, gone }
    }

    /// Always answers with these bytes.
    pub fn canned(answer: impl Into<Vec<u8>>) -> Self {
        let answer = answer.into();
        Self::start(move |_, stream| std::io::Write::write_all(stream, &answer).is_ok())
    }

    pub fn received(&self) -> Vec<Received> {
        self.log.lock().unwrap().clone()
    }

    /// Connections that have ended.
    pub fn gone(&self) -> usize {
        *self.gone.lock().unwrap()
    }
}

/// Blocks until the peer closes; for scripts that wait for a cancel.
pub fn until_closed(stream: &mut TcpStream) {
    let mut byte = [0];
    while matches!(stream.read(&mut byte), Ok(n) if n > 0) {}
}

fn read_request(stream: &mut TcpStream) -> Option<Received> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = find(&bytes, b"\r\n\r\n") {
            break at + 4;
        }
        if !more(stream, &mut bytes) {
            return None;
        }
    };
    let mut request =
        Received { head: String::from_utf8_lossy(&bytes[..end]).into_owned(), body: bytes.split_off(end) };
    let length = request.headers("content-length").first().and_then(|length| length.parse::<usize>().ok());
    if let Some(length) = length {
        while request.body.len() < length {
            if !more(stream, &mut request.body) {
                return None;
            }
        }
    } else if !request.headers("transfer-encoding").is_empty() {
        while !request.body.ends_with(b"0\r\n\r\n") {
            if !more(stream, &mut request.body) {
                return None;
            }
        }
    }
    Some(request)
}

/// An answer with a length.
pub fn whole(status: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// The head of a chunked answer.
pub fn chunked(content_type: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n")
        .into_bytes()
}

pub fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}
