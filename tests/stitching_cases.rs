//! Promise: what clients do to a conversation between two requests is told apart, in each interface that it happens in.
//!
//! The numbers are those of docs/stitching.md.

#[path = "support/dialect.rs"]
mod dialect;
#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/stitching.rs"]
mod stitching;

use std::io::Write;

use dialect::{
    Answer, Said, ask, assistant, calling, exchange, has_messages, hash, reply, unanswered, user, whole,
    with, words,
};
use exchanges::SECOND;
use serde_json::{Value, json};
use serin::conversation::reading::is_turn;
use serin::journal::{End, Exchange, Header};
use serin::openai::Api;
use stitching::Links;

const CHATS: [Api; 3] = [Api::Chat, Api::Responses, Api::Messages];
/// Long enough to be recognised by itself.
const LONG: &str = "The name that you have told me at the beginning of all this is Ada, as in Ada Lovelace.";

/// A conversation as a client sees it.
struct Client {
    api: Api,
    history: Vec<Said>,
    turns: Vec<Exchange>,
    at: u64,
}

impl Client {
    fn new(api: Api) -> Client {
        Client { api, history: Vec::new(), turns: Vec::new(), at: 0 }
    }

    /// Sends the history with a message more, and keeps the answer. Every second answer is streamed.
    fn say(&mut self, id: &str, said: Said, answer: &Answer) -> &mut Exchange {
        self.history.push(said);
        self.send(id, answer);
        self.history.push(Said::Assistant(answer.clone()));
        self.turns.last_mut().expect("was sent")
    }

    fn send(&mut self, id: &str, answer: &Answer) {
        let body = ask(self.api, &self.history, self.turns.len() % 2 == 1);
        self.turns.push(exchange(self.api, id, self.at, &body, answer));
        self.at += 60 * SECOND;
    }

    /// Two turns, the second with a long answer.
    fn begun(api: Api) -> Client {
        let mut client = Client::new(api);
        client.history.push(Said::System("be brief".into()));
        client.say("a", user("my name is Ada"), &words("Hello Ada."));
        client.say("b", user("what is my name?"), &words(LONG));
        client
    }

    #[track_caller]
    fn is(&self, want: &[(&str, &str, &str)]) {
        check(self.api, &self.turns, want);
    }
}

/// Kind, parent and conversation of each.
#[track_caller]
fn check(api: Api, turns: &[Exchange], want: &[(&str, &str, &str)]) {
    let mut links = Links::new(1000);
    let found: Vec<_> = turns.iter().map(|turn| links.link(turn)).collect();
    let found: Vec<_> = found
        .iter()
        .map(|link| (link.kind.as_str(), link.parent.as_str(), link.conversation.as_str()))
        .collect();
    assert_eq!(found, want, "{api:?}");
}

const TWO: [(&str, &str, &str); 2] = [("root", "", "a"), ("append", "a", "a")];

