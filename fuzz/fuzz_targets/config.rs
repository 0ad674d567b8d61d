//! Any text is a configuration or gives a list of faults. Lookups of the text's own hosts and paths
//! in its route table do not panic.
#![no_main]

use http::Method;
use libfuzzer_sys::fuzz_target;
use tidegate::{
    config::{self, ReadError},
    route::{
        ConditionResult, Conditions, HostPattern, Lookup, PathPattern, RouteTable, Rule,
        normalize::{Slashes, normalize},
    },
    snapshot::{SecretReading, Snapshot},
};

fuzz_target!(|text: &str| {
    check_patterns(text);
    // Short names of variables have a value, which no message may show.
    let env = |name: &str| (name.len() < 4).then(|| VALUE.into());
    match config::parse_with("fuzz.yaml", text, &env) {
        Ok(loaded) => match Snapshot::compile(&loaded, SecretReading::Unread) {
            Ok(snapshot) => {
                for route in &loaded.config.routes {
                    let host = route.matches.host.as_deref().unwrap_or("a");
                    let path = route.matches.path.as_ref().or(route.matches.path_prefix.as_ref());
                    check_lookups(&snapshot.table, host, path.map_or("/a/b", |path| path));
                }
                snapshot.notes.iter().for_each(|note| check_message(&note.to_string(), text));
            }
            Err(faults) => check_message(&faults.to_string(), text),
        },
        Err(ReadError { faults, partial }) => {
            check_message(&faults.to_string(), text);
            if let Some(Err(more)) =
                partial.map(|partial| Snapshot::compile(&partial, SecretReading::Unread))
            {
                check_message(&more.to_string(), text);
            }
        }
    }
});

/// The value of variables.
const VALUE: &str = "Hush-7f3A9c";

fn check_message(message: &str, text: &str) {
    assert!(!message.is_empty());
    assert!(text.contains(VALUE) || !message.contains(VALUE));
}

/// Builds a route table from the host and path of each line, and looks all of them up.
fn check_patterns(text: &str) {
    let lines = || text.lines().take(16).map(|line| line.split_once(' ').unwrap_or(("*", line)));
    let rules = lines().flat_map(|(host, path)| {
        let paths = [PathPattern::parse(path), PathPattern::prefix(path)].into_iter().flatten();
        paths.filter_map(|path| {
            let host = HostPattern::parse(host).ok()?;
            Some(Rule { host, path, methods: Vec::new(), conditions: Conditions::default() })
        })
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
    let normal = normalize(path, Slashes::Merge);
    for path in [path, normal.as_deref().unwrap_or("/")] {
        for verdict in [ConditionResult::Unmet, ConditionResult::Met] {
            let found = table.find_where(host, path, &Method::GET, |_| verdict);
            if let Lookup::Found(found) = found {
                assert!(found.params.iter().all(|(_, value)| path.contains(value)));
            }
        }
    }
}
