//! Clients that no library would write.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::clients::{Crew, PATIENCE, dial};
use crate::dice::Dice;
use crate::plan::{Ending, HEADER, MALFORMED, Plan};

/// What must be answered with an error or a closed connection, and must reach nobody. `@` stands for the line that an
/// upstream would know it by.
const NONSENSE: [&str; 14] = [
    "GET / HTTP/1.1\r\n@\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n@\r\n",
    "G ET / HTTP/1.1\r\nHost: a\r\n@\r\n",
    "GET / HTTP/3.7\r\nHost: a\r\n@\r\n",
    "GET  HTTP/1.1\r\nHost: a\r\n@\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX : 1\r\n@\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n@\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n@\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n@\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n@\r\nab",
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999999\r\n@\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n@\r\n",
    "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n@\r\n",
    "\x16\x03\x01\x02\0\x01\0\x01\u{7f}\x03\x03",
];

pub async fn nonsense(crew: &Crew, dice: &mut Dice) {
    let Some(mut stream) = dial(crew).await else { return };
    let which = dice.between(0, NONSENSE.len() as u64) as usize;
    let text = NONSENSE[which].replace('@', &format!("{MALFORMED}: 1\r\n"));
    if dice.one_in(3) {
        for byte in text.as_bytes() {
            if stream.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
    } else {
        let _ = stream.write_all(text.as_bytes()).await;
    }
    let answer = rest(&mut stream).await;
    let first = |answer: &[u8]| String::from_utf8_lossy(answer).chars().skip(9).take(1).collect::<String>();
    let status = answer.as_deref().map(first);
    match status.as_deref() {
        Some("" | "4" | "5") => crew.tally.saw("nonsense refused"),
        Some(other) => crew.tally.wrong(format!("nonsense {which} was answered with {other}xx")),
        None => crew.tally.wrong(format!("nonsense {which} was neither answered nor closed")),
    }
}

/// What comes until the other side closes; `None` where it does not.
async fn rest(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut answer = Vec::new();
    match timeout(PATIENCE, stream.read_to_end(&mut answer)).await {
        // A reset is a closed connection, too.
        Ok(_) => Some(answer),
        Err(_) => None,
    }
}

/// Opens a connection and sends nothing, or half a head; then waits to be thrown out, or leaves.
pub async fn half_a_head(crew: &Crew, dice: &mut Dice) {
    let Some(mut stream) = dial(crew).await else { return };
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{MALFORMED}: 1\r\nX-More");
    let part = dice.between(0, head.len() as u64) as usize;
    let _ = stream.write_all(&head.as_bytes()[..part]).await;
    if dice.one_in(6) {
        match rest(&mut stream).await {
            Some(_) => crew.tally.saw("half a head thrown out"),
            None => crew.tally.wrong(format!("{part} bytes of a head were waited for too long")),
        }
    } else {
        sleep(dice.millis(1, 300)).await;
        crew.tally.saw("left with half a head");
    }
}

/// A whole request, and then the end of the client's side: by default that cancels it.
pub async fn closes_its_side(crew: &Crew, dice: &mut Dice) {
    let Some(mut stream) = dial(crew).await else { return };
    let plan = Plan { pace: dice.millis(1, 30), ..Plan::draw(dice) };
    let _ = stream.write_all(whole(&plan).as_bytes()).await;
    sleep(dice.millis(0, 60) + Duration::from_micros(1)).await;
    let _ = stream.shutdown().await;
    match rest(&mut stream).await {
        Some(_) => crew.tally.saw("closed its side"),
        None => crew.tally.wrong("a client that closed its side was kept".to_owned()),
    }
}

/// Resets its connection in the middle of something, with what it was sent unread.
pub async fn resets(crew: &Crew, dice: &mut Dice) {
    let Some(mut stream) = dial(crew).await else { return };
    let ending = if dice.one_in(3) { Ending::Never } else { Ending::Whole };
    let plan = Plan { ending, pieces: 200, pace: dice.millis(0, 5), ..Plan::draw(dice) };
    let text = whole(&plan);
    let part = if dice.one_in(3) { dice.between(1, text.len() as u64) as usize } else { text.len() };
    let _ = stream.write_all(&text.as_bytes()[..part]).await;
    sleep(dice.millis(0, 80) + Duration::from_micros(1)).await;
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    crew.tally.saw("reset");
}

fn whole(plan: &Plan) -> String {
    let body = "{\"messages\":[{\"role\":\"user\",\"content\":\"soak\"}]}";
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{HEADER}: {}\r\nContent-Length: {}\r\n\r\n{body}",
        plan.header(),
        body.len()
    )
}
