//! Tests the table against a reference matcher that tries all routes and keeps the most specific
//! match.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::*;
use crate::condition::{Condition, ValueSource, ValueTest};

/// The rank of the path below a prefix.
const BELOW: Rank = (0, 0, false, 0);

/// The specificity of a pattern's segment: its kind, the number of fixed bytes, whether it is
/// `{name}` and not `{*name}`, and the number of fixed bytes before the parameter.
type Rank = (u8, usize, bool, usize);
/// The names and values of parameters.
type ParamValues<'p> = Vec<(String, &'p str)>;

#[derive(Clone, Debug)]
struct ReferenceRule {
    host: String,
    path: String,
    is_prefix: bool,
    methods: Vec<Method>,
    /// Tests of the parameters `0` and `1`.
    tests: Vec<(usize, ValueTest)>,
}

/// The values of the parameters `0` and `1`.
type ReferenceValues = [Option<u8>; 2];

fn is_met(test: &ValueTest, value: Option<u8>) -> bool {
    match test {
        ValueTest::Equals(wanted) => value.is_some_and(|value| **wanted == [value]),
        ValueTest::Present => value.is_some(),
        ValueTest::Absent => value.is_none(),
    }
}

impl ReferenceRule {
    fn rule(&self) -> Rule {
        Rule {
            host: HostPattern::parse(&self.host).unwrap(),
            path: if self.is_prefix {
                PathPattern::prefix(&self.path).unwrap()
            } else {
                PathPattern::parse(&self.path).unwrap()
            },
            methods: self.methods.clone(),
            conditions: Conditions::new(
                self.tests
                    .iter()
                    .map(|(name, test)| Condition {
                        source: ValueSource::Query(name.to_string().into()),
                        test: test.clone(),
                    })
                    .collect(),
                None,
            ),
        }
    }

    fn is_met(&self, values: ReferenceValues) -> bool {
        self.tests.iter().all(|(name, test)| is_met(test, values[*name]))
    }

    /// The specificity of the host's match.
    fn host(&self, host: &str) -> Option<usize> {
        match self.host.strip_prefix('*') {
            Some("") => Some(0),
            Some(suffix) => host.ends_with(suffix).then_some(suffix.len()),
            None => (self.host == host).then_some(usize::MAX),
        }
    }

    /// The specificity of the path's match, and the values of its parameters.
    fn path<'p>(&self, path: &'p str) -> Option<(Vec<Rank>, ParamValues<'p>)> {
        if !self.is_prefix {
            return self.pattern(path);
        }
        let slashes = if self.path == "/" { 0 } else { self.path.matches('/').count() };
        let end = path.match_indices('/').nth(slashes).map_or(path.len(), |(index, _)| index);
        let (before, below) = path.split_at(end);
        let (mut ranks, mut values) = match slashes {
            0 => path.starts_with('/').then(Default::default)?,
            _ => self.pattern(before)?,
        };
        if !below.is_empty() {
            ranks.push(BELOW);
            values.push(("rest".to_owned(), below));
        }
        Some((ranks, values))
    }

    /// As [`Self::path`], if the pattern must match all of `path`.
    fn pattern<'p>(&self, path: &'p str) -> Option<(Vec<Rank>, ParamValues<'p>)> {
        let (mut ranks, mut values) = (Vec::new(), Vec::new());
        let mut left = Some(path.strip_prefix('/')?);
        for pattern in self.path[1..].split('/') {
            let rest_of_path = left?;
            let (segment, after) = rest_of_path
                .split_once('/')
                .map_or((rest_of_path, None), |(segment, after)| (segment, Some(after)));
            left = after;
            let Some((prefix, rest)) = pattern.split_once('{') else {
                if pattern != segment {
                    return None;
                }
                ranks.push((4, 0, true, 0));
                continue;
            };
            let (name, suffix) = rest.split_once('}').unwrap();
            let fixed = prefix.len() + suffix.len();
            let kind = if fixed > 0 { 3 } else { 2 };
            if let Some(name) = name.strip_prefix('*') {
                let value = rest_of_path.strip_prefix(prefix)?;
                let kind = if fixed > 0 { kind } else { 1 };
                ranks.push((kind, fixed, false, prefix.len()));
                values.extend((!value.is_empty()).then(|| (name.to_owned(), value)));
                return Some((ranks, values));
            }
            let value = segment.strip_prefix(prefix)?.strip_suffix(suffix)?;
            if value.is_empty() {
                return None;
            }
            ranks.push((kind, fixed, true, prefix.len()));
            values.push((name.to_owned(), value));
        }
        left.is_none().then_some((ranks, values))
    }
}

/// The expected result: the route and its values, or the methods of the path.
fn expected<'p>(
    rules: &[ReferenceRule],
    host: &str,
    path: &'p str,
    method: &Method,
    values: ReferenceValues,
) -> Result<(usize, ParamValues<'p>), Vec<String>> {
    let met = rules.iter().enumerate().filter(|(_, rule)| rule.is_met(values));
    let matching = met.filter_map(|(index, rule)| {
        let (ranks, values) = rule.path(path)?;
        Some((index, rule, rule.host(host)?, ranks, values))
    });
    let matching: Vec<_> = matching.collect();
    let allowed = matching
        .iter()
        .filter(|(_, rule, ..)| rule.methods.is_empty() || rule.methods.contains(method));
    let best = allowed.max_by_key(|(index, rule, host, ranks, _)| {
        let is_whole = !rule.is_prefix;
        (host, ranks, is_whole, !rule.methods.is_empty(), rule.tests.len(), Reverse(index))
    });
    if let Some((index, .., values)) = best {
        return Ok((*index, values.clone()));
    }
    let methods = matching.iter().flat_map(|(_, rule, ..)| &rule.methods);
    let mut methods: Vec<String> = methods.map(ToString::to_string).collect();
    methods.sort();
    methods.dedup();
    Err(methods)
}

