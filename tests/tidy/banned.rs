//! Calls, names and marks the house does without, each with what to use instead.

use crate::source::{Finding, Source, closing, find_word, line_of};

/// A call, the files where it may stand, and its replacement.
struct Ban {
    /// As written in code; a last `(` keeps it from matching a mere mention.
    call: &'static str,
    allowed: &'static [&'static str],
    instead: &'static str,
}

const CALLS: &[Ban] = &[
    Ban {
        call: "Instant::now",
        allowed: &["src/clock.rs", "engine/src/session.rs"],
        instead: "take time as an argument, from crate::clock::now()",
    },
    Ban {
        call: "SystemTime::now",
        allowed: &["src/clock.rs", "engine/src/session.rs"],
        instead: "take time as an argument, from crate::clock::unix_nanos()",
    },
    Ban {
        call: "Timestamp::now",
        allowed: &["src/clock.rs"],
        instead: "take time as an argument, from crate::clock::unix_nanos()",
    },
    Ban {
        call: "Zoned::now",
        allowed: &["src/clock.rs"],
        instead: "take time as an argument, from crate::clock::unix_nanos()",
    },
    Ban { call: "process::exit", allowed: &["src/main.rs"], instead: "return an exit code to main.rs" },
    Ban { call: "process::abort", allowed: &[], instead: "return an error to main.rs" },
    Ban { call: "thread::sleep", allowed: &[], instead: "wait on a timer, a channel or a condition" },
    Ban {
        call: "unbounded_channel",
        allowed: &[],
        instead: "use a channel with a bound and count what it refuses",
    },
    Ban { call: "mpsc::channel()", allowed: &[], instead: "use sync_channel(n) and count what it refuses" },
    Ban { call: "default_registry", allowed: &[], instead: "take the &Registry that app builds" },
    Ban { call: "prometheus::gather", allowed: &[], instead: "gather from the &Registry that app builds" },
    Ban { call: "mem::forget", allowed: &[], instead: "keep the value where its owner can drop it" },
];

/// Marks of unfinished work, which may stand nowhere. Split so that this file does not find itself.
const LEFTOVER_MACROS: &[&str] = &["todo", "dbg", "unimplemented"];
const LEFTOVER_WORDS: &[&str] = &[concat!("FIX", "ME"), concat!("X", "XX")];

/// Names that say nothing about what a thing is.
const NAMES: &[&str] = &["manager", "handler", "helper", "util", "common", "data", "info", "context"];

/// The only files that may hold `unsafe`; a last `/` means the whole folder.
const UNSAFE: &[&str] = &["engine/src/cpu/simd.rs", "engine/src/weights/map.rs", "engine/src/cuda/"];

/// How many lines above an `unsafe` block its SAFETY reason may start.
const REASON_LINES: usize = 8;

pub fn check_calls(source: &Source) -> Vec<Finding> {
    let code = source.shipped.as_str();
    let mut findings = Vec::new();
    for ban in CALLS.iter().filter(|ban| !ban.allowed.contains(&source.path.as_str())) {
        for (at, _) in code.match_indices(ban.call) {
            let says = format!("{} may not stand here: {}", ban.call, ban.instead);
            findings.push(source.finding(line_of(code, at), says));
        }
    }
    findings.extend(detached_spawns(source));
    findings
}

/// A spawned task whose handle nobody keeps outlives the drain.
fn detached_spawns(source: &Source) -> Vec<Finding> {
    let code = source.shipped.as_str();
    let calls = ["tokio::spawn(", "tokio::task::spawn(", "spawn_local("];
    let starts = calls.iter().flat_map(|call| code.match_indices(call));
    let dropped = |before: &str| {
        let before = before.trim_end();
        before.ends_with([';', '{', '}']) || before.ends_with("_ =") || before.ends_with("drop(")
    };
    starts
        .filter(|(at, _)| dropped(code[..*at].trim_end_matches("tokio::task::")))
        .map(|(at, call)| {
            let says = format!("{call}..) detached: spawn on a JoinSet that its owner awaits");
            source.finding(line_of(code, at), says)
        })
        .collect()
}