#[track_caller]
fn then(want: (&'static str, &'static str, &'static str)) -> Vec<(&'static str, &'static str, &'static str)> {
    [TWO.as_slice(), &[want]].concat()
}

/// The messages of a request's body.
fn messages(body: &mut Value) -> &mut Vec<Value> {
    let name = if body["messages"].is_array() { "messages" } else { "input" };
    body[name].as_array_mut().expect("a list")
}

#[test]
fn case_1_a_retry_after_a_failure() {
    for api in Api::ALL {
        let mut client = Client::begun(api);
        let failed = &mut client.turns[1];
        failed.status = 503;
        reply(failed, "application/json", br#"{"error":{"message":"overloaded"}}"#.to_vec());
        let mut again = client.turns[1].clone();
        again.id = "c".into();
        again.started_unix_nanos += 20 * SECOND;
        again.status = 200;
        reply(&mut again, "application/json", whole(api, &words("Ada")).to_string().into_bytes());
        client.turns.push(again);
        client.is(&then(("retry", "b", "a")));
    }
}

#[test]
fn case_2_a_retry_while_the_first_attempt_still_streams() {
    for api in Api::ALL {
        let mut client = Client::begun(api);
        let mut slow = client.turns.pop().expect("there are two");
        let mut quick = slow.clone();
        quick.id = "c".into();
        quick.started_unix_nanos += 30 * SECOND;
        slow.end_micros = 100_000_000;
        slow.set_end(End::ClientCancelled);
        // The one that was given up ends last, and so is recorded last.
        client.turns.extend([quick, slow]);
        client.is(&[("root", "", "a"), ("append", "a", "a"), ("retry", "c", "a")]);
    }
}

#[test]
fn case_3_an_answer_is_asked_for_anew() {
    for api in Api::ALL {
        let mut client = Client::begun(api);
        client.history.pop();
        client.send("c", &words("It is Ada."));
        client.is(&then(("regenerate", "b", "a")));
    }
}

#[test]
fn case_4_several_answers_to_one_request() {
    let mut client = Client::begun(Api::Chat);
    let two = json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "one"}}, {"index": 1, "message": {"role": "assistant", "content": "two"}}]});
    reply(&mut client.turns[1], "application/json", two.to_string().into_bytes());
    client.history.pop();
    client.history.push(assistant("two"));
    client.say("c", user("and now?"), &words("now"));
    client.is(&then(("append", "b", "a")));
    for api in Api::ALL {
        let mut client = Client::begun(api);
        let mut other = client.turns[1].clone();
        other.id = "c".into();
        other.started_unix_nanos += SECOND / 10;
        client.turns.push(other);
        client.is(&then(("fan_out", "b", "a")));
    }
}

#[test]
fn case_5_an_earlier_message_is_edited() {
    for api in Api::ALL {
        let mut client = Client::begun(api);
        client.history.truncate(3);
        client.say("c", user("who am I?"), &words("Ada."));
        client.is(&then(("branch", "a", "a")));
    }
}

#[test]
fn case_6_the_first_message_is_edited() {
    for api in Api::ALL {
        let mut client = Client::begun(api);
        client.history.truncate(1);
        client.say("c", user("my name is Eve"), &words("Hello Eve."));
        client.is(&then(("root", "", "c")));
    }
}

#[test]
fn case_7_the_last_exchange_is_deleted() {
    for api in Api::ALL {
        let mut client = Client::begun(api);
        client.history.truncate(3);
        client.say("c", user("tell me a story"), &words("Once upon a time."));
        client.say("d", user("go on"), &words("The end."));
        client.is(&[TWO.as_slice(), &[("branch", "a", "a"), ("append", "c", "a")]].concat());
    }
}

#[test]
fn case_8_old_messages_are_left_out() {
    for api in CHATS {
        let mut client = Client::begun(api);
        client.history.drain(1..3);
        client.say("c", user("spell it"), &words("A, d, a."));
        client.say("d", user("backwards"), &words("a, d, A."));
        client.is(&[TWO.as_slice(), &[("window", "b", "a"), ("append", "c", "a")]].concat());
    }
}

#[test]
fn case_9_history_gives_way_to_a_summary() {
    let summary = "The user has said that her name is Ada, and wants to be called by it in all that follows.";
    for api in CHATS {
        for tail in [false, true] {
            let mut client = Client::begun(api);
            client.say("c", user("summarise all of this"), &words(summary));
            let kept = client.history[3..5].to_vec();
            client.history.truncate(1);
            let told = user(format!("This session goes on from an earlier one:\n{summary}\nGo on."));
            if tail {
                client.history.push(told);
                client.history.push(kept[1].clone());
                client.say("d", user("spell it"), &words("A, d, a."));
            } else {
                client.say("d", told, &words("Gladly."));
            }
            client.say("e", user("thanks"), &words("Bye."));
            let rest = [("append", "b", "a"), ("compaction", "c", "a"), ("append", "d", "a")];
            client.is(&[TWO.as_slice(), &rest].concat());
        }
    }
}

#[test]
fn case_10_a_summary_in_other_words_is_a_guess_by_the_session() {
    for api in CHATS {
        let mut client = Client::begun(api);
        client.say("c", user("thanks"), &words("Bye."));
        client.history.truncate(1);
        client.say("d", user("Before this we talked about names."), &words("Go on."));
        client.is(&[TWO.as_slice(), &[("append", "b", "a"), ("root", "", "d")]].concat());
        for turn in &mut client.turns {
            *turn = with(turn.clone(), "x-session-id", "s");
        }
        let mut links = Links::new(100);
        let link = client.turns.iter().map(|turn| links.link(turn)).last().expect("there are four");
        assert_eq!((link.kind.as_str(), link.parent.as_str()), ("compaction", "c"), "{api:?}");
        assert!(link.confidence < 0.5);
    }
}

