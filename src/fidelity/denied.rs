//! Answers that claim there was no earlier conversation: the worst kind of loss, since the reader
//! is told that what was said never was.
//!
//! Four intent families in six languages. Text must be normalised by [`super::text::normalise`].

use super::text::{normalise, tokens};

/// The version of the patterns: rates of two versions do not compare.
pub const VERSION: u32 = 1;

/// How far apart a negation and the word for the earlier conversation may stand, in words.
const REACH: usize = 6;

/// What kind of claim was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// "This is the first message of our conversation."
    FirstMessage,
    /// "I have no earlier messages."
    NoEarlierContent,
    /// "What should I write to the file?" Only meaningful where the artefact was given before.
    AsksForGiven,
    /// "You have not told me that."
    NotTold,
}

const FIRST_MESSAGE: &[&str] = &[
    "first message",
    "start of our conversation",
    "start of this conversation",
    "beginning of our conversation",
    "beginning of this conversation",
    "beginning of our chat",
    "start of our chat",
    "just started",
    "only just begun",
    "just begun",
    "first interaction",
    "第一条消息",
    "第一条信息",
    "对话刚开始",
    "对话刚刚开始",
    "对话的开始",
    "第一次对话",
    "primer mensaje",
    "inicio de nuestra conversación",
    "acabamos de empezar",
    "conversación acaba de empezar",
    "erste nachricht",
    "ersten nachricht",
    "beginn unseres gesprächs",
    "beginn unserer unterhaltung",
    "gerade erst begonnen",
    "premier message",
    "début de notre conversation",
    "vient de commencer",
    "最初のメッセージ",
    "会話は始まったばかり",
    "会話の始まり",
];

const NOT_TOLD: &[&str] = &[
    "haven't told",
    "have not told",
    "haven't shared",
    "have not shared",
    "haven't provided",
    "have not provided",
    "haven't mentioned",
    "have not mentioned",
    "haven't given me",
    "have not given me",
    "didn't tell me",
    "did not tell me",
    "didn't mention",
    "did not mention",
    "didn't share",
    "did not share",
    "didn't provide",
    "did not provide",
    "never told me",
    "never mentioned",
    "还没有告诉",
    "没有告诉我",
    "还没告诉",
    "还没有提供",
    "没有提供",
    "没有提到过",
    "未提供",
    "no me has dicho",
    "no me ha dicho",
    "no has mencionado",
    "no ha mencionado",
    "no has compartido",
    "no me has dado",
    "nicht mitgeteilt",
    "nicht gesagt",
    "nicht genannt",
    "nicht erwähnt",
    "ne m'avez pas",
    "ne m'as pas",
    "n'avez pas mentionné",
    "教えていただいていません",
    "まだ教えて",
    "伝えられていません",
    "聞いていません",
    "提供されていません",
];

const NEGATIONS: &[&str] = &[
    "no",
    "not",
    "none",
    "without",
    "never",
    "cannot",
    "nothing",
    "don't",
    "doesn't",
    "didn't",
    "haven't",
    "can't",
    "isn't",
    "lack",
    "kein",
    "keine",
    "keinen",
    "keinerlei",
    "keiner",
    "nicht",
    "ohne",
    "sin",
    "ningún",
    "ninguna",
    "pas",
    "aucun",
    "aucune",
    "sans",
];

const EARLIER: &[&str] = &[
    "previous",
    "previously",
    "prior",
    "earlier",
    "above",
    "history",
    "context",
    "conversation",
    "conversations",
    "vorherig",
    "vorherige",
    "vorherigen",
    "vorheriges",
    "früheren",
    "frühere",
    "gesprächsverlauf",
    "verlauf",
    "anterior",
    "anteriores",
    "historial",
    "contexto",
    "conversación",
    "précédent",
    "précédente",
    "précédents",
    "précédentes",
    "historique",
    "contexte",
    "auparavant",
];

const NEGATIONS_UNSPACED: &[&str] = &["没有", "沒有", "无法", "看不到", "不存在", "ない", "ません", "なし"];
const EARLIER_UNSPACED: &[&str] = &[
    "之前",
    "上文",
    "上下文",
    "先前",
    "历史记录",
    "对话历史",
    "以前",
    "過去の会話",
    "前の会話",
    "履歴",
    "文脈",
];

/// The first family, in the order of their weight as evidence, that normalised `text` belongs to.
///
/// Whether the secret is there too is for the caller to check: a denial beside the right answer is
/// no denial. [`Family::AsksForGiven`] is only looked for when `continuation` is set.
pub fn find(text: &str, continuation: bool) -> Option<Family> {
    let text = unquoted(text);
    let any = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
    if any(FIRST_MESSAGE) {
        Some(Family::FirstMessage)
    } else if any(NOT_TOLD) {
        Some(Family::NotTold)
    } else if continuation && asks_for_given(&text) {
        Some(Family::AsksForGiven)
    } else if no_earlier_content(&text) {
        Some(Family::NoEarlierContent)
    } else {
        None
    }
}

