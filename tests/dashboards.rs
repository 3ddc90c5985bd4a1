//! What the shipped dashboard promises to a reader: every panel says what it draws, in which unit, from the
//! data source the reader chose.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

fn dashboard() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/grafana/overview.json");
    let text = std::fs::read_to_string(&path).expect("the dashboard is in the repository");
    serde_json::from_str(&text).expect("the dashboard is JSON")
}

fn panels(dashboard: &Value) -> Vec<&Value> {
    let all = dashboard["panels"].as_array().expect("panels is a list");
    all.iter().filter(|panel| panel["type"] != "row").collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn queries(panel: &Value) -> Vec<&str> {
    panel["targets"].as_array().into_iter().flatten().map(|target| text(target, "expr")).collect()
}

/// What is wrong with one panel.
fn faults(panel: &Value) -> Vec<&'static str> {
    let description = text(panel, "description");
    let metric = description.rsplit(' ').next().unwrap_or_default();
    let exprs = queries(panel);
    let mut faults = Vec::new();
    let mut check = |wrong: bool, says: &'static str| {
        if wrong {
            faults.push(says);
        }
    };
    check(exprs.is_empty(), "no query");
    check(!metric.starts_with("serin_"), "the description does not end in a metric's name");
    check(!exprs.iter().any(|expr| expr.contains(metric)), "the metric of the description is in no query");
    check(text(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "no unit");
    check(text(&panel["datasource"], "uid") != "${datasource}", "the data source is not the variable");
    check(!exprs.iter().all(|expr| expr.contains("$instance")), "a query ignores the instance variable");
    check(!exprs.iter().all(|expr| sums_by_bucket(expr)), "histogram_quantile without `by (le)`");
    check(!exprs.iter().all(|expr| balanced(expr)), "brackets do not match");
    faults
}

fn sums_by_bucket(expr: &str) -> bool {
    expr.split("histogram_quantile(").skip(1).all(|call| call.contains("by (le") && call.contains("_bucket{"))
}

fn balanced(expr: &str) -> bool {
    let mut open = Vec::new();
    for c in expr.chars() {
        match c {
            '(' | '[' | '{' => open.push(c),
            ')' | ']' | '}'
                if !matches!((open.pop(), c), (Some('('), ')') | (Some('['), ']') | (Some('{'), '}')) =>
            {
                return false;
            }
            _ => {}
        }
    }
    open.is_empty()
}

#[test]
fn every_panel_says_what_it_draws() {
    let dashboard = dashboard();
    let found: Vec<String> = panels(&dashboard)
        .into_iter()
        .flat_map(|panel| faults(panel).into_iter().map(|fault| format!("{}: {fault}", text(panel, "title"))))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn fidelity_comes_first() {
    let dashboard = dashboard();
    let titles: Vec<&str> = panels(&dashboard).into_iter().map(|panel| text(panel, "title")).collect();
    assert!(titles.len() >= 12, "{titles:?}");
    assert_eq!(titles[0], "Fidelity verdict");
    assert!(titles[1].starts_with("Context-loss ratio"));
}

#[test]
fn variables_are_all_there() {
    let dashboard = dashboard();
    let list = dashboard["templating"]["list"].as_array().expect("variables are a list");
    let names: Vec<&str> = list.iter().map(|variable| text(variable, "name")).collect();
    assert_eq!(names, ["datasource", "instance", "upstream", "model_name"]);
}

#[test]
fn panels_have_their_own_place_and_number() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels is a list") {
        assert!(
            ids.insert(panel["id"].as_u64().expect("a panel has a number")),
            "number used twice: {panel}"
        );
        let grid = |key: &str| panel["gridPos"][key].as_u64().expect("a panel has a place");
        assert!(grid("x") + grid("w") <= 24, "{} is wider than the page", text(panel, "title"));
        for x in grid("x")..grid("x") + grid("w") {
            for y in grid("y")..grid("y") + grid("h") {
                assert!(cells.insert((x, y)), "{} lies over another panel", text(panel, "title"));
            }
        }
    }
}

#[test]
fn the_panel_check_notices_each_fault() {
    let good = serde_json::json!({
        "description": "Time. Metric: serin_a_seconds",
        "datasource": {"uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": "s"}},
        "targets": [{"expr": "histogram_quantile(0.9, sum by (le) (rate(serin_a_seconds_bucket{instance=~\"$instance\"}[5m])))"}],
    });
    assert_eq!(faults(&good), Vec::<&str>::new());
    let broken = [
        ("/description", "Time.", "does not end in a metric"),
        ("/description", "Time. Metric: serin_b_seconds", "in no query"),
        ("/datasource/uid", "prom", "not the variable"),
        ("/fieldConfig/defaults/unit", "", "no unit"),
        ("/targets/0/expr", "serin_a_seconds", "ignores the instance"),
        (
            "/targets/0/expr",
            "histogram_quantile(0.9, rate(serin_a_seconds_bucket{instance=~\"$instance\"}[5m]))",
            "by (le)",
        ),
        ("/targets/0/expr", "rate(serin_a_seconds{instance=~\"$instance\"}[5m)]", "brackets"),
    ];
    for (pointer, value, expected) in broken {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).expect("the pointer is in the sample") = value.into();
        let found = faults(&bad);
        assert!(found.iter().any(|fault| fault.contains(expected)), "{pointer} = {value}: {found:?}");
    }
}

/// What an alert rule must carry so that the person it wakes knows what to do.
fn missing_from(alert: &str) -> Vec<&'static str> {
    let wanted = ["expr:", "severity: ", "summary: ", "description: ", "runbook_url: docs/runbook.md#"];
    wanted.into_iter().filter(|key| !alert.contains(key)).collect()
}

#[test]
fn every_alert_says_what_to_do() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards/prometheus/rules.yml");
    let rules = std::fs::read_to_string(&path).expect("the rules are in the repository");
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 9, "{} alerts", alerts.len());
    for alert in alerts {
        let name = alert.lines().next().unwrap_or_default();
        assert_eq!(missing_from(alert), Vec::<&str>::new(), "{name}");
        assert!(
            alert.contains(&format!("runbook.md#{}", name.to_lowercase())),
            "{name} leads to another alert's section"
        );
    }
    assert_eq!(
        missing_from("A\nexpr: up\nseverity: critical\nsummary: x\n"),
        ["description: ", "runbook_url: docs/runbook.md#"]
    );
}
