//! A front door for tests: answers each request by a function of its number, head and body.

use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fidelity::secret::Secret;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Asked {
    pub head: String,
    pub body: Value,
}

/// The listener and what it was asked so far.
pub struct Scripted {
    listener: TcpListener,
    pub asked: Mutex<Vec<Asked>>,
}

impl Scripted {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self { listener, asked: Mutex::default() }
    }

    pub fn address(&self) -> std::net::SocketAddr {
        self.listener.local_addr().expect("bound")
    }

    /// Serves one connection after the other for ever; drop the future to stop.
    pub async fn serve(&self, answer: impl Fn(usize, &Asked) -> String) {
        loop {
            let (mut stream, _) = self.listener.accept().await.expect("a connection");
            let Some(asked) = read_request(&mut stream).await else { continue };
            let number = {
                let mut all = self.asked.lock().expect("no panic while held");
                all.push(asked.clone());
                all.len() - 1
            };
            // A client that has seen enough may be gone already.
            let _ = stream.write_all(answer(number, &asked).as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    }

    /// Runs `work` against the script.
    pub async fn during<T>(
        &self,
        answer: impl Fn(usize, &Asked) -> String,
        work: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            () = self.serve(answer) => unreachable!("serves for ever"),
            done = work => done,
        }
    }

    pub fn bodies(&self) -> Vec<Value> {
        let asked = self.asked.lock().expect("no panic while held");
        asked.iter().map(|asked| asked.body.clone()).collect()
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            let body_end = end + 4 + length.unwrap_or(0);
            if bytes.len() >= body_end {
                let body = serde_json::from_slice(&bytes[end + 4..body_end]).unwrap_or(Value::Null);
                return Some(Asked { head, body });
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// The first code in the messages of a request.
pub fn code_in(body: &Value) -> String {
    let texts =
        body["messages"].as_array().into_iter().flatten().filter_map(|message| message["content"].as_str());
    texts
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
        .find(|word| Secret::parse(word).is_some())
        .unwrap_or("none")
        .to_owned()
}

/// A whole response with a body of known length.
pub fn response(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Status\r\nx-serin-upstream: embedded\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

/// A chat completion with `message` as its only choice.
pub fn completion(message: &Value, finish_reason: &str, prompt_tokens: usize) -> String {
    let body = json!({
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": prompt_tokens, "prompt_tokens_details": {"cached_tokens": 0}},
    });
    response(200, "content-type: application/json\r\n", &body.to_string())
}

/// A chat completion that says `content`; counts 1.3 tokens a word and 90 for a template.
pub fn says(asked: &Asked, content: &str) -> String {
    let texts = asked.body["messages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|message| message["content"].as_str());
    let words: usize = texts.map(|text| text.split_whitespace().count()).sum();
    completion(&json!({"role": "assistant", "content": content}), "stop", words * 13 / 10 + 90)
}
