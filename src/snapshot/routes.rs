//! Which requests go where.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use http::Method;

use super::check::Check;
use super::{Action, Policy, Route, RouteLimit};
use crate::config::{self, Config, KeyPart, MAX_FAULTS};
use crate::identity::Part;
use crate::route::normalize::normalize;
use crate::route::{HostPattern, PathPattern, PatternError, Rule, Table};
use crate::upstream::Upstream;

/// The table and its routes. A faulty route is noted and left out.
pub(super) fn compile(
    check: &mut Check<'_>,
    config: &Config,
    upstreams: &[Arc<Upstream>],
    limits: &[Arc<Policy>],
) -> (Table, Vec<Route>) {
    check.ensure(!config.routes.is_empty(), "routes", "no route", "at least one");
    let known = Known::new(upstreams, limits);
    let mut names = HashMap::<&str, usize, RandomState>::default();
    let mut routes = Vec::new();
    let mut rules = Vec::new();
    for (index, route) in config.routes.iter().enumerate() {
        let path = format!("routes[{index}]");
        check.value_name(&format!("{path}.name"), &route.name);
        let before = *names.entry(&route.name).or_insert(index);
        if before != index && !check.is_full() {
            let what = format!("`{}` again", route.name);
            let line = check.line(&format!("routes[{before}].name"));
            let expected = format!("a name of its own (it is on line {line} already)");
            check.fault(&format!("{path}.name"), what, &expected);
        }
        references(check, &path, route, config);
        times(check, &path, route);
        let rule = rule(check, &path, &route.matches);
        let mut named = |key: &str, names: &[String]| {
            named_limits(check, &format!("{path}.{key}"), names, rule.as_ref(), config, &known)
        };
        let (used, told) = (named("limits", &route.limits), named("status", status(route)));
        waits(check, &path, route, &known);
        let strip_prefix = strip_prefix(check, &path, route);
        let action = action(check, &path, route, &known, told);
        rules.extend(rule.map(|rule| (index, rule)));
        routes.extend(action.map(|action| Route {
            name: route.name.as_str().into(),
            action,
            limits: used.iter().flat_map(with_candidate).collect(),
            throttle: route.throttle,
            strip_prefix,
            request_timeout: route.request_timeout.bound(),
            answer_idle_timeout: route.answer_idle_timeout.bound(),
            answer_timeout: route.answer_timeout.bound(),
            max_body: route.max_body.0,
        }));
    }
    (table(check, config, rules), routes)
}

/// What routes may name, by its name.
struct Known<'a> {
    upstreams: HashMap<&'a str, &'a Arc<Upstream>, RandomState>,
    limits: HashMap<&'a str, &'a Arc<Policy>, RandomState>,
}

impl<'a> Known<'a> {
    fn new(upstreams: &'a [Arc<Upstream>], limits: &'a [Arc<Policy>]) -> Self {
        Self {
            upstreams: upstreams.iter().map(|upstream| (&*upstream.name, upstream)).collect(),
            limits: limits.iter().map(|policy| (&*policy.limit.name, policy)).collect(),
        }
    }
}

/// The limits that a route tells its callers of.
fn status(route: &config::Route) -> &[String] {
    route.status.as_deref().unwrap_or_default()
}

fn references(check: &mut Check<'_>, path: &str, route: &config::Route, config: &Config) {
    if let Some(upstream) = &route.upstream {
        let path = format!("{path}.upstream");
        check.reference(&path, "upstream", upstream, &config.upstreams);
    }
    for (key, names) in [("limits", &*route.limits), ("status", status(route))] {
        let mut first = HashSet::<&str, RandomState>::default();
        for (index, name) in names.iter().enumerate() {
            let path = format!("{path}.{key}[{index}]");
            check.reference(&path, "limit", name, &config.limits);
            check.ensure(first.insert(name), &path, &format!("`{name}` again"), "each limit once");
        }
    }
}

/// Notes limits that count this route apart: its callers learn nothing of the others from them.
fn told_of_itself(check: &mut Check<'_>, path: &str, told: &[Arc<Policy>]) {
    for policy in told {
        let own = policy.key.0.iter().find(|part| matches!(part, Part::Route | Part::Path));
        if let Some(part) = own {
            let name = &policy.limit.name;
            let what = format!("`{name}` counts by `{part}`: told is what this route has used");
            check.note(path, what, "a limit that counts it together with others");
        }
    }
}

/// Who answers; `told` are the limits that `status` names. `None` where there is a fault.
fn action(
    check: &mut Check<'_>,
    path: &str,
    route: &config::Route,
    known: &Known<'_>,
    told: Vec<Arc<Policy>>,
) -> Option<Action> {
    match (&route.upstream, &route.status) {
        (Some(name), None) => {
            let upstream = known.upstreams.get(name.as_str());
            upstream.map(|upstream| Action::Upstream(Arc::clone(upstream)))
        }
        (None, Some(names)) => {
            let path = format!("{path}.status");
            check.ensure(!names.is_empty(), &path, "no limit", "at least one");
            told_of_itself(check, &path, &told);
            Some(Action::Status(told))
        }
        (Some(_), Some(_)) => {
            check.fault(path, "both `upstream` and `status`", "one of them");
            None
        }
        (None, None) => {
            check.fault(path, "neither `upstream` nor `status`", "one of them");
            None
        }
    }
}

