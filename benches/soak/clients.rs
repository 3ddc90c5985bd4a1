//! The crew: each client goes from one exchange to the next, mostly well-behaved, until its round is over.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::dice::Dice;
use crate::plan::{Ending, HEADER, Pieces, Plan, RECEIVED};
use crate::tally::Tally;
use crate::weather::Sky;
use crate::{h2, raw};

/// More than any exchange may take; past it something hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What every client knows.
#[derive(Clone)]
pub struct Crew {
    pub proxy: SocketAddr,
    pub tally: Tally,
    pub sky: Sky,
}

/// What a client does in the middle of its exchange.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Manners {
    Good,
    /// Waits this long between two pieces of the answer.
    Slow(Duration),
    /// Leaves this long after it has begun, wherever it is then.
    LeavesAfter(Duration),
    /// Leaves with the request half sent.
    LeavesSending,
}

/// A request's body.
pub struct Upload {
    pieces: Pieces,
    /// After this many pieces nothing more comes.
    stalls_at: Option<u32>,
}

impl Upload {
    /// A body of a size of its own, derived from the plan's seed.
    pub fn new(plan: &Plan, dice: &mut Dice, stalls: bool) -> Upload {
        let large = dice.one_in(15);
        let (pieces, piece) = (dice.size(6) as u32, dice.size(if large { 17 } else { 10 }) as u32);
        let pace = if dice.one_in(10) { dice.millis(1, 8) } else { Duration::ZERO };
        let sized = dice.one_in(2);
        let plan = Plan { seed: !plan.seed, pieces, piece, pace, ending: Ending::Whole, sized };
        Upload { pieces: Pieces::of(plan), stalls_at: stalls.then_some(pieces / 2) }
    }

