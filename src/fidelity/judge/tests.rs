//! The judge against a table of transcripts, every verdict among them.
//!
//! The planted code is `amber-river-4821-k`, a decoy of the same prompt is `cedar-lantern-1093-q`,
//! and `falcon-marble-7750-z` belongs to another probe.

use super::Verdict::{self, *};
use super::*;
use proptest::prelude::*;

const SECRET: &str = "amber-river-4821-k";
const DECOY: &str = "cedar-lantern-1093-q";
const FOREIGN: &str = "falcon-marble-7750-z";

fn judged(delivery: &Delivery, continuation: bool) -> Judgement {
    let secret = Secret::parse(SECRET).expect("a code");
    let decoys = [Secret::parse(DECOY).expect("a code")];
    let live = Registry::new(64);
    live.register(&secret, "mine");
    live.register(&decoys[0], "mine");
    live.register(&Secret::parse(FOREIGN).expect("a code"), "other");
    let scripts = Scripts::of("Please keep this in mind.");
    judge(
        delivery,
        &Expectation { probe_id: "mine", secret: &secret, decoys: &decoys, scripts, continuation },
        &live,
    )
}

fn said(content: &str) -> Answer {
    Answer { content: content.into(), finish_reason: Some("stop".into()), ..Answer::default() }
}

fn check(answer: Answer, expected: Verdict) {
    let shown = format!("{answer:?}");
    assert_eq!(judged(&Delivery::Answered(answer), false).verdict, expected, "{shown}");
}

