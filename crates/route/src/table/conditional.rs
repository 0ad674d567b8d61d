//! Routes of one pattern that differ by their conditions.

use http::HeaderName;

use super::*;
use crate::condition::{Condition, ValueSource, ValueTest};

fn header(name: &'static str) -> Condition {
    let source = ValueSource::Header(HeaderName::from_static(name));
    Condition { source, test: ValueTest::Present }
}

fn rule(methods: &[Method], headers: &[&'static str], weight: Option<u8>) -> Rule {
    Rule {
        host: HostPattern::Any,
        path: PathPattern::parse("/a").unwrap(),
        methods: methods.to_vec(),
        conditions: Conditions::new(headers.iter().map(|name| header(name)).collect(), weight),
    }
}

/// The route for a request with these headers, of the caller with this number from 0 to 99.
fn route(table: &RouteTable, method: &Method, headers: &[&str], caller: u8) -> Option<usize> {
    let decide = |route: &ConditionalRoute| {
        let has = |condition: &Condition| match &condition.source {
            ValueSource::Header(name) => headers.contains(&name.as_str()),
            ValueSource::Query(_) => false,
        };
        let is_own = route.callers().is_none_or(|callers| callers.contains(&caller));
        if is_own && route.tests().iter().all(has) {
            ConditionResult::Met
        } else {
            ConditionResult::Unmet
        }
    };
    match table.find_where("x", "/a", method, decide) {
        Lookup::Found(found) => Some(found.route),
        _ => None,
    }
}

#[test]
fn more_conditions_come_first_then_a_weight_then_none() {
    let rules = [
        rule(&[], &[], None),
        rule(&[], &[], Some(10)),
        rule(&[], &["x-a"], None),
        rule(&[], &["x-a"], Some(50)),
        rule(&[], &["x-a", "x-b"], None),
        rule(&[Method::PUT], &[], None),
        rule(&[Method::PUT], &["x-b"], None),
    ];
    let table = RouteTable::build(&rules).unwrap();
    for (method, headers, caller, wanted) in [
        (Method::GET, &[][..], 99, 0),
        (Method::GET, &[], 9, 1),
        (Method::GET, &["x-a"], 99, 2),
        (Method::GET, &["x-a"], 49, 3),
        (Method::GET, &["x-a", "x-b"], 0, 4),
        (Method::GET, &["x-b"], 10, 0),
        (Method::PUT, &["x-a"], 0, 5),
        (Method::PUT, &["x-a", "x-b"], 0, 6),
    ] {
        assert_eq!(route(&table, &method, headers, caller), Some(wanted), "{method} {headers:?}");
    }
}

#[test]
fn of_as_many_conditions_the_first_in_the_configuration_wins() {
    for order in [["x-a", "x-b"], ["x-b", "x-a"]] {
        let table = RouteTable::build(&order.map(|name| rule(&[], &[name], None))).unwrap();
        assert_eq!(route(&table, &Method::GET, &["x-a", "x-b"], 0), Some(0));
        assert_eq!(route(&table, &Method::GET, &[order[1]], 0), Some(1));
    }
}

#[test]
fn a_route_whose_conditions_are_not_met_does_not_exist() {
    let mut all = rule(&[], &[], None);
    all.path = PathPattern::parse("/{*rest}").unwrap();
    let rules = [rule(&[], &["x-a"], None), all];
    let table = RouteTable::build(&rules).unwrap();
    assert_eq!(route(&table, &Method::GET, &[], 0), Some(1), "the next less specific pattern");
    let rules = [rule(&[Method::GET], &["x-a"], None), rule(&[Method::PUT], &["x-a"], None)];
    let table = RouteTable::build(&rules).unwrap();
    assert!(matches!(table.find("x", "/a", &Method::GET), Lookup::NotFound));
    let met = table.find_where("x", "/a", &Method::POST, |_| ConditionResult::Met);
    let Lookup::MethodNotAllowed(methods) = met else { panic!("{met:?}") };
    assert_eq!(methods, [Method::GET, Method::PUT]);
}

#[test]
fn an_undecided_condition_ends_the_lookup() {
    let table = RouteTable::build(&[rule(&[], &[], None), rule(&[], &["x-a"], None)]).unwrap();
    let found = table.find_where("x", "/a", &Method::GET, |_| ConditionResult::Unknown);
    assert!(matches!(found, Lookup::Undecided(1)), "{found:?}");
}

#[test]
fn weights_share_the_callers_and_the_first_keep_theirs() {
    let shares = |weights: &[u8]| {
        let rules = weights.iter().map(|weight| rule(&[], &[], Some(*weight)));
        RouteTable::build(&rules.collect::<Vec<_>>())
    };
    let table = shares(&[5, 0, 20, 75]).unwrap();
    let routes: Vec<_> = (0..100).map(|caller| route(&table, &Method::GET, &[], caller)).collect();
    let count = |wanted: usize| routes.iter().filter(|route| **route == Some(wanted)).count();
    assert_eq!([0, 1, 2, 3].map(count), [5, 0, 20, 75]);
    assert!(routes[..5].iter().all(|route| *route == Some(0)));
    let errors = shares(&[60, 41]).unwrap_err();
    assert_eq!(errors, [RouteConflict { first: 0, second: 1, kind: ConflictKind::Weights }]);
}

#[test]
fn the_same_conditions_conflict_in_any_order() {
    let conflicts = |rules: &[Rule]| {
        let errors = RouteTable::build(rules).err().unwrap_or_default();
        errors.iter().map(|error| (error.first, error.second)).collect::<Vec<_>>()
    };
    let same = [rule(&[], &["x-a", "x-b"], None), rule(&[], &["x-b", "x-a"], None)];
    assert_eq!(conflicts(&same), [(0, 1)]);
    let (get, put) = (Method::GET, Method::PUT);
    let listed = [
        rule(std::slice::from_ref(&get), &["x-a"], None),
        rule(std::slice::from_ref(&put), &["x-a"], None),
        rule(&[put, get], &["x-a"], None),
        rule(&[], &["x-a"], None),
    ];
    assert_eq!(conflicts(&listed), [(0, 2), (1, 2)]);
    assert_eq!(conflicts(&[rule(&[], &["x-a"], None), rule(&[], &["x-b"], None)]), []);
    // Thousands of routes of one pattern take less than quadratic time.
    let names: Vec<&'static str> =
        (0..5_000).map(|n| &*Box::leak(format!("x-{n}").into_boxed_str())).collect();
    let many: Vec<Rule> = names.iter().map(|name| rule(&[], &[*name], None)).collect();
    assert_eq!(conflicts(&many), []);
}
