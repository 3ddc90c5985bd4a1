//! The house rules, checked on every file of the repository. Each rule is a pure function over a path and a
//! text, with its own tests beside it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/banned.rs"]
mod banned;
#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/lengths.rs"]
mod lengths;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/source.rs"]
mod source;

use documents::Tree;
use source::{Finding, Source};

/// Files whose absence breaks a promise the README makes by its mere existence.
const REQUIRED: &[&str] = &[
    ".ci/run",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "config.toml",
    "dashboards/grafana/overview.json",
    "dashboards/prometheus/rules.yml",
    "dashboards/prometheus/rules_test.yml",
    "deny.toml",
    "docs/ARCHITECTURE.md",
    "docs/cases.md",
    "docs/life-of-a-request.md",
    "docs/metrics.md",
    "docs/runbook.md",
];

/// The repository on disk: what is tracked, and what would be.
struct Repository {
    root: PathBuf,
    files: Vec<String>,
}

impl Repository {
    fn open() -> Repository {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).to_owned();
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .output()
            .expect("git runs: the rules look at what it lists");
        assert!(output.status.success(), "git ls-files failed: {}", String::from_utf8_lossy(&output.stderr));
        let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
        let mut files: Vec<String> =
            names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        files.retain(|name| root.join(name).is_file());
        files.sort();
        files.dedup();
        assert!(files.iter().any(|name| name == "src/lib.rs"), "the list of files lacks src/lib.rs");
        Repository { root, files }
    }

    /// Paths and texts of the files that satisfy `wanted`; binary files are skipped.
    fn texts(&self, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let chosen = self.files.iter().filter(|path| wanted(path));
        chosen.filter_map(|path| Some((path.clone(), self.read(path)?))).collect()
    }

    fn sources(&self, wanted: impl Fn(&str) -> bool) -> Vec<Source> {
        let texts = self.texts(|path| path.ends_with(".rs") && wanted(path));
        texts.iter().map(|(path, text)| Source::new(path, text)).collect()
    }
}

impl Tree for Repository {
    fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }
    fn read(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }
}

/// What we ship: the two crates.
fn shipped(path: &str) -> bool {
    path.starts_with("src/") || path.starts_with("engine/src/")
}