/// Where requests and answers pass: files, and the folders beside them, whose names begin so.
const PATH: &[&str] = &[
    "src/body",
    "src/proxy",
    "src/recorder/tap",
    "src/server",
    "src/upstream/affinity",
    "src/upstream/balance",
    "src/upstream/breaker",
    "src/upstream/connect",
    "src/upstream/embedded",
    "src/upstream/http",
    "src/upstream/original",
];
/// The files of the path that own timers, and how many: each ends something that has lasted too long, and delays
/// nothing; the second of the server is a pause where the system has no more files for connections.
const TIMERS: &[(&str, usize)] = &[
    ("src/proxy/upgrade.rs", 1),
    ("src/server.rs", 2),
    ("src/server/patient.rs", 1),
    ("src/upstream/http/driven.rs", 1),
];

/// Nothing on the path waits for time to pass.
pub fn check_path_timers(source: &Source) -> Vec<Finding> {
    if !PATH.iter().any(|start| source.path.starts_with(start)) {
        return Vec::new();
    }
    let code = source.shipped.as_str();
    let calls = ["sleep(", "sleep_until(", "time::interval(", "interval_at(", "park_timeout("];
    let starts: Vec<_> = calls.iter().flat_map(|call| code.match_indices(call)).collect();
    let owned = TIMERS.iter().find(|(path, _)| source.path == *path).map_or(0, |(_, owned)| *owned);
    if starts.len() < owned {
        let says = format!("{} timers where TIMERS says {owned}: make that less", starts.len());
        return vec![source.finding(0, says)];
    }
    if starts.len() == owned {
        return Vec::new();
    }
    starts
        .into_iter()
        .map(|(at, call)| {
            source.finding(
                line_of(code, at),
                format!("{call}..) on the path: bytes wait for nothing but bytes"),
            )
        })
        .collect()
}

/// Tests wait for something that happens, not for time to pass.
pub fn check_sleeps(source: &Source) -> Vec<Finding> {
    let code = source.tests();
    let calls = ["thread::sleep(", "time::sleep("];
    let starts = calls.iter().flat_map(|call| code.match_indices(call));
    starts
        .map(|(at, call)| {
            source.finding(
                line_of(&code, at),
                format!("{call}..) in a test: wait for the event, or pause the clock"),
            )
        })
        .collect()
}

pub fn check_leftovers(source: &Source) -> Vec<Finding> {
    let code = source.code.as_str();
    let mut findings = Vec::new();
    for name in LEFTOVER_MACROS {
        for at in find_word(code, name).into_iter().filter(|at| code[at + name.len()..].starts_with('!')) {
            findings.push(source.finding(
                line_of(code, at),
                format!("{name}! is left over: finish it or say so in an error"),
            ));
        }
    }
    for at in find_word(code, "ignore").into_iter().filter(|at| code[..*at].ends_with("#[")) {
        findings
            .push(source.finding(line_of(code, at), "an ignored test proves nothing: mend it or delete it"));
    }
    for (at, _) in code.match_indices("assert!(true") {
        findings.push(
            source.finding(line_of(code, at), "an assertion that cannot fail: assert what the code did"),
        );
    }
    findings.extend(check_marks(&source.path, &source.text));
    findings
}

/// Marks of unfinished work in any text file, comments included.
pub fn check_marks(path: &str, text: &str) -> Vec<Finding> {
    let marks =
        LEFTOVER_WORDS.iter().flat_map(|word| find_word(text, word).into_iter().map(move |at| (at, word)));
    marks
        .map(|(at, word)| Finding {
            path: path.to_owned(),
            line: line_of(text, at),
            says: format!("{word} is left over: finish it or file it"),
        })
        .collect()
}

pub fn check_features(source: &Source) -> Vec<Finding> {
    let code = source.code.as_str();
    let conditions = find_word(code, "cfg").into_iter().chain(find_word(code, "cfg_attr"));
    conditions
        .filter_map(|at| {
            let open = at + code[at..].find('(')?;
            let inside = &code[open..closing(code, open)];
            let says = "cfg(feature ..): no cargo features that change behaviour; decide at run time";
            (!find_word(inside, "feature").is_empty()).then(|| source.finding(line_of(code, at), says))
        })
        .collect()
}

