//! Conditions of routes: faults, conflicts and notes.

use super::*;

fn routes(lines: &[&str]) -> String {
    let (sections, _) = GOOD.split_once("routes:").unwrap();
    let lines = lines.iter().enumerate().map(|(index, line)| {
        format!("  - {{name: r{index}, upstream: app, match: {{path: /a, {line}}}}}\n")
    });
    format!("{sections}routes:\n{}", lines.collect::<String>())
}

/// The faults, without their columns.
fn faults(lines: &[&str]) -> Vec<String> {
    let without_column = |fault: &String| {
        let mut parts = fault.splitn(3, ':');
        let (line, _) = (parts.next().unwrap(), parts.next());
        format!("{line}:{}", parts.next().unwrap())
    };
    compile(&routes(lines)).unwrap_err().iter().map(without_column).collect()
}

#[test]
fn faulty_conditions_are_located() {
    for (line, expected) in [
        ("headers: {host: a}", "8: `host` among the headers, expected `host` of `match`"),
        ("headers: {'a b': a}", "8: `a b`, expected a header name"),
        (
            "headers: {X-A: a, x-a: b}",
            "8: duplicate header `x-a`, expected each name once, in any case",
        ),
        (
            "headers: {a: ' '}",
            "8: ` `, expected a value that a request can have; true if it must be sent, false if it must not",
        ),
        (
            "headers: {authorization: Bearer a b}",
            "8: `***`, expected a value that a request can have; true if it must be sent, false if \
             it must not",
        ),
        ("query: {'': a}", "8: an empty name, expected the name of a query parameter"),
    ] {
        assert_eq!(faults(&[line]), [expected], "{line}");
    }
    for (value, fault) in [
        ("headers: {a: 2}", "`2`, expected text, in quotes if it is a number"),
        ("weight: 101", "`101`, expected a whole number from 0 to 100"),
        ("headers: [a]", "a list, expected a mapping of names"),
    ] {
        let error = config::parse("t.yaml", &routes(&[value])).unwrap_err().to_string();
        assert!(error.contains(fault), "{value}: {error}");
    }
}

#[test]
fn odd_names_and_long_values_are_faults_of_their_own() {
    let long = "a".repeat(1 << 20);
    for line in [
        "headers: {a.b: ' '}".to_owned(),
        "headers: {'a[0]': x}".to_owned(),
        format!("headers: {{'{} ': x}}", &long[..900]),
        format!("headers: {{authorization: '{long} a b'}}"),
    ] {
        let faults = faults(&[&line]);
        assert!(
            faults.len() == 1 && faults[0].len() < 4_000,
            "{} {}",
            faults.len(),
            faults[0].len()
        );
    }
    assert!(compile(&routes(&["query: {'a.b[0]': x, 'a b': true}"])).is_ok());
}

#[test]
fn routes_with_the_same_conditions_conflict() {
    assert_eq!(
        faults(&["headers: {a: x, b: true}", "headers: {B: true, a: x}"]),
        [
            "9: `/a` matches the same requests as route `r0` (line 8), expected another host, path or method, \
          or other conditions"
        ]
    );
    assert_eq!(
        faults(&["weight: 60, query: {q: a}", "weight: 41, query: {q: a}", "query: {q: a}"]),
        [
            "9: the weights up to this one, after route `r0` (line 8), exceed 100, expected at most 100 per \
          cent together"
        ]
    );
    assert!(
        compile(&routes(&["headers: {a: x}", "headers: {a: y}", "headers: {a: false}"])).is_ok()
    );
}

#[test]
fn weights_that_serve_no_caller_or_leave_some_out_are_noted() {
    let notes = |lines: &[&str]| notes_on_routes(&compile(&routes(lines)).unwrap());
    let share = "serves only a share of its callers";
    for (lines, expected) in [
        (&["weight: 5", "methods: []"][..], None),
        (&["weight: 5"], Some(share)),
        (&["weight: 5, headers: {a: x}", "methods: []"], None),
        (&["weight: 5", "headers: {a: x}"], Some(share)),
        (&["weight: 5, methods: [GET]", "methods: [GET, PUT]"], None),
        (&["weight: 5", "methods: [GET, PUT]"], Some(share)),
        (&["weight: 30", "weight: 70"], None),
        (&["weight: 0", "methods: []"], Some("a weight of 0: the route matches no request")),
    ] {
        let notes = notes(lines);
        let found = notes.iter().filter(|note| expected.is_some_and(|text| note.contains(text)));
        assert_eq!(found.count(), usize::from(expected.is_some()), "{lines:?}: {notes:?}");
        assert_eq!(notes.len(), usize::from(expected.is_some()), "{lines:?}: {notes:?}");
    }
}

#[test]
fn values_are_in_the_form_of_requests() {
    let text =
        routes(&["headers: {Authorization: Bearer  x, X-B: ' 1 '}, query: {q: true}, weight: 7"]);
    let snapshot = compile(&text).unwrap();
    let conditions = &snapshot.routes[0].edits.conditions;
    let tests: Vec<String> = conditions
        .tests()
        .iter()
        .map(|test| format!("{:?} {:?}", test.source, test.test))
        .collect();
    assert_eq!(conditions.weight(), Some(7));
    assert_eq!(
        tests,
        [
            "Header(\"authorization\") Equals([120])",
            "Header(\"x-b\") Equals([49])",
            "Query(\"q\") Present"
        ]
    );
}
