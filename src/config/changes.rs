//! What differs between two configurations, and which of it a running Serin can take over.

use toml::{Table, Value};

use super::Config;

/// Keys that change without a restart; a section alone stands for all its keys. What is not here needs one, so that a
/// new key is refused until somebody has thought about it.
const REPLACEABLE: &[&str] = &[
    "[[upstream]]",
    "[[route]]",
    "[balance] affinity",
    "[balance] affinity_prefix",
    "[balance] affinity_slack",
    "[balance] retry_after_max",
    "[balance] worker_headers",
    "[breaker]",
    "[canary]",
    "[fallback] for",
    "[fallback] index_topk",
    "[fallback] max_request",
    "[fallback] request_read",
    "[listen] upgrades",
    "[listen] no_buffering",
    "[listen] transparent_to",
    "[limits] destinations",
    "[limits] in_flight",
    "[limits] body",
    "[limits] body_copy",
    "[limits] connect",
    "[limits] head",
    "[limits] idle",
    "[limits] pool_idle",
    "[limits] pool_size",
    "[limits] h2_streams",
    "[limits] h2_ping",
    "[limits] per_client",
    "[limits] per_client_rate",
    "[limits] per_client_burst",
    "[limits] per_client_table",
    "[limits] client_by",
    "[log] level",
    "[log] access",
];

/// The keys whose values differ, as they are named in messages: `[limits] head`, `[[upstream]]`.
pub fn between(old: &Config, new: &Config) -> Vec<String> {
    let (old, new) = (table(old), table(new));
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    let differs = |name: &&String| old.get(*name) != new.get(*name);
    names.into_iter().filter(differs).flat_map(|name| keys(name, old.get(name), new.get(name))).collect()
}

/// Whether this key, as [`between`] names it, is fixed for the life of a process.
pub fn needs_restart(key: &str) -> bool {
    let section = key.split_inclusive(']').next().unwrap_or_default();
    !REPLACEABLE.iter().any(|known| *known == key || *known == section && key.starts_with('['))
}

fn table(config: &Config) -> Table {
    Table::try_from(config).unwrap_or_default()
}

/// The differing keys of one section; a list of sections is one key.
fn keys(name: &str, old: Option<&Value>, new: Option<&Value>) -> Vec<String> {
    let (Some(Value::Table(old)), Some(Value::Table(new))) = (old, new) else {
        return vec![format!("[[{name}]]")];
    };
    let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key))
        .map(|key| format!("[{name}] {key}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::parse(text, "config.toml").unwrap()
    }

    #[test]
    fn what_differs_is_named_and_nothing_else() {
        let old = config("");
        assert_eq!(between(&old, &config("[limits]\nhead = \"30m\"\n")), Vec::<String>::new());
        let new = config(
            "[listen]\naddress = \"127.0.0.1:1\"\n[limits]\nhead = \"1m\"\n[log]\nlevel = \"debug\"\n\
             [[upstream]]\nname = \"a\"\nurl = \"http://h\"\n",
        );
        let keys = between(&old, &new);
        assert_eq!(keys, ["[limits] head", "[listen] address", "[log] level", "[[upstream]]"]);
        let fixed: Vec<_> = keys.iter().filter(|key| needs_restart(key)).collect();
        assert_eq!(fixed, ["[listen] address"]);
    }

    #[test]
    fn a_key_nobody_thought_of_needs_a_restart() {
        for key in
            ["[record] dir", "[fallback] model", "[limits] threads", "[[invented]]", "[limits] invented"]
        {
            assert!(needs_restart(key), "{key}");
        }
        for key in ["[canary] interval", "[breaker] open", "[[route]]", "[fallback] for"] {
            assert!(!needs_restart(key), "{key}");
        }
    }

    /// A key that is renamed must be renamed in the list too.
    #[test]
    fn every_key_of_the_list_exists() {
        let all = table(&config(
            "[[upstream]]\nname = \"a\"\nurl = \"http://h\"\n[[route]]\npath_prefix = \"/\"\nupstreams = [\"a\"]\n",
        ));
        for known in REPLACEABLE {
            let (section, key) = known.split_once("] ").unwrap_or((known.trim_end_matches(']'), ""));
            let found = all.get(section.trim_matches(['[', ']'])).unwrap_or_else(|| panic!("{known}"));
            assert!(key.is_empty() || found.get(key).is_some(), "{known}");
        }
    }
}
