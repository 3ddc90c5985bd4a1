//! Promise: what was recorded is found by what is known of it, without a body being read for it, and is drawn as the tree
//! that it is.

#[path = "support/exchanges.rs"]
mod exchanges;

use std::path::Path;

use exchanges::{SECOND, START, assistant, chat, failed, streamed, user};
use serde_json::{Value, json};
use serin::conversation::render::{self, Look};
use serin::conversation::{Asked, Conversations, Error, Sessions, Wish};
use serin::journal::fs::Real;
use serin::journal::seal::{How, seal};
use serin::journal::{Exchange, Keychain, Options, segment};

const HOW: How = How { level: 3, frame_bytes: 3000 };

fn record(dir: &Path, exchanges: &[Exchange]) {
    let options = Options { segment_bytes: 3000, ..Options::default() };
    let mut conversations = Conversations::open_with(dir, options).expect("opens");
    for exchange in exchanges {
        conversations.record(exchange.clone(), Wish::ALL).expect("takes it");
        conversations.commit().expect("commits");
    }
    for file in segment::list(dir).expect("lists").iter().filter(|file| file.is_open()) {
        seal(file, &Real, &Keychain::default(), HOW).expect("seals");
    }
}

fn of(mut exchange: Exchange, model: &str, upstream: &str) -> Exchange {
    exchange.model = model.into();
    exchange.upstream = upstream.into();
    exchange.request_body = String::from_utf8(exchange.request_body.to_vec())
        .unwrap()
        .replace("\"m\"", &format!("{model:?}"))
        .into();
    exchange
}

/// Three conversations an hour apart: two models, two upstreams, one failure. The first changes its model.
fn three(dir: &Path) {
    let ask = |words: &str| json!([user(words)]);
    let hour = 3600 * SECOND;
    let further = json!([user("first words"), assistant("one"), user("more")]);
    record(
        dir,
        &[
            of(chat("a0", 0, &ask("first words"), "one"), "qwen-small", "north"),
            of(chat("a1", 60 * SECOND, &further, "yes"), "qwen-large", "north"),
            of(chat("ab", hour, &ask("second words"), "two"), "llama", "south"),
            of(failed("b0", 2 * hour, &ask("third words")), "qwen-large", "south"),
        ],
    );
}

fn sessions(dir: &Path) -> Sessions {
    Conversations::read_only(dir).expect("opens")
}

#[track_caller]
fn listed(dir: &Path, asked: Asked) -> Vec<String> {
    let filter = asked.filter(START + 3 * 3600 * SECOND).expect("is understood");
    sessions(dir).list(&filter).expect("lists").into_iter().map(|line| line.id).collect()
}

#[test]
fn each_filter_finds_what_it_names_and_all_of_them_hold() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    three(dir);
    let any = || Asked { limit: 10, ..Asked::default() };
    let text = |text: &str| Some(text.to_owned());
    let cases = [
        (any(), vec!["b0", "ab", "a0"]),
        (Asked { limit: 1, ..any() }, vec!["b0"]),
        (Asked { since: text("90m"), ..any() }, vec!["b0"]),
        (Asked { since: text("2025-12-02T01:00:00Z"), ..any() }, vec!["b0", "ab"]),
        (Asked { until: text("2025-12-02T01:00:00Z"), ..any() }, vec!["a0"]),
        (Asked { until: text("90m"), since: text("150m"), ..any() }, vec!["ab"]),
        (Asked { model: text("llama"), ..any() }, vec!["ab"]),
        (Asked { model: text("qwen"), ..any() }, vec![]),
        (Asked { model: text("qwen*"), ..any() }, vec!["b0", "a0"]),
        // A turn is enough, whichever it is.
        (Asked { model: text("qwen-small"), ..any() }, vec!["a0"]),
        (Asked { model: text("q%n*"), ..any() }, vec![]),
        (Asked { upstream: text("south"), ..any() }, vec!["b0", "ab"]),
        (Asked { flags: vec!["error".into()], ..any() }, vec!["b0"]),
        (Asked { flags: vec!["error".into(), "masked".into()], ..any() }, vec![]),
        (Asked { model: text("qwen*"), upstream: text("north"), ..any() }, vec!["a0"]),
    ];
    for (asked, want) in cases {
        assert_eq!(listed(dir, asked.clone()), want, "{asked:?}");
    }
}

