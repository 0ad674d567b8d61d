//! The rule that no files of a room import each other in a circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::Source;

/// The module that a file is: `["store", "redis", "node"]` of `src/store/redis/node.rs`.
fn module_of(file: &Source) -> Vec<String> {
    let inside = file.path.strip_prefix("src/").unwrap_or(&file.path);
    let inside = inside.strip_suffix(".rs").unwrap_or(inside);
    inside.strip_suffix("/mod").unwrap_or(inside).split('/').map(str::to_owned).collect()
}

/// Where a path in the file of `module` leads, from the crate's root; nothing of other crates and of
/// names that were imported.
fn absolute(path: &str, module: &[String]) -> Option<Vec<String>> {
    let mut steps = path.split("::").peekable();
    let mut from = match *steps.peek()? {
        "crate" => Vec::new(),
        "self" | "super" => module.to_vec(),
        _ => return None,
    };
    while let Some(step) = steps.next_if(|step| matches!(*step, "crate" | "self" | "super")) {
        if step == "super" {
            from.pop()?;
        }
    }
    from.extend(steps.map(str::to_owned));
    Some(from)
}

/// The files that each file imports from, of the same room, beside and not above or below it: a parent
/// declares its children, and they share what it declares.
fn arrows(files: &[Source]) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
    let modules: BTreeSet<Vec<String>> = files.iter().map(module_of).collect();
    let mut arrows = BTreeMap::new();
    for file in files {
        let module = module_of(file);
        let own = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let mut targets = BTreeSet::new();
        for path in Source::new(&file.path, own).paths() {
            let Some(path) = absolute(&path, &module) else { continue };
            let known = (1..=path.len()).rev().map(|length| path[..length].to_vec());
            let Some(target) = known.into_iter().find(|prefix| modules.contains(prefix)) else {
                continue;
            };
            let beside = !module.starts_with(&target) && !target.starts_with(&module);
            if target[0] == module[0] && beside {
                targets.insert(target);
            }
        }
        arrows.insert(module, targets);
    }
    arrows
}

/// Every file of `rooms` from which imports lead back to it.
pub(crate) fn circles(files: &[Source], rooms: &[&str]) -> Vec<String> {
    let arrows = arrows(files);
    let mut found = Vec::new();
    for start in arrows.keys().filter(|module| rooms.contains(&module[0].as_str())) {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
        while let Some(module) = next.pop() {
            for target in arrows.get(module).into_iter().flatten() {
                if target == start {
                    found.push(format!("{} is imported by what it imports", start.join("::")));
                    next.clear();
                    break;
                }
                if seen.insert(target) {
                    next.push(target);
                }
            }
        }
    }
    found
}

#[test]
fn a_circle_is_found_and_a_tree_is_none() {
    let file = |path: &str, text: &str| Source::new(path, text);
    let parent = file("src/a.rs", "mod b; mod c; pub use self::b::X;");
    let tree = [
        file("src/a/b.rs", "use super::c::Y;"),
        file("src/a/c.rs", "use super::Z;\n#[cfg(test)]\nmod tests { use super::super::b::X; }"),
    ];
    let back = [
        file("src/a/b.rs", "use super::{c::Y, Z};"),
        file("src/a/c.rs", "fn f() { crate::a::b::g() }"),
    ];
    let with = |files: [Source; 2]| {
        let [b, c] = files;
        circles(&[Source::new(&parent.path, &parent.text), b, c], &["a"])
    };
    assert_eq!(with(tree), Vec::<String>::new());
    assert_eq!(with(back).len(), 2);
}
