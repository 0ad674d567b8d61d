//! Files for the certificates and bodies of errors that a page's configuration names.

use std::{collections::BTreeMap, fs, path::Path};

use tempfile::TempDir;
use testkit::tls::Authority;

/// The paths of certificates, keys and HTML files in `text`, with the names of their files without
/// the ending.
fn paths(text: &str) -> BTreeMap<&str, &str> {
    let words = text.split(|c: char| c.is_whitespace() || "{}[],;'\"".contains(c));
    let paths = words.filter_map(|word| {
        let file = Path::new(word);
        let is_used = file
            .extension()
            .is_some_and(|own| ["pem", "key", "html"].iter().any(|used| own == *used));
        Some((word, file.file_stem().filter(|_| is_used)?.to_str()?))
    });
    paths.collect()
}

/// `text` with files in place of the names in it. A certificate is for the name of
/// its file; `*-ca.pem` is an authority. The files live as long as the directory.
pub(crate) fn substitute(text: &str) -> (String, Option<TempDir>) {
    let paths = paths(text);
    if paths.is_empty() {
        return (text.to_owned(), None);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("documentation");
    let (html, certificates): (Vec<_>, Vec<_>) = paths
        .iter()
        .partition(|(path, _)| Path::new(path).extension().is_some_and(|own| own == "html"));
    for (_, name) in html {
        fs::write(directory.path().join(format!("{name}.html")), "<p>").expect("a file");
    }
    let mut names: Vec<&str> = certificates.into_iter().map(|(_, name)| *name).collect();
    names.dedup();
    for name in names {
        if name.ends_with("-ca") {
            authority.write(directory.path(), &format!("{name}.pem"));
        } else {
            authority.issue(&[name]).write(directory.path(), name);
        }
    }
    let mut substituted = String::new();
    let mut rest = text;
    while let Some((at, word)) = first_path(rest, &paths) {
        let file = Path::new(word).file_name().expect("it has an ending");
        substituted += &rest[..at];
        substituted += directory.path().join(file).to_str().expect("UTF-8");
        rest = &rest[at + word.len()..];
    }
    substituted += rest;
    (substituted, Some(directory))
}

/// The first path in `text`, and where it begins; of two that begin there the longer one.
fn first_path<'a>(text: &str, paths: &BTreeMap<&'a str, &str>) -> Option<(usize, &'a str)> {
    let found = paths.keys().filter_map(|path| Some((text.find(path)?, *path)));
    found.min_by_key(|(at, path)| (*at, std::cmp::Reverse(path.len())))
}

#[test]
fn certificates_and_keys_are_replaced_by_files() {
    let text = "a: [{cert: /etc/a.test.pem, key: /etc/a.test.key}, {cert: b-ca.pem}] # pem";
    let (substituted, directory) = substitute(text);
    let directory = directory.expect("files");
    for name in ["a.test.pem", "a.test.key", "b-ca.pem"] {
        let path = directory.path().join(name);
        assert!(substituted.contains(path.to_str().expect("UTF-8")) && path.exists(), "{name}");
    }
    assert!(!substituted.contains("/etc/") && substituted.ends_with("# pem"), "{substituted}");
    assert!(substitute("listen: []").1.is_none());
}
