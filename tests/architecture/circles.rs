//! Rule: no files of a room import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, all};

/// The module that a path in the file of `module` names, from the crate's root; `None` for other crates
/// and imported names.
fn absolute(path: &str, module: &[String]) -> Option<Vec<String>> {
    let mut steps = path.split("::").peekable();
    let mut absolute = match *steps.peek()? {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
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

/// For each file the files of its room that it imports from. Parents and children are left out: a parent
/// declares its children, and they share what it declares.
fn imports(files: &[Source]) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules: BTreeSet<Vec<String>> = files.iter().map(Source::module).collect();
    let mut imports = BTreeMap::new();
    for file in files {
        let module = file.module();
        let mut targets = BTreeSet::new();
        for path in file.production_paths() {
            let Some(path) = absolute(&path, &module) else { continue };
            let prefixes = (1..=path.len()).rev().map(|length| path[..length].to_vec());
            let Some(target) = prefixes.into_iter().find(|prefix| modules.contains(prefix)) else {
                continue;
            };
            let is_relative = module.starts_with(&target) || target.starts_with(&module);
            if target.first() == module.first() && !is_relative {
                targets.insert(target);
            }
        }
        imports.insert(module, targets);
    }
    imports
}

/// Every file that is imported, over any number of steps, by a file that it imports.
fn circles(files: &[Source]) -> Vec<String> {
    let imports = imports(files);
    let mut found = Vec::new();
    for start in imports.keys() {
        let (mut visited, mut pending) = (BTreeSet::new(), vec![start]);
        while let Some(module) = pending.pop() {
            for target in imports.get(module).into_iter().flatten() {
                if target == start {
                    found.push(format!("{} is imported by what it imports", start.join("::")));
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
fn files_of_a_room_import_in_one_direction() {
    crate::assert_none(&circles(&all("src", ".rs")));
}

#[test]
fn a_circle_is_found_and_a_tree_is_none() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let parent = "mod b; mod c; pub use self::b::X;";
    let tree = [
        file("src/a.rs", parent),
        file("src/a/b.rs", "use super::c::Y;"),
        file("src/a/c.rs", "use super::Z;\n#[cfg(test)]\nmod tests { use super::super::b::X; }"),
    ];
    let back = [
        file("src/a.rs", parent),
        file("src/a/b.rs", "use super::{c::Y, Z};"),
        file("src/a/c.rs", "fn f() { crate::a::b::g() }"),
    ];
    assert_eq!(circles(&tree), Vec::<String>::new());
    assert_eq!(circles(&back).len(), 2);
}
