//! Promise: what is erased is shown no more from the moment it is asked for, and afterwards no byte of it is on disk,
//! while everything else is as it was.

#[path = "support/disk.rs"]
mod disk;
#[path = "support/exchanges.rs"]
mod exchanges;
#[path = "support/faulty.rs"]
mod faulty;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk::files_with;
use exchanges::{SECOND, assistant, chat, streamed, user, with_session};
use faulty::{Act, Faulty};
use serde_json::{Value, json};
use serin::conversation::{Conversations, Error, Filter, Subject, Wish, rebuild};
use serin::journal::erase::{self, Erasure};
use serin::journal::fs::Real;
use serin::journal::keys::keychain;
use serin::journal::seal::{How, seal};
use serin::journal::segment::{self, SegmentHeader};
use serin::journal::verify::verify;
use serin::journal::{Exchange, Keychain, Options, Reader, Record};

const HOW: How = How { level: 3, frame_bytes: 3000 };
/// Stands in every request of the one who asks, and nowhere else.
const MARKER: &str = "planted-marker-7Qz";
const SYSTEM: &str = "a system prompt that everybody shares, long enough to be a piece of its own ";

/// Three turns of a talk of which every message has `word` in it.
fn talk(name: &str, word: &str, session: &str) -> Vec<Exchange> {
    let mut messages: Vec<Value> = vec![json!({"role": "system", "content": SYSTEM.repeat(9)})];
    let turn = |at: u64| {
        messages.push(user(&format!("question {at} about {word} {}", "and more ".repeat(40))));
        let answer = format!("answer {at} about {word}");
        let made = if at == 1 { streamed } else { chat };
        let mut exchange = made(&format!("{name}-{at}"), at * 100 * SECOND, &json!(messages), &answer);
        exchange.model = format!("model-for-{word}");
        messages.push(assistant(&answer));
        if session.is_empty() { exchange } else { with_session(exchange, "x-session-id", session) }
    };
    (0..3).map(turn).collect()
}

fn seal_before(dir: &Path, writing: u64) {
    for file in
        segment::list(dir).expect("lists").iter().filter(|file| file.is_open() && file.number < writing)
    {
        seal(file, &Real, &Keychain::default(), HOW).expect("seals");
    }
}

fn carry_out(dir: &Path, erasure: &Erasure) -> erase::Receipt {
    erase::carry_out(dir, &Real, &Keychain::default(), HOW, &mut erasure.clone(), 7).expect("is carried out")
}

fn exchanges_of(dir: &Path) -> Vec<Exchange> {
    let only = |next: serin::journal::Result<(_, Record)>| match next.expect("reads").1 {
        Record::Exchange(exchange) => Some(exchange),
        _ => None,
    };
    Reader::open(dir).expect("opens").filter_map(only).collect()
}

/// Two talks interleaved, in many small segments; the first is the one to be erased.
fn recorded(dir: &Path) -> (Conversations, Vec<Exchange>) {
    let options = Options { segment_bytes: 2000, ..Options::default() };
    let mut conversations = Conversations::open_with(dir, options).expect("opens");
    let (mine, theirs) = (talk("mine", MARKER, "the-session"), talk("theirs", "nothing", "another"));
    for (one, other) in mine.into_iter().zip(&theirs) {
        for exchange in [one, other.clone()] {
            conversations.record(exchange, Wish::ALL).expect("takes it");
            conversations.commit().expect("commits");
        }
    }
    (conversations, theirs)
}