#[test]
fn case_11_a_sub_agent_begins() {
    let task = "find all files in which the name Ada occurs";
    for api in CHATS {
        let mut client = Client::new(api);
        let arguments = json!({"prompt": task, "subagent_type": "search"}).to_string();
        client.say("a", user("where is Ada?"), &calling(&[("call_1", "Task", &arguments)]));
        let mut agent = Client::new(api);
        agent.at = 10 * SECOND;
        agent.history.push(Said::System("you are a search agent".into()));
        agent.say("b", user(task), &words("It is in a.txt."));
        client.turns.append(&mut agent.turns);
        client.history.push(Said::Result("call_1".into(), "a.txt".into()));
        client.send("c", &words("In a.txt."));
        client.is(&[("root", "", "a"), ("spawned", "a", "a"), ("append", "a", "a")]);
    }
    for (own, begun_by) in [
        (("x-claude-code-agent-id", "agent-1"), None),
        (("thread-id", "agent-1"), None),
        (("x-opencode-session", "other"), Some(("x-parent-session-id", "s"))),
    ] {
        let header = if begun_by.is_some() { "x-opencode-session" } else { "session-id" };
        let mut client = Client::begun(Api::Chat);
        client.turns = client.turns.iter().map(|turn| with(turn.clone(), header, "s")).collect();
        let mut agent = Client::new(Api::Chat);
        agent.at = 70 * SECOND;
        agent.say("c", user("look around"), &words("Nothing."));
        let mut turn = with(agent.turns.remove(0), own.0, own.1);
        turn = match begun_by {
            Some((name, value)) => with(turn, name, value),
            None => with(turn, "session-id", "s"),
        };
        client.turns.push(turn);
        client.is(&then(("spawned", "b", "a")));
    }
}

#[test]
fn case_12_a_title_is_asked_for_on_the_side() {
    for api in CHATS {
        let mut client = Client::begun(api);
        let mut side = Client::new(api);
        side.at = client.at;
        side.history.push(Said::System("write a title of five words".into()));
        side.say("c", user("my name is Ada"), &words("A greeting"));
        client.turns.append(&mut side.turns);
        client.turns = client.turns.iter().map(|turn| with(turn.clone(), "session_id", "s")).collect();
        client.is(&then(("root", "", "c")));
    }
}

/// A third turn whose request is changed by the client: it belongs where it did.
#[track_caller]
fn goes_on(apis: &[Api], change: impl Fn(Api, &mut Value)) {
    for api in apis {
        let mut client = Client::begun(*api);
        client.say("c", user("spell it"), &words("A, d, a."));
        let mut body: Value = serde_json::from_slice(&client.turns[2].request_body).expect("JSON");
        let before = body.clone();
        change(*api, &mut body);
        assert_ne!(body, before, "{api:?}: nothing was changed");
        client.turns[2] = exchange(*api, "c", 120 * SECOND, &body, &words("A, d, a."));
        client.is(&then(("append", "b", "a")));
    }
}

#[test]
fn cases_13_to_15_model_system_prompt_and_tools_change() {
    goes_on(&Api::ALL, |_, body| body["model"] = json!("another"));
    goes_on(&CHATS, |api, body| match api {
        Api::Messages => body["system"] = json!("be brief; it is 12:07"),
        _ => messages(body)[0]["content"] = json!("be brief; it is 12:07"),
    });
    goes_on(&CHATS, |_, body| body["tools"] = json!([{"name": "b"}, {"name": "a"}]));
}