#[test]
fn a_list_goes_on_where_it_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    three(dir.path());
    let (mut seen, mut cursor) = (Vec::new(), None);
    for _ in 0..4 {
        let asked = Asked { limit: 1, cursor: cursor.clone(), ..Asked::default() };
        let page = sessions(dir.path()).page(&asked.filter(0).expect("is understood")).expect("lists");
        seen.extend(page.lines.into_iter().map(|line| line.id));
        cursor = page.cursor;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!((seen, cursor), (["b0", "ab", "a0"].map(str::to_owned).to_vec(), None));
}

#[test]
fn lists_never_load_bodies() {
    for with_index in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        three(dir);
        let mut taken = 0;
        for file in segment::list(dir).expect("lists") {
            for entry in
                std::fs::read_dir(&file.dir).expect("lists").map(|entry| entry.expect("reads").path())
            {
                if entry.is_file()
                    && entry.extension().is_some_and(|class| class == "content" || class == "stream")
                {
                    // A folder is what nobody can read as a file.
                    std::fs::remove_file(&entry).expect("removes");
                    std::fs::create_dir(&entry).expect("is made");
                    taken += 1;
                }
            }
        }
        assert!(taken >= 1, "there were bodies");
        if !with_index {
            std::fs::remove_file(dir.join("index.sqlite")).expect("removes");
        }
        let any = Asked { limit: 10, ..Asked::default() };
        assert_eq!(listed(dir, any), ["b0", "ab", "a0"], "with an index: {with_index}");
        let outline = sessions(dir).outline("a0").expect("is there");
        assert_eq!(outline.turns.iter().map(|turn| turn.kind).collect::<Vec<_>>(), ["root", "append"]);
        assert!(sessions(dir).show("a0").is_err(), "and nobody could have read them");
    }
}

#[test]
fn an_id_that_is_not_clear_is_answered_with_ids_that_are() {
    let dir = tempfile::tempdir().expect("a directory");
    three(dir.path());
    let sessions = sessions(dir.path());
    let said = |id: &str| sessions.show(id).expect_err("is not clear").to_string();
    assert!(matches!(sessions.show("a"), Err(Error::Ambiguous { count: 2, .. })));
    assert!(said("a").ends_with("give more of it, as in ab, a0"), "{}", said("a"));
    assert!(said("abc").ends_with("nearest of which are ab"), "{}", said("abc"));
    assert!(said("zz").ends_with("nearest of which are b0, ab, a0"), "{}", said("zz"));
    assert_eq!(sessions.show("a1").expect("a turn names its conversation").id, "a0");
    assert_eq!(sessions.show_turn("a0", "2").expect("by its number").turns[0].line.id, "a1");
    assert_eq!(sessions.show_turn("a0", "a1").expect("by its id").turns[0].line.id, "a1");
    for turn in ["3", "0", "a", "x", ""] {
        assert!(matches!(sessions.show_turn("a0", turn), Err(Error::UnknownTurn { count: 2, .. })), "{turn}");
    }
}

#[test]
fn at_most_ten_ids_are_offered() {
    let dir = tempfile::tempdir().expect("a directory");
    let turn =
        |at: u64| chat(&format!("id{at:02}"), at * SECOND, &json!([user(&format!("words {at}"))]), "yes");
    record(dir.path(), &(0..14).map(turn).collect::<Vec<_>>());
    let sessions = sessions(dir.path());
    let Err(Error::Ambiguous { count, some, .. }) = sessions.show("id") else { panic!("is clear") };
    assert_eq!((count, some.len(), some[0].as_str()), (14, 10, "id13"));
    let Err(Error::Near { near, .. }) = sessions.show("other") else { panic!("is there") };
    assert_eq!(near.len(), 10);
}

