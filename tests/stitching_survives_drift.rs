//! Promise: what clients change about history between requests does not tear conversations apart, and session ids
//! keep equal conversations of different users apart.

#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/stitching.rs"]
mod stitching;

use exchanges::{SECOND, chat, failed, streamed, with_session};
use serde_json::{Value, json};
use serin::journal::{Exchange, Link};
use stitching::Links;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }
}

/// A client with one conversation.
struct Client {
    number: u64,
    /// Messages as the client first had them, without system prompt.
    messages: Vec<Value>,
    /// The turn whose answer ends `messages`, and those before it with the number of messages each ends at.
    answered: Vec<(String, usize)>,
    root: String,
    /// Turns whose answer has been followed up.
    followed: Vec<String>,
}

/// What the simulator knows to be right.
struct Truth {
    exchange: Exchange,
    kind: &'static str,
    parent: String,
    root: String,
}

fn drift(random: &mut Random, message: &Value) -> Value {
    let mut drifted = message.clone();
    let text = message["content"].as_str().unwrap_or_default().to_owned();
    let is_user = message["role"] == "user";
    drifted["content"] = match random.below(5) {
        0 => json!([{"type": "text", "text": text}]),
        1 => json!(format!("{text}  \r\n")),
        2 if is_user => {
            json!([{"type": "text", "text": format!("<system-reminder>{}</system-reminder>\n", random.below(99))}, {"type": "text", "text": text}])
        }
        3 => json!([{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]),
        _ => json!(text),
    };
    if !is_user {
        match random.below(4) {
            0 => drifted["reasoning_content"] = json!(""),
            1 => drifted["reasoning"] = json!("other words"),
            2 => drifted["refusal"] = Value::Null,
            _ => {}
        }
    }
    drifted
}

impl Client {
    /// The next request, its answer and where it belongs.
    fn turn(&mut self, random: &mut Random, id: &str, at: u64, ids: bool, alike: bool) -> Vec<Truth> {
        let mut kind = "append";
        if self.answered.len() > 1 && random.chance(5) {
            // An edit: go back to an earlier answer and say something else.
            let back = random.below(self.answered.len() as u64 - 1) as usize;
            self.answered.truncate(back + 1);
            self.messages.truncate(self.answered[back].1);
        }
        let (parent, kept) = self.answered.last().cloned().unwrap_or_default();
        if parent.is_empty() {
            kind = "root";
            self.root = id.to_owned();
        } else if self.followed.contains(&parent) {
            kind = "branch";
        }
        let said =
            if alike { format!("say {kept}") } else { format!("question {id} of client {}", self.number) };
        self.messages.push(json!({"role": "user", "content": said}));
        let mut sent = vec![json!({"role": "system", "content": format!("the time is {at}")})];
        sent.extend(self.messages.iter().map(|message| drift(random, message)));
        let answer = if alike { format!("answer {kept}") } else { format!("answer to {id}") };
        let session = |exchange| {
            if ids { with_session(exchange, "x-session-id", &self.number.to_string()) } else { exchange }
        };
        let mut turns = Vec::new();
        let mut parent = parent;
        let make = |exchange, kind, parent, root: &str| Truth {
            exchange: session(exchange),
            kind,
            parent,
            root: root.to_owned(),
        };
        if !parent.is_empty() {
            self.followed.push(parent.clone());
        }
        if kind != "root" && random.chance(6) {
            let failure = format!("{id}-failed");
            turns.push(make(failed(&failure, at, &json!(sent)), kind, parent, &self.root));
            (kind, parent) = ("retry", failure);
        }
        let whole = if random.chance(2) { streamed } else { chat };
        turns.push(make(whole(id, at + 3 * SECOND, &json!(sent), &answer), kind, parent, &self.root));
        let mut last = id.to_owned();
        if kind != "root" && random.chance(6) {
            let again = format!("{id}-again");
            let text = format!("{answer}, put differently");
            turns.push(make(
                chat(&again, at + 60 * SECOND, &json!(sent), &text),
                "regenerate",
                last,
                &self.root,
            ));
            self.messages.push(json!({"role": "assistant", "content": text}));
            last = again;
        } else {
            self.messages.push(json!({"role": "assistant", "content": answer}));
        }
        self.answered.push((last, self.messages.len()));
        turns
    }
}

fn simulate(seed: u64, ids: bool, alike: bool) -> Vec<Truth> {
    let mut random = Random(seed);
    let client =
        |number| Client { number, messages: vec![], answered: vec![], root: String::new(), followed: vec![] };
    let mut clients: Vec<Client> = (0..40).map(client).collect();
    let mut truths = Vec::new();
    for step in 0..600 {
        let chosen = random.below(clients.len() as u64) as usize;
        truths.extend(clients[chosen].turn(
            &mut random,
            &format!("t{step:04}"),
            step * 100 * SECOND,
            ids,
            alike,
        ));
    }
    truths
}

fn stitch<'a>(exchanges: impl Iterator<Item = &'a Exchange>) -> Vec<Link> {
    let mut links = Links::new(100_000);
    exchanges.map(|exchange| links.link(exchange)).collect()
}

#[test]
fn every_turn_finds_its_parent_without_ids() {
    for seed in 0..4 {
        let truths = simulate(seed, false, false);
        let kinds = |kind| truths.iter().filter(|truth| truth.kind == kind).count();
        assert!(["append", "branch", "retry", "regenerate"].into_iter().all(|kind| kinds(kind) > 20));
        for (truth, link) in truths.iter().zip(stitch(truths.iter().map(|truth| &truth.exchange))) {
            let found = (link.kind.as_str(), link.parent.as_str(), link.conversation.as_str());
            assert_eq!(
                found,
                (truth.kind, truth.parent.as_str(), truth.root.as_str()),
                "seed {seed}, {}",
                truth.exchange.id
            );
        }
    }
}

#[test]
fn ids_keep_equal_conversations_apart() {
    for seed in 0..4 {
        let truths = simulate(seed, true, true);
        for (truth, link) in truths.iter().zip(stitch(truths.iter().map(|truth| &truth.exchange))) {
            assert_eq!(link.conversation, truth.root, "seed {seed}, {}", truth.exchange.id);
        }
    }
}