#[test]
fn cases_16_and_17_reasoning_is_kept_dropped_or_emptied() {
    for api in CHATS {
        for kept in ["as it was", "dropped", "empty", "signed anew"] {
            let mut client = Client::new(api);
            client.history.push(Said::System("be brief".into()));
            let thought = Answer { reasoning: "she has said so".into(), ..words("Hello Ada.") };
            client.say("a", user("my name is Ada"), &thought);
            client.history.push(user("what is my name?"));
            let mut body = ask(api, &client.history, false);
            for message in messages(&mut body) {
                match kept {
                    "dropped" => {
                        drop(message.as_object_mut().expect("an object").remove("reasoning_content"))
                    }
                    "empty" if api == Api::Chat => message["reasoning_content"] = json!(""),
                    "empty" if message["type"] == "reasoning" => message["summary"] = json!([]),
                    _ => {}
                }
                if let Some(blocks) = message["content"].as_array_mut() {
                    for block in blocks.iter_mut().filter(|block| block["type"] == "thinking") {
                        match kept {
                            "empty" => block["thinking"] = json!(""),
                            "signed anew" => block["signature"] = json!("other"),
                            _ => {}
                        }
                    }
                    blocks.retain(|block| kept != "dropped" || block["type"] != "thinking");
                }
            }
            messages(&mut body).retain(|message| kept != "dropped" || message["type"] != "reasoning");
            client.turns.push(exchange(api, "b", client.at, &body, &words("Ada.")));
            client.is(&TWO);
        }
    }
}

#[test]
fn cases_18_and_19_content_in_another_form() {
    goes_on(&[Api::Chat], |_, body| {
        messages(body)[2]["content"] =
            json!([{"type": "text", "text": "Hello "}, {"type": "text", "text": "Ada."}])
    });
    goes_on(&[Api::Messages], |_, body| messages(body)[1]["content"] = json!("Hello Ada."));
    goes_on(&[Api::Responses], |_, body| messages(body)[1]["content"] = json!("my name is Ada\r\n"));
    for content in [json!(null), json!(""), json!([])] {
        let mut client = Client::new(Api::Chat);
        client.say("a", user("look"), &calling(&[("1", "look", "{}")]));
        client.history.push(Said::Result("1".into(), "a tree".into()));
        let mut body = ask(Api::Chat, &client.history, false);
        messages(&mut body)[1]["content"] = content;
        client.turns.push(exchange(Api::Chat, "b", client.at, &body, &words("A tree.")));
        client.is(&TWO);
    }
}

/// A turn with two tool calls and the next one, whose request a client has changed.
#[track_caller]
fn with_tools(change: impl Fn(Api, &mut Value)) {
    for api in CHATS {
        let mut client = Client::new(api);
        let path = json!({"path": "a.txt", "old": "x", "new": "y", "replace_all": false}).to_string();
        client.say(
            "a",
            user("change x to y"),
            &calling(&[("call_1", "edit", &path), ("call_2", "test", "{}")]),
        );
        client.history.push(Said::Result("call_1".into(), "changed".into()));
        client.history.push(Said::Result("call_2".into(), "3 passed".into()));
        let mut body = ask(api, &client.history, false);
        let before = body.clone();
        change(api, &mut body);
        assert_ne!(body, before, "{api:?}: nothing was changed");
        client.turns.push(exchange(api, "b", client.at, &body, &words("Done.")));
        client.is(&TWO);
    }
}

#[test]
fn case_21_ids_of_tool_calls_are_rewritten() {
    with_tools(|_, body| {
        *body = serde_json::from_str(&body.to_string().replace("call_", "toolu_")).expect("JSON");
    });
}

#[test]
fn case_22_results_of_tools_come_in_another_order() {
    with_tools(|api, body| {
        let messages = messages(body);
        let last = messages.len() - 1;
        match api {
            Api::Messages => messages[last]["content"].as_array_mut().expect("a list").reverse(),
            _ => messages.swap(last - 1, last),
        }
    });
}