    pub fn digest(&self) -> String {
        self.pieces.plan().digest().to_hex().to_string()
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.stalls_at == Some(self.pieces.taken()) {
            return Poll::Pending;
        }
        ready!(self.pieces.poll_due(cx));
        Poll::Ready(self.pieces.take().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.all_taken() && self.stalls_at.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.pieces.size_hint()
    }
}

/// One client's life within a round.
pub async fn live(crew: Crew, mut dice: Dice, until: Instant, most: u64) {
    while Instant::now() < until && crew.tally.exchanges() < most {
        let turn = async {
            match dice.between(0, 100) {
                0..8 => raw::half_a_head(&crew, &mut dice).await,
                8..16 => raw::nonsense(&crew, &mut dice).await,
                16..22 => raw::closes_its_side(&crew, &mut dice).await,
                22..28 => raw::resets(&crew, &mut dice).await,
                28..45 => h2::connection(&crew, &mut dice).await,
                _ => connection(&crew, &mut dice).await,
            }
        };
        if timeout(4 * PATIENCE, turn).await.is_err() {
            crew.tally.wrong(format!("a client's turn hung for {:?}", 4 * PATIENCE));
        }
    }
}

/// One HTTP/1.1 connection with a few exchanges.
async fn connection(crew: &Crew, dice: &mut Dice) {
    let Some(stream) = dial(crew).await else { return };
    let Ok((mut sender, connection)) = http1::handshake::<_, Upload>(TokioIo::new(stream)).await else {
        return crew.tally.saw("connection refused");
    };
    // Dropping the set closes the connection, whatever it is doing.
    let mut driver = JoinSet::new();
    driver.spawn_local(async move { drop(connection.await) });
    for _ in 0..dice.between(1, 6) {
        let (plan, manners) = draw(dice);
        if sender.ready().await.is_err() || !exchange(crew, dice, &mut sender, plan, manners).await {
            return;
        }
    }
}

/// What is to happen: most exchanges are whole and patient.
pub fn draw(dice: &mut Dice) -> (Plan, Manners) {
    let mut plan = Plan::draw(dice);
    let manners = match dice.between(0, 20) {
        0 => Manners::Slow(dice.millis(1, 20)),
        1 => {
            plan.ending = Ending::Never;
            Manners::LeavesAfter(dice.millis(1, 150))
        }
        2 => Manners::LeavesSending,
        3 | 4 => {
            plan = Plan { pieces: plan.pieces + 20, pace: dice.millis(2, 15), ..plan };
            Manners::LeavesAfter(dice.millis(1, 120))
        }
        5 => {
            plan.ending = Ending::NoHead;
            Manners::Good
        }
        6 | 7 => {
            plan.ending = Ending::CutAfter(dice.between(0, u64::from(plan.pieces)) as u32);
            Manners::Good
        }
        _ => Manners::Good,
    };
    (plan, manners)
}

/// One exchange; `false` where its connection is not to be used again.
async fn exchange(
    crew: &Crew,
    dice: &mut Dice,
    sender: &mut SendRequest<Upload>,
    plan: Plan,
    manners: Manners,
) -> bool {
    let upload = Upload::new(&plan, dice, manners == Manners::LeavesSending);
    let sent = upload.digest();
    let request = request(&plan, dice, upload, "soak");
    let begun = Instant::now();
    let answer = judge(crew, plan, manners, &sent, begun, sender.send_request(request));
    match manners {
        Manners::LeavesAfter(after) => {
            let _ = timeout(after, answer).await;
            crew.tally.saw(if plan.ending == Ending::Never {
                "left while waiting"
            } else {
                "left in mid-stream"
            });
            false
        }
        Manners::LeavesSending => {
            let _ = timeout(dice.millis(5, 60), answer).await;
            crew.tally.saw("left while sending");
            false
        }
        Manners::Good | Manners::Slow(_) => answer.await,
    }
}

pub fn request(plan: &Plan, dice: &mut Dice, upload: Upload, host: &str) -> Request<Upload> {
    let mut builder =
        Request::post("/v1/chat/completions").header("host", host).header(HEADER, plan.header());
    if dice.one_in(8) {
        builder = builder.header("x-serin-record", if dice.one_in(2) { "off" } else { "meta" });
    }
    if dice.one_in(3) {
        builder = builder.header("session-id", format!("s{}", dice.between(0, 50)));
    }
    builder.body(upload).unwrap_or_else(|_| unreachable!("all parts of the request are valid"))
}

/// One patient exchange after another until one is answered whole; `false` where none is within a few seconds.
pub async fn answers_again(crew: &Crew) -> bool {
    let (begun, mut dice) = (Instant::now(), Dice::new(1));
    while begun.elapsed() < Duration::from_secs(5) {
        let plan = Plan { pieces: 3, piece: 10, pace: Duration::ZERO, ..Plan::draw(&mut dice) };
        if let Some(stream) = dial(crew).await
            && let Ok((mut sender, connection)) = http1::handshake::<_, Upload>(TokioIo::new(stream)).await
        {
            let mut driver = JoinSet::new();
            driver.spawn_local(async move { drop(connection.await) });
            let upload = Upload::new(&plan, &mut dice, false);
            let answer = sender.send_request(request(&plan, &mut dice, upload, "soak")).await;
            if answer.is_ok_and(|answer| answer.status() == 200) {
                return true;
            }
        }
        sleep(Duration::from_millis(30)).await;
    }
    false
}

/// Takes an answer to its end and holds it against the plan; `true` where all is well and the connection usable.
pub async fn judge(
    crew: &Crew,
    plan: Plan,
    manners: Manners,
    sent: &str,
    begun: Instant,
    answer: impl Future<Output = hyper::Result<Response<Incoming>>>,
) -> bool {
    let complain = |what: String| {
        if !crew.sky.was_stormy(begun) {
            crew.tally.wrong(format!("{what}, plan {}", plan.header()));
        }
        crew.tally.saw("failed in a storm");
        false
    };
    let response = match timeout(PATIENCE, answer).await {
        Err(_) => return complain(format!("no answer within {PATIENCE:?}")),
        // A kept connection may be closed by the other side at any time between two requests.
        Ok(Err(error)) if error.is_canceled() || error.is_closed() => return false,
        Ok(Err(error)) => return complain(format!("no answer: {error}")),
        Ok(Ok(response)) => response,
    };
    let status = response.status().as_u16();
    let received = response.headers().get(RECEIVED).map(|digest| digest.as_bytes() == sent.as_bytes());
    if received == Some(false) {
        crew.tally.wrong(format!("a request arrived changed, plan {}", plan.header()));
    }
    let read = timeout(2 * PATIENCE, read(response.into_body(), manners)).await;
    match (plan.ending, status, read) {
        (_, _, Err(_)) => complain("an answer never ended".to_owned()),
        (Ending::Whole, 200, Ok(Some((digest, bytes)))) => {
            if digest != plan.digest() {
                crew.tally.wrong(format!("an answer arrived changed, plan {}", plan.header()));
            }
            crew.tally.verified(bytes);
            crew.tally.saw("whole");
            true
        }
        (Ending::NoHead, 502, Ok(Some(_))) => {
            crew.tally.saw("refused as planned");
            true
        }
        (Ending::CutAfter(_), 200 | 502, Ok(None)) => {
            crew.tally.saw("cut as planned");
            false
        }
        // Cut before its first piece: whether the head had left by then is chance.
        (Ending::CutAfter(_), 502, Ok(Some(_))) => {
            crew.tally.saw("cut as planned");
            true
        }
        (Ending::CutAfter(_), 200, Ok(Some(_))) => {
            crew.tally.wrong(format!("a cut answer looked whole, plan {}", plan.header()));
            false
        }
        (_, 503, Ok(Some(_))) => {
            if !crew.sky.was_doubtful(begun) {
                crew.tally.wrong("the upstream is left alone although it has been well for long".to_owned());
            }
            crew.tally.saw("left alone");
            // As a client that reads `retry-after` would, only sooner. The request may not have been read to its end, and then
            // its connection is closed.
            sleep(Duration::from_millis(30)).await;
            false
        }
        (_, status, Ok(read)) => complain(format!("status {status}, whole: {}", read.is_some())),
    }
}

/// The digest and length of a body; `None` where it broke off.
async fn read(mut body: Incoming, manners: Manners) -> Option<(blake3::Hash, u64)> {
    let (mut hasher, mut bytes) = (blake3::Hasher::new(), 0);
    while let Some(frame) = body.frame().await {
        if let Some(part) = frame.ok()?.data_ref() {
            hasher.update(part);
            bytes += part.len() as u64;
        }
        if let Manners::Slow(pause) = manners {
            sleep(pause).await;
        }
    }
    Some((hasher.finalize(), bytes))
}

pub async fn dial(crew: &Crew) -> Option<TcpStream> {
    match timeout(PATIENCE, TcpStream::connect(crew.proxy)).await {
        Ok(Ok(stream)) => {
            let _ = stream.set_nodelay(true);
            Some(stream)
        }
        _ => {
            crew.tally.wrong("the proxy did not take a connection".to_owned());
            None
        }
    }
}
