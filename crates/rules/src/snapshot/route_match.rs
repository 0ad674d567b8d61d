//! Compiles the conditions of a route on headers, query parameters and callers, and notes
//! conditions that are rarely intended.

use std::collections::BTreeMap;

use ahash::RandomState;
use hashbrown::HashMap;
use http::header;
use tidegate_config::{self as config, MatchValue};
use tidegate_identity::KeyPart;
use tidegate_route::{Condition, Conditions, HostPattern, Rule, ValueSource, ValueTest};

use super::route_edits::excerpt;
use super::section::Section;

/// Compiles the conditions in `matches`, the value of `section`.
pub(super) fn conditions(section: &Section<'_>, matches: &config::RouteMatch) -> Conditions {
    let mut tests = Vec::new();
    let headers = section.at("headers");
    for (name, value) in &matches.headers {
        let section = headers.entry(name);
        let Ok(name) = name.parse::<header::HeaderName>() else {
            section.fault_at_key(format!("`{}`", excerpt(name)), "a header name");
            continue;
        };
        if name == header::HOST {
            section.fault_at_key("`host` among the headers", "`host` of `match`");
        }
        let source = ValueSource::Header(name.clone());
        if tests.iter().any(|test: &Condition| test.source == source) {
            let what = format!("duplicate header `{name}`");
            section.fault_at_key(what, "each name once, in any case");
        }
        let test = test(&section, value, &KeyPart::Header(name));
        tests.extend(test.map(|test| Condition { source, test }));
    }
    tests.extend(query_conditions(&section.at("query"), &matches.query));
    Conditions::new(tests, matches.weight)
}

fn query_conditions(section: &Section<'_>, query: &BTreeMap<String, MatchValue>) -> Vec<Condition> {
    let mut tests = Vec::new();
    for (name, value) in query {
        let section = section.entry(name);
        if name.is_empty() {
            section.fault_at_key("an empty name", "the name of a query parameter");
        }
        let test = test(&section, value, &KeyPart::Query(name.clone()));
        let source = ValueSource::Query(name.as_str().into());
        tests.extend(test.map(|test| Condition { source, test }));
    }
    tests
}

fn test(section: &Section<'_>, value: &MatchValue, part: &KeyPart) -> Option<ValueTest> {
    let text = match value {
        MatchValue::Sent(true) => return Some(ValueTest::Present),
        MatchValue::Sent(false) => return Some(ValueTest::Absent),
        MatchValue::Text(text) => text,
    };
    // Normalized like a request's values, so that they compare equal.
    let form = part.canonical_input(text, &[]).ok().filter(|form| !form.is_empty());
    if form.is_none() {
        let what = format!("`{}`", excerpt(text));
        let expected =
            "a value that a request can have; true if it must be sent, false if it must not";
        section.fault(what, expected);
    }
    form.map(|form| ValueTest::Equals(form.into()))
}

/// Notes weights that give a route no caller, or leave callers without a route. Each rule is paired
/// with its index in the configuration.
pub(super) fn note_weights(root: &Section<'_>, rules: &[(usize, Rule)]) {
    if rules.iter().all(|(_, rule)| rule.conditions.weight().is_none()) {
        return;
    }
    let mut patterns = HashMap::<(&HostPattern, String), Vec<&Rule>, RandomState>::default();
    for (_, rule) in rules {
        patterns.entry((&rule.host, rule.path.example())).or_default().push(rule);
    }
    for (index, rule) in rules {
        let Some(weight) = rule.conditions.weight() else { continue };
        let section = root.at("routes").index(*index).at("match").at("weight");
        if weight == 0 {
            section.note("a weight of 0: the route matches no request", "1 to 100");
            continue;
        }
        let others = patterns.get(&(&rule.host, rule.path.example()));
        let others =
            others.into_iter().flatten().filter(|other| other.path.has_shape_of(&rule.path));
        if !serves_all_callers(rule, others.copied()) {
            let what = format!(
                "`{}` serves only a share of its callers; the others get a less specific route, or a 404",
                rule.path.as_str()
            );
            section.note(what, "a route with the same `match` and no `weight`");
        }
    }
}

/// True if `rule` and `others`, the routes with the same pattern, serve all callers together.
fn serves_all_callers<'r>(rule: &Rule, others: impl Iterator<Item = &'r Rule>) -> bool {
    let mut sum = 0;
    for other in others {
        let has_methods = other.methods.is_empty()
            || !rule.methods.is_empty()
                && rule.methods.iter().all(|one| other.methods.contains(one));
        let is_met =
            other.conditions.tests().iter().all(|one| rule.conditions.tests().contains(one));
        if !has_methods || !is_met {
            continue;
        }
        match other.conditions.weight() {
            None => return true,
            Some(weight) if other.conditions.tests() == rule.conditions.tests() => {
                sum += u32::from(weight);
            }
            Some(_) => {}
        }
    }
    sum >= 100
}
