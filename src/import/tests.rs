//! Whole imports, and what must hold for any bytes.

use proptest::prelude::*;

use super::*;
use crate::conversation::Filter;

const CHAT: &str = r#"[{"id":"c1","conversations":[{"from":"human","value":"Where is the harbour?"},{"from":"gpt","value":"In the west."},
    {"from":"human","value":"And the mill?"},{"from":"gpt","value":"By the river."}]},
  {"id":"c2","conversations":[{"from":"human","value":"Where is the harbour?"},{"from":"gpt","value":"In the east."}]}]"#;

/// A file of that name.
pub fn input(name: &str, text: &str) -> Input {
    let stem = name.rsplit('/').next().unwrap_or_default().split('.').next().unwrap_or_default().to_owned();
    Input { name: name.to_owned(), stem, bytes: Bytes::copy_from_slice(text.as_bytes()) }
}

/// All that a reader yields.
pub fn outcomes(read: Result<Outcomes, Bad>) -> Vec<Outcome> {
    read.unwrap_or_else(|bad| panic!("{bad}")).collect()
}

/// A journal, and the files to import into it.
struct Desk {
    dir: tempfile::TempDir,
}

impl Desk {
    fn new(files: &[(&str, &str)]) -> Desk {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("has one")).expect("makes folders");
            std::fs::write(path, text).expect("writes");
        }
        Desk { dir }
    }

    fn import(&self, names: &[&str]) -> (Counted, Vec<String>) {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.dir.path().join(name)).collect();
        let mut journal = Conversations::open(&self.dir.path().join("journal")).expect("opens");
        let mut complaints = Vec::new();
        let counted = run(&paths, None, Some(&mut Secrets::new(100)), &mut journal, &mut |bad| {
            complaints.push(bad.to_string())
        });
        (counted.expect("imports"), complaints)
    }

    /// How many turns each conversation has, the longest first.
    fn turns(&self) -> Vec<u64> {
        let sessions = Conversations::read_only(&self.dir.path().join("journal")).expect("opens");
        let lines = sessions.list(&Filter::default()).expect("lists");
        let mut turns: Vec<u64> = lines.iter().map(|line| line.turns).collect();
        turns.sort_by_key(|turns| std::cmp::Reverse(*turns));
        turns
    }
}

#[test]
fn what_was_imported_before_is_not_imported_again() {
    let desk = Desk::new(&[("chat.json", CHAT)]);
    let (counted, complaints) = desk.import(&["chat.json"]);
    assert_eq!(complaints, Vec::<String>::new());
    assert_eq!(counted, Counted { exchanges: 3, conversations: 2, ..Counted::default() });
    assert_eq!(desk.turns(), [2, 1]);
    let (again, _) = desk.import(&["chat.json", "chat.json"]);
    assert_eq!(again, Counted { known: 6, ..Counted::default() });
    assert_eq!(desk.turns(), [2, 1]);
}

