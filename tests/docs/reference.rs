//! The configuration reference, generated from the JSON Schema that `tidegate schema` prints.

use std::{collections::BTreeSet, fmt::Write, fs};

use crate::{
    is_updating,
    page::Page,
    root,
    schema_keys::{Key, Section, ValueType, heading, read},
};

const PAGE: &str = "docs/src/configuration-reference.md";

const OPENING: &str = "\
# Configuration reference

<!-- Generated from the JSON Schema: UPDATE_DOCS=1 cargo test --test docs -->

This page lists every key of the configuration with its values and default. [Configuration](configuration.md) explains
the file, and the pages that it links to explain the subjects.

A section's name is where its keys stand: `NAME` is a name that you choose, `[]` each item of a list. The section needs a
key that is **required**.
";

/// The page that explains a section, for each section outside of others and for some within.
const EXPLAINED: [(&str, &str, &str); 30] = [
    ("auth.NAME", "API keys", "identity/api-keys.md"),
    ("consumers", "Consumers and plans", "identity/consumers.md"),
    ("", "Configuration", "configuration.md"),
    ("access_log", "Logs", "operations/logs.md"),
    ("admin", "Admin API", "operations/admin.md"),
    ("client", "Client address", "limits/keys.md#client-address"),
    ("headers", "Clients", "clients.md"),
    ("http", "Security", "security.md"),
    ("limits.NAME", "Algorithms", "limits/algorithms.md"),
    ("limits.NAME.candidate", "Tiers, candidates and dry runs", "limits/tiers.md"),
    ("limits.NAME.tiers[]", "Tiers, candidates and dry runs", "limits/tiers.md"),
    ("listen[]", "TLS", "tls.md"),
    ("listen[].tls.acme", "Certificates by ACME", "acme.md"),
    ("listen[].proxy_protocol", "The PROXY protocol", "proxy-protocol.md"),
    ("overrides", "Overrides", "identity/overrides.md"),
    ("plans.NAME", "Plans", "identity/consumers.md#plans"),
    ("rate_limit_service", "Envoy's rate limit service", "rate-limit-service.md"),
    ("routes[]", "Routes", "routes.md"),
    ("routes[].compress", "Compression", "compression.md"),
    ("routes[].cors", "Route policies", "route-policies.md"),
    ("routes[].error_bodies.NAME", "Route policies", "route-policies.md"),
    ("routes[].headers", "Headers, host and path", "routes.md#headers-host-and-path"),
    ("routes[].match", "Which route wins", "routes.md#which-route-wins"),
    ("routes[].mirror", "Copies for another upstream", "routes.md#copies-for-another-upstream"),
    (
        "routes[].redirect",
        "Redirects and fixed responses",
        "routes.md#redirects-and-fixed-responses",
    ),
    ("store", "Redis", "redis/README.md"),
    ("throttle", "Throttle", "throttle.md"),
    ("traces", "Traces", "operations/traces.md"),
    ("upstreams.NAME", "Upstreams that fail", "upstreams.md"),
    ("upstreams.NAME.tls", "TLS", "tls.md"),
];

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn row(section: &Section, key: &Key) -> String {
    let default = key.default.as_ref().map_or_else(|| "**required**".to_owned(), |own| cell(own));
    let name = if let Some(anchor) = &key.section {
        format!("[`{}`](#{anchor})", key.name)
    } else {
        let anchor = section.anchor(key);
        format!("<a id=\"{anchor}\"></a>[`{}`](#{anchor})", key.name)
    };
    let cells = [name, cell(&key.values), default, cell(&key.description)];
    format!("| {} |\n", cells.join(" | "))
}

fn section(section: &Section) -> String {
    let Section { path, description, keys } = section;
    let name = heading(path);
    let is_inner = path.replace("[]", "").replace(".NAME", "").contains('.');
    let mark = if is_inner { "###" } else { "##" };
    let explained = EXPLAINED.iter().find(|(own, ..)| own == path);
    let link = explained.map(|(_, title, page)| format!(" See [{title}]({page})."));
    let mut text = format!("\n{mark} {name}\n\n{description}{}\n\n", link.unwrap_or_default());
    text += "| key | values | default | meaning |\n|---|---|---|---|\n";
    text.extend(keys.iter().map(|key| row(section, key)));
    for key in keys.iter().filter(|key| key.choices.len() > 1) {
        let described = key.choices.iter().filter(|(_, description)| !description.is_empty());
        let lines = described.fold(String::new(), |mut lines, (value, description)| {
            let _ = writeln!(lines, "- `{value}`: {description}");
            lines
        });
        if !lines.is_empty() {
            let _ = write!(text, "\n`{}`:\n\n{lines}", key.name);
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
fn every_key_has_a_description_values_and_a_default() {
    let (sections, values) = read();
    let keys: Vec<(&Section, &Key)> = sections
        .iter()
        .flat_map(|section| section.keys.iter().map(move |key| (section, key)))
        .collect();
    assert!(keys.len() > 80, "{} keys", keys.len());
    let anchors = keys.iter().map(|(section, key)| section.anchor(key));
    assert_eq!(anchors.collect::<BTreeSet<_>>().len(), keys.len());
    for (section, key) in keys {
        let name = section.anchor(key);
        assert!(!key.description.is_empty() && !key.values.is_empty(), "{name}");
        // A description of a type is no word for its values.
        assert!(!key.values.ends_with('.') && !key.values.contains("A "), "{name}: {}", key.values);
        let is_complete = key.is_required || key.default.is_some();
        assert!(is_complete, "{name} has no default: end its description with `Default: ...`");
    }
    assert!(values.iter().all(|value_type| {
        !value_type.description.is_empty() && !value_type.description.ends_with('.')
    }));
    for Section { path, .. } in &sections {
        let is_inner = path.replace("[]", "").replace(".NAME", "").contains('.');
        let is_explained = EXPLAINED.iter().any(|(own, ..)| own == path);
        assert!(is_inner || is_explained, "no page explains `{path}`: see EXPLAINED");
    }
    for (path, ..) in EXPLAINED {
        assert!(sections.iter().any(|section| section.path == path), "no section `{path}`");
    }
}
