//! A fleet of clients of six kinds, each with the habits that clients of its kind have, and the truth about them.

use serde_json::{Value, json};
use serin::journal::{End, Exchange};
use serin::openai::Api;

use crate::dialect::{self, Answer, Said, ask, calling, reply, user, with, words};
use crate::exchanges::SECOND;

/// A turn, and where it belongs.
pub struct Truth {
    pub exchange: Exchange,
    pub kind: &'static str,
    pub parent: String,
    pub conversation: String,
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
pub struct Dice(u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    /// True so many times in a thousand.
    fn per_mille(&mut self, share: u64) -> bool {
        self.below(1000) < share
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len() as u64) as usize]
    }

    fn sentence(&mut self, least: u64, most: u64) -> String {
        const SYLLABLES: [&str; 16] = [
            "ka", "lo", "mi", "ran", "tes", "vu", "shi", "bel", "dor", "en", "fa", "gim", "hul", "jo", "pra",
            "zet",
        ];
        let count = least + self.below(most - least + 1);
        let word = |dice: &mut Dice| (0..1 + dice.below(3)).map(|_| dice.one(&SYLLABLES)).collect::<String>();
        (0..count).map(|_| word(self)).collect::<Vec<_>>().join(" ") + "."
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Profile {
    /// Sends what it has, as it has it.
    Plain,
    /// A web page: content as parts, blanks trimmed, titles asked for on the side.
    Web,
    /// A coding agent on `/v1/messages`: reminders, tools, sub-agents, summaries.
    Coder,
    /// One on `/v1/responses`.
    Items,
    /// One on chat, which makes up its own ids of tool calls.
    Tools,
    /// Keeps the last messages only.
    Window,
}

const PROFILES: [Profile; 6] =
    [Profile::Plain, Profile::Web, Profile::Coder, Profile::Items, Profile::Tools, Profile::Window];
/// Messages that [`Profile::Window`] keeps.
const KEPT: usize = 6;
const LIVE: usize = 40;
const TURNS: usize = 8960;

/// One conversation of one client.
struct Client {
    number: u64,
    profile: Profile,
    api: Api,
    history: Vec<Said>,
    /// The turns so far, and how long the history was behind each.
    turns: Vec<(String, usize)>,
    /// Those that something has followed.
    followed: Vec<String>,
    conversation: String,
    left: u64,
    /// What the next request is, if not an ordinary one.
    next_kind: Option<&'static str>,
    agent: Option<Agent>,
}

/// What a sub-agent was begun for.
struct Agent {
    /// The number of the client that began it.
    of: u64,
    turn: String,
    task: String,
}

pub struct Fleet {
    dice: Dice,
    ids: bool,
    clients: Vec<Client>,
    truths: Vec<Truth>,
    now: u64,
    made: u64,
}

impl Fleet {
    pub fn new(seed: u64, ids: bool) -> Fleet {
        Fleet { dice: Dice(seed), ids, clients: Vec::new(), truths: Vec::new(), now: 0, made: 0 }
    }

    pub fn run(mut self) -> Vec<Truth> {
        while self.truths.len() < TURNS {
            while self.clients.len() < LIVE {
                let client = self.client();
                self.clients.push(client);
            }
            self.now += 1 + self.dice.below(4);
            let chosen = self.dice.below(self.clients.len() as u64) as usize;
            let mut client = self.clients.swap_remove(chosen);
            self.step(&mut client);
            client.left -= 1;
            if client.left > 0 {
                self.clients.push(client);
            }
        }
        self.truths
    }

    fn client(&mut self) -> Client {
        self.made += 1;
        let profile = PROFILES[self.dice.below(6) as usize];
        let api = match profile {
            Profile::Coder => Api::Messages,
            Profile::Items => Api::Responses,
            _ => Api::Chat,
        };
        let left = 3 + self.dice.below(if profile == Profile::Window { 16 } else { 11 });
        Client {
            number: self.made,
            profile,
            api,
            history: vec![Said::System(String::new())],
            turns: Vec::new(),
            followed: Vec::new(),
            conversation: String::new(),
            left,
            next_kind: None,
            agent: None,
        }
    }

    /// What a client says next, and what is answered.
    fn step(&mut self, client: &mut Client) {
        let mut kind = client.next_kind.take();
        let room = client.turns.len() > 1 && client.agent.is_none();
        if kind.is_none() && room && self.dice.per_mille(35) {
            // Back to an earlier answer, and on from there with something else.
            let back = self.dice.below(client.turns.len() as u64 - 1) as usize;
            client.turns.truncate(back + 1);
            client.history.truncate(client.turns[back].1);
        }
        let compacts = matches!(client.profile, Profile::Coder | Profile::Items | Profile::Tools);
        let last = client.history.last();
        if kind.is_none() && room && compacts && client.history.len() > 5 && self.dice.per_mille(95) {
            self.compact(client);
            return;
        }
        if !matches!(last, Some(Said::Result(..))) && kind != Some("compaction") {
            let said = self.says(client);
            client.history.push(said);
        }
        if client.profile == Profile::Window && client.history.len() > KEPT + 1 {
            let cut = client.history.len() - KEPT;
            client.history.drain(1..cut);
            kind = kind.or(Some("window"));
            // The answers behind which it could go on otherwise are no longer there.
            let gone = client.turns.len().saturating_sub(1);
            client.turns.drain(..gone);
            if let Some(turn) = client.turns.last_mut() {
                turn.1 = client.history.len() - 1;
            }
        }
        let answer = self.answers(client);
        self.turn(client, kind, answer);
    }

    fn says(&mut self, client: &Client) -> Said {
        let first = client.turns.is_empty();
        if let (true, Some(agent)) = (first, &client.agent) {
            return user(&agent.task);
        }
        let common: &[&str] = if first {
            &["hi", "hello", "what can you do?"]
        } else {
            &["continue", "yes", "fix it", "run the tests", "thanks"]
        };
        // Who begins with nothing of his own goes on with something.
        if self.dice.per_mille(if first { 40 } else { 150 }) {
            user(self.dice.one(common))
        } else {
            user(self.dice.sentence(5, 40))
        }
    }

    fn answers(&mut self, client: &Client) -> Answer {
        if self.dice.per_mille(60) {
            return words(self.dice.one(&[
                "Done.",
                "Hello! How can I help you today?",
                "I have run the tests.",
            ]));
        }
        let tools = matches!(client.profile, Profile::Coder | Profile::Tools | Profile::Items);
        let mut answer = words(self.dice.sentence(10, 60));
        if client.profile != Profile::Plain && self.dice.per_mille(400) {
            answer.reasoning = self.dice.sentence(5, 30);
        }
        if tools && client.left > 1 && self.dice.per_mille(350) {
            let path = json!({"path": self.dice.sentence(1, 1), "replace_all": false}).to_string();
            let id = format!("call_{}_{}", client.number, self.truths.len());
            let other = format!("{id}_b");
            let arguments = json!({"command": self.dice.sentence(2, 8)}).to_string();
            answer.calls = calling(&[(&id, "read", &path), (&other, "run", &arguments)]).calls;
        }
        answer
    }

    /// Asks for a summary, with which the history begins from then on.
    fn compact(&mut self, client: &mut Client) {
        client.history.push(user("Write a summary of all of this, for whoever goes on with it."));
        let summary = self.dice.sentence(25, 60);
        self.turn(client, None, words(summary.clone()));
        // A few clients put it into words of their own.
        let told = if self.dice.per_mille(30) { self.dice.sentence(25, 60) } else { summary };
        let tail = client.history[client.history.len() - 3].clone();
        client.history.truncate(1);
        client.history.push(user(format!(
            "This session goes on from an earlier one. What was said there:\n{told}\n\nGo on."
        )));
        if matches!(&tail, Said::Assistant(answer) if answer.calls.is_empty()) && self.dice.per_mille(400) {
            client.history.push(tail);
            client.history.push(user(self.dice.sentence(5, 20)));
        }
        // What was said before is no longer there to go back to.
        let gone = client.turns.len() - 1;
        client.turns.drain(..gone);
        client.turns[0].1 = client.history.len();
        client.next_kind = Some("compaction");
        client.left += 1;
    }

    /// Sends the history, perhaps more than once, and keeps an answer.
    fn turn(&mut self, client: &mut Client, kind: Option<&'static str>, answer: Answer) {
        let mut parent = client.turns.last().map_or(String::new(), |(turn, _)| turn.clone());
        let mut kind = kind.unwrap_or("append");
        if let (true, Some(agent)) = (client.turns.is_empty(), &client.agent) {
            kind = "spawned";
            parent.clone_from(&agent.turn);
        } else if client.turns.is_empty() {
            kind = "root";
        } else if kind == "append" && client.followed.contains(&parent) {
            kind = "branch";
        }
        let body = self.body(client);
        client.followed.push(parent.clone());
        let root = kind == "root";
        if !root && self.dice.per_mille(17) {
            let id = self.id();
            let mut failed =
                dialect::unanswered(client.api, &id, self.now * SECOND, body.to_string().into_bytes());
            failed.status = 503;
            reply(&mut failed, "application/json", br#"{"error":{"message":"overloaded"}}"#.to_vec());
            self.tell(client, failed, kind, &parent);
            (kind, parent) = ("retry", id);
            self.now += 3;
        }
        let id = self.id();
        let mut exchange = dialect::exchange(client.api, &id, self.now * SECOND, &body, &answer);
        let mut kept = answer;
        if !root && body["stream"] == true && kept.calls.is_empty() && self.dice.per_mille(30) {
            kept = cut(&mut exchange, client.api, &kept);
        }
        self.tell(client, exchange, kind, &parent);
        let mut last = id;
        if !root && kept.calls.is_empty() && self.dice.per_mille(12) {
            let id = self.id();
            self.now += 60;
            kept = words(self.dice.sentence(10, 40));
            let again = dialect::exchange(client.api, &id, self.now * SECOND, &body, &kept);
            self.tell(client, again, "regenerate", &last);
            last = id;
        }
        if client.profile == Profile::Web && client.turns.is_empty() {
            self.title(client);
        }
        self.keep(client, &last, kept);
    }

    /// Takes an answer into the history, with what its tools have come to.
    fn keep(&mut self, client: &mut Client, turn: &str, answer: Answer) {
        let calls = answer.calls.clone();
        client.history.push(Said::Assistant(answer));
        client.turns.push((turn.to_owned(), client.history.len()));
        for (id, ..) in &calls {
            client.history.push(Said::Result(id.clone(), self.dice.sentence(3, 20)));
        }
        let spawns = client.agent.is_none() && matches!(client.profile, Profile::Coder | Profile::Items);
        let run = calls.get(1).and_then(|(.., arguments)| serde_json::from_str::<Value>(arguments).ok());
        if let Some(command) = run.as_ref().and_then(|run| run["command"].as_str()).filter(|_| spawns)
            && command.len() >= 24
            && self.dice.per_mille(400)
        {
            self.spawn(client, turn, command);
        }
    }

    /// A sub-agent begins with the command that a tool was called with.
    fn spawn(&mut self, client: &Client, turn: &str, command: &str) {
        let mut agent = self.client();
        (agent.profile, agent.api) = (client.profile, client.api);
        agent.left = 2 + self.dice.below(3);
        agent.conversation.clone_from(&client.conversation);
        agent.agent = Some(Agent { of: client.number, turn: turn.to_owned(), task: command.to_owned() });
        self.clients.push(agent);
    }

    /// Asks for a title of what was just begun.
    fn title(&mut self, client: &Client) {
        let first = client.history.iter().find(|said| matches!(said, Said::User(_))).cloned();
        let history =
            [Said::System("Write a title of at most five words.".into()), first.unwrap_or_else(|| user(""))];
        let id = self.id();
        let title = words(self.dice.sentence(3, 5));
        let exchange =
            dialect::exchange(client.api, &id, self.now * SECOND, &ask(client.api, &history, false), &title);
        let exchange = self.signed(client, exchange);
        self.truths.push(Truth { exchange, kind: "root", parent: String::new(), conversation: id });
    }

    fn id(&mut self) -> String {
        self.made += 1;
        format!("t{:06}", self.made)
    }

    fn tell(&mut self, client: &mut Client, exchange: Exchange, kind: &'static str, parent: &str) {
        if client.conversation.is_empty() {
            client.conversation.clone_from(&exchange.id);
        }
        let exchange = self.signed(client, exchange);
        let conversation = client.conversation.clone();
        self.truths.push(Truth { exchange, kind, parent: parent.to_owned(), conversation });
    }

    /// With the headers that a client of its kind sends, where it sends any.
    fn signed(&self, client: &Client, exchange: Exchange) -> Exchange {
        if !self.ids {
            return exchange;
        }
        let session = client.agent.as_ref().map_or(client.number, |agent| agent.of).to_string();
        let header = match client.profile {
            Profile::Coder => "x-claude-code-session-id",
            Profile::Items => "session-id",
            Profile::Web => "x-openwebui-chat-id",
            _ => "x-session-id",
        };
        let exchange = with(exchange, header, &session);
        match (&client.agent, client.profile) {
            (Some(_), Profile::Coder) => with(exchange, "x-claude-code-agent-id", &client.number.to_string()),
            (Some(_), _) => with(exchange, "thread-id", &client.number.to_string()),
            _ => exchange,
        }
    }

    /// The request's body, with the habits of its client.
    fn body(&mut self, client: &Client) -> Value {
        let mut history = client.history.clone();
        let role = if client.agent.is_some() { "a helper" } else { "an assistant" };
        history[0] = match client.profile {
            Profile::Coder | Profile::Items => {
                Said::System(format!("You are {role}. It is {} o'clock.", self.now))
            }
            _ => Said::System(format!("You are {role}.")),
        };
        for said in &mut history {
            self.drift(client.profile, said);
        }
        let stream = self.dice.per_mille(500);
        let mut body = ask(client.api, &history, stream);
        if client.profile == Profile::Web {
            for message in body["messages"].as_array_mut().into_iter().flatten() {
                if self.dice.per_mille(300) {
                    message["content"] = json!([{"type": "text", "text": message["content"]}]);
                }
            }
        }
        body
    }

    fn drift(&mut self, profile: Profile, said: &mut Said) {
        let reminder =
            |dice: &mut Dice| format!("\n<system-reminder>{}</system-reminder>", dice.sentence(3, 9));
        match (profile, said) {
            (Profile::Coder, Said::User(text) | Said::Result(_, text)) if self.dice.per_mille(300) => {
                text.push_str(&reminder(&mut self.dice));
            }
            (Profile::Web, Said::User(text)) if self.dice.per_mille(200) => text.push_str("  \r\n"),
            (Profile::Tools, Said::Result(id, _)) => id.insert_str(0, "own_"),
            (_, Said::Assistant(answer)) if profile != Profile::Plain => {
                if self.dice.per_mille(700) {
                    answer.reasoning.clear();
                }
                for (id, _, arguments) in &mut answer.calls {
                    if profile == Profile::Tools {
                        id.insert_str(0, "own_");
                    }
                    *arguments = arguments.replace(",\"replace_all\":false", "");
                }
                if profile == Profile::Web {
                    answer.text = answer.text.trim().to_owned() + "\n";
                }
            }
            _ => {}
        }
    }
}

/// Ends a stream in the middle; returns what the client has of it.
fn cut(exchange: &mut Exchange, api: Api, answer: &Answer) -> Answer {
    let events = dialect::events(api, answer);
    let half = events[..events.len() * 2 / 3].concat();
    reply(exchange, "text/event-stream", half.into_bytes());
    exchange.set_end(End::ClientCancelled);
    let read = serin::conversation::read(exchange).expect("is a turn");
    words(read.answer.fold.choices.first().map_or("", |choice| choice.content.as_str()))
}
