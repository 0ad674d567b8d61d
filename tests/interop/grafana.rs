//! The file `contrib/grafana/tidegate.json`: rows, panels, variables and expressions.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

/// The rows, in their order.
const ROWS: [&str; 7] = [
    "Traffic and latency",
    "Limits and refusals",
    "Throttle",
    "Waiting room",
    "Upstreams and targets",
    "Store and Redis",
    "Process",
];

/// The parsed file.
pub(crate) struct Dashboard(Value);

impl Dashboard {
    pub(crate) fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("contrib/grafana/tidegate.json");
        let text = fs::read_to_string(path).expect("the dashboard");
        Self(serde_json::from_str(&text).expect("JSON"))
    }

    fn list(&self, pointer: &str) -> &[Value] {
        self.0.pointer(pointer).and_then(Value::as_array).expect("a list")
    }

    fn panels(&self) -> &[Value] {
        self.list("/panels")
    }

    fn variables(&self) -> &[Value] {
        self.list("/templating/list")
    }

    /// The expressions of all panels, each with its panel's title.
    pub(crate) fn expressions(&self) -> Vec<(String, String)> {
        let mut expressions = Vec::new();
        for panel in self.panels() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                expressions.push((text(&panel["title"]), text(&target["expr"])));
            }
        }
        expressions
    }

    /// The series and the label of each variable that lists a label's values.
    pub(crate) fn listed_labels(&self) -> Vec<(String, String)> {
        let queries =
            self.variables().iter().filter_map(|variable| variable["definition"].as_str());
        let arguments = queries.map(|query| {
            let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (series, label) =
                inner.and_then(|inner| inner.rsplit_once(", ")).expect("two arguments");
            (series.to_owned(), label.to_owned())
        });
        arguments.collect()
    }
}

/// An expression with Grafana's default values of its variables; the job is called `tidegate`.
pub(crate) fn without_variables(expression: &str) -> String {
    let mut text = expression.to_owned();
    for (variable, value) in
        [("$__rate_interval", "1m"), ("$job", "tidegate"), ("$instance", ".*"), ("$route", ".*")]
    {
        text = text.replace(variable, value);
    }
    assert!(!text.contains('$'), "an unknown variable: {expression}");
    text
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("not a number: {value}"))
}

#[test]
fn rows_have_panels_that_do_not_overlap() {
    let dashboard = Dashboard::read();
    let panels = dashboard.panels();
    let rows = panels.iter().filter(|panel| panel["type"] == "row");
    let rows: Vec<_> = rows.map(|row| text(&row["title"])).collect();
    assert_eq!(rows, ROWS);
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(number(&panel["id"])), "two panels have the id {}", panel["id"]);
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| number(&panel["gridPos"][key]));
        assert!(x + w <= 24, "{} is too wide", panel["title"]);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cells.insert(cell), "{} overlaps another panel at {cell:?}", panel["title"]);
        }
    }
    for pair in panels.windows(2) {
        let is_empty = pair.iter().all(|panel| panel["type"] == "row");
        assert!(!is_empty, "the row {} is empty", pair[0]["title"]);
    }
}

#[test]
fn panels_and_variables_use_the_chosen_datasource() {
    let dashboard = Dashboard::read();
    let chosen = serde_json::json!({"type": "prometheus", "uid": "${datasource}"});
    let (sources, listed): (Vec<_>, Vec<_>) =
        dashboard.variables().iter().partition(|variable| variable["type"] == "datasource");
    let [source] = sources.as_slice() else { panic!("{} datasource variables", sources.len()) };
    assert_eq!((&source["name"], &source["query"]), (&"datasource".into(), &"prometheus".into()));
    for variable in &listed {
        assert_eq!(variable["datasource"], chosen, "{}", variable["name"]);
    }
    let names: BTreeSet<_> = listed.iter().map(|variable| text(&variable["name"])).collect();
    for panel in dashboard.panels().iter().filter(|panel| panel["type"] != "row") {
        assert_eq!(panel["datasource"], chosen, "{}", panel["title"]);
        assert!(!text(&panel["description"]).is_empty(), "{} is not described", panel["title"]);
        let targets = panel["targets"].as_array().expect("targets");
        let mut ids = BTreeSet::new();
        for target in targets {
            assert_eq!(target["datasource"], chosen, "{}", panel["title"]);
            assert!(ids.insert(text(&target["refId"])), "{}: the same refId", panel["title"]);
            let expression = text(&target["expr"]);
            for variable in expression.split('$').skip(1) {
                let is_name = |char: &char| char.is_ascii_alphanumeric() || *char == '_';
                let name: String = variable.chars().take_while(is_name).collect();
                let is_known = name == "__rate_interval" || names.contains(&name);
                assert!(is_known, "{}: no variable {name}", panel["title"]);
            }
        }
    }
}
