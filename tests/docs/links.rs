//! Relative links: the file exists, and so does the anchor in it.

use std::path::{Component, Path, PathBuf};

use crate::{
    assert_none,
    page::{Page, all},
    root,
};

/// A link in a page's prose: `[text](target)`.
pub(crate) struct Link {
    pub(crate) line: usize,
    pub(crate) target: String,
}

/// The links of a page, in order.
pub(crate) fn links(page: &Page) -> Vec<Link> {
    let mut links = Vec::new();
    for (at, line) in page.prose().lines().enumerate() {
        for rest in line.split("](").skip(1) {
            if let Some((target, _)) = rest.split_once(')') {
                links.push(Link { line: at + 1, target: target.to_owned() });
            }
        }
    }
    links
}

/// The anchor of a heading, as GitHub and mdBook make it.
pub(crate) fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || "-_".contains(c) => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

fn anchors(page: &Page) -> Vec<String> {
    let prose = page.prose();
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let headings = headings.map(|line| anchor(line.trim_start_matches('#').trim()));
    let named = prose.split("<a id=\"").skip(1).filter_map(|text| text.split('"').next());
    headings.chain(named.map(str::to_owned)).collect()
}

/// `target` as seen from the page at `path`, without `..`.
fn resolve(path: &str, target: &str) -> PathBuf {
    let mut resolved = PathBuf::new();
    let from = Path::new(path).parent().unwrap_or(Path::new(""));
    for component in from.join(target).components() {
        match component {
            Component::ParentDir => drop(resolved.pop()),
            component => resolved.push(component),
        }
    }
    resolved
}

/// Rule: a relative link leads to a file, and its anchor to a heading of that file.
fn broken_links(page: &Page) -> Vec<String> {
    let mut violations = Vec::new();
    for Link { line, target } in links(page) {
        if target.contains("://") {
            continue;
        }
        let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
        let file =
            if file.is_empty() { page.path.clone().into() } else { resolve(&page.path, file) };
        let place = format!("{}:{line}", page.path);
        if !root().join(&file).exists() {
            violations.push(format!("{place}: {target}: no such file"));
        } else if !heading.is_empty() {
            let is_own = file == Path::new(&page.path);
            let other = (!is_own).then(|| Page::read(file.to_str().expect("UTF-8")));
            if !anchors(other.as_ref().unwrap_or(page)).iter().any(|anchor| anchor == heading) {
                violations.push(format!("{place}: {target}: no such heading"));
            }
        }
    }
    violations
}

/// Rule: a file or directory that prose names in backticks exists.
fn missing_files(page: &Page) -> Vec<String> {
    let directories =
        ["crates/", "src/", "lua/", "tests/", "benches/", "config/", "scripts/", "fuzz/"];
    let mut violations = Vec::new();
    for (at, line) in page.prose().lines().enumerate() {
        let quoted = line.split('`').skip(1).step_by(2);
        let paths = quoted.filter(|text| directories.iter().any(|begin| text.starts_with(begin)));
        for path in paths.filter(|path| !path.contains("NAME") && !path.contains(' ')) {
            // A corpus is created when a fuzz target is run.
            if !root().join(path).exists() && !path.starts_with("fuzz/corpus") {
                violations.push(format!("{}:{}: {path}: no such file", page.path, at + 1));
            }
        }
    }
    violations
}

#[test]
fn relative_links_resolve() {
    assert_none(&all().iter().flat_map(broken_links).collect::<Vec<_>>());
    for (path, text, expected) in [
        ("README.md", "# A b\n[a](#a-b) [b](LICENSE) [c](https://example.com/#x)\n", 0),
        ("README.md", "# A b\n[a](#b)\n", 1),
        ("docs/src/a.md", "[b](LICENSE) [c](../../LICENSE)\n", 1),
    ] {
        let page = Page { path: path.to_owned(), text: text.to_owned() };
        assert_eq!(broken_links(&page).len(), expected, "{text}");
    }
}

#[test]
fn files_that_prose_names_exist() {
    assert_none(&all().iter().flat_map(missing_files).collect::<Vec<_>>());
    let text = "see `src/nowhere.rs` and `src/lib.rs`";
    let faulty = Page { path: "README.md".to_owned(), text: text.to_owned() };
    assert_eq!(missing_files(&faulty).len(), 1);
}
