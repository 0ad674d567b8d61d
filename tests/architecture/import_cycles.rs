//! Rule: no files of a crate under `crates/`, or of a top-level module of the root package, import
//! each other in a cycle.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, production};

/// The module that a path in `file` names, among all crates; `None` for other crates and imported
/// names.
fn absolute(path: &str, file: &Source) -> Option<Vec<String>> {
    let mut steps = path.split("::").peekable();
    let mut absolute = match *steps.peek()? {
        "crate" => file.crate_name().map(str::to_owned).into_iter().collect(),
        "self" | "super" => file.module(),
        _ => return None,
    };
    while let Some(step) = steps.next_if(|step| matches!(*step, "crate" | "self" | "super")) {
        if step == "super" {
            absolute.pop()?;
        }
    }
    absolute.extend(steps.map(str::to_owned));
    Some(absolute)
}

/// For each file, the files of its crate or top-level module that it imports from. Parents and
/// children are left out: a parent declares its children, and they share its declarations.
fn imports_by_file(files: &[Source]) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules: BTreeSet<Vec<String>> = files.iter().map(Source::module).collect();
    let mut imports_by_file = BTreeMap::new();
    for file in files {
        let module = file.module();
        let mut targets = BTreeSet::new();
        for path in file.production_paths() {
            let Some(path) = absolute(&path, file) else { continue };
            let prefixes = (1..=path.len()).rev().map(|length| path[..length].to_vec());
            let Some(target) = prefixes.into_iter().find(|prefix| modules.contains(prefix)) else {
                continue;
            };
            let is_ancestor_or_descendant =
                module.starts_with(&target) || target.starts_with(&module);
            if target.first() == module.first() && !is_ancestor_or_descendant {
                targets.insert(target);
            }
        }
        imports_by_file.insert(module, targets);
    }
    imports_by_file
}

/// A message for each file that imports itself through other files.
fn import_cycles(files: &[Source]) -> Vec<String> {
    let imports_by_file = imports_by_file(files);
    let mut found = Vec::new();
    for start in imports_by_file.keys() {
        let (mut visited, mut pending) = (BTreeSet::new(), vec![start]);
        while let Some(module) = pending.pop() {
            for target in imports_by_file.get(module).into_iter().flatten() {
                if target == start {
                    found.push(format!(
                        "{} imports itself through other files_by_file",
                        start.join("::")
                    ));
                    pending.clear();
                    break;
                }
                if visited.insert(target) {
                    pending.push(target);
                }
            }
        }
    }
    found
}

#[test]
fn files_of_a_module_import_in_one_direction() {
    crate::assert_none(&import_cycles(&production()));
}

#[test]
fn a_cycle_is_found_and_a_tree_has_none() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let parent = "mod b; mod c; pub use self::b::X;";
    let tree = [
        file("src/a.rs", parent),
        file("src/a/b.rs", "use super::c::Y;"),
        file("src/a/c.rs", "use super::Z;\n#[cfg(test)]\nmod tests { use super::super::b::X; }"),
    ];
    let cyclic = [
        file("src/a.rs", parent),
        file("src/a/b.rs", "use super::{c::Y, Z};"),
        file("src/a/c.rs", "fn f() { crate::a::b::g() }"),
    ];
    assert_eq!(import_cycles(&tree), Vec::<String>::new());
    assert_eq!(import_cycles(&cyclic).len(), 2);
}