#[test]
fn mending_one_entry_adds_that_entry_alone() {
    let good = |said: &str| {
        format!(r#"{{"conversations":[{{"from":"human","value":"{said}"}},{{"from":"gpt","value":"b"}}]}}"#)
    };
    let (first, second, third) = (good("one"), good("two"), good("three"));
    let asked =
        |id: &str| format!(r#"{{"custom_id":"{id}","url":"/v1/chat/completions","body":{{"messages":[]}}}}"#);
    for texts in [
        [format!("[{first},7,{third}]"), format!("[{first},{second},{third}]")],
        [format!("{first}\n7\n{third}"), format!("{first}\n{second}\n{third}")],
        [format!("{}\n7\n{}", asked("a"), asked("c")), [asked("a"), asked("b"), asked("c")].join("\n")],
    ] {
        let desk = Desk::new(&[("file", &texts[0])]);
        assert_eq!(desk.import(&["file"]).0.exchanges, 2, "{texts:?}");
        std::fs::write(desk.dir.path().join("file"), &texts[1]).expect("writes");
        let (counted, _) = desk.import(&["file"]);
        assert_eq!((counted.exchanges, counted.known), (1, 2), "{texts:?}");
    }
}

#[test]
fn a_folder_of_payloads_becomes_a_conversation_for_each_file() {
    let line = |said: &str| format!("{{\"messages\":[{said}]}}\n");
    let (asked, told) = (r#"{"role":"user","content":"a"}"#, r#"{"role":"assistant","content":"b"}"#);
    let text = line(asked)
        + &line(&format!("{asked},{told},{asked}"))
        + &line(&[asked, told, asked, told, asked].join(","));
    let desk = Desk::new(&[("raw/s1.jsonl", &text), ("raw/s2.jsonl", &text), ("raw/notes.txt", "x")]);
    let (counted, complaints) = desk.import(&["raw"]);
    assert_eq!(complaints, Vec::<String>::new());
    assert_eq!(counted, Counted { exchanges: 6, conversations: 2, ..Counted::default() });
    assert_eq!(desk.turns(), [3, 3]);
}

#[test]
fn the_good_is_imported_beside_the_bad() {
    let har = r#"{"log":{"entries":[
      {"startedDateTime":"2026-01-02T00:00:01Z","request":{"method":"GET","url":"http://a/logo.png"},"response":{"status":200}},
      {"startedDateTime":"2026-01-02T00:00:02Z","request":{"method":"POST","url":"http://a/v1/chat/completions","postData":{"text":"{\"model\":\"m\",\"messages\":[]}"}},
        "response":{"status":200,"content":{"mimeType":"text/event-stream","text":"data: {\"choices\":[]}\n\n"}}},
      {}]}}"#;
    let asked = r#"{"custom_id":"a","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"q"}]}}"#;
    let answered = r#"{"custom_id":"a","response":{"status_code":200,"body":{"choices":[{"message":{"role":"assistant","content":"w"}}]}}}"#;
    let desk =
        Desk::new(&[("a.har", har), ("out.jsonl", answered), ("in.jsonl", asked), ("words.json", "words")]);
    let (counted, complaints) = desk.import(&["a.har", "out.jsonl", "gone.json", "words.json", "in.jsonl"]);
    let wanted =
        Counted { exchanges: 2, conversations: 2, others: 1, bad: 1, unusable: 2, ..Counted::default() };
    assert_eq!(counted, wanted, "{complaints:?}");
    assert_eq!(complaints.len(), 3, "{complaints:?}");
    assert!(complaints[0].contains("a.har, entry 3: missing field"), "{complaints:?}");
    assert!(complaints[1].contains("gone.json: cannot be read"), "{complaints:?}");
    assert!(
        complaints[2]
            .contains("words.json: holds none of har, batch, sharegpt, aiperf; as JSON it is broken"),
        "{complaints:?}"
    );
    let proof =
        journal::verify::verify(&desk.dir.path().join("journal"), &Default::default()).expect("reads");
    assert!(proof.is_sound() && proof.exchanges == 2, "{proof:?}");
    let sessions = Conversations::read_only(&desk.dir.path().join("journal")).expect("opens");
    let cut = &sessions.list(&Filter::default()).expect("lists")[0];
    assert_eq!((cut.model.as_str(), cut.upstream.as_str()), ("m", "imported"));
    assert_eq!(cut.flags, ["incomplete"], "a stream without its end is judged as one that was recorded");
}

#[test]
fn a_complaint_does_not_steer_the_terminal() {
    let bad = Bad { file: "a\u{1b}[2J".into(), place: Place::Line(3), says: "x\u{202e}y\n".into() };
    assert_eq!(bad.to_string(), "a\\u{1b}[2J, line 3: x\\u{202e}y\\n");
}

