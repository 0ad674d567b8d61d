//! Rust source as the rules see it: parsed by `syn`, with the paths that it names.

use std::path::Path;

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// One file of the repository.
pub(crate) struct Source {
    /// From the repository's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// The name of the crate under `crates/` that the file belongs to; `None` for the root package.
    pub(crate) fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// The file's module, as steps from the root of its crate: `["table"]` for
    /// `crates/route/src/table.rs`, and none for `src/lib.rs`.
    pub(crate) fn module_in_crate(&self) -> Vec<String> {
        let inside = match self.path.strip_prefix("crates/").and_then(|path| path.split_once('/')) {
            Some((_, inside)) => inside,
            None => &self.path,
        };
        let inside = inside.strip_prefix("src/").unwrap_or(inside);
        let inside = inside.strip_suffix(".rs").unwrap_or(inside);
        inside.split('/').filter(|step| *step != "lib").map(str::to_owned).collect()
    }

    /// The file's module among all crates: `["route", "table"]` for `crates/route/src/table.rs`,
    /// and `["admin", "metrics"]` for `src/admin/metrics.rs`.
    pub(crate) fn module(&self) -> Vec<String> {
        let crate_name = self.crate_name().map(str::to_owned);
        crate_name.into_iter().chain(self.module_in_crate()).collect()
    }

    /// The first step of its module.
    pub(crate) fn top_level_module(&self) -> String {
        self.module().into_iter().next().unwrap_or_default()
    }

    /// The syntax tree. Panics if the file is not Rust.
    pub(crate) fn syntax(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// The tokens, without comments.
    pub(crate) fn tokens(&self) -> TokenStream {
        let tokens = self.text.parse();
        tokens.unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// Every path of two or more segments, with the groups of `use` spelled out: `use a::{b, c::d}`
    /// is `a::b` and `a::c::d`. Paths in macro calls count; those in comments and literals do not.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.collect_paths(true)
    }

    /// [`Self::paths`] without those of modules under `#[cfg(test)]`.
    pub(crate) fn production_paths(&self) -> Vec<String> {
        self.collect_paths(false)
    }

    fn collect_paths(&self, with_tests: bool) -> Vec<String> {
        let mut collector = PathCollector { with_tests, paths: Vec::new() };
        collector.visit_file(&self.syntax());
        collector.paths.retain(|path| path.contains("::"));
        collector.paths
    }

    /// Whether an identifier of this name occurs, also in attributes and macro calls.
    pub(crate) fn has_identifier(&self, name: &str) -> bool {
        fn find(tokens: TokenStream, name: &str) -> bool {
            tokens.into_iter().any(|token| match token {
                TokenTree::Ident(ident) => ident == name,
                TokenTree::Group(group) => find(group.stream(), name),
                _ => false,
            })
        }
        find(self.tokens(), name)
    }
}

struct PathCollector {
    with_tests: bool,
    paths: Vec<String>,
}

impl<'ast> Visit<'ast> for PathCollector {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if self.with_tests || !is_test_module(module) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_use("", &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string());
        self.paths.push(segments.collect::<Vec<_>>().join("::"));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.add_tokens(call.tokens.clone());
    }
}

impl PathCollector {
    /// The paths of a `use` tree.
    fn add_use(&mut self, prefix: &str, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                self.add_use(&format!("{prefix}{}::", path.ident), &path.tree);
            }
            syn::UseTree::Name(name) => self.paths.push(format!("{prefix}{}", name.ident)),
            syn::UseTree::Rename(rename) => self.paths.push(format!("{prefix}{}", rename.ident)),
            syn::UseTree::Glob(_) => self.paths.push(format!("{prefix}*")),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_use(prefix, tree));
            }
        }
    }

    /// The paths in a macro call, whose tokens have no syntax of their own: identifiers joined by
    /// `::`.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (String::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons == 2 {
                        path.push_str("::");
                    } else {
                        self.paths.push(std::mem::take(&mut path));
                    }
                    path.push_str(&ident.to_string());
                    colons = 0;
                }
                other => {
                    self.paths.push(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.paths.push(path);
    }
}

/// True under `#[cfg(test)]`.
pub(crate) fn is_test_module(module: &syn::ItemMod) -> bool {
    module.attrs.iter().any(|attribute| {
        let condition = attribute.parse_args::<syn::Ident>();
        attribute.path().is_ident("cfg") && condition.is_ok_and(|ident| ident == "test")
    })
}

/// The repository's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One file of the repository.
pub(crate) fn read(path: &str) -> Source {
    let text = std::fs::read_to_string(root().join(path));
    Source::new(path, &text.unwrap_or_else(|error| panic!("{path}: {error}")))
}

/// Every file of production code and of its unit tests: the root package, and the crates that it
/// consists of.
pub(crate) fn production() -> Vec<Source> {
    let mut files = all("src", ".rs");
    files.extend(all("crates", ".rs"));
    files
}

/// Every file under `directory` whose name ends in `ending`, sorted by path.
pub(crate) fn all(directory: &str, ending: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = std::fs::read_dir(root().join(&directory));
        for entry in entries.unwrap_or_else(|error| panic!("{directory}: {error}")) {
            let entry = entry.expect("an entry");
            let name = entry.file_name().into_string().expect("a name in UTF-8");
            let path = format!("{directory}/{name}");
            if entry.file_type().expect("a file type").is_dir() {
                directories.push(path);
            } else if name.ends_with(ending) {
                found.push(read(&path));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

#[test]
fn comments_and_literals_have_no_paths() {
    let text = r##"const A: [&str; 2] = [b::C /* c::d */, "g::h \" i::j"]; // e::f
        fn x() { r#"k::l "m::n"#; '\''; o::p() }"##;
    assert_eq!(Source::new("src/a.rs", text).paths(), ["b::C", "o::p"]);
}

#[test]
fn paths_of_use_groups_and_macro_calls_are_found() {
    let text = "use a::{b, c::{self, d}, e::*, f as g};
        fn x() -> h::I { std::env::var(j); assert!(k::l(m::n), \"{}\", o.p) }";
    let paths = Source::new("src/a.rs", text).paths();
    for path in [
        "a::b",
        "a::c::self",
        "a::c::d",
        "a::e::*",
        "a::f",
        "h::I",
        "std::env::var",
        "k::l",
        "m::n",
    ] {
        assert!(paths.iter().any(|found| found == path), "{path} in {paths:?}");
    }
}

#[test]
fn test_modules_are_left_out_of_production_paths() {
    let text = "use a::b;\n#[cfg(test)]\nmod tests { use c::d; }";
    assert_eq!(Source::new("src/a.rs", text).production_paths(), ["a::b"]);
}
