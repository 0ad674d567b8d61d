//! Types, functions and constants that ARCHITECTURE.md names exist.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use syn::{ImplItem, Item, TraitItem, UseTree};

use crate::{assert_none, page::Page, root};

/// The directories whose words the page may name.
const NAMED: [&str; 8] =
    ["crates", "src", "tests", "benches", "lua", "fuzz/fuzz_targets", "scripts", ".ci"];

/// What the source defines.
#[derive(Default)]
struct Source {
    /// Every word of every file, and the files' names.
    words: BTreeSet<String>,
    /// Functions, constants, fields and variants by type, and items by module.
    members: BTreeMap<String, BTreeSet<String>>,
}

impl Source {
    fn read() -> Self {
        let mut source = Self::default();
        for directory in NAMED {
            source.add_directory(&root().join(directory));
        }
        source
    }

    fn add_directory(&mut self, directory: &Path) {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                self.add_directory(&path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                self.add_file(&path, &text);
            }
        }
    }

    fn add_file(&mut self, path: &Path, text: &str) {
        let split = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        self.words.extend(split.map(str::to_owned));
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { return };
        self.words.insert(stem.to_owned());
        if path.extension().is_some_and(|extension| extension == "rs") {
            let file =
                syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            self.add_items(stem, &file.items);
        }
    }

    fn add_items(&mut self, module: &str, items: &[Item]) {
        for item in items {
            let name = match item {
                Item::Const(item) => item.ident.to_string(),
                Item::Enum(item) => {
                    let variants = item.variants.iter().map(|variant| variant.ident.to_string());
                    self.add_members(&item.ident.to_string(), variants);
                    item.ident.to_string()
                }
                Item::Fn(item) => item.sig.ident.to_string(),
                Item::Impl(item) => {
                    self.add_impl(item);
                    continue;
                }
                Item::Mod(item) => {
                    let name = item.ident.to_string();
                    if let Some((_, items)) = &item.content {
                        self.add_items(&name, items);
                    }
                    name
                }
                Item::Static(item) => item.ident.to_string(),
                Item::Struct(item) => {
                    let fields = item.fields.iter().filter_map(|field| field.ident.as_ref());
                    self.add_members(&item.ident.to_string(), fields.map(ToString::to_string));
                    item.ident.to_string()
                }
                Item::Trait(item) => {
                    let functions = item.items.iter().filter_map(|item| match item {
                        TraitItem::Fn(function) => Some(function.sig.ident.to_string()),
                        _ => None,
                    });
                    self.add_members(&item.ident.to_string(), functions);
                    item.ident.to_string()
                }
                Item::Type(item) => item.ident.to_string(),
                Item::Use(item) => {
                    self.add_members(module, imported(&item.tree));
                    continue;
                }
                _ => continue,
            };
            self.add_members(module, [name]);
        }
    }

    fn add_impl(&mut self, item: &syn::ItemImpl) {
        let syn::Type::Path(path) = &*item.self_ty else { return };
        let Some(last) = path.path.segments.last() else { return };
        let members = item.items.iter().filter_map(|item| match item {
            ImplItem::Const(constant) => Some(constant.ident.to_string()),
            ImplItem::Fn(function) => Some(function.sig.ident.to_string()),
            _ => None,
        });
        self.add_members(&last.ident.to_string(), members);
    }

    fn add_members(&mut self, owner: &str, members: impl IntoIterator<Item = String>) {
        self.members.entry(owner.to_owned()).or_default().extend(members);
    }

    /// True if the source has the name: a word, or a path whose last two segments are a type or
    /// module and its member. A path into a library is known by its words.
    fn has(&self, name: &str) -> bool {
        let segments: Vec<_> = name.split("::").collect();
        if let [.., owner, member] = segments[..]
            && let Some(members) = self.members.get(owner)
        {
            return members.contains(member);
        }
        segments.iter().all(|segment| self.words.contains(*segment))
    }
}

/// The names that a `use` brings into its module.
fn imported(tree: &UseTree) -> Vec<String> {
    match tree {
        UseTree::Path(path) => imported(&path.tree),
        UseTree::Name(name) => vec![name.ident.to_string()],
        UseTree::Rename(rename) => vec![rename.rename.to_string()],
        UseTree::Glob(_) => Vec::new(),
        UseTree::Group(group) => group.items.iter().flat_map(imported).collect(),
    }
}

/// The names in a page: inline code that is a path of identifiers, such as `Type::method`, with or
/// without the parentheses of a call.
fn names(text: &str) -> Vec<&str> {
    let outside_fences = text.split("```").step_by(2);
    let spans = outside_fences.flat_map(|part| part.split('`').skip(1).step_by(2));
    let names = spans.filter_map(|span| span.split('(').next());
    let is_identifier = |name: &str| {
        name.starts_with(|c: char| c.is_alphabetic())
            && name.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    names.filter(|name| name.split("::").all(is_identifier)).collect()
}

fn unknown_names(page: &Page, source: &Source) -> Vec<String> {
    let names = names(&page.text).into_iter();
    let unknown = names.filter(|name| !name.contains("NAME") && !source.has(name));
    unknown.map(|name| format!("{}: `{name}` is not in the source", page.path)).collect()
}

#[test]
fn architecture_names_what_exists() {
    let source = Source::read();
    let page = Page::read("ARCHITECTURE.md");
    assert!(names(&page.text).len() > 200, "too few names found");
    assert_none(&unknown_names(&page, &source));
    // Put together, so that this file does not have the word.
    let text = ["`Gateway::handle` and `Tea", "pot::brew()`"].concat();
    let made_up = Page { path: page.path.clone(), text };
    assert_eq!(unknown_names(&made_up, &source).len(), 1);
    // Both words exist, and the function belongs to another type.
    let moved =
        Page { path: page.path, text: "`Ledger::handle` and `gateway::overdue()`".to_owned() };
    assert_eq!(unknown_names(&moved, &source).len(), 2);
}
