//! What the documents promise, held against the code: keys and defaults, YAML blocks, file names.

use std::collections::BTreeMap;

use serde_json::Value;
use tidegate::{config, snapshot::Snapshot};

use crate::source::{Source, all, read, root};

/// Everything that is written for people, or for machines that build and run the house.
pub(crate) const NAMES: [&str; 11] = [
    ".ci/run",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "Dockerfile",
    "README.md",
    "clippy.toml",
    "deny.toml",
    "docker-compose.yml",
    "rustfmt.toml",
];

/// The keys of the configuration and their defaults, as the schema has them: `limits.NAME.quota`,
/// `listen[].address`. A key without a default has none in the schema.
fn schema_keys() -> BTreeMap<String, Option<String>> {
    let schema = config::schema().to_value();
    let mut keys = BTreeMap::new();
    walk(&schema, &schema["$defs"], "", &mut keys);
    keys
}

fn walk(node: &Value, types: &Value, path: &str, keys: &mut BTreeMap<String, Option<String>>) {
    let node = resolve(node, types);
    if let Some(properties) = node["properties"].as_object() {
        for (name, property) in properties {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let default = property.get("default").filter(|value| !value.is_null()).map(shown);
            // Sections are told by the keys in them.
            if !is_section(property, types) {
                keys.insert(path.clone(), default);
            }
            walk(property, types, &path, keys);
        }
    } else if node["items"].is_object() {
        walk(&node["items"], types, &format!("{path}[]"), keys);
    } else if node["additionalProperties"].is_object() {
        walk(&node["additionalProperties"], types, &format!("{path}.NAME"), keys);
    }
}

/// Follows references, and of `T or null` takes `T`.
fn resolve<'a>(node: &'a Value, types: &'a Value) -> &'a Value {
    if let Some(name) = node["$ref"].as_str().and_then(|name| name.rsplit('/').next()) {
        return resolve(&types[name], types);
    }
    let known = |choices: &'a Value| choices.as_array()?.iter().find(|one| one["type"] != "null");
    known(&node["anyOf"]).map_or(node, |choice| resolve(choice, types))
}

fn is_section(node: &Value, types: &Value) -> bool {
    let node = resolve(node, types);
    let inner = |name: &str| node[name].is_object() && is_section(&node[name], types);
    node["properties"].is_object() || inner("items") || inner("additionalProperties")
}

/// As the documents write a value: texts without quotes, lists in brackets.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) if text.is_empty() => "empty".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

/// The first two cells of the rows of all tables, without their backticks.
fn rows(text: &str) -> BTreeMap<String, String> {
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ").map(|cell| cell.replace('`', ""));
        Some((cells.next()?, cells.next()?.trim().to_owned()))
    });
    rows.collect()
}

/// Rule: the README's table has every key, with its default.
fn undocumented(readme: &str) -> Vec<String> {
    let rows = rows(readme);
    let mut violations = Vec::new();
    for (key, default) in schema_keys() {
        match (rows.get(&key), default) {
            (None, _) => violations.push(format!("README.md has no row for {key}")),
            // A key that is not in this version yet has a word instead of a default.
            (Some(told), Some(default)) if *told != default && told != "not yet" => {
                violations.push(format!("README.md says {key} is {told}, the schema {default}"));
            }
            _ => {}
        }
    }
    violations
}

/// Rule: a file or folder that a document names is there, but for those that are still to come.
fn missing(document: &str, is_there: impl Fn(&str) -> bool) -> Vec<String> {
    let folders = ["src/", "lua/", "tests/", "benches/", "config/", "scripts/"];
    let named = document.split('`').skip(1).step_by(2);
    let paths = named.filter(|name| folders.iter().any(|folder| name.starts_with(folder)));
    let to_come = |path: &str| path.contains("NAME");
    let lost = paths.filter(|path| !to_come(path) && !path.contains(' ') && !is_there(path));
    lost.map(|path| format!("{path} is named, and is not there")).collect()
}

