use http::Method;
use proptest::prelude::*;

use super::*;
use crate::pattern::PathPattern;

fn tree(patterns: &[impl AsRef<str>]) -> Tree {
    let mut tree = Tree::default();
    for (route, pattern) in patterns.iter().enumerate() {
        let pattern = PathPattern::parse(pattern.as_ref()).unwrap();
        tree.leaf_mut(&pattern).add(route, &[], |other| panic!("{other} and {route}"));
    }
    tree
}

/// All matching routes, the most specific first, and the number of visited nodes.
fn matching(tree: &Tree, path: &str) -> (Vec<usize>, usize) {
    let (mut search, mut routes) = (Search::new(tree, path), Vec::new());
    search.run(|leaf| {
        routes.extend(leaf.route(&Method::GET));
        None::<()>
    });
    (routes, search.visited())
}

#[test]
fn matches_are_found_in_the_order_of_specificity() {
    let patterns = [
        "/files/a.json",
        "/files/a.{x}son",
        "/files/{name}.json",
        "/files/a{*rest}",
        "/files/{name}",
        "/files/{*rest}",
        "/{folder}/a.json",
        "/{*rest}",
    ];
    for order in [patterns, {
        let mut reversed = patterns;
        reversed.reverse();
        reversed
    }] {
        let (found, _) = matching(&tree(&order), "/files/a.json");
        let found: Vec<_> = found.into_iter().map(|route| order[route]).collect();
        assert_eq!(found, patterns);
    }
}

#[test]
fn only_a_rest_may_be_empty() {
    let tree = tree(&["/a/{x}", "/b/pre{x}post", "/c/{*x}", "/d/pre{*x}", "/e/{x}/"]);
    for (path, found, value) in [
        ("/a/1", Some(0), Some("1")),
        ("/a/", None, None),
        ("/a", None, None),
        ("/a/1/", None, None),
        ("/b/pre1post", Some(1), Some("1")),
        ("/b/prepost", None, None),
        ("/b/prpost", None, None),
        ("/b/pre\u{e9}post", Some(1), Some("\u{e9}")),
        ("/b/\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}", None, None),
        ("/c/", Some(2), None),
        ("/c/1/2", Some(2), Some("1/2")),
        ("/c//2", Some(2), Some("/2")),
        ("/c", None, None),
        ("/d/pre", Some(3), None),
        ("/d/pre/1", Some(3), Some("/1")),
        ("/d/pr", None, None),
        ("/e/1/", Some(4), Some("1")),
        ("/e//", None, None),
        ("", None, None),
        ("*", None, None),
    ] {
        let mut search = Search::new(&tree, path);
        assert_eq!(search.run(|leaf| leaf.route(&Method::GET)), found, "{path}");
        if found.is_some() {
            assert_eq!(search.into_values().first().copied(), value, "{path}");
        }
    }
}

/// All sequences of `a` and `{p}` of this length, each followed by a segment that no searched path
/// has.
fn all_patterns(depth: usize) -> Vec<String> {
    let path = |bits: usize| {
        let segments = (0..depth).map(|at| match bits >> at & 1 {
            0 => "/a".to_owned(),
            _ => format!("/{{p{at}}}"),
        });
        segments.collect::<String>() + "/end"
    };
    (0..1 << depth).map(path).collect()
}

#[test]
fn search_is_bounded_by_the_number_of_nodes() {
    // Each level doubles the patterns: repeated visits of a node would exceed the bound.
    let tree = tree(&all_patterns(10));
    let (found, visited) = matching(&tree, &("/a".repeat(10) + "/other"));
    assert_eq!((found.len(), tree.nodes.len()), (0, 2_047 + 1_024));
    assert!(visited <= 2_047, "{visited} nodes");
    // A longer path costs no more: the search ends where the patterns do.
    assert_eq!(matching(&tree, &"/a".repeat(100_000)).1, visited);
    assert_eq!(matching(&tree, &format!("/{}", "a".repeat(1 << 20))).1, 2);
}

#[test]
fn overlapping_patterns_do_not_multiply_the_visits() {
    let tree = tree(&["/{a}/x", "/{a}/{b}/y", "/{a}/{b}/{c}/z", "/{*rest}"]);
    for length in [1, 10, 1_000, 100_000] {
        let (found, visited) = matching(&tree, &"/x".repeat(length));
        assert_eq!(found.last(), Some(&3));
        assert!(visited <= 7, "{visited} nodes for {length} segments");
    }
    // A `{*rest}` at each depth: each matches and is found once.
    let patterns: Vec<_> = (0..60).map(|depth| "/a".repeat(depth) + "/{*rest}").collect();
    let tree = self::tree(&patterns);
    let (found, visited) = matching(&tree, &"/a".repeat(60));
    assert_eq!(found, (0..60).rev().collect::<Vec<_>>());
    assert!(visited <= 60, "{visited} nodes");
}

#[test]
fn unrelated_routes_add_no_visits() {
    for routes in [1, 10, 1_000, 10_000] {
        let patterns = (0..routes).flat_map(|n| {
            [format!("/r{n}/{{id}}"), format!("/p/{n}-{{id}}"), format!("/p/{{id}}-{n}")]
        });
        let tree = tree(&patterns.collect::<Vec<_>>());
        assert_eq!(matching(&tree, "/r0/5"), (vec![0], 3));
        assert_eq!(matching(&tree, "/p/0-x"), (vec![1], 3));
        assert_eq!(matching(&tree, "/p/x-0"), (vec![2], 3));
    }
}

proptest! {
    #[test]
    fn search_visits_each_node_at_most_once(
        patterns in prop::collection::vec("(/(a|b|\\{x\\}|a\\{x\\}|\\{x\\}a)){1,6}", 1..40),
        path in "(/(a|b|ab|aa|)){0,8}",
    ) {
        let mut tree = Tree::default();
        for (route, pattern) in patterns.iter().enumerate() {
            let mut numbered = String::new();
            for (at, part) in pattern.split("{x}").enumerate() {
                let param = if at == 0 { String::new() } else { format!("{{x{at}}}") };
                numbered.extend([param.as_str(), part]);
            }
            tree.leaf_mut(&PathPattern::parse(&numbered).unwrap()).add(route, &[], |_| {});
        }
        let (found, visited) = matching(&tree, &path);
        let mut once = found.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), found.len());
        prop_assert!(visited <= tree.nodes.len());
    }
}
