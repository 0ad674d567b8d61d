//! Rule: a type name is one type in the whole program, so that a search for it finds one definition.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use crate::{
    assert_breaks, assert_none,
    source::{Source, is_test_module, production},
};

/// The types that a file defines: structs, enums, unions, traits and aliases, also those in
/// function bodies.
///
/// Left out are modules under `#[cfg(test)]`, files under a folder `tests`, associated types, type
/// parameters and what a macro generates.
struct Definitions<'a> {
    names: &'a mut Vec<String>,
}

impl<'ast> Visit<'ast> for Definitions<'_> {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_module(module) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.names.push(item.ident.to_string());
    }
}

/// The modules whose files are compiled only for tests: `#[cfg(test)] mod NAME;`.
fn test_modules(files: &[Source]) -> BTreeSet<Vec<String>> {
    let mut modules = BTreeSet::new();
    for file in files {
        for item in file.syntax().items {
            if let syn::Item::Mod(module) = item
                && is_test_module(&module)
            {
                let mut path = file.module();
                path.push(module.ident.to_string());
                modules.insert(path);
            }
        }
    }
    modules
}

/// For each type name, the files that define a type of this name, once for each definition.
fn files_by_name(files: &[Source]) -> BTreeMap<String, Vec<String>> {
    let test_modules = test_modules(files);
    let mut files_by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let module = file.module();
        if test_modules.iter().any(|test| module.starts_with(test)) {
            continue;
        }
        let mut names = Vec::new();
        Definitions { names: &mut names }.visit_file(&file.syntax());
        for name in names {
            files_by_name.entry(name).or_default().push(file.path.clone());
        }
    }
    files_by_name
}

/// Rule: no name has two definitions.
fn shared_names(files: &[Source]) -> Vec<String> {
    let shared = files_by_name(files).into_iter().filter(|(_, files)| files.len() > 1);
    shared
        .map(|(name, files)| format!("{name}: put the room's word in front: {}", files.join(", ")))
        .collect()
}

#[test]
fn a_type_name_is_one_type() {
    assert_none(&shared_names(&production()));
}

#[test]
fn two_types_of_one_name_are_found() {
    assert_breaks(shared_names, "src/a.rs", "struct A; mod b { enum A {} }", "");
    assert_breaks(shared_names, "src/a.rs", "trait A {} fn b() { type A = u8; }", "");
    let distinct = "struct A; trait B { type A; } #[cfg(test)] mod tests { struct A; }";
    assert_none(&shared_names(&[Source::new("src/a.rs", distinct)]));
    let files = [
        Source::new("src/a.rs", "struct A; #[cfg(test)] mod tests;"),
        Source::new("src/a/tests.rs", "struct A;"),
    ];
    assert_none(&shared_names(&files));
}