fn times(check: &mut Check<'_>, path: &str, route: &config::Route) {
    check.some_timeout(&format!("{path}.request_timeout"), route.request_timeout);
    check.some_timeout(&format!("{path}.answer_idle_timeout"), route.answer_idle_timeout);
    check.some_timeout(&format!("{path}.answer_timeout"), route.answer_timeout);
}

/// Notes a limit that may hold a request back for all of its time.
fn waits(check: &mut Check<'_>, path: &str, route: &config::Route, known: &Known<'_>) {
    let Some(timeout) = route.request_timeout.millis() else { return };
    for (index, name) in route.limits.iter().enumerate() {
        let Some(policy) = known.limits.get(name.as_str()) else { continue };
        let tiers = policy.tiers.iter().map(|tier| &tier.limit);
        let waits = tiers.chain([&policy.limit]).map(|limit| u64::from(limit.quota.max_wait));
        let longest = waits.max().unwrap_or(0);
        if policy.limit.enforce && longest > 0 && longest >= timeout && timeout > 0 {
            let what = format!(
                "`{name}` may hold a request for {longest}ms, as long as it may last (request_timeout {})",
                route.request_timeout
            );
            let expected = "a shorter max_wait, or a longer request_timeout";
            check.fault(&format!("{path}.limits[{index}]"), what, expected);
        }
    }
}

fn rule(check: &mut Check<'_>, path: &str, matches: &config::Match) -> Option<Rule> {
    let host = match &matches.host {
        None => Some(HostPattern::Any),
        Some(host) => HostPattern::parse(host)
            .map_err(|error| pattern(check, &format!("{path}.match.host"), error))
            .ok(),
    };
    let pattern = PathPattern::parse(&matches.path)
        .map_err(|error| pattern(check, &format!("{path}.match.path"), error))
        .ok();
    let mut methods = Vec::new();
    let mut first = HashSet::<Method, RandomState>::default();
    for (index, method) in matches.methods.iter().enumerate() {
        match Method::from_bytes(method.0.as_bytes()) {
            Ok(method) if !first.insert(method.clone()) => {
                let path = format!("{path}.match.methods[{index}]");
                check.fault(&path, format!("`{method}` again"), "each method once");
            }
            Ok(method) => methods.push(method),
            Err(_) => {
                let path = format!("{path}.match.methods[{index}]");
                check.fault(&path, format!("`{method}`"), "a method such as GET");
            }
        }
    }
    Some(Rule { host: host?, path: pattern?, methods })
}

fn pattern(check: &mut Check<'_>, path: &str, error: PatternError) {
    match error {
        PatternError::Host { host, why } => {
            let expected = "a host such as api.example.com or *.example.com";
            check.fault(path, format!("`{host}` ({why})"), expected);
        }
        PatternError::Path { path: written, why } => {
            let what = format!("`{written}` ({why})");
            check.fault(path, what, "a path such as /items/{id} or /files/{*rest}");
        }
    }
}

/// The limits that the list at `path` names. Notes a key part that the route's path does not have.
fn named_limits(
    check: &mut Check<'_>,
    path: &str,
    names: &[String],
    rule: Option<&Rule>,
    config: &Config,
    known: &Known<'_>,
) -> Vec<Arc<Policy>> {
    let mut named = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let found = known.limits.get(name.as_str()).zip(config.limits.get(name));
        let Some((policy, written)) = found else { continue };
        let path = format!("{path}[{index}]");
        for part in &written.key {
            let (KeyPart::PathParam(param), Some(rule)) = (part, rule) else { continue };
            if !rule.path.params().contains(param) {
                let what = format!("`{name}` counts by `{part}`, not in `{}`", rule.path.as_str());
                check.fault(&path, what, &format!("a limit for a path with `{{{param}}}`"));
            }
        }
        named.push(Arc::clone(policy));
    }
    named
}

/// A limit as a route charges it, and beside it the quota that is only tried.
fn with_candidate(policy: &Arc<Policy>) -> impl Iterator<Item = RouteLimit> {
    // A name that does not fit has been noted already.
    [Some(policy), policy.candidate.as_ref()]
        .into_iter()
        .flatten()
        .map(move |policy| RouteLimit { policy: Arc::clone(policy) })
}

/// The prefix without a slash at its end; `None` where nothing is to be taken off.
fn strip_prefix(check: &mut Check<'_>, path: &str, route: &config::Route) -> Option<Box<str>> {
    let written = route.strip_prefix.as_deref()?;
    let plain = !written.contains(['?', '#', '{', '}']);
    let sound = plain && normalize(written, true).as_deref() == Ok(written);
    let expected = "the beginning of a path, such as /v1";
    check.ensure(sound, &format!("{path}.strip_prefix"), &format!("`{written}`"), expected);
    let prefix = written.trim_end_matches('/');
    (!prefix.is_empty()).then(|| prefix.into())
}

/// The table of `rules`, each with its place in the configuration.
fn table(check: &mut Check<'_>, config: &Config, rules: Vec<(usize, Rule)>) -> Table {
    let (places, rules): (Vec<usize>, Vec<Rule>) = rules.into_iter().unzip();
    Table::build(&rules).unwrap_or_else(|errors| {
        for error in errors.into_iter().take(MAX_FAULTS) {
            let (first, second) = (places[error.first], places[error.second]);
            let other = &config.routes[first];
            let what = format!(
                "`{}` matches what route `{}` matches (line {})",
                config.routes[second].matches.path,
                other.name,
                check.line(&format!("routes[{first}]")),
            );
            let expected = "another host, path or method";
            check.fault(&format!("routes[{second}].match.path"), what, expected);
        }
        Table::default()
    })
}