/// As [`find`], for answers that nobody has asked for on purpose, as they were given: code is left out, and so is what a
/// user has said in the same words (`asked`, called only where it matters). A bare negation counts only in a sentence about
/// the speaker or about what was said, as in "I have no earlier messages": "no previous version" is everyday talk.
pub fn find_unasked(answer: &str, asked: impl FnOnce() -> String) -> Option<Family> {
    let text = normalise(&without_code(answer));
    claim(&text)?;
    let asked = normalise(&asked());
    let own = |sentence: &&str| sentence.trim().chars().count() < ECHO || !asked.contains(sentence.trim());
    claim(&sentences(&text).filter(own).flat_map(|sentence| [sentence, "\n"]).collect::<String>())
}

fn claim(text: &str) -> Option<Family> {
    let denies = |sentence: &str| near_in_words(sentence) || near_unspaced(sentence);
    let about_talk = || sentences(text).any(|sentence| denies(sentence) && is_about_talk(sentence));
    find(text, false).filter(|family| *family != Family::NoEarlierContent || about_talk())
}

/// Characters from which a sentence that the request has as well is taken for a quotation.
const ECHO: usize = 12;

/// Words of a sentence that is about its speaker, or about what was said.
const ABOUT_TALK: &[&str] = &[
    "i",
    "i'm",
    "i've",
    "we",
    "we've",
    "conversation",
    "conversations",
    "chat",
    "message",
    "messages",
    "ich",
    "gesprächsverlauf",
    "nachricht",
    "nachrichten",
    "tengo",
    "veo",
    "mensaje",
    "mensajes",
    "conversación",
    "je",
    "j'ai",
];
const ABOUT_TALK_UNSPACED: &[&str] = &["我", "对话", "消息", "会話", "メッセージ", "履歴"];

fn is_about_talk(sentence: &str) -> bool {
    words(sentence).any(|word| ABOUT_TALK.contains(&word))
        || ABOUT_TALK_UNSPACED.iter().any(|phrase| sentence.contains(phrase))
}

/// Text without fenced blocks.
fn without_code(text: &str) -> String {
    text.split("```").step_by(2).collect::<Vec<_>>().join("\n")
}

/// Whether normalised reasoning text denies earlier context. Reasoning muses about earlier context
/// a good deal, so the bare negation of family (b) does not count here.
pub fn find_in_reasoning(text: &str, continuation: bool) -> Option<Family> {
    const TAIL: usize = 600;
    let start = text.char_indices().rev().nth(TAIL).map_or(0, |(at, _)| at);
    find(&text[start..], continuation).filter(|family| *family != Family::NoEarlierContent)
}

/// Text without what it quotes: spans in double quotes and lines that begin with `>`. A text that
/// is one quotation is kept.
fn unquoted(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('>')).collect();
    let joined = lines.join("\n");
    let parts: Vec<&str> = joined.split('"').collect();
    // An odd number of parts means paired quotes; an unpaired one quotes nothing.
    let kept: String = match parts.len() % 2 {
        1 => parts.iter().step_by(2).copied().collect::<Vec<_>>().join(" "),
        _ => joined.clone(),
    };
    if kept.trim().is_empty() { text.to_owned() } else { kept }
}

fn no_earlier_content(text: &str) -> bool {
    sentences(text).any(|sentence| near_in_words(sentence) || near_unspaced(sentence))
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(['.', '!', '?', ';', '\n', '。', '!', '?'])
}

fn near_in_words(sentence: &str) -> bool {
    let words: Vec<&str> = words(sentence).collect();
    let positions = |list: &'static [&'static str]| {
        words.iter().enumerate().filter(move |(_, word)| list.contains(word)).map(|(at, _)| at)
    };
    positions(NEGATIONS).any(|no| positions(EARLIER).any(|earlier| no.abs_diff(earlier) <= REACH))
}

fn words(sentence: &str) -> impl Iterator<Item = &str> {
    sentence.split(|c: char| c.is_whitespace() || ",:()\"".contains(c)).filter(|word| !word.is_empty())
}

fn near_unspaced(sentence: &str) -> bool {
    let any = |phrases: &[&str]| phrases.iter().any(|phrase| sentence.contains(phrase));
    any(NEGATIONS_UNSPACED) && any(EARLIER_UNSPACED)
}

