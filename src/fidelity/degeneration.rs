//! Answers that are no language any more: loops, leaked template marks, broken characters, letters
//! of a script nobody used.

/// Repeats in a row from which text counts as a loop.
const MIN_REPEATS: usize = 20;
/// The longest loop looked for, in words.
const MAX_PERIOD: usize = 12;
/// Share of letters of a foreign script from which text counts as broken.
const FOREIGN_SHARE: f64 = 0.02;
/// Texts shorter than this are too short for a compression ratio to mean anything.
const MIN_COMPRESSED: usize = 512;
/// Compression ratio above which text repeats itself.
const MAX_RATIO: usize = 8;

/// What is wrong with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Degeneration {
    /// A character or a group of words again and again.
    Loop,
    /// U+FFFD where a character should be.
    BrokenCharacter,
    /// A mark of a chat template that should never be text.
    TemplateMark,
    /// Letters of a script that the prompt does not use.
    ForeignScript,
}

/// A set of scripts, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scripts(u16);

impl Scripts {
    /// The scripts of the letters in `text`.
    pub fn of(text: &str) -> Self {
        // Most text is plain, and there is a lot of it.
        if text.is_ascii() {
            return Self(u16::from(text.bytes().any(|byte| byte.is_ascii_alphabetic())));
        }
        Self(text.chars().filter_map(script).fold(0, |set, bit| set | bit))
    }

    fn holds(self, bit: u16) -> bool {
        self.0 & bit != 0
    }
}

/// Looks for degeneration in `text`, which answers a prompt written in `prompt_scripts`.
pub fn find(text: &str, prompt_scripts: Scripts) -> Option<Degeneration> {
    if text.contains('\u{fffd}') {
        Some(Degeneration::BrokenCharacter)
    } else if has_template_mark(text) {
        Some(Degeneration::TemplateMark)
    } else if loops(text) {
        Some(Degeneration::Loop)
    } else if is_foreign(text, prompt_scripts) {
        Some(Degeneration::ForeignScript)
    } else {
        None
    }
}

/// Whether a text shows that itself, so that whoever is asked about it may show it too.
pub fn shows(text: &str, what: Degeneration) -> bool {
    match what {
        Degeneration::BrokenCharacter => text.contains('\u{fffd}'),
        Degeneration::TemplateMark => has_template_mark(text),
        Degeneration::Loop => longest_run(text) >= MIN_REPEATS || repeats_words(text),
        Degeneration::ForeignScript => false,
    }
}

/// Whether a text with letters of a script that is not allowed is written in it: then it was asked for, as a translation is.
pub fn is_other_language(text: &str, allowed: Scripts) -> bool {
    let (letters, foreign) = foreign_letters(text, allowed);
    2 * foreign > letters
}