pub fn check_unsafe(source: &Source) -> Vec<Finding> {
    let allowed = |place: &str| {
        if place.ends_with('/') { source.path.starts_with(place) } else { source.path == place }
    };
    let code = source.code.as_str();
    let places = find_word(code, "unsafe");
    if !UNSAFE.iter().any(|place| allowed(place)) {
        let says = format!("unsafe may stand only in {}", UNSAFE.join(", "));
        return places.into_iter().map(|at| source.finding(line_of(code, at), says.clone())).collect();
    }
    let lines: Vec<&str> = source.text.lines().collect();
    let reasoned = |line: usize| {
        lines[line.saturating_sub(1 + REASON_LINES)..line].iter().any(|text| text.contains("SAFETY"))
    };
    places
        .into_iter()
        .filter(|at| code[at + "unsafe".len()..].trim_start().starts_with('{'))
        .map(|at| line_of(code, at))
        .filter(|line| !reasoned(*line))
        .map(|line| source.finding(line, "an unsafe block without a SAFETY reason above it"))
        .collect()
}

/// Modules by file or folder name, types by the words of their CamelCase name.
pub fn check_names(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for part in source.path.trim_end_matches(".rs").split(['/', '_']) {
        if let Some(name) = banned(part) {
            findings.push(
                source.finding(0, format!("module named {part}: `{name}` says nothing about what it is")),
            );
        }
    }
    for (at, name) in declared(&source.shipped) {
        for word in words(&name) {
            if let Some(banned) = banned(&word) {
                let says = format!("{name} is named after `{banned}`: say what it is");
                findings.push(source.finding(line_of(&source.shipped, at), says));
            }
        }
    }
    findings
}

fn banned(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    NAMES.iter().copied().find(|name| word == *name || word.strip_suffix('s') == Some(*name))
}

/// Types, traits and inline modules declared in the code. An associated type (indented `type`) is a
/// trait's choice of name, not ours.
fn declared(code: &str) -> Vec<(usize, String)> {
    let keywords = ["struct", "enum", "trait", "union", "mod", "type"];
    let mut found = Vec::new();
    for keyword in keywords {
        for at in find_word(code, keyword) {
            let line_start = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
            if keyword == "type" && code[line_start..].starts_with(' ') {
                continue;
            }
            let rest = code[at + keyword.len()..].trim_start();
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            found.push((at, name));
        }
    }
    found
}

fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_uppercase() {
            words.push(String::new());
        }
        if let (true, Some(word)) = (c != '_', words.last_mut()) {
            word.push(c);
        }
    }
    words
}

mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source::new(path, text)
    }

    #[test]
    fn each_banned_call_is_found_outside_its_place() {
        for ban in CALLS {
            let text = format!("fn f() {{ let _x = {}; }}", ban.call);
            let found = check_calls(&source("src/proxy.rs", &text));
            assert_eq!(found.len(), 1, "{}", ban.call);
            assert!(found[0].says.contains(ban.instead));
            for place in ban.allowed {
                assert_eq!(check_calls(&source(place, &text)), vec![], "{place}");
            }
        }
    }

    #[test]
    fn a_spawn_is_detached_when_its_handle_is_dropped() {
        for text in [
            "fn f() { tokio::spawn(g()); }",
            "let _ = tokio::spawn(g());",
            "a();\n    tokio::task::spawn(g());",
            "drop(tokio::spawn(g()))",
        ] {
            assert_eq!(check_calls(&source("src/app.rs", text)).len(), 1, "{text}");
        }
        for text in ["let task = tokio::spawn(g());", "tasks.spawn(g());", "tasks.push(tokio::spawn(g()));"] {
            assert_eq!(check_calls(&source("src/app.rs", text)), vec![], "{text}");
        }
    }

    #[test]
    fn sleeps_are_found_in_tests_only() {
        assert_eq!(check_sleeps(&source("tests/a.rs", "fn f() { std::thread::sleep(d); }")).len(), 1);
        let text = "async fn f() { tokio::time::sleep(d).await }\n#[cfg(test)]\nmod tests { fn g() { time::sleep(d); } }";
        assert_eq!(check_sleeps(&source("src/a.rs", text)).len(), 1);
    }

    #[test]
    fn a_timer_on_the_path_is_found() {
        for call in ["time::sleep(d)", "time::sleep_until(d)", "tokio::time::interval(d)"] {
            let text = format!("async fn f() {{ {call}.await }}");
            assert_eq!(check_path_timers(&source("src/proxy/a.rs", &text)).len(), 1, "{call}");
            assert_eq!(check_path_timers(&source("src/canary/a.rs", &text)), vec![], "{call}");
            for place in ["src/recorder/tap/a.rs", "src/upstream/connect/a.rs", "src/upstream/original.rs"] {
                assert_eq!(check_path_timers(&source(place, &text)).len(), 1, "{place} {call}");
            }
            let driven = |text: &str| check_path_timers(&source("src/upstream/http/driven.rs", text)).len();
            assert_eq!(driven(&text), 0, "{call}");
            assert_eq!((driven(""), driven(&text.repeat(2))), (1, 2), "{call}: neither fewer nor more");
        }
    }

    #[test]
    fn leftovers_are_found_in_code_and_comments() {
        for name in LEFTOVER_MACROS {
            assert_eq!(check_leftovers(&source("src/a.rs", &format!("fn f() {{ {name}!() }}"))).len(), 1);
        }
        for word in LEFTOVER_WORDS {
            assert_eq!(check_leftovers(&source("src/a.rs", &format!("// {word}: later\n"))).len(), 1);
            assert_eq!(check_marks("run", &format!("mktemp {word}X")), vec![], "part of a longer word");
        }
        assert_eq!(check_leftovers(&source("tests/a.rs", "fn f() { assert!(true); }")).len(), 1);
        assert_eq!(check_leftovers(&source("tests/a.rs", "#[test]\n#[ignore]\nfn f() {}")).len(), 1);
        assert_eq!(check_leftovers(&source("src/a.rs", "// a \"todo!\" in words\nfn ignore() {}")), vec![]);
    }

    #[test]
    fn feature_conditions_are_found_in_every_form() {
        for text in
            ["#[cfg(feature = \"x\")]", "cfg!(feature = \"x\")", "#[cfg_attr(all(unix, feature = \"x\"), a)]"]
        {
            assert_eq!(check_features(&source("src/a.rs", text)).len(), 1, "{text}");
        }
        assert_eq!(check_features(&source("src/a.rs", "#[cfg(test)]\nfn feature() {}")), vec![]);
    }

    #[test]
    fn unsafe_is_found_outside_its_files_and_without_a_reason() {
        assert_eq!(check_unsafe(&source("src/a.rs", "fn f() { unsafe { g() } }")).len(), 1);
        assert_eq!(check_unsafe(&source("src/a.rs", "#![forbid(unsafe_code)]")), vec![]);
        let map = "engine/src/weights/map.rs";
        assert_eq!(check_unsafe(&source(map, "fn f() { unsafe { g() } }")).len(), 1);
        assert_eq!(check_unsafe(&source(map, "// SAFETY: read-only\nfn f() { unsafe { g() } }")), vec![]);
        assert_eq!(check_unsafe(&source("engine/src/cuda/driver.rs", "unsafe extern \"C\" {}")), vec![]);
    }

    #[test]
    fn empty_names_are_found_for_modules_and_types() {
        for (path, text) in [
            ("src/proxy/helpers.rs", ""),
            ("src/proxy/header_util.rs", ""),
            ("src/proxy.rs", "pub struct RequestContext;"),
            ("src/proxy.rs", "enum Info { A }"),
            ("src/proxy.rs", "type Data = u8;"),
            ("src/proxy.rs", "pub(crate) mod common {}"),
        ] {
            assert_eq!(check_names(&source(path, text)).len(), 1, "{path} {text}");
        }
        let fine = "impl Body for Tap {\n    type Data = Bytes;\n}\nstruct Contextual;\nstruct Database;\nfn data() {}";
        assert_eq!(check_names(&source("src/proxy.rs", fine)), vec![]);
    }
}