fn hosts() -> impl Strategy<Value = String> {
    const NAMES: [&str; 7] = ["*", "*.b", "*.a.b", "a.b", "a.a.b", "*.a.a.b", "b"];
    prop::sample::select(&NAMES[..]).prop_map(str::to_owned)
}

fn methods() -> impl Strategy<Value = Vec<Method>> {
    let odd = Method::from_bytes(b"PURGE").unwrap();
    prop::sample::subsequence(vec![Method::GET, Method::PUT, odd], 0..=2)
}

/// Patterns that often overlap; parameters are named by their index.
fn patterns() -> impl Strategy<Value = String> {
    let segments =
        prop::collection::vec("a|b|aab|\\{\\}|\\{\\}|a\\{\\}|aa\\{\\}|\\{\\}b|a\\{\\}b", 0..4);
    (segments, "|/|/\\{\\*\\}|/a\\{\\*\\}").prop_map(|(segments, end)| {
        let mut path = String::new();
        for (at, segment) in segments.iter().enumerate() {
            path += &format!("/{segment}").replace("{}", &format!("{{p{at}}}"));
        }
        path += &end.replace("{*}", "{*rest}");
        if path.is_empty() { "/".to_owned() } else { path }
    })
}

fn tests() -> impl Strategy<Value = Vec<(usize, ValueTest)>> {
    let test = prop::sample::select(vec![
        None,
        None,
        Some(ValueTest::Equals(b"a".as_slice().into())),
        Some(ValueTest::Equals(b"b".as_slice().into())),
        Some(ValueTest::Present),
        Some(ValueTest::Absent),
    ]);
    (test.clone(), test).prop_map(|(one, other)| {
        [one, other]
            .into_iter()
            .enumerate()
            .filter_map(|(name, test)| Some((name, test?)))
            .collect()
    })
}

fn rules() -> impl Strategy<Value = Vec<ReferenceRule>> {
    let rule = (hosts(), patterns(), any::<bool>(), methods(), tests());
    let rule = rule.prop_map(|(host, path, may_be_prefix, methods, tests)| {
        let is_prefix = may_be_prefix && PathPattern::prefix(&path).is_ok();
        ReferenceRule { host, path, is_prefix, methods, tests }
    });
    prop::collection::vec(rule, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn table_agrees_with_the_reference(
        mut rules in rules(),
        requests in prop::collection::vec(
            (
                "(a|b|c|\\.){1,4}|a\\.b|a\\.a\\.b|c\\.a\\.b",
                "(/(a|b|aab|ab|aaab|c|)){0,5}",
                0usize..3,
                prop::sample::select(vec![None, Some(b'a'), Some(b'b')]),
                prop::sample::select(vec![None, Some(b'a')]),
            ),
            1..20,
        ),
    ) {
        let table = loop {
            let written: Vec<Rule> = rules.iter().map(ReferenceRule::rule).collect();
            match RouteTable::build(&written) {
                Ok(table) => break table,
                // Try again without the conflicting rule.
                Err(errors) => drop(rules.remove(errors[0].second)),
            }
        };
        let methods = [Method::GET, Method::PUT, Method::DELETE];
        for (host, path, method, first, second) in &requests {
            let (method, values) = (&methods[*method], [*first, *second]);
            let expected = expected(&rules, host, path, method, values);
            let decide = |route: &ConditionalRoute| {
                if rules[route.route].is_met(values) { ConditionResult::Met } else { ConditionResult::Unmet }
            };
            let found = match table.find_where(host, path, method, decide) {
                Lookup::Found(TableMatch { route, params }) => {
                    let pattern = rules[route].rule().path;
                    let captures: Vec<_> = params.iter().collect();
                    prop_assert_eq!(&*pattern.captures(path), &*captures);
                    Ok((route, params.iter().map(|(name, value)| (name.to_owned(), value)).collect()))
                }
                Lookup::MethodNotAllowed(methods) => {
                    let mut methods: Vec<_> = methods.iter().map(ToString::to_string).collect();
                    methods.sort();
                    Err(methods)
                }
                Lookup::NotFound | Lookup::Undecided(_) => Err(Vec::new()),
            };
            prop_assert_eq!(found, expected, "{} {} {}", method, host, path);
        }
    }

    #[test]
    fn arbitrary_lookups_do_not_panic(rules in rules(), host in "\\PC{0,20}", path in "\\PC{0,20}|/[ab/\u{e9}]{0,20}") {
        let rules: Vec<Rule> = rules.iter().map(ReferenceRule::rule).collect();
        if let Ok(table) = RouteTable::build(&rules) {
            let _ = table.find(&host, &path, &Method::GET);
        }
    }
}
