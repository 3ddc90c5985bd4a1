//! Floors: a file imports only lower floors, or siblings of its own.

use crate::source::{Finding, Source, find_word, line_of};

/// The floors of one crate, by top-level module.
pub struct Floors {
    /// Folder of the crate's sources, with a trailing `/`.
    pub root: &'static str,
    pub table: &'static [(&'static str, u8)],
    /// Crates of this workspace and the lowest floor that may name them.
    pub crates: &'static [(&'static str, u8)],
    /// Pairs that are forbidden although the floors would allow them, with the reason.
    pub forbidden: &'static [(&'static str, &'static str, &'static str)],
}

/// The proxy crate.
pub const SERIN: Floors = Floors {
    root: "src/",
    table: &[
        ("main", 11),
        ("cli", 11),
        ("lib", 11),
        ("app", 10),
        ("admin", 9),
        ("config", 9),
        ("canary", 8),
        ("fixture", 7),
        ("proxy", 6),
        ("upstream", 5),
        ("trace", 5),
        ("recorder", 4),
        ("import", 4),
        ("conversation", 3),
        ("server", 2),
        ("journal", 2),
        ("openai", 1),
        ("fidelity", 1),
        ("clock", 0),
        ("ids", 0),
        ("log", 0),
        ("recent", 0),
        ("alike", 0),
        ("stats", 0),
        ("metrics", 0),
        ("body", 0),
        ("redact", 0),
        ("tls", 0),
        ("units", 0),
    ],
    crates: &[("serin_engine", 5)],
    forbidden: &[("canary", "proxy", "a canary reaches the proxy over a socket, as any client does")],
};

/// The engine crate.
pub const ENGINE: Floors = Floors {
    root: "engine/src/",
    table: &[
        ("lib", 5),
        ("session", 4),
        ("forward", 3),
        ("cpu", 2),
        ("cuda", 2),
        ("sampler", 2),
        ("kv", 1),
        ("backend", 1),
        ("driver", 1),
        ("weights", 0),
        ("tokenizer", 0),
        ("template", 0),
        ("error", 0),
        ("random", 0),
    ],
    crates: &[],
    forbidden: &[],
};

/// A path that a file names, absolute from its crate's root.
#[derive(Debug, PartialEq, Eq)]
pub struct Import {
    pub line: usize,
    pub path: Vec<String>,
    /// Written with `super::`, which inside an inline module means less than it seems to.
    pub relative: bool,
}

impl Floors {
    pub fn of(&self, module: &str) -> Option<u8> {
        self.table.iter().find(|(name, _)| *name == module).map(|(_, floor)| *floor)
    }

    /// The module path of a file, e.g. `["canary", "driver"]`; the roots are `["lib"]` and `["main"]`.
    pub fn module(&self, path: &str) -> Option<Vec<String>> {
        let inner = path.strip_prefix(self.root)?.strip_suffix(".rs")?;
        Some(inner.split('/').map(str::to_owned).collect())
    }

    /// Everything one file does against the floors.
    pub fn check(&self, source: &Source) -> Vec<Finding> {
        let Some(module) = self.module(&source.path) else { return Vec::new() };
        let Some(own) = self.of(&module[0]) else {
            let says = format!("`{}` has no floor: add it to the table in tests/tidy/floors.rs", module[0]);
            return vec![source.finding(0, says)];
        };
        let mut findings: Vec<Finding> = imports(source, &module)
            .iter()
            .filter_map(|import| {
                self.objection(&module[0], own, import).map(|says| source.finding(import.line, says))
            })
            .collect();
        for (name, lowest) in self.crates.iter().filter(|(_, lowest)| *lowest > own) {
            for at in find_word(&source.shipped, name) {
                let says = format!("floor {own} names {name}, which only floor {lowest} and above may");
                findings.push(source.finding(line_of(&source.shipped, at), says));
            }
        }
        findings
    }

    fn objection(&self, from: &str, own: u8, import: &Import) -> Option<String> {
        let target = import.path.first()?;
        if let Some((.., reason)) = self.forbidden.iter().find(|(a, b, _)| from == *a && target == b) {
            return Some(format!("{from} imports {target}: {reason}"));
        }
        match self.of(target) {
            Some(floor) if floor > own => Some(format!(
                "{from} (floor {own}) imports {target} (floor {floor}): move the shared part down"
            )),
            None if !import.relative && from != "lib" && from != "main" => {
                Some(format!("crate::{target} has no floor: import it from the module that defines it"))
            }
            _ => None,
        }
    }
}

