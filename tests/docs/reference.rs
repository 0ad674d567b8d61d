//! The configuration reference, generated from the JSON Schema that `tidegate schema` prints.

use std::{collections::BTreeSet, fmt::Write, fs};

use tidegate::{config, snapshot::Snapshot};

use crate::{
    is_updating,
    page::Page,
    root,
    schema_keys::{Key, Kind, Section, read},
};

const PAGE: &str = "docs/src/configuration-reference.md";

const OPENING: &str = "\
# Configuration reference

<!-- Generated from the JSON Schema: UPDATE_DOCS=1 cargo test --test docs -->

This page lists every key of the configuration with its values and default. [Configuration](configuration.md) explains
the file, and the pages that it links to explain the subjects.

`NAME` stands for a name that you choose, `[]` for each item of a list. **required** means that the section needs the key;
`-` that it has no fixed default, and its meaning says what applies without it.
";

/// What the schema has and this version refuses.
struct NotYet {
    /// A key, or a section whose keys are all refused.
    key: &'static str,
    /// The values that are refused; empty: all.
    values: &'static [&'static str],
    /// A configuration section that uses the key.
    yaml: &'static str,
}

const NOT_YET: [NotYet; 6] = [
    NotYet {
        key: "listen[].tls",
        values: &[],
        yaml: "listen: [{address: \"127.0.0.1:0\", tls: {cert: a, key: b}}]",
    },
    NotYet {
        key: "listen[].proxy_protocol",
        values: &["true"],
        yaml: "listen: [{address: \"127.0.0.1:0\", proxy_protocol: true}]",
    },
    NotYet {
        key: "upstreams.NAME.health",
        values: &[],
        yaml: "upstreams: {app: {targets: [\"http://a:1\"], health: {path: /}}}",
    },
    NotYet {
        key: "upstreams.NAME.balance",
        values: &["least_requests", "hash"],
        yaml: "upstreams: {app: {targets: [\"http://a:1\"], balance: hash}}",
    },
    NotYet {
        key: "upstreams.NAME.protocol",
        values: &["http2"],
        yaml: "upstreams: {app: {targets: [\"http://a:1\"], protocol: http2}}",
    },
    NotYet {
        key: "upstreams.NAME.targets",
        values: &["https://host:port", "unix:/path"],
        yaml: "upstreams: {app: {targets: [\"https://a:1\"]}}",
    },
];

/// Whether this version refuses the key with every value.
fn is_refused(key: &Key) -> bool {
    let all = NOT_YET.iter().filter(|one| one.values.is_empty());
    all.into_iter().any(|one| key.path.starts_with(&format!("{}.", one.key)))
}

/// The values of the key that this version refuses.
fn refused_values(key: &Key) -> &'static [&'static str] {
    NOT_YET.iter().find(|one| one.key == key.path).map_or(&[], |one| one.values)
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn row(key: &Key) -> String {
    let default = match &key.default {
        Some(default) => format!("`{default}`"),
        None if key.is_required => "**required**".to_owned(),
        None => "-".to_owned(),
    };
    let refused = refused_values(key);
    let values = key.values.split(", ").filter(|value| !refused.contains(value));
    let values = values.collect::<Vec<_>>().join(", ");
    let cells = [format!("`{}`", key.path), cell(&values), default, cell(&key.description)];
    format!("| {} |\n", cells.join(" | "))
}

fn section(section: &Section) -> String {
    let mut text = format!("\n## {}\n\n{}\n\n", section.name, section.description);
    text += "| key | values | default | meaning |\n|---|---|---|---|\n";
    text.extend(section.keys.iter().filter(|key| !is_refused(key)).map(row));
    for key in &section.keys {
        let refused = refused_values(key);
        let accepted = key.choices.iter().filter(|(value, _)| !refused.contains(&value.as_str()));
        let accepted: Vec<_> = accepted.collect();
        if accepted.len() > 1 {
            let _ = write!(text, "\n`{}`:\n\n", key.path);
            for (value, description) in accepted {
                let _ = writeln!(text, "- `{value}`: {description}");
            }
        }
    }
    text
}

fn kinds(kinds: &[Kind]) -> String {
    let mut text = "\n## Kinds of value\n\n| kind | written as |\n|---|---|\n".to_owned();
    for Kind { name, description } in kinds {
        let _ = writeln!(text, "| {name} | {} |", cell(description));
    }
    text
}

fn not_yet() -> String {
    let mut text = "\n## Not yet\n\n".to_owned();
    text += "The schema has these, and `check` refuses them in this version:\n\n";
    text += "| key | refused values |\n|---|---|\n";
    for NotYet { key, values, .. } in NOT_YET {
        let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
        let values = if values.is_empty() { "all".to_owned() } else { values };
        let _ = writeln!(text, "| `{key}` | {values} |");
    }
    text
}

fn generate() -> String {
    let (sections, values) = read();
    let sections: String = sections.iter().map(section).collect();
    OPENING.to_owned() + &sections + &kinds(&values) + &not_yet()
}

#[test]
fn the_reference_is_what_the_schema_says() {
    let generated = generate();
    if is_updating() {
        fs::write(root().join(PAGE), generated).expect("a page that can be written");
        return;
    }
    let page = Page::read(PAGE).text;
    for (line, (own, new)) in page.lines().zip(generated.lines()).enumerate() {
        let at = line + 1;
        assert_eq!(own, new, "{PAGE}:{at} differs; run UPDATE_DOCS=1 cargo test --test docs");
    }
    let lines = |text: &str| text.lines().count();
    assert_eq!(lines(&page), lines(&generated), "run UPDATE_DOCS=1 cargo test --test docs");
}

#[test]
fn every_key_has_a_description_and_values() {
    let (sections, values) = read();
    let keys: Vec<&Key> = sections.iter().flat_map(|section| &section.keys).collect();
    assert!(keys.len() > 80, "{} keys", keys.len());
    assert_eq!(keys.iter().map(|key| &key.path).collect::<BTreeSet<_>>().len(), keys.len());
    for key in keys {
        assert!(!key.description.is_empty() && !key.values.is_empty(), "{}", key.path);
    }
    assert!(values.iter().all(|kind| !kind.description.is_empty()));
}

/// A feature that works now must leave the list of those that do not.
#[test]
fn what_is_not_there_yet_is_refused() {
    for NotYet { key, yaml, .. } in NOT_YET {
        let mut text = yaml.to_owned() + "\n";
        if !yaml.starts_with("upstreams") {
            text += "upstreams: {app: {targets: [\"http://a:1\"]}}\n";
        }
        text += "routes: [{name: a, match: {path: /}, upstream: app}]\n";
        let is_refused =
            config::parse("a.yaml", &text).is_ok_and(|loaded| Snapshot::compile(&loaded).is_err());
        let hint = "remove it from NOT_YET, from docs/src/introduction.md and from README.md";
        assert!(is_refused, "{key} is accepted: {hint}");
    }
}