fn assert_clean(findings: impl IntoIterator<Item = Finding>) {
    let lines: Vec<String> = findings.into_iter().map(|finding| finding.to_string()).collect();
    assert!(lines.is_empty(), "{} finding(s):\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn files_import_only_lower_floors_and_siblings() {
    let sources = Repository::open().sources(shipped);
    assert_clean(
        [&floors::SERIN, &floors::ENGINE]
            .iter()
            .flat_map(|floors| sources.iter().flat_map(|source| floors.check(source))),
    );
}

#[test]
fn siblings_import_each_other_without_circles() {
    let sources = Repository::open().sources(shipped);
    assert_clean([&floors::SERIN, &floors::ENGINE].iter().flat_map(|floors| cycles::check(floors, &sources)));
}

#[test]
fn files_and_functions_stay_under_their_ceilings() {
    let sources = Repository::open()
        .sources(|path| shipped(path) || path.contains("benches/") || path.contains("examples/"));
    assert_clean(
        sources.iter().flat_map(lengths::check_file).chain(sources.iter().flat_map(lengths::check_functions)),
    );
}

#[test]
fn no_module_file_is_named_mod() {
    let repository = Repository::open();
    let named_mod = repository.files.iter().filter(|path| shipped(path) && path.ends_with("/mod.rs"));
    assert_clean(named_mod.map(|path| Finding {
        path: path.clone(),
        line: 0,
        says: "use foo.rs beside foo/".to_owned(),
    }));
}

#[test]
fn banned_calls_and_names_are_absent() {
    let sources = Repository::open().sources(shipped);
    assert_clean(
        sources.iter().flat_map(banned::check_calls).chain(sources.iter().flat_map(banned::check_names)),
    );
}

#[test]
fn unsafe_stands_only_in_its_files_and_with_a_reason() {
    assert_clean(Repository::open().sources(|_| true).iter().flat_map(banned::check_unsafe));
}

#[test]
fn nothing_hangs_on_a_cargo_feature() {
    assert_clean(Repository::open().sources(|_| true).iter().flat_map(banned::check_features));
}

#[test]
fn nothing_is_left_over() {
    let repository = Repository::open();
    let scripts = repository.texts(|path| {
        [".py", ".sh", ".cu", ".toml", ".yml", ".yaml"].iter().any(|end| path.ends_with(end))
            || path == ".ci/run"
    });
    let marks = scripts.iter().flat_map(|(path, text)| banned::check_marks(path, text));
    assert_clean(repository.sources(|_| true).iter().flat_map(banned::check_leftovers).chain(marks));
}

#[test]
fn nothing_on_the_path_waits_for_time() {
    assert_clean(Repository::open().sources(shipped).iter().flat_map(banned::check_path_timers));
}

#[test]
fn tests_do_not_sleep() {
    assert_clean(
        Repository::open()
            .sources(|path| !path.contains("tests/support"))
            .iter()
            .flat_map(banned::check_sleeps),
    );
}

#[test]
fn links_lead_somewhere() {
    let repository = Repository::open();
    let documents = repository.texts(|path| path.ends_with(".md"));
    let rules = repository.texts(|path| path == "dashboards/prometheus/rules.yml");
    let links = documents.iter().flat_map(|(path, text)| documents::check_links(path, text, &repository));
    let runbooks = rules.iter().flat_map(|(path, text)| documents::check_runbooks(path, text, &repository));
    assert_clean(links.chain(runbooks));
}

#[test]
fn nothing_names_a_machine() {
    let texts = Repository::open().texts(|path| path != "Cargo.lock");
    assert_clean(texts.iter().flat_map(|(path, text)| documents::check_machine_paths(path, text)));
}

#[test]
fn every_promise_names_a_living_test() {
    let repository = Repository::open();
    let tests: BTreeSet<String> =
        repository.sources(|_| true).iter().flat_map(documents::test_functions).collect();
    let readme = repository.texts(|path| path == "README.md");
    let cases = repository.texts(|path| path == "docs/cases.md");
    let promises =
        readme.iter().flat_map(|(path, text)| documents::check_readme(path, text, &tests, &repository));
    assert_clean(promises.chain(
        cases.iter().flat_map(|(path, text)| documents::check_cases(path, text, &tests, &repository)),
    ));
}

#[test]
fn every_config_key_is_explained() {
    let repository = Repository::open();
    let docs: String =
        repository.texts(|path| path.starts_with("docs/")).into_iter().map(|(_, text)| text).collect();
    let config = repository.texts(|path| path == "config.toml");
    assert_clean(config.iter().flat_map(|(path, text)| names::check_config_keys(path, text, &docs)));
}

#[test]
fn every_metric_is_documented() {
    let repository = Repository::open();
    let page = repository.read("docs/metrics.md").unwrap_or_default();
    let documented: BTreeSet<String> =
        names::metrics(&page).into_iter().map(|(_, name)| name.to_owned()).collect();
    let boards = repository.texts(|path| path.starts_with("dashboards/"));
    let sources = repository.sources(shipped);
    let shown = boards.iter().flat_map(|(path, text)| names::check_metrics(path, text, &documented));
    assert_clean(
        shown.chain(sources.iter().flat_map(|source| names::check_code_metrics(source, &documented))),
    );
}

#[test]
fn every_documented_metric_is_registered() {
    let repository = Repository::open();
    let strings = repository.sources(shipped).into_iter().flat_map(|source| source.shipped_strings());
    let literals: BTreeSet<String> = strings.map(|(_, text)| text).collect();
    let page = repository.texts(|path| path == "docs/metrics.md");
    assert_clean(page.iter().flat_map(|(path, text)| names::check_unregistered(path, text, &literals)));
}

#[test]
fn every_recorded_series_has_its_rule() {
    let repository = Repository::open();
    let recorded = repository
        .read("dashboards/prometheus/rules.yml")
        .map(|text| names::recorded(&text))
        .unwrap_or_default();
    let boards = repository.texts(|path| path.starts_with("dashboards/"));
    assert_clean(boards.iter().flat_map(|(path, text)| names::check_recorded(path, text, &recorded)));
}

#[test]
fn the_house_has_its_documents() {
    let repository = Repository::open();
    let missing = REQUIRED.iter().filter(|path| !repository.exists(path));
    assert_clean(missing.map(|path| Finding {
        path: (*path).to_owned(),
        line: 0,
        says: "is missing".to_owned(),
    }));
}
