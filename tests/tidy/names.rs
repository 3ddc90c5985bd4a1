//! Names that two places must agree on: configuration keys and their explanation, metrics and their page.

use std::collections::BTreeSet;

use crate::source::{Finding, Source, line_of};

/// What a histogram adds to its name.
const SUFFIXES: &[&str] = &["_bucket", "_sum", "_count"];

/// Every key of the shipped configuration is explained beside it, or by name in the documents.
pub fn check_config_keys(path: &str, text: &str, docs: &str) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().collect();
    let explained = |number: usize| number > 0 && lines[number - 1].trim_start().starts_with('#');
    let mut findings = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let Some((key, value)) = key_and_value(line) else { continue };
        let beside = value.split('"').step_by(2).any(|outside| outside.contains('#'));
        if !beside && !explained(number) && !docs.contains(&format!("`{key}`")) {
            let says = format!("`{key}` has no comment here and no row in the documents");
            findings.push(Finding { path: path.to_owned(), line: number + 1, says });
        }
    }
    findings
}

fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'));
    plain.then_some((key, value))
}

/// The metric names a text holds, with the offset of each. A name with a colon is a recording rule's.
pub fn metrics(text: &str) -> Vec<(usize, &str)> {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let mut found = Vec::new();
    for (at, _) in text.match_indices("serin_") {
        if text[..at].ends_with(part) {
            continue;
        }
        let end = text[at..].find(|c| !part(c)).map_or(text.len(), |step| at + step);
        found.push((at, &text[at..end]));
    }
    found
}

/// Every metric that a dashboard or rule names has its row in the metrics page.
pub fn check_metrics(path: &str, text: &str, documented: &BTreeSet<String>) -> Vec<Finding> {
    metrics(text)
        .into_iter()
        .filter(|(_, name)| !is_documented(name, documented))
        .map(|(at, name)| Finding {
            path: path.to_owned(),
            line: line_of(text, at),
            says: format!("{name} is not in docs/metrics.md"),
        })
        .collect()
}

/// Every metric that the code registers has its row in the metrics page. A literal counts as a metric
/// when it is a whole name with a unit or `_total`, or at least three words.
pub fn check_code_metrics(source: &Source, documented: &BTreeSet<String>) -> Vec<Finding> {
    let whole = |text: &str| {
        text.starts_with("serin_")
            && text.split('_').count() >= 3
            && metrics(text).first().is_some_and(|(_, name)| *name == text)
    };
    source
        .shipped_strings()
        .into_iter()
        .filter(|(_, text)| whole(text) && !is_documented(text, documented))
        .map(|(line, text)| source.finding(line, format!("the metric {text} is not in docs/metrics.md")))
        .collect()
}

/// Every metric of the page is registered somewhere: a row without code is a panel that stays empty.
pub fn check_unregistered(page: &str, text: &str, literals: &BTreeSet<String>) -> Vec<Finding> {
    metrics(text)
        .into_iter()
        .filter(|(_, name)| !literals.contains(*name))
        .map(|(at, name)| Finding {
            path: page.to_owned(),
            line: line_of(text, at),
            says: format!("{name} is registered by no code"),
        })
        .collect()
}

/// Every recorded series that is used is recorded by some rule.
pub fn check_recorded(path: &str, text: &str, recorded: &BTreeSet<String>) -> Vec<Finding> {
    recorded_uses(text)
        .into_iter()
        .filter(|(_, name)| !recorded.contains(*name))
        .map(|(at, name)| Finding {
            path: path.to_owned(),
            line: line_of(text, at),
            says: format!("{name} is recorded by no rule"),
        })
        .collect()
}

/// The names after `record:` in a rule file.
pub fn recorded(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.split_once("record:"))
        .map(|(_, name)| name.trim().to_owned())
        .collect()
}

/// Names of the form `level:metric:operation`.
fn recorded_uses(text: &str) -> Vec<(usize, &str)> {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let mut found = Vec::new();
    for (at, _) in text.match_indices(":serin_") {
        let start = text[..at].rfind(|c| !part(c)).map_or(0, |before| before + 1);
        let end = text[at..].find(|c| !part(c)).map_or(text.len(), |step| at + step);
        found.push((start, &text[start..end]));
    }
    found
}

fn is_documented(name: &str, documented: &BTreeSet<String>) -> bool {
    let base = SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
    documented.contains(name) || documented.contains(base)
}

mod tests {
    use super::*;

    fn documented(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_key_without_explanation_is_found() {
        let good = "[a]\n# what b is\nb = 1\nc = \"x\" # what c is\nd = 2\n";
        assert_eq!(check_config_keys("config.toml", good, "| `d` | what d is |"), vec![]);
        let bad = "# about a\n\nb = \"#not a comment\"\n";
        assert_eq!(check_config_keys("config.toml", bad, "").len(), 1);
    }

    #[test]
    fn a_metric_that_no_page_documents_is_found() {
        let known = documented(&["serin_proxy_request_seconds"]);
        let good = "rate(serin_proxy_request_seconds_bucket[5m]) / job:serin_made_up:rate5m";
        assert_eq!(check_metrics("r.yml", good, &known), vec![]);
        let found = check_metrics("r.yml", "\nserin_made_up_total{a=\"b\"}", &known);
        assert_eq!((found.len(), found[0].line), (1, 2));
    }

    #[test]
    fn a_registered_metric_needs_its_row() {
        let text = "reg(\"serin_new_things_total\", \"Help for serin_new_things.\"); log(\"serin_engine\");";
        let found = check_code_metrics(&Source::new("src/metrics.rs", text), &documented(&[]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            check_code_metrics(
                &Source::new("src/metrics.rs", text),
                &documented(&["serin_new_things_total"])
            ),
            vec![]
        );
    }

    #[test]
    fn a_documented_metric_needs_its_code() {
        let page =
            "| `serin_a_total{b}` | counter |\n| `serin_c_seconds` | gauge |\nsee `x:serin_d:rate5m`\n";
        let found = check_unregistered("docs/metrics.md", page, &documented(&["serin_a_total"]));
        assert_eq!((found.len(), found[0].line), (1, 2));
    }

    #[test]
    fn a_recorded_series_needs_its_rule() {
        let rules = "  - record: upstream:serin_x:rate5m\n    expr: rate(serin_x_total[5m])\n";
        let known = recorded(rules);
        assert_eq!(check_recorded("r.yml", rules, &known), vec![]);
        assert_eq!(check_recorded("d.json", "a:serin_x:rate5m > 1", &known).len(), 1);
    }
}
