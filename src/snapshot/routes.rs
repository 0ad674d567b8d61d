//! Compiles the `routes` section into the table and its routes.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use http::Method;
use smallvec::SmallVec;

use super::balance;
use super::fault_collector::FaultCollector;
use super::quota::QUOTA_KEYS;
use super::{
    Action, LimitPolicy, Route, access, cors, counted_headers, error_bodies, mirror, redirect,
    route_edits, route_match,
};
use crate::config::{self, Config, Duration, KeyPart, MAX_FAULTS};
use crate::identity::{Part, TokenSource};
use crate::route::normalize::{normalize, routed_form};
use crate::route::{ConflictKind, HostPattern, PathPattern, PatternError, RouteTable, Rule};
use crate::upstream::Upstream;

/// Compiles the table and its routes. Reports the faults of each route; a route without a valid action or
/// pattern is left out.
pub(super) fn compile(
    collector: &mut FaultCollector<'_>,
    config: &Config,
    upstreams: &[Arc<Upstream>],
    limits: &[Arc<LimitPolicy>],
    tokens: &[TokenSource],
) -> (RouteTable, Vec<Route>) {
    collector.ensure(!config.routes.is_empty(), "routes", "no route", "at least one");
    let definitions = Definitions::new(upstreams, limits);
    let mut names = HashMap::<&str, usize, RandomState>::default();
    let mut routes = Vec::new();
    let mut rules = Vec::new();
    for (index, route) in config.routes.iter().enumerate() {
        let path = format!("routes[{index}]");
        collector.ensure_value_name(&format!("{path}.name"), &route.name);
        let has_name = collector.can_read(&path, &["name"]);
        let first = if has_name { *names.entry(&route.name).or_insert(index) } else { index };
        if first != index && !collector.is_full() {
            let what = format!("duplicate name `{}`", route.name);
            let line = collector.line(&format!("routes[{first}].name"));
            let expected = format!("a unique name (line {line} has it already)");
            collector.fault(&format!("{path}.name"), what, &expected);
        }
        check_references(collector, &path, route, config);
        let rule = rule(collector, &path, &route.matches);
        let mut named = |key: &str, names: &[String]| {
            named_limits(
                collector,
                &format!("{path}.{key}"),
                names,
                rule.as_ref(),
                config,
                &definitions,
            )
        };
        let (charged, reported) = (named("limits", &route.limits), named("status", status(route)));
        check_delays(collector, &path, route, &definitions);
        let access = access::compile(collector, &path, route);
        let strip_prefix = strip_prefix(collector, &path, route);
        let action = action(collector, &path, route, &definitions, reported, rule.as_ref());
        let limits: SmallVec<_> = charged.iter().flat_map(with_candidate).collect();
        let counted = counted_headers(&limits, tokens);
        let edits = route_edits::compile(collector, &path, route, rule.as_ref(), &counted, config);
        let hash_key = balance::hash_key(collector, &path, route, rule.as_ref(), config);
        let compress = super::compress::compile(collector, &path, route, config);
        let find = |name: &str| definitions.upstreams.get(name).copied();
        let mirror = mirror::compile(collector, &path, route, config, find);
        let rule = rule.filter(|_| collector.can_read(&path, &["match"]));
        rules.extend(rule.map(|rule| (index, rule)));
        routes.extend(action.map(|action| Route {
            name: route.name.as_str().into(),
            action,
            limits,
            hash_key,
            throttle: route.throttle,
            strip_prefix,
            edits,
            request_timeout: route.request_timeout.duration(),
            response_idle_timeout: route.response_idle_timeout.duration(),
            response_body_timeout: route.response_body_timeout.duration(),
            tunnel_idle_timeout: route.tunnel_idle_timeout.duration(),
            max_body: route.max_body.0,
            access,
            cors: cors::compile(collector, &path, route),
            error_bodies: error_bodies::compile(collector, &path, route),
            compress,
            mirror,
        }));
    }
    route_match::note_weights(collector, &rules);
    let table = table(collector, config, rules);
    if collector.faults.is_empty() {
        redirect::check_loops(collector, config, &table, &routes);
    }
    (table, routes)
}

