//! Conditions of a route beyond host, path and method: headers, query parameters, a share of the
//! callers.
//!
//! The caller of this crate gives each of its own callers a number from 0 to 99, always the same
//! one; a weight is a range of these numbers.
//!
//! The table only orders the routes of a pattern by their conditions. Its caller decides whether a
//! request meets them.

use std::{cmp::Reverse, fmt, ops::Range};

use ahash::RandomState;
use hashbrown::HashMap;
use http::{HeaderName, Method};
use smallvec::SmallVec;
use tidegate_base::sensitive::{MASK, is_sensitive_name, is_sensitive_value, mask_forms};

/// The weight of a route for all callers.
pub const ALL_CALLERS: u8 = 100;

/// The conditions under which a route matches a request that fits its pattern.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Conditions {
    tests: Box<[Condition]>,
    weight: Option<u8>,
}

/// A condition on one value of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Condition {
    /// The value that is tested.
    pub source: ValueSource,
    /// The test.
    pub test: ValueTest,
}

/// A value of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ValueSource {
    /// The header of this name.
    Header(HeaderName),
    /// The query parameter of this name, decoded.
    Query(Box<str>),
}

/// A test of one value.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ValueTest {
    /// The value is sent, and its canonical form is this one.
    Equals(Box<[u8]>),
    /// The value is sent.
    Present,
    /// The value is not sent.
    Absent,
}

/// The result of testing a route's conditions on a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConditionResult {
    /// The request meets them.
    Met,
    /// The request does not meet them.
    Unmet,
    /// They cannot be decided. The lookup ends with this route.
    Unknown,
}

/// A route with conditions, among the routes of one pattern.
#[derive(Clone, Debug)]
pub struct ConditionalRoute {
    /// The route's index in the list that the table was built from.
    pub route: usize,
    pub(super) methods: Box<[Method]>,
    pub(super) conditions: Conditions,
    callers: Option<Range<u8>>,
}

/// Why two routes cannot be in one table.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum ConflictKind {
    /// They match the same requests.
    SameRequests,
    /// The weights of the second route and of the routes before it add up to more than 100.
    Weights,
}

impl Conditions {
    /// The conditions of a route. All `tests` must be met. `weight` is its share of the callers, in
    /// per cent.
    pub fn new(mut tests: Vec<Condition>, weight: Option<u8>) -> Self {
        tests.sort_by(|one, other| one.key().cmp(&other.key()));
        Self { tests: tests.into(), weight }
    }

    /// The conditions on headers and query parameters.
    pub fn tests(&self) -> &[Condition] {
        &self.tests
    }

    /// The share of the callers, in per cent.
    pub fn weight(&self) -> Option<u8> {
        self.weight
    }

    /// True without conditions.
    pub fn is_empty(&self) -> bool {
        self.tests.is_empty() && self.weight.is_none()
    }

    /// The most specific conditions first: more tests, then with a weight.
    fn rank(&self) -> (Reverse<usize>, bool) {
        (Reverse(self.tests.len()), self.weight.is_none())
    }
}

impl Condition {
    fn key(&self) -> (bool, &str, &ValueTest) {
        match &self.source {
            ValueSource::Header(name) => (false, name.as_str(), &self.test),
            ValueSource::Query(name) => (true, name, &self.test),
        }
    }
}

/// In words, such as `header x-version: 2` or `no query debug`. A possible credential is masked.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match &self.source {
            ValueSource::Header(name) => ("header", name.as_str()),
            ValueSource::Query(name) => ("query", &**name),
        };
        match &self.test {
            ValueTest::Equals(value) => {
                let value = String::from_utf8_lossy(value);
                let is_hidden = is_sensitive_name(name) || is_sensitive_value(&value);
                let shown = if is_hidden { MASK.into() } else { mask_forms(&value) };
                write!(f, "{kind} {name}: {shown}")
            }
            ValueTest::Present => write!(f, "{kind} {name}"),
            ValueTest::Absent => write!(f, "no {kind} {name}"),
        }
    }
}

impl ConditionalRoute {
    pub(super) fn new(route: usize, methods: &[Method], conditions: Conditions) -> Self {
        Self { route, methods: methods.into(), conditions, callers: None }
    }

    /// The conditions on headers and query parameters; all must be met.
    pub fn tests(&self) -> &[Condition] {
        &self.conditions.tests
    }

    /// The callers that the route is for, as a range of 0 to 99; `None`: all callers. Routes of one
    /// pattern with the same tests have disjoint ranges.
    pub fn callers(&self) -> Option<Range<u8>> {
        self.callers.clone()
    }
}

/// The callers of the routes with the same tests and one method.
#[derive(Default)]
struct CallerRanges {
    /// The route without a weight.
    unweighted: Option<usize>,
    /// The last route with a weight, and the end of its range.
    weighted: Option<(usize, u8)>,
}

/// Orders the routes of one pattern, the most specific first, and gives each weight its range of
/// callers. Calls `conflict` with the indices of each pair of routes that exclude each other.
pub(super) fn arrange(
    routes: &mut [ConditionalRoute],
    mut conflict: impl FnMut(usize, usize, ConflictKind),
) {
    routes.sort_by(|one, other| {
        let (tests, others) = (one.tests().iter(), other.tests().iter());
        tests.map(Condition::key).cmp(others.map(Condition::key)).then(one.route.cmp(&other.route))
    });
    for group in routes.chunk_by_mut(|one, other| one.tests() == other.tests()) {
        assign_callers(group, &mut conflict);
    }
    routes.sort_by_key(|route| (route.conditions.rank(), route.route));
}

/// Gives the weights of routes with the same tests their ranges, one after the other.
fn assign_callers(
    group: &mut [ConditionalRoute],
    conflict: &mut impl FnMut(usize, usize, ConflictKind),
) {
    let mut by_method = HashMap::<Option<Method>, CallerRanges, RandomState>::default();
    for route in group {
        let methods = route.methods.iter().cloned().map(Some);
        let mut keys: SmallVec<[Option<Method>; 4]> = methods.collect();
        if keys.is_empty() {
            keys.push(None);
        }
        let Some(weight) = route.conditions.weight else {
            for key in keys {
                let shares = by_method.entry(key).or_default();
                match shares.unweighted {
                    Some(first) => conflict(first, route.route, ConflictKind::SameRequests),
                    None => shares.unweighted = Some(route.route),
                }
            }
            continue;
        };
        let taken = keys.iter().filter_map(|key| by_method.get(key)?.weighted);
        let last = taken.max_by_key(|(_, end)| *end);
        let start = last.map_or(0, |(_, end)| end);
        let end = start.saturating_add(weight);
        if end > ALL_CALLERS {
            let first = last.map_or(route.route, |(first, _)| first);
            conflict(first, route.route, ConflictKind::Weights);
        }
        route.callers = Some(start..end);
        for key in keys {
            by_method.entry(key).or_default().weighted = Some((route.route, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_shows_no_credential() {
        let shown = |source: ValueSource, value: &str| {
            Condition { source, test: ValueTest::Equals(value.as_bytes().into()) }.to_string()
        };
        let header = |name: &str| ValueSource::Header(name.parse().unwrap());
        for (source, value, expected) in [
            (header("x-version"), "2", "header x-version: 2"),
            (header("x-api-key"), "hush", "header x-api-key: ***"),
            (header("x-plan"), "Bearer hush", "header x-plan: ***"),
            (ValueSource::Query("token".into()), "hush", "query token: ***"),
            (ValueSource::Query("page".into()), "2", "query page: 2"),
        ] {
            assert_eq!(shown(source, value), expected);
        }
    }
}