#[test]
fn a_complaint_is_short_whatever_a_file_says() {
    let word = "é".repeat(5000);
    let lines = format!(r#"{{"custom_id":"{word}","body":{{}},"url":"{word}"}}"#);
    for (format, text, ends) in [
        (Format::Batch, lines, "it begins with /"),
        (Format::ShareGpt, format!(r#"[{{"conversations":"{word}"}}]"#), "a list of from and value"),
        (Format::AiPerf, format!(r#"{{"data":[{{"payloads":"{word}"}}]}}"#), "a list of bodies"),
    ] {
        let found = outcomes(open(format, &input("a.json", &text)));
        let says = found[0].as_ref().expect_err("is bad").to_string();
        assert!(says.chars().count() < 600 && says.contains(" … ") && says.ends_with(ends), "{says}");
    }
}

#[test]
fn formats_are_named_and_found_by_their_names() {
    assert!(Format::ALL.iter().all(|format| Format::of_name(format.name()) == Ok(*format)));
    assert_eq!(Format::of_name("csv"), Err("the formats are har, batch, sharegpt, aiperf".into()));
}

/// Reads bytes as every format, and looks at all that comes of it.
fn read_as_all(bytes: &[u8]) {
    let input = Input { name: "any".into(), stem: "any".into(), bytes: Bytes::copy_from_slice(bytes) };
    let _ = (source::detect(&input.bytes), source::unknown(&input).to_string());
    for format in Format::ALL {
        for outcome in open(format, &input).into_iter().flatten() {
            match outcome {
                Ok(exchange) => assert!(exchange.edge_lengths.len() == exchange.edge_micros.len()),
                Err(bad) => assert!(!bad.to_string().is_empty()),
            }
        }
    }
}

/// Values that the formats' fields have, and ones they do not.
fn json() -> impl Strategy<Value = serde_json::Value> {
    let texts = [
        "2026-01-02T00:00:00Z",
        "POST",
        "http://a/v1/messages",
        "/",
        "base64",
        "human",
        "gpt",
        "assistant",
        "é\n",
        "",
    ];
    let leaf = prop_oneof![
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        Just(serde_json::Value::Null),
        prop::sample::select(texts.to_vec()).prop_map(Into::into),
    ];
    let names = [
        "log",
        "entries",
        "startedDateTime",
        "time",
        "request",
        "response",
        "method",
        "url",
        "headers",
        "name",
        "value",
        "status",
        "content",
        "text",
        "encoding",
        "size",
        "postData",
        "_sse",
        "custom_id",
        "body",
        "status_code",
        "created",
        "conversations",
        "from",
        "id",
        "data",
        "payloads",
        "session_id",
        "messages",
        "role",
        "input",
        "prompt",
        "timings",
        "receive",
    ];
    leaf.prop_recursive(6, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::btree_map(prop::sample::select(names.to_vec()), inner, 0..8)
                .prop_map(|map| map.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read_as_all(&bytes);
    }

    #[test]
    fn arbitrary_entries_never_panic(values in prop::collection::vec(json(), 1..4)) {
        for value in &values {
            read_as_all(value.to_string().as_bytes());
        }
        let lines: Vec<String> = values.iter().map(ToString::to_string).collect();
        read_as_all(lines.join("\n").as_bytes());
        read_as_all(format!("[{}]", lines.join(",")).as_bytes());
        read_as_all(format!("{{\"log\":{{\"entries\":[{}]}}}}", lines.join(",")).as_bytes());
        read_as_all(format!("{{\"data\":[{}]}}", lines.join(",")).as_bytes());
    }

    #[test]
    fn a_good_file_cut_or_changed_anywhere_never_panics(at in 0usize..600, byte: u8) {
        let mut bytes = CHAT.as_bytes().to_vec();
        let at = at.min(bytes.len() - 1);
        read_as_all(&bytes[..at]);
        bytes[at] = byte;
        read_as_all(&bytes);
    }
}

#[test]
fn secrets_are_imported_as_masks() {
    let dir = tempfile::tempdir().expect("a directory");
    let secret = "ghp_Zq8LmW3nR5tY7uI9oP1aS3dF5gH7jK9lX2cV";
    let file = dir.path().join("a.json");
    let talk = format!(
        r#"{{"conversations":[{{"from":"human","value":"it is {secret}"}},{{"from":"gpt","value":"{secret}"}}]}}"#
    );
    std::fs::write(&file, talk).expect("writes");
    for (at, mut secrets) in [Some(Secrets::new(100)), None].into_iter().enumerate() {
        let own = dir.path().join(at.to_string());
        let mut journal = Conversations::open(&own).expect("opens");
        run(std::slice::from_ref(&file), None, secrets.as_mut(), &mut journal, &mut |_| {}).expect("imports");
        let all: Vec<String> = journal::Reader::open(&own)
            .expect("opens")
            .map(|next| format!("{:?}", next.expect("reads").1))
            .collect();
        assert_eq!(all.concat().contains(&secret[4..]), secrets.is_none());
        assert!(all.concat().contains("ghp_"));
    }
}