/// A conversation with every way to go on: a retry, a branch with a turn behind it, and answers asked for again.
fn tree(dir: &Path) {
    let first = json!([user("my name is Ada")]);
    let second = json!([user("my name is Ada"), assistant("Hello Ada."), user("what is my name?")]);
    let edited = json!([user("my name is Ada"), assistant("Hello Ada."), user("who am I?")]);
    let behind = json!([
        user("my name is Ada"),
        assistant("Hello Ada."),
        user("who am I?"),
        assistant("Ada!"),
        user("\u{1b}[2Jsure?\u{202e}")
    ]);
    record(
        dir,
        &[
            chat("a", 0, &first, "Hello Ada."),
            failed("b", 9 * SECOND, &second),
            streamed("c", 12 * SECOND, &second, "It is Ada."),
            chat("d", 60 * SECOND, &edited, "Ada!"),
            chat("e", 90 * SECOND, &behind, &"a long answer ".repeat(60)),
        ],
    );
}

fn drawn(dir: &Path, width: usize, full: bool) -> String {
    render::show(&sessions(dir).show("a").expect("is there"), Look { width, full })
}

#[test]
fn the_tree_is_drawn_as_it_grew() {
    let dir = tempfile::tempdir().expect("a directory");
    tree(dir.path());
    let text = drawn(dir.path(), 80, false);
    let heads: Vec<&str> = text.lines().filter(|line| line.contains('●')).collect();
    let begin = |line: &str| line.split(" · ").next().unwrap_or_default().to_owned();
    assert_eq!(
        heads.iter().map(|line| begin(line)).collect::<Vec<_>>(),
        ["● 1  root", "├─● 4  branch", "│ ● 5  append", "● 2  append of 1", "└─● 3  retry"],
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("more lines, ") && text.contains("--full shows them"), "{text}");
    assert!(text.contains("flags error, incomplete") || text.contains("flags error"), "{text}");
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}') && text.contains("sure?"), "{text}");
    assert!(text.contains("e · 4 messages from before"), "{text}");
    // Lines of text stay short enough to be read in a wide terminal.
    assert!(drawn(dir.path(), 300, true).lines().all(|line| line.chars().count() <= 120));
    let full = drawn(dir.path(), 80, true);
    assert!(!full.contains("--full") && full.matches("a long").count() > text.matches("a long").count());
}

#[test]
fn json_says_all_that_is_promised() {
    let dir = tempfile::tempdir().expect("a directory");
    tree(dir.path());
    let session = sessions(dir.path()).show("a").expect("is there");
    let json: Value = serde_json::to_value(&session).expect("is JSON");
    assert_eq!(json["id"], "a");
    for turn in json["turns"].as_array().expect("turns") {
        for key in
            ["id", "parent", "kind", "status", "end", "request", "response", "body_hash", "tokens", "flags"]
        {
            assert!(turn.get(key).is_some(), "{key} in {turn}");
        }
    }
    assert_eq!(json["turns"][2]["response"]["content"], "It is Ada.");
    assert_eq!(json["turns"][0]["tokens"]["prompt"], 9);
}

#[test]
fn a_reader_that_keeps_next_to_nothing_reads_the_same() {
    let dir = tempfile::tempdir().expect("a directory");
    three(dir.path());
    let frugal = Options { read_cache: 0, read_files: 1, ..Options::default() };
    let frugal = Conversations::read_with(dir.path(), frugal).expect("opens");
    let shown =
        |sessions: &Sessions, id| serde_json::to_value(sessions.show(id).expect("shows")).expect("is JSON");
    for id in ["a0", "b0", "ab"] {
        assert_eq!(shown(&frugal, id), shown(&sessions(dir.path()), id));
    }
}
