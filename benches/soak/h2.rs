//! Clients that speak HTTP/2: several exchanges at once on one connection, some reset in the middle.

use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::clients::{Crew, Manners, Upload, dial, draw, judge, request};
use crate::dice::Dice;
use crate::plan::{Ending, Plan};

/// One connection with a few exchanges side by side. Now and then all of it is dropped at once.
pub async fn connection(crew: &Crew, dice: &mut Dice) {
    let Some(stream) = dial(crew).await else { return };
    let handshake =
        http2::Builder::new(TokioExecutor::new()).handshake::<_, Upload>(TokioIo::new(stream)).await;
    let Ok((sender, connection)) = handshake else { return crew.tally.saw("connection refused") };
    let mut driver = JoinSet::new();
    driver.spawn_local(async move { drop(connection.await) });
    let mut streams = JoinSet::new();
    for _ in 0..dice.between(1, 8) {
        let (plan, manners) = draw(dice);
        let mut dice = Dice::new(dice.roll());
        let (crew, sender) = (crew.clone(), sender.clone());
        streams.spawn_local(async move { exchange(&crew, &mut dice, sender, plan, manners).await });
    }
    drop(sender);
    if dice.one_in(8) {
        let _ = timeout(dice.millis(1, 80), streams.join_next()).await;
        return crew.tally.saw("left with all of a connection");
    }
    while streams.join_next().await.is_some() {}
}

async fn exchange(
    crew: &Crew,
    dice: &mut Dice,
    mut sender: SendRequest<Upload>,
    plan: Plan,
    manners: Manners,
) {
    let upload = Upload::new(&plan, dice, manners == Manners::LeavesSending);
    let sent = upload.digest();
    let request = request(&plan, dice, upload, "soak");
    let begun = Instant::now();
    let answer = async { sender.send_request(request).await };
    let answer = judge(crew, plan, manners, &sent, begun, answer);
    match manners {
        Manners::LeavesAfter(after) => {
            let _ = timeout(after, answer).await;
            let waiting = plan.ending == Ending::Never;
            crew.tally.saw(if waiting { "h2: left while waiting" } else { "h2: left in mid-stream" });
        }
        Manners::LeavesSending => {
            let _ = timeout(dice.millis(5, 60), answer).await;
            crew.tally.saw("h2: left while sending");
        }
        Manners::Good | Manners::Slow(_) => {
            if answer.await {
                crew.tally.saw("h2: ended well");
            }
        }
    }
}
