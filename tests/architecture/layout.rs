//! Rules on files: their length, their opening comments, the two files of each algorithm, paths of
//! machines.

use crate::{
    assert_breaks, assert_none,
    source::{Source, all, production, read},
};

/// The most lines of a file of production code. Raise it if one idea needs more.
const MAX_LINES: usize = 600;

/// The readers of the configuration and of the access log: nothing else is deserialized.
const READERS: [&str; 4] = [
    "crates/access/src/auth/jwt/json.rs",
    "crates/config/src",
    "src/replay/json.rs",
    "src/replay/logged_costs.rs",
];

/// Files with enums without fields that the configuration reads by their names: the whole enum is
/// its syntax. `scalar` has the macro for values that are parsed from one text.
const NAMED_BY_CONFIGURATION: [&str; 4] = [
    "crates/limit/src/lib.rs",
    "crates/scalar/src/lib.rs",
    "crates/usage/src/preset.rs",
    "crates/vocabulary/src/",
];

/// True if each type of the file that derives `Deserialize` is an enum without fields.
fn deserializes_only_names(file: &Source) -> bool {
    let derives = |attributes: &[syn::Attribute]| {
        attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok()).any(|list| {
            list.path.is_ident("derive") && list.tokens.to_string().contains("Deserialize")
        })
    };
    file.syntax().items.iter().all(|item| match item {
        syn::Item::Enum(item) => {
            !derives(&item.attrs) || item.variants.iter().all(|variant| variant.fields.is_empty())
        }
        syn::Item::Struct(item) => !derives(&item.attrs),
        _ => true,
    })
}

/// Rule: only [`READERS`] derive `Deserialize`, and [`NAMED_BY_CONFIGURATION`] for enums without
/// fields.
fn forbidden_deserialize(files: &[Source]) -> Vec<String> {
    let is_reader = |file: &Source| {
        READERS.iter().any(|reader| file.path.starts_with(reader))
            || NAMED_BY_CONFIGURATION.iter().any(|named| file.path.starts_with(named))
                && deserializes_only_names(file)
    };
    let others = files.iter().filter(|file| !is_reader(file));
    let deriving = others.filter(|file| file.has_identifier("Deserialize"));
    deriving.map(|file| format!("{}: only {READERS:?} derive Deserialize", file.path)).collect()
}

/// Rule: a file holds one idea.
fn long_files(files: &[Source]) -> Vec<String> {
    let lines = files.iter().map(|file| (&file.path, file.text.lines().count()));
    let long = lines.filter(|(_, lines)| *lines > MAX_LINES);
    long.map(|(path, lines)| format!("{path}: {lines} lines, more than {MAX_LINES}")).collect()
}

/// Rule: every file opens with what it is for, unless its `mod` line says it.
fn undocumented_files(files: &[Source]) -> Vec<String> {
    let has_doc = |attributes: &[syn::Attribute]| {
        attributes.iter().any(|attribute| attribute.path().is_ident("doc"))
    };
    let mut declared = Vec::new();
    for file in files {
        for item in file.syntax().items {
            let syn::Item::Mod(module) = item else { continue };
            if has_doc(&module.attrs) {
                let mut path = file.module();
                path.push(module.ident.to_string());
                declared.push(path);
            }
        }
    }
    let is_test = |file: &&Source| file.path.contains("/tests");
    let files = files.iter().filter(|file| !is_test(file));
    files
        .filter(|file| !has_doc(&file.syntax().attrs) && !declared.contains(&file.module()))
        .map(|file| format!("{}: does not say what it is for", file.path))
        .collect()
}

/// True for the page of a crate, and for the page of a top-level module of a crate that is a list
/// of modules.
fn is_page(file: &Source, files: &[Source]) -> bool {
    let is_list = |root: &Source| {
        root.syntax().items.iter().all(|item| match item {
            syn::Item::Mod(module) => matches!(module.vis, syn::Visibility::Public(_)),
            item => matches!(item, syn::Item::Use(_)),
        })
    };
    match (&file.module()[..], file.crate_name()) {
        ([_], _) => true,
        ([_, _], Some(name)) => {
            let root = format!("crates/{name}/src/lib.rs");
            files.iter().find(|file| file.path == root).is_some_and(is_list)
        }
        _ => false,
    }
}

/// Rule: the page of a crate or of a top-level module names each file of its folder, so that a
/// reader finds it.
fn unlisted_files(files: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for page in files.iter().filter(|file| is_page(file, files)) {
        let text: Vec<_> = page.text.lines().filter(|line| line.starts_with("//!")).collect();
        let text = text.join("\n");
        for file in files.iter().filter(|file| !file.path.contains("/tests")) {
            let module = file.module();
            let Some((name, parent)) = module.split_last() else { continue };
            let ends = ["`", ".rs`", "`](mod@"];
            let is_named = ends.iter().any(|end| text.contains(&format!("`{name}{end}")));
            if *parent == page.module() && !is_named {
                violations.push(format!("{}: the page {} does not name it", file.path, page.path));
            }
        }
    }
    violations
}

/// Rule: a script opens with its contract; an algorithm has the same name in `lua/` and
/// `crates/limit/src/`.
fn faulty_scripts(lua: &[Source], rust: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in lua {
        let is_comment = |line: &&str| line.starts_with("--");
        let opening: Vec<_> = file.text.lines().take_while(is_comment).collect();
        let opening = opening.join("\n");
        let code = file.text.lines().filter(|line| !is_comment(line));
        let is_script = code.clone().any(|line| line.contains("KEYS") || line.contains("ARGV"));
        let contract: &[&str] = if is_script { &["KEYS", "ARGV", "Returns"] } else { &["--"] };
        for word in contract.iter().filter(|word| !opening.contains(*word)) {
            violations.push(format!("{}: does not open with {word}", file.path));
        }
        for line in code {
            let Some(rest) = line.strip_prefix("algorithms.") else { continue };
            let name = rest.split(' ').next().unwrap_or_default();
            let counterpart = format!("crates/limit/src/{name}.rs");
            let is_own_name = file.path == format!("lua/{name}.lua");
            if !is_own_name || !rust.iter().any(|file| file.path == counterpart) {
                violations.push(format!("{}: {name} has no counterpart {counterpart}", file.path));
            }
        }
    }
    violations
}