#[test]
fn case_23_arguments_that_are_defaults_are_dropped() {
    with_tools(|_, body| {
        let text =
            body.to_string().replace(r#"\"replace_all\":false,"#, "").replace(r#","replace_all":false"#, "");
        let text = text.replace(r#",\"replace_all\":false"#, "").replace(r#""replace_all":false,"#, "");
        *body = serde_json::from_str(&text).expect("JSON");
    });
}

#[test]
fn case_24_a_reminder_is_added_to_a_result_or_a_message() {
    let reminder = "\n<system-reminder>\nThe time is 12:07.\n</system-reminder>";
    with_tools(|api, body| {
        let last = messages(body).last_mut().expect("there is one");
        match api {
            Api::Chat => last["content"] = json!(format!("3 passed{reminder}")),
            Api::Responses => last["output"] = json!(format!("3 passed{reminder}")),
            _ => {
                last["content"][1]["content"] =
                    json!([{"type": "text", "text": format!("3 passed{reminder}")}])
            }
        }
    });
    goes_on(&[Api::Chat], |_, body| {
        messages(body)[1]["content"] = json!(format!("my name is Ada{reminder}"))
    });
    goes_on(&CHATS, |api, body| {
        let at = usize::from(api == Api::Responses) + 1;
        messages(body).insert(at + 1, json!({"role": "system", "content": "keep to the point"}));
    });
}

#[test]
fn case_25_two_users_say_hi() {
    for api in Api::ALL {
        let mut client = Client::new(api);
        client.say("a", user("hi"), &words("Hello!"));
        client.history.clear();
        client.say("b", user("hi"), &words("Hello!"));
        client.is(&[("root", "", "a"), ("root", "", "b")]);
        client.say("c", user("who are you?"), &words("A model."));
        let mut links = Links::new(100);
        let link = client.turns.iter().map(|turn| links.link(turn)).last().expect("there are three");
        assert!(link.kind == "append" && link.confidence <= 0.5, "{api:?}: {link:?} is a guess");
    }
}

#[test]
fn cases_27_and_28_an_answer_that_broke_off_is_kept_by_the_client() {
    for api in Api::ALL {
        for end in [End::ClientCancelled, End::StreamError, End::UpstreamCut] {
            let mut client = Client::begun(api);
            let events = dialect::events(api, &words(LONG));
            // What came in the first half of the events.
            let came: String = events[..events.len() / 2].concat();
            let mut cut = client.turns[1].clone();
            reply(&mut cut, "text/event-stream", came.into_bytes());
            let said =
                serin::conversation::read(&cut).expect("is a turn").answer.fold.choices[0].content.clone();
            assert!(LONG.starts_with(&said) && said.len() > 20, "{api:?}: {said}");
            cut.set_end(end);
            client.turns[1] = cut;
            client.history.pop();
            client.history.push(assistant(said));
            client.say("c", user("go on"), &words("is Ada."));
            client.is(&then(("append", "b", "a")));
        }
    }
    // A client may have seen less than what was sent.
    for api in CHATS {
        let mut client = Client::begun(api);
        client.history.pop();
        client.history.push(assistant(&LONG[..70]));
        client.say("c", user("go on"), &words("Ada."));
        let mut links = Links::new(100);
        let link = client.turns.iter().map(|turn| links.link(turn)).last().expect("there are three");
        assert_eq!((link.parent.as_str(), link.conversation.as_str()), ("b", "a"), "{api:?}");
    }
}

#[test]
fn case_29_the_client_begins_the_answer() {
    for api in [Api::Chat, Api::Messages] {
        let mut client = Client::begun(api);
        client.history.push(user("spell it"));
        client.history.push(assistant("The letters are"));
        client.send("c", &words(" A, d, a."));
        client.history.pop();
        client.history.push(assistant("The letters are A, d, a."));
        client.say("d", user("thanks"), &words("Bye."));
        client.is(&[TWO.as_slice(), &[("append", "b", "a"), ("append", "c", "a")]].concat());
    }
}

#[test]
fn case_30_an_image_in_another_form() {
    let data = "aGVsbG8gd29ybGQ=";
    let url = format!("data:image/png;base64,{data}");
    let inline = json!({"type": "image_url", "image_url": {"url": url}});
    let forms = [
        (json!({"type": "image_url", "image_url": url}), "append"),
        (
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}),
            "append",
        ),
        (json!({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}), "resumed"),
    ];
    for (form, kind) in forms {
        let said = |image: &Value| json!([{"type": "text", "text": "what is this?"}, image]);
        let first = json!({"model": "m", "messages": [{"role": "user", "content": said(&inline)}]});
        let second = json!({"model": "m", "messages": [
            {"role": "user", "content": said(&form)}, {"role": "assistant", "content": LONG}, {"role": "user", "content": "sure?"}]});
        let turns = [
            exchange(Api::Chat, "a", 0, &first, &words(LONG)),
            exchange(Api::Chat, "b", 60 * SECOND, &second, &words("Yes.")),
        ];
        let mut links = Links::new(100);
        let link = turns.iter().map(|turn| links.link(turn)).last().expect("there are two");
        // By its address an image is another one: what was before the answer is not what was asked.
        let expected = if kind == "append" { ("append", "a") } else { ("root", "") };
        assert_eq!((link.kind.as_str(), link.parent.as_str()), expected, "{form}");
    }
}