/// The path pattern of a route without one.
const ANY_PATH: &str = "/{*rest}";

/// The upstreams and limits that routes refer to, by name.
struct Definitions<'a> {
    upstreams: HashMap<&'a str, &'a Arc<Upstream>, RandomState>,
    limits: HashMap<&'a str, &'a Arc<LimitPolicy>, RandomState>,
}

impl<'a> Definitions<'a> {
    fn new(upstreams: &'a [Arc<Upstream>], limits: &'a [Arc<LimitPolicy>]) -> Self {
        Self {
            upstreams: upstreams.iter().map(|upstream| (&*upstream.name, upstream)).collect(),
            limits: limits.iter().map(|policy| (&*policy.limit.name, policy)).collect(),
        }
    }
}

/// The names of the limits whose state a route reports.
fn status(route: &config::Route) -> &[String] {
    route.status.as_deref().unwrap_or_default()
}

fn check_references(
    collector: &mut FaultCollector<'_>,
    path: &str,
    route: &config::Route,
    config: &Config,
) {
    if let Some(upstream) = &route.upstream {
        let path = format!("{path}.upstream");
        collector.ensure_reference(&path, "upstream", upstream, &config.upstreams);
    }
    for (key, names) in [("limits", &*route.limits), ("status", status(route))] {
        let mut seen = HashSet::<&str, RandomState>::default();
        for (index, name) in names.iter().enumerate() {
            let path = format!("{path}.{key}[{index}]");
            collector.ensure_reference(&path, "limit", name, &config.limits);
            let what = format!("duplicate limit `{name}`");
            collector.ensure(seen.insert(name), &path, &what, "each limit once");
        }
    }
}

/// Notes reported limits that count each route or path separately: their state on this route does not
/// include other routes.
fn check_reported(collector: &mut FaultCollector<'_>, path: &str, reported: &[Arc<LimitPolicy>]) {
    for policy in reported {
        let separate = policy.key.0.iter().find(|part| matches!(part, Part::Route | Part::Path));
        if let Some(part) = separate {
            let name = &policy.limit.name;
            let what = format!(
                "`{name}` counts by `{part}`, so it reports only the use of this status route"
            );
            collector.note(path, what, "a limit without this part in its key");
        }
    }
}

/// Compiles the route's action; `reported` are the limits that `status` names. `None` if it is faulty.
fn action(
    collector: &mut FaultCollector<'_>,
    path: &str,
    route: &config::Route,
    definitions: &Definitions<'_>,
    reported: Vec<Arc<LimitPolicy>>,
    rule: Option<&Rule>,
) -> Option<Action> {
    let set = [
        ("upstream", route.upstream.is_some()),
        ("redirect", route.redirect.is_some()),
        ("respond", route.respond.is_some()),
        ("status", route.status.is_some()),
    ];
    let mut set = set.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key);
    let Some(first) = set.next() else {
        if collector.can_read(path, &["upstream", "redirect", "respond", "status"]) {
            let what = "no action";
            let expected = "`upstream`, `redirect`, `respond` or `status`";
            collector.fault(&format!("{path}.upstream"), what, expected);
        }
        return None;
    };
    if let Some(second) = set.next() {
        let what = format!("both `{first}` and `{second}`");
        collector.fault(&format!("{path}.{second}"), what, "one of them");
        return None;
    }
    let pattern = rule.map(|rule| &rule.path);
    if let Some(name) = &route.upstream {
        let upstream = definitions.upstreams.get(name.as_str());
        return upstream.map(|upstream| Action::Upstream(Arc::clone(upstream)));
    }
    if let Some(redirect) = &route.redirect {
        let path = format!("{path}.redirect");
        return redirect::compile(collector, &path, redirect, pattern).map(Action::Redirect);
    }
    if let Some(fixed) = &route.respond {
        let fixed = super::upstreams::respond(collector, &format!("{path}.respond"), fixed);
        return Some(Action::Respond(fixed));
    }
    let path = format!("{path}.status");
    collector.ensure(!status(route).is_empty(), &path, "no limit", "at least one");
    check_reported(collector, &path, &reported);
    Some(Action::Status(reported))
}