#[test]
fn contents() {
    let table: &[(&str, Verdict)] = &[
        // Whole, in many dresses.
        ("amber-river-4821-k", Recalled),
        ("The tag of locker Q7 is amber-river-4821-k.", Recalled),
        ("**amber-river-4821-k**", Recalled),
        ("`amber-river-4821-k`", Recalled),
        ("\"amber-river-4821-k\"", Recalled),
        ("(amber-river-4821-k)", Recalled),
        ("AMBER-RIVER-4821-K", Recalled),
        ("Amber-River-4821-K!", Recalled),
        ("amber\u{2013}river\u{2013}4821\u{2013}k", Recalled),
        ("amber\u{2011}river\u{2011}4821\u{2011}k", Recalled),
        ("amber-river-\u{ff14}\u{ff18}\u{ff12}\u{ff11}-k", Recalled),
        ("amber\u{200b}-river-4821-k", Recalled),
        ("amber\\-river\\-4821\\-k", Recalled),
        ("amber river 4821 k", Recalled),
        ("amber_river_4821_k", Recalled),
        ("amber - river - 4821 - k", Recalled),
        ("- tag: amber-river-4821-k\n- shelf: 3", Recalled),
        ("柜子的标签是amber-river-4821-k。", Recalled),
        ("ロッカーの札はamber-river-4821-kです。", Recalled),
        ("La etiqueta es amber-river-4821-k.", Recalled),
        ("Das Schild lautet \u{201e}amber-river-4821-k\u{201c}.", Recalled),
        ("I don't know much, but you said amber-river-4821-k.", Recalled),
        ("This is the first message, yet amber-river-4821-k it is.", Recalled),
        ("Not cedar-lantern-1093-q but amber-river-4821-k.", Recalled),
        ("{\"tag\":\"amber-river-4821-k\"}", Recalled),
        ("amber-river-4821-k-k", Recalled),
        // Another code of the same prompt.
        ("cedar-lantern-1093-q", Misbound),
        ("The tag is Cedar-Lantern-1093-Q.", Misbound),
        ("Either cedar-lantern-1093-q or none.", Misbound),
        // Damaged by one or two characters.
        ("amber-river-4822-k", Corrupted),
        ("amber-river-4827-k", Corrupted),
        ("amber-river-4281-k", Corrupted),
        ("amber-river-4821-j", Corrupted),
        ("amber-river-4821", Corrupted),
        ("amber-river-48211-k", Corrupted),
        ("amber-river-482-k", Corrupted),
        ("amber-rivers-4821-k", Corrupted),
        ("ember-river-4821-k", Corrupted),
        ("amberriver-4821-k", Corrupted),
        ("xamber-river-4821-k", Corrupted),
        ("amber-river-4821-k9", Corrupted),
        ("amber-river-4821k", Corrupted),
        // Half of the segments in place and the shape of a code.
        ("amber-river-9077-p", Corrupted),
        ("amber-castle-4821-m", Corrupted),
        ("castle-river-4821-d", Corrupted),
        ("The tag is amber-river-0000-a.", Corrupted),
        // Too far away to be damage.
        ("amber-castle-9077-p", LostWrong),
        ("The river is amber at dawn.", LostWrong),
        ("4821", LostWrong),
        ("amber", LostWrong),
        ("The tag is blue-house-1234-x.", LostWrong),
        ("The tag of locker Q7 is on the shelf.", LostWrong),
        ("Sure, happy to do so!", LostWrong),
        ("ambercastleriver48219k", LostWrong),
        // Declined.
        ("I'm sorry, but I can't help with that.", Refused),
        ("I cannot share that.", Refused),
        ("I must decline to answer.", Refused),
        ("对不起,我无法协助。", Refused),
        ("Lo siento, no puedo ayudar con eso.", Refused),
        ("Dabei kann ich nicht helfen.", Refused),
        ("申し訳ありませんが、お答えできません。", Refused),
        // Denies that anything came before.
        ("This appears to be the first message in our conversation.", Denied),
        ("We have only just begun talking, so there is no tag yet.", Denied),
        ("I don't see any earlier messages about a locker.", Denied),
        ("There's no previous conversation that I can look at.", Denied),
        ("I don't have access to the conversation history.", Denied),
        ("You haven\u{2019}t told me the tag.", Denied),
        ("You did not mention a locker before.", Denied),
        ("这是我们的第一条消息。", Denied),
        ("我没有看到之前的内容。", Denied),
        ("您还没有告诉我标签。", Denied),
        ("Este es el primer mensaje de la charla.", Denied),
        ("Todavía no me has dicho la etiqueta.", Denied),
        ("Das ist Ihre erste Nachricht an mich.", Denied),
        ("Ich habe keinen Zugriff auf den Verlauf.", Denied),
        ("C'est votre premier message.", Denied),
        ("これが最初のメッセージです。", Denied),
        ("以前の会話は見当たりません。", Denied),
        // No language any more.
        ("!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", Degenerate),
        ("the the the the the the the the the the the the the the the the the the the the the", Degenerate),
        ("The tag is <|im_start|>", Degenerate),
        ("The t\u{fffd}g", Degenerate),
        ("The tag of the locker แฟ้มอยู่", Degenerate),
        // Says that it does not know.
        ("NONE", LostUnknown),
        ("None.", LostUnknown),
        ("I don't know.", LostUnknown),
        ("I'm not sure which tag you mean.", LostUnknown),
        ("I do not remember the tag.", LostUnknown),
        ("The tag is unknown.", LostUnknown),
        ("No lo sé.", LostUnknown),
        ("Das weiß ich nicht.", LostUnknown),
        // Nothing at all.
        ("", Empty),
        ("  \n ", Empty),
        // Another probe's code overrides everything.
        ("falcon-marble-7750-z", Crosstalk),
        ("amber-river-4821-k, or falcon-marble-7750-z", Crosstalk),
        ("I don't know, perhaps Falcon-Marble-7750-Z", Crosstalk),
        ("falcon-marble-7751-z", LostWrong),
    ];
    assert!(table.len() >= 80, "{}", table.len());
    for (content, expected) in table {
        check(said(content), *expected);
    }
}

#[test]
fn channels() {
    let cut = || Some("length".to_owned());
    check(
        Answer { reasoning: format!("They said {SECRET}."), ..said("It is on the shelf.") },
        RecalledReasoning,
    );
    check(Answer { reasoning: format!("They said {SECRET}."), ..said("") }, RecalledReasoning);
    check(Answer { reasoning: format!("Is it {DECOY}? No, {SECRET}."), ..said(DECOY) }, RecalledReasoning);
    check(Answer { reasoning: format!("Not {DECOY}."), ..said("NONE") }, LostUnknown);
    check(Answer { reasoning: "So this is the first message.".into(), ..said("Which one?") }, Denied);
    check(Answer { reasoning: "No earlier context is needed.".into(), ..said("It is blue.") }, LostWrong);
    check(Answer { reasoning: format!("See {FOREIGN}."), ..said(SECRET) }, Crosstalk);
    check(Answer { reasoning: "Let me think about it".into(), finish_reason: cut(), ..said("") }, Truncated);
    check(Answer { finish_reason: cut(), ..said("The tag of the") }, Truncated);
    check(Answer { finish_reason: cut(), ..said("!!!!!!!!!!!!!!!!!!!!!!!!!!!!") }, Truncated);
    check(Answer { finish_reason: cut(), ..said(SECRET) }, Recalled);
    check(Answer { reasoning: "Hm.".into(), ..said("") }, LostWrong);
    let tools =
        |arguments: &str| Answer { tool_arguments: arguments.into(), has_tool_calls: true, ..said("") };
    check(tools("{\"path\":\"tags.txt\"}"), ToolDetour);
    check(tools("{\"text\":\"amber-river-4821-k\"}"), Recalled);
    check(tools("{\"text\":\"amber-river-4829-k\"}"), Corrupted);
    check(tools("{\"text\":\"cedar-lantern-1093-q\"}"), Misbound);
    check(tools("{\"text\":\"falcon-marble-7750-z\"}"), Crosstalk);
    check(Answer { content: "I don't know, let me look.".into(), ..tools("{}") }, ToolDetour);
    check(Answer { refusal: "I can't.".into(), ..said("") }, Refused);
    check(Answer { finish_reason: Some("content_filter".into()), ..said("") }, Refused);
}

