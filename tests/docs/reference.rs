//! The configuration reference, generated from the JSON Schema that `tidegate schema` prints.

use std::{collections::BTreeSet, fmt::Write, fs};

use crate::{
    is_updating,
    page::Page,
    root,
    schema_keys::{Key, Section, ValueType, read},
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

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn row(key: &Key) -> String {
    let default = match &key.default {
        Some(default) => format!("`{default}`"),
        None if key.is_required => "**required**".to_owned(),
        None => "-".to_owned(),
    };
    let cells = [format!("`{}`", key.path), cell(&key.values), default, cell(&key.description)];
    format!("| {} |\n", cells.join(" | "))
}

fn section(section: &Section) -> String {
    let mut text = format!("\n## {}\n\n{}\n\n", section.name, section.description);
    text += "| key | values | default | meaning |\n|---|---|---|---|\n";
    text.extend(section.keys.iter().map(row));
    for key in &section.keys {
        if key.choices.len() > 1 {
            let _ = write!(text, "\n`{}`:\n\n", key.path);
            for (value, description) in &key.choices {
                let _ = writeln!(text, "- `{value}`: {description}");
            }
        }
    }
    text
}

fn value_types(types: &[ValueType]) -> String {
    let mut text = "\n## Value types\n\n| type | written as |\n|---|---|\n".to_owned();
    for ValueType { name, description } in types {
        let _ = writeln!(text, "| {name} | {} |", cell(description));
    }
    text
}

fn generate() -> String {
    let (sections, values) = read();
    let sections: String = sections.iter().map(section).collect();
    OPENING.to_owned() + &sections + &value_types(&values)
}

#[test]
fn the_reference_matches_the_schema() {
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
    assert!(values.iter().all(|value_type| !value_type.description.is_empty()));
}
