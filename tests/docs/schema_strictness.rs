//! The schema that editors get refuses what `check` refuses, as far as a schema can.

use std::{fs, path::Path};

use serde_json::Value;
use tidegate::{cli, config::editor_schema};

use crate::root;

/// The configuration of a line, which has a value in a section that is valid but for it.
fn configuration(section: &str, value: &str) -> String {
    let own = |name: &str, valid: &'static str| {
        if name == section { value.to_owned() } else { valid.to_owned() }
    };
    let top = if section == "top" { format!("{value}\n") } else { String::new() };
    let routes = match section {
        "routes_list" => value.to_owned(),
        _ => format!("[{}]", own("routes", "{name: r, upstream: a}")),
    };
    let (upstreams, limits) =
        (own("upstreams", "a: {respond: {}}"), own("limits", "l: {quota: 5, window: 10s}"));
    format!("{top}upstreams: {{{upstreams}}}\nlimits: {{{limits}}}\nroutes: {routes}\n")
}

/// Whether `check` refuses the configuration.
fn is_refused(folder: &Path, yaml: &str) -> bool {
    let path = folder.join("t.yaml");
    fs::write(&path, yaml).expect("a file");
    let arguments = ["tidegate", "check", path.to_str().expect("UTF-8")];
    cli::run(arguments, &mut Vec::new()).code() != 0
}

#[test]
fn check_and_the_schema_refuse_the_same_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let validator =
        jsonschema::validator_for(&serde_json::from_str(editor_schema()).expect("JSON"))
            .expect("a schema");
    let text = fs::read_to_string(root().join("tests/docs/configuration_values.txt"));
    let text = text.expect("the table");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut count, mut refused, mut different) = (0, 0, Vec::new());
    for line in lines {
        let (mark, rest) = line.split_at(2);
        let (section, value) = rest.split_once(" | ").expect("a section and a value");
        let yaml = configuration(section, value);
        let parsed: Value = serde_yaml::from_str(&yaml).expect("YAML");
        let (by_check, by_schema) =
            (is_refused(folder.path(), &yaml), !validator.is_valid(&parsed));
        let expected = by_check && mark != "~ ";
        if by_schema != expected || mark == "~ " && !by_check {
            different.push(format!("{line}: check {by_check}, schema {by_schema}"));
        }
        count += 1;
        refused += usize::from(by_check);
    }
    assert!(different.is_empty(), "{different:#?}");
    assert!(count > 200 && refused > 150, "{refused} of {count}");
}
