//! What the documents say: links resolve, promises name tests, no machine shows through.

use std::collections::BTreeSet;

use crate::source::{Finding, Source, find_word, line_of};

/// Lines of the README: it is a door, not a manual.
const README_LINES: usize = 200;

/// Folders of somebody's machine. Split so that this file does not find itself.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/Us", "ers/")];
/// Things beside the repository that a clone does not have.
const OUTSIDE: &[&str] =
    &[concat!("../sha", "red"), concat!("shared/", "reference"), concat!("/tmp/", "serin/")];

/// A tree of files as the link rule needs it.
pub trait Tree {
    fn exists(&self, path: &str) -> bool;
    fn read(&self, path: &str) -> Option<String>;
}

/// Every relative link of a Markdown file leads to a file, and its anchor to a heading there.
pub fn check_links(path: &str, text: &str, tree: &dyn Tree) -> Vec<Finding> {
    let prose = without_code(text);
    let mut findings = Vec::new();
    for (at, _) in prose.match_indices("](") {
        let rest = &prose[at + 2..];
        let target = rest[..rest.find([')', ' ', '\n']).unwrap_or(rest.len())].trim();
        if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        if let Some(says) = broken(path, text, target, tree) {
            findings.push(Finding { path: path.to_owned(), line: line_of(&prose, at), says });
        }
    }
    findings
}

fn broken(path: &str, text: &str, target: &str, tree: &dyn Tree) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let resolved = if file.is_empty() { path.to_owned() } else { resolve(path, file) };
    if !file.is_empty() && !tree.exists(&resolved) {
        return Some(format!("link to {target}: there is no {resolved}"));
    }
    if anchor.is_empty() || !resolved.ends_with(".md") {
        return None;
    }
    let there = if file.is_empty() { text.to_owned() } else { tree.read(&resolved)? };
    (!anchors(&there).contains(anchor))
        .then(|| format!("link to {target}: {resolved} has no heading #{anchor}"))
}

/// The alert rules' `runbook_url`s lead to headings that exist.
pub fn check_runbooks(path: &str, text: &str, tree: &dyn Tree) -> Vec<Finding> {
    let urls = text
        .match_indices("runbook_url:")
        .map(|(at, key)| (at, text[at + key.len()..].lines().next().unwrap_or("").trim()));
    urls.filter_map(|(at, url)| {
        broken("README.md", "", url, tree).map(|says| Finding {
            path: path.to_owned(),
            line: line_of(text, at),
            says,
        })
    })
    .collect()
}

/// The anchors that a Markdown renderer gives to the headings of a text.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// `target` as seen from the folder of `path`.
fn resolve(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The text with fenced blocks and inline code blanked; lines stay.
fn without_code(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.extend(line.trim_end_matches('\n').split('`').step_by(2));
        }
        prose.push('\n');
    }
    prose
}

/// Absolute paths of a machine, and things a clone does not have.
pub fn check_machine_paths(path: &str, text: &str) -> Vec<Finding> {
    let joins = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | '$');
    let folders = MACHINE_FOLDERS
        .iter()
        .flat_map(|folder| text.match_indices(folder).filter(|(at, _)| !text[..*at].ends_with(joins)));
    let outside = OUTSIDE.iter().flat_map(|name| text.match_indices(name));
    folders
        .chain(outside)
        .map(|(at, name)| Finding {
            path: path.to_owned(),
            line: line_of(text, at),
            says: format!("names {name}, which a clone elsewhere does not have"),
        })
        .collect()
}

/// The names of the test functions in a file.
pub fn test_functions(source: &Source) -> Vec<String> {
    let code = source.code.as_str();
    let is_test = |line: &str| line.contains("test]") || line.contains("test(");
    let mut names = Vec::new();
    for at in find_word(code, "fn") {
        let attributes =
            code[..at].lines().rev().take_while(|line| !line.trim_end().ends_with([';', '}', '{']));
        if attributes.filter(|line| line.trim_start().starts_with("#[")).any(is_test) {
            let rest = code[at + 2..].trim_start();
            names.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
        }
    }
    names
}

/// The README is short, and every promise in it names a test that exists.
pub fn check_readme(path: &str, text: &str, tests: &BTreeSet<String>, tree: &dyn Tree) -> Vec<Finding> {
    let finding = |line: usize, says: String| Finding { path: path.to_owned(), line, says };
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > README_LINES {
        findings.push(finding(0, format!("{lines} lines, {README_LINES} at most: move the rest to docs/")));
    }
    let mut promises = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            promises = line.to_lowercase().contains("promise");
        }
        let named = in_backticks(line);
        for token in named.iter().filter(|token| names_a_test_file(token)) {
            if !test_exists(token, tests, tree) {
                findings.push(finding(number + 1, format!("names the test {token}, which does not exist")));
            }
        }
        if promises && is_entry(line) && !named.iter().any(|token| test_exists(token, tests, tree)) {
            findings
                .push(finding(number + 1, "a promise without the name of its test in backticks".to_owned()));
        }
    }
    findings
}