/// Reports a limit that may delay a request for its whole `request_timeout`.
fn check_delays(
    collector: &mut FaultCollector<'_>,
    path: &str,
    route: &config::Route,
    definitions: &Definitions<'_>,
) {
    let Some(timeout) = route.request_timeout.millis() else { return };
    for name in &route.limits {
        let Some(policy) = definitions.limits.get(name.as_str()) else { continue };
        let tiers = policy.tiers.iter().filter_map(|tier| tier.limit.as_ref());
        let waits = tiers.chain([&policy.limit]).map(|limit| u64::from(limit.quota.max_wait));
        let longest = waits.max().unwrap_or(0);
        let limit = format!("limits.{name}");
        let is_known = collector.can_read(path, &["request_timeout", "name"])
            && collector.can_read(&limit, &QUOTA_KEYS)
            && collector.can_read(&limit, &["tiers", "enforce"]);
        if policy.limit.enforce && longest > 0 && longest >= timeout && is_known {
            let what = format!(
                "`{name}` may delay a request for {}, but the request_timeout of route `{}` is {}",
                Duration::from_millis(longest),
                route.name,
                route.request_timeout
            );
            let expected =
                "a shorter max_wait (by default, it is the window), or a longer request_timeout";
            collector.fault(&format!("{limit}.max_wait"), what, expected);
        }
    }
}

fn rule(
    collector: &mut FaultCollector<'_>,
    path: &str,
    matches: &config::RouteMatch,
) -> Option<Rule> {
    let host = match &matches.host {
        None => Some(HostPattern::Any),
        Some(host) => HostPattern::parse(host)
            .map_err(|error| report_pattern_error(collector, &format!("{path}.match.host"), error))
            .ok(),
    };
    let pattern = path_pattern(collector, &format!("{path}.match"), matches);
    let mut methods = Vec::new();
    let mut seen = HashSet::<Method, RandomState>::default();
    for (index, method) in matches.methods.iter().enumerate() {
        match Method::from_bytes(method.0.as_bytes()) {
            Ok(method) if !seen.insert(method.clone()) => {
                let path = format!("{path}.match.methods[{index}]");
                collector.fault(&path, format!("duplicate method `{method}`"), "each method once");
            }
            Ok(method) => methods.push(method),
            Err(_) => {
                let path = format!("{path}.match.methods[{index}]");
                collector.fault(&path, format!("`{method}`"), "a method such as GET");
            }
        }
    }
    let conditions = route_match::conditions(collector, &format!("{path}.match"), matches);
    Some(Rule { host: host?, path: pattern?, methods, conditions })
}

/// The pattern of `path` or `path_prefix` in the section `match` at `path`.
fn path_pattern(
    collector: &mut FaultCollector<'_>,
    path: &str,
    matches: &config::RouteMatch,
) -> Option<PathPattern> {
    let (key, pattern) = match (&matches.path, &matches.path_prefix) {
        (Some(_), Some(_)) => {
            let what = "both `path` and `path_prefix`";
            collector.fault_at_key(&format!("{path}.path_prefix"), what, "one of them");
            return None;
        }
        (Some(pattern), None) => ("path", PathPattern::parse(pattern)),
        (None, Some(prefix)) => ("path_prefix", PathPattern::prefix(prefix)),
        (None, None) => ("path", PathPattern::parse(ANY_PATH)),
    };
    pattern.map_err(|error| report_pattern_error(collector, &format!("{path}.{key}"), error)).ok()
}