#[test]
fn no_byte_is_left_and_the_rest_is_as_it_was() {
    for sealed_before in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let (mut conversations, theirs) = recorded(dir);
        if sealed_before {
            seal_before(dir, conversations.writing());
        }
        assert!(files_with(dir, MARKER).len() > 1, "it is everywhere");
        let subject = Subject::Session("the-session".into());
        let erasure = conversations.erase(&subject).expect("is written down");
        assert_eq!(erasure.turns.len(), 3);
        seal_before(dir, conversations.writing());
        let receipt = carry_out(dir, &erasure);
        assert_eq!((receipt.exchanges, receipt.done_unix_nanos), (3, 7));
        assert!(receipt.files > 2 && receipt.bytes_after < receipt.bytes_before, "{receipt:?}");
        for word in [MARKER, "the-session", "mine-0", "mine-1", "mine-2"] {
            assert_eq!(files_with(dir, word), Vec::<PathBuf>::new(), "{word}");
        }
        let found: Vec<_> = exchanges_of(dir)
            .into_iter()
            .map(|exchange| (exchange.id, exchange.request_body, exchange.response_body))
            .collect();
        let want: Vec<_> = theirs
            .iter()
            .map(|exchange| {
                (exchange.id.clone(), exchange.request_body.clone(), exchange.response_body.clone())
            })
            .collect();
        assert_eq!(found, want);
        assert!(verify(dir, &Arc::default()).expect("reads").is_sound());
        let live = conversations.dump().expect("dumps");
        assert_eq!(rebuild(dir).expect("rebuilds").dump().expect("dumps"), live);
        // It goes on: the same words come again and are recorded whole.
        conversations.record(talk("again", MARKER, "new").remove(2), Wish::ALL).expect("takes it");
        conversations.commit().expect("commits");
        assert!(verify(dir, &Arc::default()).expect("reads").is_sound());
        assert_eq!(exchanges_of(dir).len(), 4);
        assert_eq!(erase::find(dir, &erasure.id).and_then(|found| found.receipt), Some(receipt));
    }
}

#[test]
fn from_the_moment_it_is_asked_for_it_is_not_shown() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut conversations, _) = recorded(dir.path());
    conversations.erase(&Subject::Conversation("mine-0".into())).expect("is written down");
    let sessions = Conversations::read_only(dir.path()).expect("opens");
    let listed = sessions.list(&Filter::default()).expect("lists");
    assert_eq!(listed.iter().map(|line| line.id.as_str()).collect::<Vec<_>>(), ["theirs-0"]);
    assert!(exchanges_of(dir.path()).iter().all(|exchange| exchange.id.starts_with("theirs")));
    // An index made anew meanwhile knows nothing of it either.
    let anew = rebuild(dir.path()).expect("rebuilds").dump().expect("dumps");
    assert!(!anew.contains("mine") && anew.contains("theirs"));
    assert_eq!(anew, conversations.dump().expect("dumps"));
}

/// Of `age-keygen`; its identity was thrown away.
const RECIPIENT: &str = "age1wtwn8lrhax50yhh94ymw4q6vl3q85rmnwy8g8aypp37sa4l55eeqjq63mq";

/// All keys that these have made for a journal, as somebody has them who has opened each.
fn opened(dir: &Path, chains: &[&Keychain]) -> Arc<Keychain> {
    let mut lines = String::new();
    for file in segment::list(dir).expect("lists") {
        let path = file.path(file.classes[0]);
        let header = SegmentHeader::decode(&std::fs::read(&path).expect("reads"), 1).expect("a header");
        let key = chains.iter().find_map(|chain| chain.find(&path, &header.key));
        let line = |key: serin::journal::cipher::Key| {
            format!("{} {}\n", serin::ids::hex(&key.id()), serin::ids::hex(key.secret()))
        };
        lines.extend(key.map(line));
    }
    let file = dir.join("opened");
    std::fs::write(&file, lines).expect("writes");
    Arc::new(keychain(&file, "").expect("are keys"))
}

