//! Siblings may import each other, but never in a circle.
//!
//! An edge between two files is seen at the folder where their paths part: `a::b::x` importing `a::c` is the
//! edge b → c under `a`. A parent and its children are one unit and make no edge.

use std::collections::{BTreeMap, BTreeSet};

use crate::floors::{Floors, imports};
use crate::source::{Finding, Source};

/// Where two modules part, and which of the siblings there imports which.
type Graph = BTreeMap<Vec<String>, BTreeMap<String, BTreeSet<String>>>;

pub fn check(floors: &Floors, sources: &[Source]) -> Vec<Finding> {
    let graph = graph(floors, sources);
    graph.iter().flat_map(|(parent, edges)| circles(floors, parent, edges)).collect()
}

fn graph(floors: &Floors, sources: &[Source]) -> Graph {
    let modules: BTreeSet<Vec<String>> =
        sources.iter().filter_map(|source| floors.module(&source.path)).collect();
    let mut graph = Graph::new();
    for source in sources {
        let Some(from) = floors.module(&source.path) else { continue };
        for import in imports(source, &from) {
            let Some(target) = longest_module(&modules, &import.path) else { continue };
            let shared = from.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if shared < from.len() && shared < target.len() {
                let siblings = graph.entry(from[..shared].to_vec()).or_default();
                siblings.entry(from[shared].clone()).or_default().insert(target[shared].clone());
            }
        }
    }
    graph
}

/// The file an import names: the rest of its path is an item in that file.
fn longest_module(modules: &BTreeSet<Vec<String>>, path: &[String]) -> Option<Vec<String>> {
    (1..=path.len()).rev().map(|length| path[..length].to_vec()).find(|prefix| modules.contains(prefix))
}

fn circles(floors: &Floors, parent: &[String], edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<Finding> {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut findings = Vec::new();
    for start in edges.keys() {
        let Some(circle) = path_back(edges, start) else { continue };
        if circle.iter().any(|module| seen.contains(module)) {
            continue;
        }
        seen.extend(circle.iter().cloned());
        let says = format!("import circle: {} → {start}; move what both need down", circle.join(" → "));
        let path = format!("{}{}", floors.root, parent.join("/"));
        findings.push(Finding { path, line: 0, says });
    }
    findings
}

/// A way from `start` back to itself, by depth-first search.
fn path_back(edges: &BTreeMap<String, BTreeSet<String>>, start: &str) -> Option<Vec<String>> {
    let mut visited = BTreeSet::new();
    let mut stack = vec![vec![start.to_owned()]];
    while let Some(path) = stack.pop() {
        for next in edges.get(path.last()?).into_iter().flatten() {
            if next == start {
                return Some(path);
            }
            if visited.insert(next.clone()) {
                let mut longer = path.clone();
                longer.push(next.clone());
                stack.push(longer);
            }
        }
    }
    None
}

mod tests {
    use super::*;
    use crate::floors::SERIN;

    fn says(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::new(path, text)).collect();
        check(&SERIN, &sources).iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn two_modules_of_one_floor_that_import_each_other_are_a_circle() {
        let found = says(&[
            ("src/server.rs", "mod tls;"),
            ("src/server/tls.rs", "use crate::journal::Record;"),
            ("src/journal.rs", "use crate::server::Server;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("journal → server → journal"), "{found:?}");
    }

    #[test]
    fn a_circle_of_three_files_in_one_folder_is_found_once() {
        let found = says(&[
            ("src/canary.rs", ""),
            ("src/canary/a.rs", "use super::b;"),
            ("src/canary/b.rs", "use crate::canary::c::C;"),
            ("src/canary/c.rs", "use super::a::A;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("src/canary: import circle"), "{found:?}");
    }

    #[test]
    fn a_parent_and_its_child_are_one_unit() {
        let found = says(&[
            ("src/canary.rs", "mod a; use crate::canary::a::A;"),
            ("src/canary/a.rs", "use super::Config; use super::b::B;"),
            ("src/canary/b.rs", "use crate::stats::Wilson;"),
            ("src/stats.rs", ""),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