/// Every path the shipped half of a file names through `crate::` or `super::`.
pub fn imports(source: &Source, module: &[String]) -> Vec<Import> {
    let code = source.shipped.as_str();
    let mut found = Vec::new();
    for at in find_word(code, "crate") {
        collect(code, at, at + "crate".len(), Vec::new(), false, &mut found);
    }
    for at in find_word(code, "super").into_iter().filter(|at| !code[..*at].ends_with("::")) {
        let (depth, end) = supers(code, at);
        if depth <= module.len() {
            collect(code, at, end, module[..module.len() - depth].to_vec(), true, &mut found);
        }
    }
    found
}

/// How many `super` stand in a row at `at`, and where the last one ends.
fn supers(code: &str, at: usize) -> (usize, usize) {
    let (mut depth, mut end) = (1, at + "super".len());
    while let Some(rest) = code[end..].strip_prefix("::super") {
        depth += 1;
        end = code.len() - rest.len();
    }
    (depth, end)
}

fn collect(code: &str, at: usize, end: usize, base: Vec<String>, relative: bool, found: &mut Vec<Import>) {
    let Some(rest) = code[end..].strip_prefix("::") else { return };
    let line = line_of(code, at);
    let mut paths = Vec::new();
    tree(rest, base, &mut paths);
    found.extend(paths.into_iter().filter(|path| !path.is_empty()).map(|path| Import {
        line,
        path,
        relative,
    }));
}

/// Reads one use tree; returns what is left after it.
fn tree<'a>(code: &'a str, mut path: Vec<String>, out: &mut Vec<Vec<String>>) -> &'a str {
    let mut rest = code.trim_start();
    if let Some(group) = rest.strip_prefix('{') {
        return branches(group, &path, out);
    }
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    if end > 0 && &rest[..end] != "self" {
        path.push(rest[..end].to_owned());
    }
    rest = &rest[end..];
    match rest.strip_prefix("::") {
        Some(more) if end > 0 => tree(more, path, out),
        _ => {
            out.push(path);
            rest
        }
    }
}

fn branches<'a>(mut rest: &'a str, path: &[String], out: &mut Vec<Vec<String>>) -> &'a str {
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('}') {
            return after;
        }
        rest = tree(rest, path.to_vec(), out);
        // `as name`, `*` and the comma itself.
        match rest.find([',', '}']) {
            Some(at) if rest.as_bytes()[at] == b',' => rest = &rest[at + 1..],
            Some(at) => rest = &rest[at..],
            None => return "",
        }
    }
}

mod tests {
    use super::*;

    fn says(floors: &Floors, path: &str, text: &str) -> String {
        let findings = floors.check(&Source::new(path, text));
        findings.iter().map(|finding| finding.to_string()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn an_import_from_above_is_found_in_every_spelling() {
        for text in [
            "use crate::proxy::route;",
            "use crate::{clock, proxy::{self, route as r}};",
            "fn f() { crate::proxy::route::go() }",
            "use super::super::proxy;",
        ] {
            let found = says(&SERIN, "src/recorder/tap.rs", text);
            assert!(found.contains("recorder (floor 4) imports proxy (floor 6)"), "{text}: {found}");
        }
        assert!(says(&SERIN, "src/journal.rs", "use super::config::Config;").contains("config (floor 9)"));
        assert!(says(&ENGINE, "engine/src/weights/map.rs", "use crate::kv::Kv;").contains("kv (floor 1)"));
    }

    #[test]
    fn lower_floors_siblings_and_own_children_are_fine() {
        let text =
            "use crate::clock;\nuse crate::{journal::{Record, Reader}, openai::sse};\nuse super::assemble;";
        assert_eq!(says(&SERIN, "src/recorder/tap.rs", text), "");
        assert_eq!(says(&SERIN, "src/server.rs", "use crate::journal::Record;\nmod tls;"), "");
    }

    #[test]
    fn tests_comments_and_strings_import_nothing() {
        let text =
            "// crate::app\nconst A: &str = \"crate::app\";\n#[cfg(test)]\nmod tests { use crate::app; }";
        assert_eq!(says(&SERIN, "src/clock.rs", text), "");
    }

    #[test]
    fn a_module_without_a_floor_is_a_finding() {
        assert!(says(&SERIN, "src/extras/thing.rs", "").contains("`extras` has no floor"));
        assert!(says(&SERIN, "src/app.rs", "use crate::Error;").contains("crate::Error has no floor"));
    }

    #[test]
    fn a_canary_may_not_name_the_proxy_nor_a_low_floor_the_engine() {
        assert!(says(&SERIN, "src/canary/driver.rs", "use crate::proxy::Tag;").contains("over a socket"));
        assert!(says(&SERIN, "src/recorder.rs", "use serin_engine::Engine;").contains("floor 5 and above"));
        assert_eq!(says(&SERIN, "src/upstream/embedded.rs", "use serin_engine::Engine;"), "");
    }
}