#[test]
fn case_31_a_session_on_two_replicas_can_be_joined() {
    for api in CHATS {
        let mut client = Client::begun(api);
        client.say("c", user("spell it"), &words("A, d, a."));
        let facts = |turn: &Exchange| {
            let mut links = Links::new(10);
            links.read(turn)
        };
        let (second, third) = (facts(&client.turns[1]), facts(&client.turns[2]));
        let boundaries = third.boundaries.as_chunks::<16>().0;
        assert!(boundaries.contains(&second.answers.as_chunks::<16>().0[0]), "{api:?}");
    }
}

#[test]
fn case_32_clocks_differ_and_turns_end_out_of_order() {
    for api in Api::ALL {
        let mut client = Client::begun(api);
        client.turns[1].started_unix_nanos -= 65 * SECOND;
        client.say("c", user("thanks"), &words("Bye."));
        client.is(&then(("append", "b", "a")));
    }
}

#[test]
fn case_33_requests_name_the_answer_before() {
    let turn = |id: &str, at: u64, said: &str, before: Option<&str>, answer: &str| {
        let mut body = json!({"model": "m", "input": [{"role": "user", "content": said}]});
        if let Some(before) = before {
            body["previous_response_id"] = json!(before);
        }
        let mut turn = exchange(Api::Responses, id, at * SECOND, &body, &words(answer));
        let mut whole: Value = serde_json::from_slice(&turn.response_body).expect("JSON");
        whole["id"] = json!(format!("resp_{id}"));
        reply(&mut turn, "application/json", whole.to_string().into_bytes());
        turn
    };
    let turns = [
        turn("a", 0, "my name is Ada", None, "Hello Ada."),
        turn("b", 60, "who am I?", Some("resp_a"), "Ada."),
        turn("c", 120, "spell it", Some("resp_b"), "A, d, a."),
        turn("d", 180, "say it", Some("resp_a"), "Ada!"),
        turn("e", 240, "spell it", Some("resp_b"), "a-d-a"),
        turn("f", 300, "hello?", Some("resp_unknown"), "Yes."),
    ];
    let want = [
        ("root", "", "a"),
        ("append", "a", "a"),
        ("append", "b", "a"),
        ("branch", "a", "a"),
        ("regenerate", "c", "a"),
        ("root", "", "f"),
    ];
    check(Api::Responses, &turns, &want);
    // A whole history may follow later, from a client that cannot name answers.
    let history: Vec<Value> = [
        ("user", "my name is Ada"),
        ("assistant", "Hello Ada."),
        ("user", "who am I?"),
        ("assistant", "Ada."),
        ("user", "thanks"),
    ]
    .into_iter()
    .map(|(role, text)| json!({"role": role, "content": text}))
    .collect();
    let whole =
        exchange(Api::Responses, "g", 400 * SECOND, &json!({"model": "m", "input": history}), &words("Bye."));
    check(Api::Responses, &[turns[0].clone(), turns[1].clone(), whole], &then(("append", "b", "a")));
}

#[test]
fn case_35_an_old_conversation_is_brought_along() {
    for api in CHATS {
        let mut client = Client::new(api);
        for number in 0..20 {
            client.history.push(user(format!("question {number}")));
            client.history.push(assistant(format!("answer {number}")));
        }
        client.say("a", user("and now?"), &words("Now this."));
        client.say("b", user("and then?"), &words("Then that."));
        client.is(&TWO);
    }
}

