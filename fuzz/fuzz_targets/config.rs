//! Any text is a configuration or a list of faults; and where it is a configuration, its table finds
//! the paths and hosts that the text itself is made of.
#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use tidegate::{
    config::{self, Unread},
    route::{HostPattern, Lookup, PathPattern, Rule, Table, normalize::normalize},
    snapshot::Snapshot,
};

fuzz_target!(|text: &str| {
    patterns(text);
    match config::parse("fuzz.yaml", text) {
        Ok(loaded) => match Snapshot::compile(&loaded) {
            Ok(snapshot) => {
                for route in &loaded.config.routes {
                    let host = route.matches.host.as_deref().unwrap_or("a");
                    search(&snapshot.table, host, &route.matches.path);
                }
                snapshot.notes.iter().for_each(|note| drop(note.to_string()));
            }
            Err(faults) => assert!(!faults.to_string().is_empty()),
        },
        Err(Unread { faults, partial }) => {
            assert!(!faults.to_string().is_empty());
            if let Some(Err(more)) = partial.map(|partial| Snapshot::compile(&partial)) {
                assert!(!more.to_string().is_empty());
            }
        }
    }
});

/// Puts each line into a table, as a host and a path, and searches for all of them in it.
fn patterns(text: &str) {
    let lines = || text.lines().take(16).map(|line| line.split_once(' ').unwrap_or(("*", line)));
    let rules = lines().filter_map(|(host, path)| {
        let (host, path) = (HostPattern::parse(host).ok()?, PathPattern::parse(path).ok()?);
        Some(Rule { host, path, methods: Vec::new() })
    });
    let mut rules: Vec<Rule> = rules.collect();
    let table = loop {
        match Table::build(&rules) {
            Ok(table) => break table,
            Err(errors) => drop(rules.remove(errors[0].second)),
        }
    };
    for (host, path) in lines() {
        search(&table, host, path);
    }
}

/// What a table finds has parameters that are parts of the path.
fn search(table: &Table, host: &str, path: &str) {
    let normal = normalize(path, true);
    for path in [path, normal.as_deref().unwrap_or("/")] {
        if let Lookup::Found(found) = table.find(host, path, &Method::GET) {
            assert!(found.params.iter().all(|(_, value)| path.contains(value)));
        }
    }
}
