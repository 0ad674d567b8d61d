//! Any text is a configuration or gives a list of faults. Lookups of the text's own hosts and paths in its
//! route table do not panic.
#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use tidegate::{
    config::{self, ReadError},
    route::{
        Conditions, HostPattern, Lookup, PathPattern, RouteTable, Rule, Verdict,
        normalize::normalize,
    },
    snapshot::Snapshot,
};

fuzz_target!(|text: &str| {
    check_patterns(text);
    match config::parse("fuzz.yaml", text) {
        Ok(loaded) => match Snapshot::compile(&loaded) {
            Ok(snapshot) => {
                for route in &loaded.config.routes {
                    let host = route.matches.host.as_deref().unwrap_or("a");
                    check_lookups(&snapshot.table, host, &route.matches.path);
                }
                snapshot.notes.iter().for_each(|note| drop(note.to_string()));
            }
            Err(faults) => assert!(!faults.to_string().is_empty()),
        },
        Err(ReadError { faults, partial }) => {
            assert!(!faults.to_string().is_empty());
            if let Some(Err(more)) = partial.map(|partial| Snapshot::compile(&partial)) {
                assert!(!more.to_string().is_empty());
            }
        }
    }
});

/// Builds a route table from the host and path of each line, and looks all of them up.
fn check_patterns(text: &str) {
    let lines = || text.lines().take(16).map(|line| line.split_once(' ').unwrap_or(("*", line)));
    let rules = lines().filter_map(|(host, path)| {
        let (host, path) = (HostPattern::parse(host).ok()?, PathPattern::parse(path).ok()?);
        Some(Rule { host, path, methods: Vec::new(), conditions: Conditions::default() })
    });
    let mut rules: Vec<Rule> = rules.collect();
    let table = loop {
        match RouteTable::build(&rules) {
            Ok(table) => break table,
            Err(errors) => drop(rules.remove(errors[0].second)),
        }
    };
    for (host, path) in lines() {
        check_lookups(&table, host, path);
    }
}

/// Looks up a path and its normal form. The parameters found must be parts of the path.
fn check_lookups(table: &RouteTable, host: &str, path: &str) {
    let normal = normalize(path, true);
    for path in [path, normal.as_deref().unwrap_or("/")] {
        for verdict in [Verdict::Unmet, Verdict::Met] {
            let found = table.find_where(host, path, &Method::GET, |_| verdict);
            if let Lookup::Found(found) = found {
                assert!(found.params.iter().all(|(_, value)| path.contains(value)));
            }
        }
    }
}
