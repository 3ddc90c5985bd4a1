//! Rules as data, compiled.

use std::collections::BTreeMap;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;

use super::checks::Check;
use super::{Class, Error};

/// What separates a name from its value: quotes and brackets behind the name, a sign, quotes before the value.
const SEPARATOR: &str = r#"(?:\\*["'])?\]?\s{0,8}(?:=>|:=|==?|:)\s{0,8}(?:\\*["'])?"#;

/// A compiled rule.
pub struct Rule {
    pub name: String,
    pub class: Class,
    pub words: Vec<String>,
    pub back: usize,
    pub joined: bool,
    /// Whether a word must end where the match ends.
    pub ends: bool,
    /// Anchored at its start where the rule has words.
    pub pattern: Regex,
    pub check: Option<Check>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(default)]
    class: Kind,
    #[serde(default)]
    words: Vec<String>,
    #[serde(default)]
    back: usize,
    #[serde(default)]
    joined: bool,
    pattern: String,
    #[serde(default)]
    check: Option<Check>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Secret,
    Personal,
}

pub fn parse(text: &str) -> Result<Vec<Rule>, Error> {
    toml::from_str::<File>(text)?.rule.into_iter().map(compile).collect()
}

fn compile(entry: Entry) -> Result<Rule, Error> {
    let bare = entry.pattern.strip_suffix("{end}");
    let ends = bare.is_some();
    let inner = bare.unwrap_or(&entry.pattern).replace("{sep}", SEPARATOR);
    let anchor = if entry.words.is_empty() { "" } else { r"\A" };
    let pattern = RegexBuilder::new(&format!("{anchor}(?:{inner})"))
        .unicode(false)
        .build()
        .map_err(|error| Error::Pattern { name: entry.name.clone(), error: error.into() })?;
    let class = match entry.class {
        Kind::Secret => Class::Secret,
        Kind::Personal => Class::Personal,
    };
    let Entry { name, words, back, joined, check, .. } = entry;
    Ok(Rule { name, class, words, back, joined, ends, pattern, check })
}

/// For each word its length, and the rules that are tried where it stands.
pub type Tried = Vec<(usize, Vec<usize>)>;

/// The words of all rules as one automaton, and for each word its length and the rules it stands for.
pub fn words(rules: &[Rule]) -> Result<(AhoCorasick, Tried), Error> {
    let mut tried: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        for word in &rule.words {
            tried.entry(word.to_ascii_lowercase()).or_default().push(index);
        }
    }
    let automaton = AhoCorasick::builder()
        .ascii_case_insensitive(true)
        .match_kind(MatchKind::Standard)
        .kind(Some(AhoCorasickKind::DFA))
        .build(tried.keys())?;
    Ok((automaton, tried.into_iter().map(|(word, rules)| (word.len(), rules)).collect()))
}