/// Rule: no file names a path of the machine that it was written on.
fn machine_paths(files: &[Source]) -> Vec<String> {
    // Put together, so that this file does not break its own rule.
    let roots = ["work", "home", "root", "Users", "mnt"].map(|root| format!("/{root}/"));
    let mut violations = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            let is_named = roots.iter().any(|root| {
                line.match_indices(root.as_str()).any(|(at, _)| {
                    // `a/home/b` is a path of a repository or of a URL.
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-}*".contains(c))
                })
            });
            if is_named {
                violations.push(format!("{}:{}: a path of a machine", file.path, at + 1));
            }
        }
    }
    violations
}

/// Rule: no merge left its markers behind.
fn conflict_markers(files: &[Source]) -> Vec<String> {
    // Put together, so that this file does not break its own rule.
    let markers = ["<", ">"].map(|sign| sign.repeat(7));
    let is_marker = |line: &&str| markers.iter().any(|marker| line.starts_with(marker.as_str()));
    let marked = files.iter().filter(|file| file.text.lines().any(|line| is_marker(&line)));
    marked.map(|file| format!("{}: has markers of a merge", file.path)).collect()
}

#[test]
fn only_the_configuration_and_the_log_reader_derive_deserialize() {
    assert_none(&forbidden_deserialize(&production()));
    assert_breaks(
        forbidden_deserialize,
        "crates/limit/src/lib.rs",
        "#[derive(Deserialize)] struct A;",
        "crates/config/src/limits.rs",
    );
    assert_breaks(
        forbidden_deserialize,
        "crates/limit/src/lib.rs",
        "#[derive(Deserialize)] enum A { B(u8) }",
        "",
    );
}

#[test]
fn files_are_short() {
    assert_none(&long_files(&production()));
    assert_breaks(long_files, "src/a.rs", &"\n".repeat(MAX_LINES + 1), "");
    assert_none(&long_files(&[Source::new("src/a.rs", &"\n".repeat(MAX_LINES))]));
}

#[test]
fn files_say_what_they_are_for() {
    let mut files = production();
    files.extend(all("tests/kit/src", ".rs"));
    assert_none(&undocumented_files(&files));
    assert_breaks(undocumented_files, "src/a.rs", "mod b;", "");
    let documented_by_parent =
        [Source::new("src/a.rs", "//! A.\n\n/// B.\nmod b;"), Source::new("src/a/b.rs", "")];
    assert_none(&undocumented_files(&documented_by_parent));
    assert_none(&undocumented_files(&[Source::new("src/b.rs", "//! B.")]));
}

#[test]
fn pages_name_every_file_of_their_module() {
    assert_none(&unlisted_files(&production()));
    let rule = |page: &str| {
        unlisted_files(&[
            Source::new("src/a.rs", page),
            Source::new("src/a/b.rs", "//! B."),
            Source::new("src/a/tests.rs", ""),
        ])
    };
    assert_none(&rule("//! A: `b` does it."));
    assert_none(&rule("//! A: `b.rs` does it."));
    assert_eq!(rule("//! A.\n/// `b`").len(), 1);
}

#[test]
fn scripts_open_with_their_contract_and_algorithms_have_counterparts() {
    assert_none(&faulty_scripts(&all("lua", ".lua"), &production()));
    let rule = |lua: &[Source]| faulty_scripts(lua, &[Source::new("crates/limit/src/b.rs", "")]);
    assert_breaks(rule, "lua/a.lua", "return redis.call('GET', KEYS[1])", "");
    assert_breaks(rule, "lua/a.lua", "-- KEYS[1]  a\n-- ARGV[1]  b\nreturn KEYS[1]", "");
    assert_none(&rule(&[Source::new("lua/a.lua", "-- KEYS, ARGV\n-- Returns\nreturn KEYS[1]")]));
    assert_breaks(rule, "lua/b.lua", "algorithms.b = 1", "");
    assert_breaks(rule, "lua/c.lua", "-- C.\nalgorithms.c = 1", "");
    assert_none(&rule(&[Source::new("lua/b.lua", "-- B.\nalgorithms.b = 1")]));
}

#[test]
fn no_file_names_a_path_of_a_machine() {
    let mut files: Vec<_> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docker-compose.yml"]
            .map(read)
            .into();
    for (directory, ending) in [
        ("src", ".rs"),
        ("crates", ".rs"),
        ("crates", ".toml"),
        ("tests", ".rs"),
        ("benches", ".rs"),
        ("lua", ".lua"),
        ("config", ".yaml"),
        ("docs", ".md"),
        ("scripts", ""),
    ] {
        files.extend(all(directory, ending));
    }
    assert_none(&machine_paths(&files));
    assert_none(&conflict_markers(&files));
    assert_breaks(conflict_markers, "README.md", &["<".repeat(7), " a".to_owned()].concat(), "");
    assert_breaks(machine_paths, "README.md", &["see /wo", "rk/main"].concat(), "");
    assert_breaks(machine_paths, "src/a.rs", &["\"/ho", "me/me/a\""].concat(), "");
    let permitted = Source::new("README.md", "https://a.example/home/x and src/root/y");
    assert_none(&machine_paths(&[permitted]));
}