#[test]
fn case_36_odd_bytes_are_read_or_refused_and_never_mixed_up() {
    for api in Api::ALL {
        let mut client = Client::new(api);
        client.say("a", user("a \u{0} and \u{feff} and \u{202e}"), &words("odd \u{0} words"));
        client.say("b", user("more"), &words("fine"));
        client.is(&TWO);
        let surrogate = ask(api, &[user("XX")], false).to_string().replace("XX", "\\ud800");
        let mut turns = vec![unanswered(api, "a", 0, surrogate.clone().into_bytes())];
        let doubled = surrogate.replacen('{', "{\"model\":\"x\",\"model\":\"y\",", 1);
        turns.push(unanswered(api, "b", SECOND, doubled.into_bytes()));
        turns.push(unanswered(api, "c", 2 * SECOND, surrogate.replace("\\ud800", "\u{e9}").into_bytes()));
        let mut latin = ask(api, &[user("XX")], false).to_string().into_bytes();
        let at = latin.windows(2).position(|two| two == b"XX").expect("is there");
        latin[at] = 0xe9;
        turns.push(unanswered(api, "d", 3 * SECOND, latin));
        turns.push(unanswered(api, "e", 4 * SECOND, b"\xef\xbb\xbf{}".to_vec()));
        check(api, &turns, &["a", "b", "c", "d", "e"].map(|id| ("root", "", id)));
    }
}

#[test]
fn case_37_a_compressed_request_is_read() {
    for api in Api::ALL {
        for coding in ["gzip", "zstd"] {
            let mut client = Client::begun(api);
            let plain = client.turns[1].request_body.to_vec();
            let packed = match coding {
                "zstd" => zstd::bulk::compress(&plain, 3).expect("compresses"),
                _ => {
                    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                    packer.write_all(&plain).and_then(|()| packer.finish()).expect("compresses")
                }
            };
            let turn = &mut client.turns[1];
            turn.request_body_hash = hash(&packed);
            turn.request_body = packed.into();
            turn.request_headers.push(Header { name: "Content-Encoding".into(), value: coding.into() });
            client.is(&TWO);
        }
    }
}

#[test]
fn case_38_a_body_of_fifty_megabytes() {
    let mut client = Client::new(Api::Chat);
    client.say("a", user("x".repeat(50 << 20)), &words("Long."));
    client.say("b", user("and?"), &words("So."));
    client.is(&TWO);
}

#[test]
fn case_39_what_is_no_turn() {
    for path in [
        "/v1/embeddings",
        "/v1/models",
        "/v1/chat/completions/x",
        "/v1/responses/resp_1",
        "/health",
        "/v1/messages/count_tokens",
    ] {
        let mut other = unanswered(Api::Chat, "a", 0, br#"{"input":"x"}"#.to_vec());
        other.target = path.into();
        assert!(!is_turn(&other), "{path}");
    }
    assert!(Api::ALL.iter().all(|api| is_turn(&unanswered(*api, "a", 0, Vec::new()))));
    assert_eq!(Api::ALL.iter().filter(|api| has_messages(**api)).count(), CHATS.len());
}

#[test]
fn an_answer_that_could_not_be_read_or_was_rewritten_is_passed() {
    for api in CHATS {
        let unread = |client: &mut Client, turn: usize| {
            reply(
                &mut client.turns[turn],
                "application/json",
                b"\x1b\x03 in a coding that nobody knows".to_vec(),
            );
        };
        let mut client = Client::begun(api);
        unread(&mut client, 1);
        client.say("c", user("spell it"), &words("A, d, a."));
        client.is(&then(("append", "b", "a")));
        // What anybody may have asked says nothing, unless the session is the same.
        unread(&mut client, 0);
        check(api, &client.turns[..2], &[("root", "", "a"), ("root", "", "b")]);
        let turns: Vec<_> = client.turns.iter().map(|turn| with(turn.clone(), "x-session-id", "s")).collect();
        check(api, &turns, &then(("append", "b", "a")));
        // The user has put other words into the model's mouth.
        let mut client = Client::begun(api);
        client.history.pop();
        client.history.push(assistant("Eve"));
        client.say("c", user("spell it"), &words("E, v, e."));
        let turns: Vec<_> = client.turns.iter().map(|turn| with(turn.clone(), "x-session-id", "s")).collect();
        check(api, &turns, &then(("append", "b", "a")));
    }
}
