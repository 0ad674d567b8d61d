use super::ConflictKind::SameRequests;
use super::*;

fn rule(host: &str, path: &str, methods: &[Method]) -> Rule {
    Rule {
        host: HostPattern::parse(host).unwrap(),
        path: PathPattern::parse(path).unwrap(),
        methods: methods.to_vec(),
        conditions: Conditions::default(),
    }
}

fn prefix(path: &str, methods: &[Method]) -> Rule {
    Rule { path: PathPattern::prefix(path).unwrap(), ..rule("*", "/", methods) }
}

fn route(table: &RouteTable, host: &str, path: &str, method: &Method) -> Option<usize> {
    match table.find(host, path, method) {
        Lookup::Found(found) => Some(found.route),
        _ => None,
    }
}

#[test]
fn most_specific_route_wins() {
    let table = RouteTable::build(&[
        rule("*", "/{*rest}", &[]),
        rule("*", "/items/{id}", &[]),
        rule("*", "/items/new", &[]),
        rule("*", "/items/{id}", &[Method::DELETE]),
        rule("*.example.com", "/items/{id}", &[]),
        rule("*.eu.example.com", "/items/{id}", &[]),
        rule("api.example.com", "/items/{id}", &[]),
    ])
    .unwrap();
    for (host, path, method, wanted) in [
        ("x", "/", Method::GET, 0),
        ("x", "/a/b", Method::GET, 0),
        ("x", "/items/5", Method::GET, 1),
        ("x", "/items/5/6", Method::GET, 0),
        ("x", "/items/new", Method::GET, 2),
        ("x", "/items/5", Method::DELETE, 3),
        ("x", "/items/new", Method::DELETE, 2),
        ("x", "/other", Method::DELETE, 0),
        ("a.example.com", "/items/5", Method::GET, 4),
        ("a.eu.example.com", "/items/5", Method::GET, 5),
        ("api.example.com", "/items/5", Method::GET, 6),
        ("api.example.com", "/other", Method::GET, 0),
        ("example.com", "/items/5", Method::GET, 1),
    ] {
        assert_eq!(route(&table, host, path, &method), Some(wanted), "{method} {host}{path}");
    }
}

#[test]
fn a_prefix_gives_way_to_patterns_of_the_same_segments() {
    let rules = [
        prefix("/", &[]),
        prefix("/login", &[]),
        rule("*", "/login", &[Method::POST]),
        rule("*", "/login/{step}", &[]),
        prefix("/login/{step}/help", &[]),
        rule("*", "/files/{*rest}", &[]),
        prefix("/files", &[]),
        rule("*", "/{*rest}", &[Method::PUT]),
    ];
    let get = [
        ("/", 0),
        ("/x/y", 0),
        ("/loginx", 0),
        ("/login", 1),
        ("/login/", 1),
        ("/login/a", 3),
        ("/login/a/b", 1),
        ("/login/a/help", 4),
        ("/login/a/help/x/y", 4),
        ("/files", 6),
        ("/files/", 5),
        ("/files/a/b", 5),
    ];
    let other = [("POST", "/login", 2), ("PUT", "/login", 1), ("PUT", "/", 7), ("PUT", "/x", 7)];
    let mut order: Vec<usize> = (0..rules.len()).collect();
    for _ in 0..rules.len() {
        order.rotate_left(1);
        let rotated: Vec<Rule> = order.iter().map(|index| rules[*index].clone()).collect();
        let table = RouteTable::build(&rotated).unwrap();
        let requests = get.map(|(path, wanted)| ("GET", path, wanted));
        for (method, path, wanted) in requests.into_iter().chain(other) {
            let found = route(&table, "x", path, &method.parse().unwrap());
            assert_eq!(found.map(|index| order[index]), Some(wanted), "{method} {path}");
        }
    }
    let same = [prefix("/a", &[]), rule("*", "/a", &[]), prefix("/a", &[])];
    let conflict = RouteConflict { first: 0, second: 2, kind: SameRequests };
    assert_eq!(RouteTable::build(&same).unwrap_err(), [conflict]);
}

#[test]
fn exact_path_wins_over_an_empty_rest() {
    for order in [["/files/", "/files/{*rest}"], ["/files/{*rest}", "/files/"]] {
        let table = RouteTable::build(&order.map(|path| rule("*", path, &[]))).unwrap();
        let exact = order.iter().position(|path| *path == "/files/");
        assert_eq!(route(&table, "x", "/files/", &Method::GET), exact);
        assert_ne!(route(&table, "x", "/files/a", &Method::GET), exact);
    }
}

#[test]
fn methods_of_a_path_are_listed_if_none_matches() {
    let rules = [rule("*", "/a", &[Method::GET, Method::HEAD]), rule("h", "/a", &[Method::PUT])];
    let table = RouteTable::build(&rules).unwrap();
    let Lookup::MethodNotAllowed(methods) = table.find("h", "/a", &Method::POST) else {
        panic!("expected the methods of the path")
    };
    assert_eq!(methods, [Method::PUT, Method::GET, Method::HEAD]);
    assert!(matches!(table.find("h", "/b", &Method::POST), Lookup::NotFound));
}