/// The YAML blocks of a document, each with the line it begins on.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if line.trim_start().starts_with("```yaml") {
            let block = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            blocks.push((at + 2, block.fold(String::new(), |all, line| all + line + "\n")));
        }
    }
    blocks
}

/// Rule: a configuration in a document is one that starts.
fn unloadable(file: &Source) -> Vec<String> {
    let mut violations = Vec::new();
    for (line, block) in blocks(&file.text) {
        let name = format!("{}, from line {line}", file.path);
        let loaded = config::parse(&name, &block);
        let compiled = loaded.map(|loaded| Snapshot::compile(&loaded));
        match compiled {
            Err(unread) => violations.push(unread.to_string()),
            Ok(Err(faults)) => violations.push(faults.to_string()),
            Ok(Ok(_)) => {}
        }
    }
    violations
}

#[test]
fn the_readme_tells_every_key_and_its_default() {
    let readme = read("README.md").text;
    let violations = undocumented(&readme);
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
    for (from, to) in [("`http.max_head`", "`http.head`"), ("| 32KiB |", "| 64KiB |")] {
        assert!(readme.contains(from), "{from}");
        assert_eq!(undocumented(&readme.replace(from, to)).len(), 1, "{from} -> {to}");
    }
}

#[test]
fn configurations_in_documents_start() {
    let mut count = 0;
    for name in NAMES.into_iter().filter(|name| name.contains(".md")) {
        let file = read(name);
        count += blocks(&file.text).len();
        let violations = unloadable(&file);
        assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
    }
    assert!(count > 0, "the README has a configuration");
    let faulty =
        "```yaml\nupstreams: {}\nroutes: [{name: a, match: {path: /}, upstream: b}]\n```\n";
    assert_eq!(unloadable(&Source::new("README.md", faulty)).len(), 1);
}

#[test]
fn the_readme_names_every_metric() {
    let readme = read("README.md").text;
    let code = read("src/admin/metrics.rs").text;
    let mut count = 0;
    for call in code.split("encoder").skip(1) {
        let Some(rest) = call.trim_start().strip_prefix(',') else { continue };
        let Some(name) = rest.trim_start().strip_prefix('"').and_then(|r| r.split('"').next())
        else {
            continue;
        };
        assert!(readme.contains(&format!("`tidegate_{name}")), "README.md: tidegate_{name}");
        count += 1;
    }
    assert!(count > 10, "{count} metrics found in the code");
}

#[test]
fn the_composition_mounts_a_configuration_that_is_there() {
    let compose = read("docker-compose.yml").text;
    let parsed = saphyr_parser::Parser::new_from_str(&compose).collect::<Result<Vec<_>, _>>();
    parsed.unwrap_or_else(|error| panic!("docker-compose.yml: {error}"));
    assert!(compose.contains("./config/examples:/etc/tidegate:ro"));
    assert!(compose.contains("/etc/tidegate/compose.yaml"));
    let loaded = config::load(&root().join("config/examples/compose.yaml")).unwrap();
    Snapshot::compile(&loaded).unwrap_or_else(|faults| panic!("{faults}"));
    // Inside a container, loopback is the container's own: nobody could connect.
    assert!(!loaded.config.listen[0].address.0.ip().is_loopback());
}

#[test]
fn files_that_documents_name_are_there() {
    let is_there = |path: &str| root().join(path).exists();
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"] {
        let violations = missing(&read(name).text, is_there);
        assert!(violations.is_empty(), "\n{name}: {}\n", violations.join("\n"));
    }
    assert_eq!(missing("see `src/nowhere.rs` and `src/lib.rs`", is_there).len(), 1);
}

#[test]
fn every_example_is_told_of() {
    let readme = read("README.md").text;
    for file in all("config/examples", ".yaml") {
        assert!(readme.contains(&file.path), "README.md does not name {}", file.path);
    }
}