fn has_template_mark(text: &str) -> bool {
    const MARKS: [&str; 7] =
        ["<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "<s>", "</s>", "<\u{ff5c}"];
    MARKS.iter().any(|mark| text.contains(mark)) || text.split("<|").skip(1).any(closes_mark)
}

/// Whether text after `<|` goes on as `name|>`.
fn closes_mark(rest: &str) -> bool {
    rest.split_once("|>").is_some_and(|(name, _)| {
        (1..=40).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

fn loops(text: &str) -> bool {
    longest_run(text) >= MIN_REPEATS || repeats_words(text) || compresses_away(text)
}

/// The longest run of one character. Blanks and the marks that draw lines and tables do not count.
fn longest_run(text: &str) -> usize {
    let (mut longest, mut run, mut last) = (0, 0, None);
    for c in text.chars() {
        run = if Some(c) == last { run + 1 } else { 1 };
        last = Some(c);
        if !c.is_whitespace() && !"-=_*#|.~+\u{2500}\u{2550}".contains(c) {
            longest = longest.max(run);
        }
    }
    longest
}

/// Whether a group of up to `MAX_PERIOD` words stands `MIN_REPEATS` times in a row.
fn repeats_words(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    (1..=MAX_PERIOD).any(|period| {
        let needed = period * (MIN_REPEATS - 1);
        let mut matched = 0;
        (period..words.len()).any(|at| {
            matched = if words[at] == words[at - period] { matched + 1 } else { 0 };
            matched >= needed
        })
    })
}

fn compresses_away(text: &str) -> bool {
    text.len() >= MIN_COMPRESSED
        && zstd::bulk::compress(text.as_bytes(), 3).is_ok_and(|packed| text.len() > MAX_RATIO * packed.len())
}

fn is_foreign(text: &str, allowed: Scripts) -> bool {
    let (letters, foreign) = foreign_letters(text, allowed);
    foreign >= 2 && f64::from(foreign) > FOREIGN_SHARE * f64::from(letters)
}

/// All letters, and those of a script that is not allowed.
fn foreign_letters(text: &str, allowed: Scripts) -> (u32, u32) {
    let (mut letters, mut foreign) = (0u32, 0u32);
    for bit in text.chars().filter_map(script) {
        letters += 1;
        foreign += u32::from(!allowed.holds(bit));
    }
    (letters, foreign)
}

/// The script that most letters of a text are of, as a bit; 0 without letters.
pub fn dominant(text: &str) -> u16 {
    if text.is_ascii() {
        return Scripts::of(text).0;
    }
    let mut letters = [0u32; 16];
    text.chars().filter_map(script).for_each(|bit| letters[bit.trailing_zeros() as usize] += 1);
    let most = (0..16).max_by_key(|at| letters[*at]).unwrap_or(0);
    if letters[most] == 0 { 0 } else { 1 << most }
}

/// The script of a letter as a bit; `None` for what is not a letter of a script we tell apart.
fn script(c: char) -> Option<u16> {
    let index = match c {
        'a'..='z' | 'A'..='Z' | '\u{c0}'..='\u{24f}' | '\u{1e00}'..='\u{1eff}' => 0,
        '\u{370}'..='\u{3ff}' => 1,
        '\u{400}'..='\u{52f}' => 2,
        '\u{590}'..='\u{5ff}' => 3,
        '\u{600}'..='\u{6ff}' | '\u{750}'..='\u{77f}' => 4,
        '\u{900}'..='\u{97f}' => 5,
        '\u{0e00}'..='\u{0e7f}' => 6,
        '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{20000}'..='\u{3ffff}' => 7,
        '\u{3041}'..='\u{30ff}' => 8,
        '\u{1100}'..='\u{11ff}' | '\u{ac00}'..='\u{d7af}' => 9,
        '\u{980}'..='\u{dff}' => 10,
        '\u{530}'..='\u{58f}' => 11,
        '\u{10a0}'..='\u{10ff}' => 12,
        _ => return None,
    };
    c.is_alphabetic().then_some(1 << index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn latin() -> Scripts {
        Scripts::of("plain words")
    }

    #[test]
    fn names_each_kind() {
        let long = "the same line of words, ".repeat(40);
        let cases = [
            ("!!!!!!!!!!!!!!!!!!!!!!", Some(Degeneration::Loop)),
            (long.as_str(), Some(Degeneration::Loop)),
            ("The code is <|im_end|> here", Some(Degeneration::TemplateMark)),
            ("the \u{fffd} code", Some(Degeneration::BrokenCharacter)),
            ("the tag is สวัสดี for you", Some(Degeneration::ForeignScript)),
            ("a <| b |> c", None),
            ("-------------------------------", None),
            ("The tag is written on the shelf.", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(find(text, latin()), expected, "{text}");
        }
    }

    #[test]
    fn nineteen_repeats_are_no_loop_and_twenty_are() {
        assert_eq!(find(&"no ".repeat(19), latin()), None);
        assert_eq!(find(&"no ".repeat(20), latin()), Some(Degeneration::Loop));
    }

    #[test]
    fn a_script_of_the_prompt_is_not_foreign() {
        assert_eq!(find("标签在架子上", Scripts::of("标签 tag")), None);
        assert_eq!(find("标签在架子上", latin()), Some(Degeneration::ForeignScript));
    }

    #[test]
    fn most_letters_decide() {
        let (latin, greek) = (Scripts::of("a").0, Scripts::of("α").0);
        for (text, expected) in [("words", latin), ("1, 2!", 0), ("", 0), ("αβγ a", greek), ("ab γ", latin)]
        {
            assert_eq!(dominant(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn plain_text_has_the_scripts_of_its_letters(text in "[ -~]{0,40}") {
            let slowly = text.chars().filter_map(script).fold(0, |set, bit| set | bit);
            prop_assert_eq!(Scripts::of(&text).0, slowly);
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".*") {
            find(&text, Scripts::of(&text));
        }
    }
}
