//! The file is the description of the requests, and describes each path of the router.

use std::{collections::BTreeSet, fs, path::Path};

use axum::body::Bytes;

use super::*;
use crate::admin::endpoints;

fn described(authentication: Authentication) -> Value {
    document::document(&operations::all(), authentication)
}

#[test]
#[expect(clippy::disallowed_methods, reason = "an input of the test, not of the gateway")]
fn the_file_is_the_description_of_the_requests() {
    const UPDATE: &str = "run UPDATE_DOCS=1 cargo test --lib openapi";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/openapi.json");
    let described = format!("{:#}\n", described(Authentication::Token));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(path, described).expect("a file that can be written");
        return;
    }
    let file = fs::read_to_string(path).expect("the file");
    for (line, (own, new)) in (1..).zip(file.lines().zip(described.lines())) {
        assert_eq!(own, new, "src/admin/openapi.json:{line} differs; {UPDATE}");
    }
    assert_eq!(file.len(), described.len(), "src/admin/openapi.json differs; {UPDATE}");
}

#[test]
fn without_a_token_nothing_of_it_is_described() {
    let removed = without_token(described(Authentication::Token));
    assert!(removed == described(Authentication::None), "{removed:#}");
}

#[test]
fn the_router_has_the_described_paths() {
    let description = described(Authentication::Token);
    let endpoints = endpoints::all(Bytes::new());
    let routed: BTreeSet<&str> = endpoints.iter().map(|endpoint| endpoint.path).collect();
    let paths = description["paths"].as_object().unwrap();
    assert_eq!(routed, paths.keys().map(String::as_str).collect());
    let index = index(&description, &endpoints);
    let start = "GET /; GET /healthz; GET /readyz; GET /metrics; GET /api/state; ";
    assert!(index.starts_with(start) && index.contains("; PUT, GET /api/throttle; "), "{index}");
}