#[test]
fn routes_for_the_same_requests_conflict() {
    let errors = RouteTable::build(&[
        rule("*", "/items/{id}", &[]),
        rule("*", "/items/{name}", &[]),
        rule("a.b", "/x", &[Method::GET, Method::PUT]),
        rule("A.B", "/x", &[Method::PUT]),
        rule("*", "/x", &[Method::PUT]),
    ])
    .unwrap_err();
    assert_eq!(
        errors,
        [(0, 1), (2, 3)].map(|(first, second)| RouteConflict { first, second, kind: SameRequests })
    );
}

#[test]
fn sixty_four_parameters_are_found() {
    let path = (0..64).map(|n| format!("/{{p{n}}}")).collect::<Vec<_>>().concat();
    let table = RouteTable::build(&[rule("*", &path, &[])]).unwrap();
    let path = (0..64).map(|n| format!("/{n}")).collect::<Vec<_>>().concat();
    let Lookup::Found(found) = table.find("x", &path, &Method::GET) else { panic!("no route") };
    assert_eq!((found.params.get("p0"), found.params.get("p63")), (Some("0"), Some("63")));
    assert_eq!((found.params.get("p64"), found.params.iter().count()), (None, 64));
}

#[test]
fn parameter_and_rest_may_share_a_segment() {
    let patterns = ["/{*rest}", "/{id}", "/a", "/{id}/x", "/a/{*rest}", "/{id}.json"];
    for reversed in [false, true] {
        let mut order = patterns;
        if reversed {
            order.reverse();
        }
        let table = RouteTable::build(&order.map(|path| rule("*", path, &[]))).unwrap();
        for (path, wanted) in [
            ("/", "/{*rest}"),
            ("/a", "/a"),
            ("/b", "/{id}"),
            ("/b.json", "/{id}.json"),
            ("/.json", "/{id}"),
            ("/b/x", "/{id}/x"),
            ("/a/x", "/a/{*rest}"),
            ("/b/y", "/{*rest}"),
        ] {
            let found = route(&table, "x", path, &Method::GET).map(|route| order[route]);
            assert_eq!(found, Some(wanted), "{path}");
        }
    }
}

#[test]
fn route_without_the_method_is_skipped() {
    let table = RouteTable::build(&[
        rule("a.b", "/items/new", &[Method::GET]),
        rule("a.b", "/items/{id}", &[Method::PUT]),
        rule("*.b", "/items/{id}", &[Method::DELETE]),
        rule("*", "/{*rest}", &[Method::PATCH, Method::GET]),
    ])
    .unwrap();
    for (method, wanted) in
        [(Method::GET, 0), (Method::PUT, 1), (Method::DELETE, 2), (Method::PATCH, 3)]
    {
        assert_eq!(route(&table, "a.b", "/items/new", &method), Some(wanted), "{method}");
    }
    let Lookup::MethodNotAllowed(methods) = table.find("a.b", "/items/new", &Method::POST) else {
        panic!("expected the methods of the path")
    };
    assert_eq!(methods, [Method::GET, Method::PUT, Method::DELETE, Method::PATCH]);
}

#[test]
fn parameter_names_are_those_of_the_matched_route() {
    let table = RouteTable::build(&[
        rule("*", "/items/{id}", &[Method::GET]),
        rule("*", "/items/{name}", &[]),
        rule("*", "/files/{*path}", &[]),
    ])
    .unwrap();
    let params = |path: &'static str, method| -> Vec<String> {
        match table.find("x", path, &method) {
            Lookup::Found(found) => found.params.iter().map(|(n, v)| format!("{n}={v}")).collect(),
            other => panic!("{path}: {other:?}"),
        }
    };
    let none: [String; 0] = [];
    assert_eq!(params("/items/5", Method::GET), ["id=5"]);
    assert_eq!(params("/items/5", Method::PUT), ["name=5"]);
    assert_eq!(params("/files/a/b", Method::PUT), ["path=a/b"]);
    assert_eq!(params("/files/", Method::PUT), none);
}

#[test]
fn suffix_lookups_are_bounded_by_the_labels_of_the_patterns() {
    let rules =
        [rule("*.example.com", "/", &[]), rule("*.eu.example.com", "/", &[]), rule("*", "/", &[])];
    let table = RouteTable::build(&rules).unwrap();
    for host in ["a.".repeat(12_000), "a.".repeat(12_000) + "eu.example.com", ".".repeat(50_000)] {
        let lookups = suffixes(&host, table.max_labels, table.wildcards.longest).count();
        assert!(lookups <= 3, "{lookups} lookups");
        let wanted = if host.ends_with("com") { 1 } else { 2 };
        assert_eq!(route(&table, &host, "/", &Method::GET), Some(wanted));
    }
}

#[test]
fn all_conflicts_are_reported() {
    let rules: Vec<_> = (0..5_000)
        .flat_map(|n| [format!("/{n}/{{a}}"), format!("/{n}/{{b}}")])
        .map(|path| rule("*", &path, &[]))
        .collect();
    let errors = RouteTable::build(&rules).unwrap_err();
    let kind = SameRequests;
    let pairs = (0..5_000).map(|n| RouteConflict { first: 2 * n, second: 2 * n + 1, kind });
    assert!(errors.into_iter().eq(pairs));
}
