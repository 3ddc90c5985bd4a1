//! Promise: the requests of a conversation are found to be one conversation, and nobody else's is mixed in.

#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/stitching.rs"]
mod stitching;

use exchanges::{SECOND, assistant, chat, failed, streamed, user, with_session};
use serde_json::{Value, json};
use serin::journal::{Exchange, Link};
use stitching::Links;

fn stitch_with(limit: usize, exchanges: &[Exchange]) -> Vec<Link> {
    let mut links = Links::new(limit);
    exchanges.iter().map(|exchange| links.link(exchange)).collect()
}

/// Kind, parent and conversation of each.
fn links(exchanges: &[Exchange]) -> Vec<(String, String, String)> {
    let all = stitch_with(1000, exchanges).into_iter();
    all.map(|link| (link.kind, link.parent, link.conversation)).collect()
}

#[track_caller]
fn check(exchanges: &[Exchange], want: &[(&str, &str, &str)]) {
    let found = links(exchanges);
    let found: Vec<_> =
        found.iter().map(|(kind, parent, root)| (kind.as_str(), parent.as_str(), root.as_str())).collect();
    assert_eq!(found, want);
}

fn first() -> Value {
    json!([user("my name is Ada")])
}

fn second() -> Value {
    json!([user("my name is Ada"), assistant("Hello Ada."), user("what is my name?")])
}

#[test]
fn three_turns_are_one_conversation() {
    let third = json!([
        user("my name is Ada"),
        assistant("Hello Ada."),
        user("what is my name?"),
        assistant("It is Ada."),
        user("thanks")
    ]);
    let turns = [
        chat("a", 0, &first(), "Hello Ada."),
        streamed("b", 9 * SECOND, &second(), "It is Ada."),
        chat("c", 20 * SECOND, &third, "Bye."),
    ];
    check(&turns, &[("root", "", "a"), ("append", "a", "a"), ("append", "b", "a")]);
}

#[test]
fn history_that_drifted_is_still_recognised() {
    let drifted = json!([
        {"role": "system", "content": "the time is 12:01"},
        {"role": "user", "content": [{"type": "text", "text": "my name is Ada\r\n"}]},
        {"role": "assistant", "content": "Hello Ada.\n", "reasoning_content": "", "refusal": null},
        user("what is my name?"),
    ]);
    check(
        &[chat("a", 0, &first(), "Hello Ada."), chat("b", SECOND, &drifted, "Ada.")],
        &[("root", "", "a"), ("append", "a", "a")],
    );
}

#[test]
fn an_edited_message_is_a_branch() {
    let edited = json!([user("my name is Ada"), assistant("Hello Ada."), user("who am I?")]);
    check(
        &[
            chat("a", 0, &first(), "Hello Ada."),
            chat("b", 9 * SECOND, &second(), "Ada"),
            chat("c", 30 * SECOND, &edited, "Ada!"),
        ],
        &[("root", "", "a"), ("append", "a", "a"), ("branch", "a", "a")],
    );
}

#[test]
fn the_same_request_again_is_a_retry_or_a_regeneration() {
    check(
        &[
            chat("a", 0, &first(), "Hello Ada."),
            failed("b", 9 * SECOND, &second()),
            chat("c", 60 * SECOND, &second(), "Ada"),
        ],
        &[("root", "", "a"), ("append", "a", "a"), ("retry", "b", "a")],
    );
    check(
        &[
            chat("a", 0, &first(), "Hello Ada."),
            chat("b", 9 * SECOND, &second(), "Ada"),
            chat("c", 60 * SECOND, &second(), "Ada?"),
        ],
        &[("root", "", "a"), ("append", "a", "a"), ("regenerate", "b", "a")],
    );
}

#[test]
fn a_first_request_is_never_merged_by_its_content_alone() {
    check(
        &[chat("a", 0, &first(), "Hello."), chat("b", SECOND, &first(), "Hello.")],
        &[("root", "", "a"), ("root", "", "b")],
    );
    check(
        &[failed("a", 0, &first()), chat("b", 2 * SECOND, &first(), "Hello.")],
        &[("root", "", "a"), ("retry", "a", "a")],
    );
    check(
        &[failed("a", 0, &first()), chat("b", 90 * SECOND, &first(), "Hello.")],
        &[("root", "", "a"), ("root", "", "b")],
    );
}

#[test]
fn session_ids_join_and_keep_apart() {
    for header in
        ["X-Session-Id", "x-claude-code-session-id", "x-session-affinity", "session-id", "x-opencode-session"]
    {
        let of = |id: &str, at, messages: &Value, session: &str| {
            with_session(chat(id, at, messages, "Hello Ada."), header, session)
        };
        check(
            &[
                of("a", 0, &first(), "s1"),
                of("b", SECOND, &first(), "s2"),
                of("c", 9 * SECOND, &second(), "s1"),
                of("d", 60 * SECOND, &first(), "s2"),
            ],
            &[("root", "", "a"), ("root", "", "b"), ("append", "a", "a"), ("regenerate", "b", "b")],
        );
    }
}

#[test]
fn of_two_equal_openings_the_uncontinued_one_is_taken() {
    let turns = [
        chat("a", 0, &first(), "Hello Ada."),
        chat("b", SECOND, &first(), "Hello Ada."),
        chat("c", 9 * SECOND, &second(), "Ada"),
    ];
    check(&turns, &[("root", "", "a"), ("root", "", "b"), ("append", "b", "b")]);
    assert_eq!(stitch_with(1000, &turns)[2].confidence, 0.5);
}

#[test]
fn unreadable_requests_are_roots() {
    let mut broken = chat("a", 0, &first(), "x");
    broken.request_body = "{".into();
    let again = Exchange { id: "b".into(), ..broken.clone() };
    check(&[broken, again], &[("root", "", "a"), ("root", "", "b")]);
}

#[test]
fn what_is_remembered_is_bounded_and_use_keeps_it() {
    let mut exchanges = vec![chat("a", 0, &first(), "Hello Ada.")];
    let other =
        |number: u64| chat(&format!("x{number}"), number, &json!([user(&format!("topic {number}"))]), "ok");
    exchanges.extend((0..3).map(other));
    exchanges.push(chat("b", 9 * SECOND, &second(), "Ada"));
    exchanges.extend((3..6).map(other));
    let third = json!([user("my name is Ada"), assistant("Hello Ada."), user("again")]);
    exchanges.push(chat("c", 20 * SECOND, &third, "Ada"));
    let kinds = |limit| stitch_with(limit, &exchanges).into_iter().map(|link| link.kind).collect::<Vec<_>>();
    assert_eq!((kinds(5)[4].as_str(), kinds(5)[8].as_str()), ("append", "branch"));
    assert_eq!(kinds(3)[4], "root");
}
