//! YAML blocks: each is a configuration that the gateway would start with.
//!
//! - `yaml` is a whole configuration.
//! - `yaml,fragment` is completed with the sections that it lacks; its upstream is called `app`.
//! - `yaml,foreign` is another program's configuration; it must be YAML.

use std::sync::LazyLock;

use saphyr_parser::Parser;
use tidegate::{
    config,
    snapshot::{SecretReading, Snapshot},
};

use crate::{
    assert_none,
    certificate_files::substitute,
    page::{Block, Page, all},
    root,
};

/// The sections that complete a fragment.
const SECTIONS: [(&str, &str); 2] = [
    ("upstreams:", "upstreams: {app: {targets: [\"http://127.0.0.1:9000\"]}}\n"),
    ("routes:", "routes: [{name: everything, match: {path: \"/{*rest}\"}, upstream: app}]\n"),
];

pub(crate) fn complete(fragment: &str) -> String {
    let mut text = fragment.to_owned();
    for (key, section) in SECTIONS {
        if !fragment.lines().any(|line| line.starts_with(key)) {
            text.push_str(section);
        }
    }
    text
}

/// What is wrong with the block, if anything is.
fn fault(page: &Page, block: &Block) -> Option<String> {
    let name = format!("{}, from line {}", page.path, block.line);
    if block.has("foreign") {
        let parsed = Parser::new_from_str(&block.text).collect::<Result<Vec<_>, _>>();
        return parsed.err().map(|error| format!("{name}: {error}"));
    }
    let text = if block.has("fragment") { complete(&block.text) } else { block.text.clone() };
    let (text, _files) = substitute(&text);
    match config::parse(&name, &text)
        .map(|loaded| Snapshot::compile(&loaded, SecretReading::Unread))
    {
        Err(fault) => Some(fault.to_string()),
        Ok(Err(faults)) => Some(faults.to_string()),
        Ok(Ok(_)) => schema_fault(&name, &text),
    }
}

/// What the schema for editors has against a configuration that loads.
fn schema_fault(name: &str, text: &str) -> Option<String> {
    static SCHEMA: LazyLock<jsonschema::Validator> = LazyLock::new(|| {
        let schema = serde_json::from_str(config::editor_schema()).expect("JSON");
        jsonschema::validator_for(&schema).expect("a schema")
    });
    let value: serde_json::Value = serde_yaml::from_str(text).expect("YAML");
    let mut faults = SCHEMA.iter_errors(&value);
    faults.next().map(|fault| format!("{name}: the schema: {}: {fault}", fault.instance_path()))
}

/// Rule: every YAML block of a page loads, and editors find no fault in it.
fn faulty_blocks(page: &Page) -> Vec<String> {
    let blocks = page.blocks().into_iter().filter(|block| block.language.starts_with("ya"));
    blocks.filter_map(|block| fault(page, &block)).collect()
}

#[test]
fn configurations_in_pages_load() {
    let pages = all();
    let count =
        pages.iter().flat_map(Page::blocks).filter(|block| block.language == "yaml").count();
    assert!(count > 20, "{count} YAML blocks found");
    assert_none(&pages.iter().flat_map(faulty_blocks).collect::<Vec<_>>());
}

#[test]
fn a_faulty_block_is_found() {
    let limit = "limits: {a: {quota: 1, window: 1s}}\n";
    for (info, yaml, expected) in [
        ("yaml", "upstreams: {}\nroutes: [{name: a, match: {path: /}, upstream: b}]\n", 1),
        ("yaml", limit, 1),
        ("yaml,fragment", limit, 0),
        ("yaml,fragment", "limits: {a: {quotta: 1, window: 1s}}\n", 1),
        ("yaml,foreign", "a: [b\n", 1),
        ("yaml,foreign", "a: [b]\n", 0),
    ] {
        let text = format!("```{info}\n{yaml}```\n");
        let page = Page { path: "a.md".to_owned(), text };
        assert_eq!(faulty_blocks(&page).len(), expected, "{info}: {yaml}");
    }
}

/// Also those whose certificates are on no machine, for which `scripts/test` does not run `check`.
#[test]
fn examples_load() {
    let files = std::fs::read_dir(root().join("config/examples")).expect("examples");
    for file in files.map(|file| file.expect("a file").path()) {
        let name = file.display().to_string();
        let text = std::fs::read_to_string(&file).expect("readable");
        let (text, _certificates) = substitute(&text);
        let loaded = config::parse(&name, &text).unwrap_or_else(|faults| panic!("{faults}"));
        Snapshot::compile(&loaded, SecretReading::Unread)
            .unwrap_or_else(|faults| panic!("{faults}"));
    }
}

/// A user who begins with an example learns from its notes only what is wrong with it: nothing.
#[test]
fn examples_have_no_notes() {
    let examples = std::fs::read_dir(root().join("config/examples")).expect("examples");
    let mut files: Vec<_> = examples.map(|file| file.expect("a file").path()).collect();
    files.push(root().join("config/tidegate.yaml"));
    assert!(files.len() > 20, "{files:?}");
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let (text, _certificates) = substitute(&text);
        let path = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a file");
        std::fs::write(&path, text).expect("a file");
        let mut out = Vec::new();
        let arguments = ["tidegate", "check", path.path().to_str().expect("UTF-8")];
        let exit = tidegate::cli::run(arguments, &mut out);
        let printed = String::from_utf8(out).expect("text");
        assert_eq!(exit.code(), 0, "{}: {printed}", file.display());
        let notes = printed.lines().filter(|line| line.contains("note:"));
        found.extend(notes.map(|note| format!("{}: {note}", file.display())));
    }
    assert_none(&found);
}

#[test]
fn docker_compose_mounts_a_configuration_that_exists() {
    let compose = Page::read("docker-compose.yml").text;
    let parsed = Parser::new_from_str(&compose).collect::<Result<Vec<_>, _>>();
    parsed.unwrap_or_else(|error| panic!("docker-compose.yml: {error}"));
    assert!(compose.contains("./config/examples:/etc/tidegate:ro"));
    assert!(compose.contains("/etc/tidegate/compose.yaml"));
    let loaded = config::load(&root().join("config/examples/compose.yaml"), &|_| None).unwrap();
    Snapshot::compile(&loaded, SecretReading::Unread).unwrap_or_else(|faults| panic!("{faults}"));
    // A container's loopback cannot be reached from outside.
    assert!(!loaded.config.listen[0].address.0.ip().is_loopback());
}