fn report_pattern_error(collector: &mut FaultCollector<'_>, path: &str, error: PatternError) {
    match error {
        PatternError::Host { host, why } => {
            let expected = "a host such as api.example.com or *.example.com";
            collector.fault(path, format!("`{host}` ({why})"), expected);
        }
        PatternError::Path { path: configured, why } => {
            let what = format!("`{configured}` ({why})");
            let expected = if path.ends_with("path_prefix") {
                "a prefix such as /login, which matches /login and all paths below it"
            } else {
                "a path such as /items/{id} or /files/{*rest}"
            };
            collector.fault(path, what, expected);
        }
    }
}

/// The limits that the list at `path` names. Reports keys with a path parameter that the route's path does
/// not have.
fn named_limits(
    collector: &mut FaultCollector<'_>,
    path: &str,
    names: &[String],
    rule: Option<&Rule>,
    config: &Config,
    definitions: &Definitions<'_>,
) -> Vec<Arc<LimitPolicy>> {
    let mut named = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let found = definitions.limits.get(name.as_str()).zip(config.limits.get(name));
        let Some((policy, configured)) = found else { continue };
        let path = format!("{path}[{index}]");
        for part in &configured.key {
            let (KeyPart::PathParam(param), Some(rule)) = (part, rule) else { continue };
            if !rule.path.params().contains(param) {
                let what = format!(
                    "`{name}` counts by `{part}`, which `{}` does not have",
                    rule.path.as_str()
                );
                collector.fault(&path, what, &format!("a path with `{{{param}}}`"));
            }
        }
        named.push(Arc::clone(policy));
    }
    named
}

/// The limit and, if it has one, its candidate: a route charges both.
fn with_candidate(policy: &Arc<LimitPolicy>) -> impl Iterator<Item = Arc<LimitPolicy>> {
    [Some(policy), policy.candidate.as_ref()].into_iter().flatten().map(Arc::clone)
}

/// The prefix without a slash at its end; `None` if there is nothing to strip.
fn strip_prefix(
    collector: &mut FaultCollector<'_>,
    path: &str,
    route: &config::Route,
) -> Option<Box<str>> {
    let configured = route.strip_prefix.as_deref()?;
    let is_plain = !configured.contains(['?', '#', '{', '}']);
    let is_valid = is_plain
        && normalize(configured, true)
            .is_ok_and(|normal| *routed_form(&normal, true) == *configured);
    let expected = "the beginning of a path, such as /v1";
    collector.ensure(
        is_valid,
        &format!("{path}.strip_prefix"),
        &format!("`{configured}`"),
        expected,
    );
    let prefix = configured.trim_end_matches('/');
    (!prefix.is_empty()).then(|| prefix.into())
}

/// Builds the table of `rules`, each paired with its route's index in the configuration.
fn table(
    collector: &mut FaultCollector<'_>,
    config: &Config,
    rules: Vec<(usize, Rule)>,
) -> RouteTable {
    let (indices, rules): (Vec<usize>, Vec<Rule>) = rules.into_iter().unzip();
    RouteTable::build(&rules).unwrap_or_else(|errors| {
        for error in errors.into_iter().take(MAX_FAULTS) {
            let (first, second) = (indices[error.first], indices[error.second]);
            let (name, matches) = (&config.routes[first].name, &config.routes[second].matches);
            let key = if matches.path_prefix.is_some() { "path_prefix" } else { "path" };
            let line = collector.line(&format!("routes[{first}]"));
            let path = format!("routes[{second}].match");
            match error.kind {
                ConflictKind::SameRequests => {
                    let what = format!(
                        "`{}` matches the same requests as route `{name}` (line {line})",
                        rules[error.second].path.as_str()
                    );
                    let expected = "another host, path or method";
                    let expected = if rules[error.second].conditions.is_empty() {
                        expected.to_owned()
                    } else {
                        format!("{expected}, or other conditions")
                    };
                    collector.fault(&format!("{path}.{key}"), what, &expected);
                }
                ConflictKind::Weights => {
                    let what = format!(
                        "the weights up to this one, after route `{name}` (line {line}), exceed 100"
                    );
                    collector.fault(
                        &format!("{path}.weight"),
                        what,
                        "at most 100 per cent together",
                    );
                }
            }
        }
        RouteTable::default()
    })
}