/// The table of cases: each row has an id of its own, and names tests that exist or the page of known failures.
pub fn check_cases(path: &str, text: &str, tests: &BTreeSet<String>, tree: &dyn Tree) -> Vec<Finding> {
    let mut ids = BTreeSet::new();
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with("| T-")) {
        let mut finds = |says| findings.push(Finding { path: path.to_owned(), line: number + 1, says });
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let id = cells[0];
        if !ids.insert(id) {
            finds(format!("{id} stands twice"));
        }
        let [_, _, proof] = cells[..] else {
            finds(format!("{} cells: id, promise and proof are wanted", cells.len()));
            continue;
        };
        let named = in_backticks(proof);
        for token in named.iter().filter(|token| !test_exists(token, tests, tree)) {
            finds(format!("names the test {token}, which does not exist"));
        }
        if named.is_empty() && !proof.contains("known-failures.md") {
            finds(format!("{id} names neither a test nor known-failures.md"));
        }
    }
    if ids.is_empty() {
        findings.push(Finding { path: path.to_owned(), line: 0, says: "lists no case".to_owned() });
    }
    findings
}

fn in_backticks(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

fn names_a_test_file(token: &str) -> bool {
    (token.contains("tests/") && token.contains(".rs")) || token.contains(".rs::")
}

/// A list item, or a row of a table that is neither its head nor its rule.
fn is_entry(line: &str) -> bool {
    let head = line.to_lowercase().contains("| test");
    line.starts_with("- ")
        || line.starts_with("* ")
        || (line.starts_with('|')
            && !line.starts_with("|-")
            && !line.starts_with("| -")
            && !line.starts_with("|:")
            && !head)
}

/// `tests/file.rs`, `tests/file.rs::function`, `file::function` or `function`.
fn test_exists(token: &str, tests: &BTreeSet<String>, tree: &dyn Tree) -> bool {
    match token.rsplit_once("::") {
        Some((file, function)) if file.ends_with(".rs") => tree.exists(file) && tests.contains(function),
        Some((_, function)) => tests.contains(function),
        None if token.ends_with(".rs") => tree.exists(token),
        None => tests.contains(token),
    }
}

mod tests {
    use super::*;

    struct Fake(&'static [(&'static str, &'static str)]);

    impl Tree for Fake {
        fn exists(&self, path: &str) -> bool {
            self.0.iter().any(|(name, _)| *name == path)
        }
        fn read(&self, path: &str) -> Option<String> {
            self.0.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        }
    }

    const TREE: Fake = Fake(&[("docs/a.md", "# One thing: it's\n"), ("README.md", ""), ("tests/a.rs", "")]);

    #[test]
    fn a_dead_link_and_a_dead_anchor_are_found() {
        let text = "[a](a.md#one-thing-its) [b](../README.md) [c](https://x.y/z) `[d](no.md)`\n```\n[e](no.md)\n```\n";
        assert_eq!(check_links("docs/b.md", text, &TREE), vec![]);
        let text = "\n[a](no.md)\n[b](a.md#two)\n[c](#none)\n";
        let lines: Vec<usize> =
            check_links("docs/b.md", text, &TREE).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, vec![2, 3, 4]);
    }

    #[test]
    fn a_runbook_link_needs_its_heading() {
        assert_eq!(check_runbooks("r.yml", "runbook_url: docs/a.md#one-thing-its\n", &TREE), vec![]);
        assert_eq!(check_runbooks("r.yml", "\n runbook_url: docs/a.md#other\n", &TREE)[0].line, 2);
    }

    #[test]
    fn machine_paths_are_found_and_ordinary_ones_are_not() {
        for folder in MACHINE_FOLDERS {
            assert_eq!(check_machine_paths("a", &format!("see {folder}x/y")).len(), 1, "{folder}");
            assert_eq!(check_machine_paths("a", &format!("https://host{folder}x")), vec![], "{folder}");
        }
        for name in OUTSIDE {
            assert_eq!(check_machine_paths("a", &format!("include_str!(\"{name}\")")).len(), 1, "{name}");
        }
    }

    #[test]
    fn test_functions_are_listed_by_their_attribute() {
        let text = "fn a() {}\n#[test]\nfn b() {}\n#[tokio::test(flavor = \"x\")]\nasync fn c() {}\nproptest! {\n    #[test]\n    fn d(x in 0..3) {}\n}";
        assert_eq!(test_functions(&Source::new("tests/a.rs", text)), vec!["b", "c", "d"]);
    }

    #[test]
    fn a_promise_without_a_living_test_is_found() {
        let tests: BTreeSet<String> = ["bytes_pass".to_owned()].into();
        let good = "# Promises\n| promise | test |\n|---|---|\n| a | `tests/a.rs::bytes_pass` |\n- b: `bytes_pass`\n";
        assert_eq!(check_readme("README.md", good, &tests, &TREE), vec![]);
        for bad in
            ["# Promises\n- a\n", "# Promises\n- `gone`\n", "`tests/gone.rs`\n", "`tests/a.rs::gone`\n"]
        {
            assert_eq!(check_readme("README.md", bad, &tests, &TREE).len(), 1, "{bad}");
        }
        let long = "x\n".repeat(README_LINES + 1);
        assert_eq!(check_readme("README.md", &long, &tests, &TREE).len(), 1);
    }

    #[test]
    fn a_case_without_proof_or_twice_is_found() {
        let tests: BTreeSet<String> = ["bytes_pass".to_owned()].into();
        let good = "| id | a | b |\n|---|---|---|\n| T-01 | x | `bytes_pass` |\n| T-02 | y | see [known failures](known-failures.md) |\n";
        assert_eq!(check_cases("docs/cases.md", good, &tests, &TREE), vec![]);
        for bad in [
            "| T-01 | x | `gone` |\n",
            "| T-01 | x | later |\n",
            "| T-01 | x |\n",
            "| T-01 | x | `bytes_pass` |\n| T-01 | y | `bytes_pass` |\n",
            "",
        ] {
            assert_eq!(check_cases("docs/cases.md", bad, &tests, &TREE).len(), 1, "{bad}");
        }
    }
}
