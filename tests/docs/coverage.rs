//! What the pages must name, and what they name must exist.

use std::fs;

use crate::{
    assert_none,
    page::{Page, all},
    root,
};

#[test]
fn the_readme_is_short() {
    let lines = Page::read("README.md").text.lines().count();
    assert!(lines <= 200, "README.md has {lines} lines, more than 200; move details to docs/src");
}

#[test]
fn the_access_page_names_every_command_of_the_scripts() {
    let page = Page::read("docs/src/redis/access.md").text;
    let mut missing = Vec::new();
    for entry in fs::read_dir(root().join("lua")).expect("the scripts") {
        let script = fs::read_to_string(entry.expect("an entry").path()).expect("a script");
        for call in script.split("call('").chain(script.split("try('")).skip(1) {
            let command = call.split('\'').next().unwrap_or_default();
            let is_command = !command.is_empty() && command.bytes().all(|b| b.is_ascii_uppercase());
            if is_command && !page.contains(&format!("`{command}`")) {
                missing.push(command.to_owned());
            }
        }
    }
    assert_none(&missing);
}

/// The names of metrics in the code that registers them: the first text after `encoder,` or
/// `encoder.encode_descriptor(`.
fn metrics() -> Vec<String> {
    let mut names = Vec::new();
    // Its metrics have the prefix that all programs share.
    let process = root().join("src/admin/process_metrics.rs");
    for entry in fs::read_dir(root().join("src/admin")).expect("the admin module") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let code = fs::read_to_string(&path).expect("a source file");
        let prefix = if path == process { "process" } else { "tidegate" };
        for call in code.split("encoder").skip(1) {
            let call = call.trim_start();
            let arguments = call.strip_prefix(',').or(call.strip_prefix(".encode_descriptor("));
            let name =
                arguments.and_then(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
            names.extend(name.map(|name| format!("{prefix}_{name}")));
        }
    }
    names
}

#[test]
fn the_metrics_page_names_every_metric_and_no_other() {
    let page = Page::read("docs/src/operations/metrics.md").text;
    let metrics = metrics();
    assert!(metrics.len() > 30, "{} metrics found in the code", metrics.len());
    let documented: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("tidegate_") || name.starts_with("process_"))
        .collect();
    let base = |name: &str| name.strip_suffix("_total").unwrap_or(name).to_owned();
    let missing = metrics.iter().filter(|name| !documented.iter().any(|own| base(own) == **name));
    assert_none(&missing.map(|name| format!("no row for {name}")).collect::<Vec<_>>());
    let unknown = documented.iter().filter(|own| !metrics.contains(&base(own)));
    assert_none(&unknown.map(|name| format!("no metric {name}")).collect::<Vec<_>>());
}

#[test]
fn every_example_is_listed() {
    let page = Page::read("docs/src/quick-start.md").text;
    for entry in fs::read_dir(root().join("config/examples")).expect("examples") {
        let name = entry.expect("an entry").file_name();
        let path = format!("config/examples/{}", name.to_str().expect("UTF-8"));
        assert!(page.contains(&format!("`{path}`")), "quick-start.md does not list {path}");
    }
}

/// Rule: a suite or a bench that a command names exists.
fn unknown_targets(page: &Page) -> Vec<String> {
    let mut violations = Vec::new();
    for (option, directory) in [("--test ", "tests"), ("--bench ", "benches")] {
        for rest in page.text.split(option).skip(1) {
            let word = rest.split([' ', '\n', '`', '#', ')']).next().unwrap_or_default();
            let exists = ["{}.rs", "{}/main.rs"]
                .iter()
                .any(|file| root().join(directory).join(file.replace("{}", word)).exists());
            if !exists {
                violations.push(format!("{}: {option}{word}: no such target", page.path));
            }
        }
    }
    violations
}

#[test]
fn suites_and_benches_that_pages_name_exist() {
    assert_none(&all().iter().flat_map(unknown_targets).collect::<Vec<_>>());
    let faulty = Page { path: "a.md".to_owned(), text: "cargo bench --bench nothing".to_owned() };
    assert_eq!(unknown_targets(&faulty).len(), 1);
}