#[test]
fn a_run_erases_its_own_beside_what_it_cannot_read_and_harms_nothing_of_that() {
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path();
    let chain = || Arc::new(keychain(Path::new(""), RECIPIENT).expect("is a recipient"));
    let (second, third) = (chain(), chain());
    let (gone, theirs, mine) =
        (talk("gone", "much", ""), talk("theirs", "nothing", ""), talk("mine", MARKER, ""));
    let run = |keys: &Arc<Keychain>, exchanges: &[Exchange]| {
        let options = Options { segment_bytes: 1, keys: keys.clone(), ..Options::default() };
        let mut conversations = Conversations::open_with(dir, options).expect("opens");
        for exchange in exchanges {
            conversations.record(exchange.clone(), Wish::ALL).expect("takes it");
            conversations.commit().expect("commits");
        }
        conversations
    };
    // A plain run, and one for the recipient. Of what the plain one wrote, at last only the other refers to the system prompt.
    drop(run(&Arc::default(), &gone[..1]));
    let mut middle = run(&second, &theirs);
    let mut erasure = middle.erase(&Subject::Conversation("gone-0".into())).expect("is written down");
    drop(middle);
    erase::carry_out(dir, &Real, &second, HOW, &mut erasure, 7).expect("is carried out");
    assert!(verify(dir, &second).expect("reads").is_sound());
    // And one more, which cannot read that.
    let mut last = run(&third, &mine);
    assert!(verify(dir, &third).expect("reads").damage.locked_segments > 1);
    let subject = Subject::Conversation("mine-0".into());
    let mut erasure = last.erase(&subject).expect("is written down");
    drop(last);
    // Who has no key of it can do nothing yet, and does nothing.
    let blind = erase::carry_out(dir, &Real, &chain(), HOW, &mut erasure, 7);
    assert!(matches!(blind, Err(serin::journal::Error::KeyMissing { .. })), "{blind:?}");
    let receipt = erase::carry_out(dir, &Real, &third, HOW, &mut erasure, 7).expect("is carried out");
    assert_eq!((receipt.exchanges, receipt.files), (3, 3));
    let all = opened(dir, &[&second, &third]);
    let proof = verify(dir, &all).expect("reads");
    assert!(proof.is_sound() && proof.exchanges == 3, "{proof:?}");
    // What an earlier run has written cannot be taken away without its keys, and is hidden all the same.
    let mut last = run(&third, &[]);
    let mut erasure = last.erase(&Subject::Conversation("theirs-0".into())).expect("is written down");
    drop(last);
    let blind = erase::carry_out(dir, &Real, &third, HOW, &mut erasure, 7);
    assert!(matches!(blind, Err(serin::journal::Error::KeyMissing { .. })), "{blind:?}");
    assert!(Reader::open_at(dir, Default::default(), all.clone()).expect("opens").next().is_none());
    erase::carry_out(dir, &Real, &all, HOW, &mut erasure, 7).expect("is carried out");
    assert!(erase::pending(dir).expect("lists").is_empty());
    let proof = verify(dir, &all).expect("reads");
    assert!(proof.is_sound() && proof.exchanges == 0, "{proof:?}");
}

#[test]
fn interrupted_anywhere_it_is_finished_by_the_next_try() {
    for step in 0..24 {
        let dir = tempfile::tempdir().expect("a directory");
        let dir = dir.path();
        let (mut conversations, _) = recorded(dir);
        let mut erasure =
            conversations.erase(&Subject::Conversation("mine-0".into())).expect("is written down");
        seal_before(dir, conversations.writing());
        drop(conversations);
        let faulty = Faulty::default();
        faulty.plan(|plan| {
            plan.writes = (0..step).map(|_| Act::Work).chain([Act::Fail(ErrorKind::Other)]).collect()
        });
        let _ = erase::carry_out(dir, &faulty, &Keychain::default(), HOW, &mut erasure, 7);
        for mut left in erase::pending(dir).expect("lists") {
            erase::carry_out(dir, &Real, &Keychain::default(), HOW, &mut left, 8).expect("is carried out");
        }
        assert_eq!(files_with(dir, MARKER), Vec::<PathBuf>::new(), "step {step}");
        assert!(verify(dir, &Arc::default()).expect("reads").is_sound(), "step {step}");
        assert_eq!(exchanges_of(dir).len(), 3, "step {step}");
    }
}

#[test]
fn who_is_not_known_is_told_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut conversations, _) = recorded(dir.path());
    for subject in [Subject::Conversation("nobody".into()), Subject::Session("none".into())] {
        assert!(matches!(conversations.erase(&subject), Err(Error::Unknown(_))));
    }
    assert!(!dir.path().join("erasures").exists());
    assert!("nonsense".parse::<Subject>().is_err() && "session/".parse::<Subject>().is_err());
    assert_eq!("session/a/b".parse(), Ok(Subject::Session("a/b".into())));
}