#[test]
fn deliveries() {
    let refused = |status, body: &str| Delivery::Refused { status, body: body.into() };
    let table = [
        (Delivery::Failed(Failure::Connect), Error),
        (Delivery::Failed(Failure::TimeoutBeforeAnswer), Error),
        (Delivery::Failed(Failure::TimeoutInAnswer), Error),
        (refused(429, "slow down"), Error),
        (refused(503, "This model's maximum context length is 8192 tokens"), Error),
        (refused(400, "This model's maximum context length is 8192 tokens"), RejectedLength),
        (refused(413, "the prompt is too long"), RejectedLength),
        (refused(400, "unknown field"), Error),
        (Delivery::Malformed, Malformed),
        (Delivery::Interrupted(said("amber-river")), Malformed),
        (Delivery::Interrupted(said(SECRET)), Malformed),
        (Delivery::Interrupted(said(FOREIGN)), Crosstalk),
    ];
    for (delivery, expected) in table {
        assert_eq!(judged(&delivery, false).verdict, expected, "{delivery:?}");
    }
}

#[test]
fn crosstalk_keeps_what_it_hides() {
    let found = judged(&Delivery::Answered(said(&format!("{SECRET} {FOREIGN}"))), false);
    assert_eq!((found.verdict, found.base), (Crosstalk, Recalled));
    assert_eq!(found.stranger.as_deref(), Some("other"));
}

#[test]
fn a_cut_answer_with_the_code_in_reasoning_is_marked() {
    let reasoning = format!("It was {SECRET}.");
    let answer = Answer { reasoning, finish_reason: Some("length".into()), ..Answer::default() };
    let found = judged(&Delivery::Answered(answer), false);
    assert_eq!((found.verdict, found.answer_missing), (RecalledReasoning, true));
}

#[test]
fn asking_for_what_was_given_is_denial_in_a_continuation() {
    let answer = Delivery::Answered(said("Sure, what should I write to the file?"));
    assert_eq!(judged(&answer, true).verdict, Denied);
    assert_eq!(judged(&answer, false).verdict, LostWrong);
}

#[test]
fn names_are_distinct_and_weights_as_published() {
    let names: std::collections::HashSet<_> = Verdict::ALL.iter().map(|verdict| verdict.as_str()).collect();
    assert_eq!(names.len(), Verdict::ALL.len());
    let of =
        |weight| Verdict::ALL.into_iter().filter(|verdict| verdict.weight() == weight).collect::<Vec<_>>();
    assert_eq!(of(Weight::Pass), [Recalled, RecalledReasoning]);
    assert_eq!(of(Weight::Critical), [Crosstalk]);
    assert_eq!(of(Weight::Loss), [Misbound, Corrupted, Denied, Degenerate, LostUnknown, LostWrong]);
}

proptest! {
    #[test]
    fn any_answer_is_judged(content in ".*", reasoning in ".*", tool_arguments in ".*", has_tool_calls: bool) {
        let answer = Answer { content, reasoning, tool_arguments, has_tool_calls, ..Answer::default() };
        judged(&Delivery::Answered(answer.clone()), true);
        judged(&Delivery::Interrupted(answer), false);
    }

    #[test]
    fn one_wrong_character_is_never_recall(at in 0usize..18, letter in "[a-z0-9]") {
        let mut text = SECRET.to_owned();
        text.replace_range(at..=at, &letter);
        prop_assume!(text != SECRET);
        let verdict = judged(&Delivery::Answered(said(&text)), false).verdict;
        prop_assert_eq!(verdict, Corrupted);
    }
}