fn asks_for_given(text: &str) -> bool {
    text.split_inclusive('?').filter(|part| part.ends_with('?')).any(|question| {
        let question = question.rsplit(['.', '!', '\n']).next().unwrap_or(question);
        let holds = |list: &[&str]| tokens(question).iter().any(|token| list.contains(&token.text));
        holds(&["what", "which"]) && holds(&["write", "save", "put", "content", "contents", "code", "file"])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn families_by_language() {
        let cases = [
            ("This is the first message in our conversation.", Some(Family::FirstMessage)),
            ("我们的对话刚开始,没有标签。", Some(Family::FirstMessage)),
            ("Este es tu primer mensaje.", Some(Family::FirstMessage)),
            ("Das ist Ihre erste Nachricht.", Some(Family::FirstMessage)),
            ("C'est votre premier message.", Some(Family::FirstMessage)),
            ("これが最初のメッセージです。", Some(Family::FirstMessage)),
            ("I don't have any record of an earlier exchange.", Some(Family::NoEarlierContent)),
            ("There is no previous conversation here.", Some(Family::NoEarlierContent)),
            ("我没有看到之前的内容。", Some(Family::NoEarlierContent)),
            ("No tengo ningún mensaje anterior.", Some(Family::NoEarlierContent)),
            ("Aquí estoy sin contexto alguno.", Some(Family::NoEarlierContent)),
            ("Ich habe keinen Zugriff auf den Gesprächsverlauf.", Some(Family::NoEarlierContent)),
            ("以前の会話は見当たりません。", Some(Family::NoEarlierContent)),
            ("You haven\u{2019}t told me the tag.", Some(Family::NotTold)),
            ("您还没有告诉我标签。", Some(Family::NotTold)),
            ("Todavía no me has dicho el código.", Some(Family::NotTold)),
            ("Das haben Sie mir nicht mitgeteilt.", Some(Family::NotTold)),
            ("The tag is amber.", None),
            ("I do not know.", None),
            ("Not today. The conversation went on.", None),
            ("You said \"there is no earlier conversation\", and the tag is blue.", None),
        ];
        for (text, expected) in cases {
            assert_eq!(find(&normalise(text), false), expected, "{text}");
        }
    }

    #[test]
    fn asking_counts_in_a_continuation_only() {
        let text = normalise("Sure! What should I write to the file?");
        assert_eq!(find(&text, true), Some(Family::AsksForGiven));
        assert_eq!(find(&text, false), None);
    }

    #[test]
    fn reasoning_may_muse() {
        let musing = normalise("There is no earlier context about this, hmm.");
        assert_eq!(find(&musing, false), Some(Family::NoEarlierContent));
        assert_eq!(find_in_reasoning(&musing, false), None);
        assert!(find_in_reasoning(&normalise("So this is the first message."), false).is_some());
    }

    #[test]
    fn everyday_talk_denies_nothing() {
        let asked = || "Translate: 'This is the first message of our conversation.'".to_owned();
        for text in [
            "There is no previous version of this file, and the tests do not use the context manager.",
            "The parser does not look at the history of commits above.",
            "```\n// no earlier conversation: I have none\n```\nDone.",
            "As you said: \"I have no earlier messages\".",
            "This is the first message of our conversation.",
            "Die Funktion braucht keinen Kontext, und ohne den vorherigen Test bleibt sie gleich.",
            "La función no usa el valor anterior.",
            "La fonction ne garde pas la valeur précédente.",
            "这个函数没有使用之前的值。",
            "この関数は以前の値を使いません。",
        ] {
            assert_eq!(find_unasked(text, asked), None, "{text}");
        }
    }

    #[test]
    fn denials_are_found_without_being_asked_for() {
        for (text, family) in [
            ("I don't see any earlier messages from you.", Family::NoEarlierContent),
            ("There is no previous conversation here.", Family::NoEarlierContent),
            ("这是我们的第一条消息。", Family::FirstMessage),
            ("我没有看到之前的内容。", Family::NoEarlierContent),
            ("No tengo ningún mensaje anterior.", Family::NoEarlierContent),
            ("Ich sehe keinen vorherigen Text.", Family::NoEarlierContent),
            ("Je n'ai pas le contexte précédent.", Family::NoEarlierContent),
            ("以前の会話は見当たりません。", Family::NoEarlierContent),
            ("You haven't told me your name yet.", Family::NotTold),
        ] {
            assert_eq!(find_unasked(text, String::new), Some(family), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_answer_is_read_without_panic(text in ".*", asked in ".*") {
            let _ = find_unasked(&text, || asked);
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".*") {
            let text = normalise(&text);
            find(&text, true);
            find_in_reasoning(&text, true);
        }
    }
}
