//! `docs/metrics.md` lists every metric family there is, and nothing else.

use std::collections::BTreeSet;

use crate::support::Serin;

#[test]
fn the_page_and_the_program_agree() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md")).unwrap();
    // One family a row of a table: | `name{labels}` | type | meaning |
    let documented: BTreeSet<(String, String, String)> = page
        .lines()
        .filter(|line| line.starts_with("| `serin_"))
        .map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let (name, labels) =
                cells[1].trim_matches('`').split_once('{').unwrap_or((cells[1].trim_matches('`'), "}"));
            (name.to_owned(), cells[2].to_owned(), labels.trim_end_matches('}').to_owned())
        })
        .collect();
    let serin =
        Serin::start("[canary]\nenabled = false\n[[upstream]]\nname = \"r\"\nurl = \"http://127.0.0.1:9\"\n");
    let registered: BTreeSet<_> = serin
        .families()
        .into_iter()
        .map(|family| (family.name, family.kind.to_owned(), family.labels.join(",")))
        .collect();
    let missing: Vec<_> = registered.difference(&documented).collect();
    let gone: Vec<_> = documented.difference(&registered).collect();
    assert!(
        missing.is_empty() && gone.is_empty(),
        "not on the page: {missing:#?}\nonly on the page: {gone:#?}"
    );
}
