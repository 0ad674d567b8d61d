//! Rules: which top-level module of the root package may import which. Cargo holds the crates' own
//! arrows.

use crate::{
    assert_breaks, assert_none,
    source::{Source, all, read},
};

/// What each module may import. A module that is not in the list of another is above or
/// beside it.
const MAY_IMPORT: [(&str, &[&str]); 5] = [
    ("handover", &[]),
    // It decides as the gateway does, without importing it: with a plan, a memory store and the
    // limits.
    ("replay", &[]),
    ("reload", &[]),
    ("admin", &["reload"]),
    ("server", &["admin", "handover", "reload"]),
];

/// The commands: above everything but the binary.
const CLI: (&str, &[&str]) = ("cli", &["handover", "replay", "server"]);

fn may_import(module: &str, other: &str) -> bool {
    let rows = MAY_IMPORT.iter().chain([&CLI]);
    rows.filter(|(from, _)| *from == module).any(|(_, to)| to.contains(&other))
}

/// The names of the top-level modules: the public ones of `lib.rs`.
fn top_level_modules() -> Vec<String> {
    let items = read("src/lib.rs").syntax().items.into_iter();
    let modules = items.filter_map(|item| match item {
        syn::Item::Mod(module) if matches!(module.vis, syn::Visibility::Public(_)) => Some(module),
        _ => None,
    });
    modules.map(|module| module.ident.to_string()).collect()
}

/// Rule: which top-level module may import which.
fn forbidden_imports(files: &[Source]) -> Vec<String> {
    let modules = top_level_modules();
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path != "src/lib.rs") {
        let module = file.top_level_module();
        // In the file of a top-level module, `super` is the crate.
        let is_top_level = file.module().len() == 1;
        for path in file.paths() {
            let mut steps = path.split("::");
            let other = match steps.next() {
                Some("crate" | "tidegate") => steps.next(),
                Some("super") if is_top_level => steps.next(),
                _ => continue,
            };
            let Some(other) = other.filter(|name| modules.iter().any(|module| module == name))
            else {
                continue;
            };
            let is_main = module == "main" && other == "cli";
            if other != module && !is_main && !may_import(&module, other) {
                violations.push(format!("{}: {module} must not import {other}", file.path));
            }
        }
    }
    violations
}

#[test]
fn every_module_has_an_import_rule() {
    for module in top_level_modules() {
        let has_rule = MAY_IMPORT.iter().chain([&CLI]).any(|(from, _)| *from == module);
        assert!(has_rule, "no rule says what {module} may import");
    }
}

#[test]
fn modules_import_only_modules_below_them() {
    assert_none(&forbidden_imports(&all("src", ".rs")));
    assert_breaks(
        forbidden_imports,
        "src/admin/a.rs",
        "use crate::server::Server;",
        "src/server.rs",
    );
    assert_breaks(
        forbidden_imports,
        "src/admin/a.rs",
        "use crate::{admin::Key, server::Server};",
        "src/server/a.rs",
    );
    assert_breaks(
        forbidden_imports,
        "src/replay/a.rs",
        "fn a() { crate::admin::b() }",
        "src/server.rs",
    );
    assert_breaks(
        forbidden_imports,
        "src/admin.rs",
        "use super::{server::Server};",
        "src/admin/key.rs",
    );
    assert_breaks(
        forbidden_imports,
        "src/main.rs",
        "fn main() { tidegate::server::run() }",
        "src/cli/serve.rs",
    );
}
