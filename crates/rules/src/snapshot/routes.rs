//! Compiles the `routes` section into the table and its routes.

use std::sync::Arc;

use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use http::Method;
use smallvec::SmallVec;
use tidegate_base::priority::Priority;
use tidegate_base::time::Millis;
use tidegate_config::{
    self as config, Config, CostConfig, ErrorFormat, MAX_FAULTS, RouteActionConfig,
};
use tidegate_identity::{CredentialSource, KeyPart};
use tidegate_route::normalize::{Slashes, normalize, routed_form};
use tidegate_route::{ConflictKind, HostPattern, PathPattern, PatternError, RouteTable, Rule};
use tidegate_upstream::Upstream;

use super::auth::{self, AuthMethods};
use super::balance;
use super::inspection::InspectionNeeds;
use super::route_checks::{check_delays, check_names, check_references, check_reported, status};
use super::route_edits::ReadHeaders;
use super::section::Section;
use super::{
    Action, Doors, Inspection, LimitPolicy, Route, RouteTimeouts, access, cors, counted_headers,
    decide, error_bodies, mirror, redirect, route_edits, route_match,
};

/// The keys of the actions.
const ACTIONS: [&str; 5] = ["upstream", "redirect", "respond", "status", "decide"];

/// What routes refer to.
#[derive(Clone, Copy)]
pub(super) struct RouteParts<'a> {
    pub(super) upstreams: &'a [Arc<Upstream>],
    pub(super) limits: &'a [Arc<LimitPolicy>],
    pub(super) tokens: &'a [CredentialSource],
    pub(super) auth: &'a AuthMethods,
}

/// Compiles the table and its routes. Reports the faults of each route, and leaves out a route
/// without a valid action or pattern.
pub(super) fn compile(
    root: &Section<'_>,
    config: &Config,
    parts: &RouteParts<'_>,
) -> (RouteTable, Vec<Arc<Route>>, Option<Doors>) {
    let serves = !config.routes.is_empty() || config.rate_limit_service.is_some();
    root.at("routes").ensure(serves, "no route", "at least one, or `rate_limit_service`");
    check_names(root, config);
    let definitions = Definitions::new(parts.upstreams, parts.limits);
    let compiler = RouteCompiler { config, parts, definitions };
    let (mut routes, mut rules) = (Vec::new(), Vec::new());
    for (index, route) in config.routes.iter().enumerate() {
        let section = root.at("routes").index(index);
        let rule = rule(&section, &route.matches);
        routes.extend(compiler.route(&section, route, rule.as_ref()).map(Arc::new));
        let rule = rule.filter(|_| section.can_read(&["match"]));
        rules.extend(rule.map(|rule| (index, rule)));
    }
    route_match::note_weights(root, &rules);
    let table = table(root, config, rules.clone());
    let doors = Doors::compile(root, &rules, &routes);
    if !root.has_faults() {
        redirect::check_loops(root, config, &table, &routes);
    }
    (table, routes, doors)
}

/// Compiles each route.
struct RouteCompiler<'a> {
    config: &'a Config,
    parts: &'a RouteParts<'a>,
    definitions: Definitions<'a>,
}

impl RouteCompiler<'_> {
    /// The route at `section`, which matches by `rule`. Reports its faults; `None` if its action is
    /// faulty.
    fn route(
        &self,
        section: &Section<'_>,
        route: &config::RouteConfig,
        rule: Option<&Rule>,
    ) -> Option<Route> {
        let config = self.config;
        check_references(section, route, config);
        let charged = self.limits(&section.at("limits"), &route.limits, rule);
        let reported = self.limits(&section.at("status"), status(route), rule);
        if route.decide.is_some() {
            for (index, policy) in charged.iter().enumerate() {
                decide::check_limit(&section.at("limits").index(index), policy);
            }
        }
        check_delays(section, route, &charged);
        check_reported(&section.at("status"), &reported, &charged);
        let limits: SmallVec<_> = charged.iter().flat_map(with_candidate).collect();
        let hash_key = balance::hash_key(section, route, rule, config);
        let needs =
            InspectionNeeds { charged: &limits, reported: &reported, hash_key: hash_key.as_ref() };
        let inspection = Inspection::compile(section, &needs, route);
        let auth = auth::of_route(section, route, self.parts.auth, config);
        let read = ReadHeaders::new(counted_headers(&limits, self.parts.tokens), auth.as_ref());
        let find = |name: &str| self.definitions.upstreams.get(name).copied();
        let action = self.action(section, route, rule, reported);
        let compiled = Route {
            name: route.name.as_str().into(),
            settles: limits.iter().any(|policy| policy.cost.settled().is_some()),
            has_variable_cost: limits.iter().any(|policy| policy.cost.is_variable()),
            limits,
            hash_key,
            priority: route.priority.and_then(Priority::new),
            throttle: route.throttle,
            strip_prefix: strip_prefix(section, route),
            edits: route_edits::compile(section, route, rule, &read, config),
            auth: auth.map(Box::new),
            timeouts: timeouts(route),
            max_body: route.max_body.0,
            inspection,
            access: access::compile(section, route),
            cors: cors::compile(section, route),
            error_bodies: error_bodies::compile(section, route),
            error_format: error_format(route, config),
            compress: super::compress::compile(section, route, config),
            mirror: mirror::compile(section, route, config, find),
            action: action?,
        };
        Some(compiled)
    }

    fn limits(
        &self,
        section: &Section<'_>,
        names: &[String],
        rule: Option<&Rule>,
    ) -> Vec<Arc<LimitPolicy>> {
        named_limits(section, names, rule, self.config, &self.definitions)
    }

    /// The route's action; `None` if it is faulty. `reported` are the limits that `status` names.
    fn action(
        &self,
        section: &Section<'_>,
        route: &config::RouteConfig,
        rule: Option<&Rule>,
        reported: Vec<Arc<LimitPolicy>>,
    ) -> Option<Action> {
        if !section.can_read(&ACTIONS) {
            return None;
        }
        let expected = "`upstream`, `redirect`, `respond`, `status` or `decide`";
        let pattern = rule.map(|rule| &rule.path);
        Some(match section.only_one(route.action(), ("no action", expected))? {
            RouteActionConfig::Upstream(name) => {
                Action::Upstream(Arc::clone(self.definitions.upstreams.get(name)?))
            }
            RouteActionConfig::Redirect(own) => {
                Action::Redirect(redirect::compile(&section.at("redirect"), own, pattern)?)
            }
            RouteActionConfig::Respond(fixed) => {
                Action::Respond(super::upstreams::respond(&section.at("respond"), fixed))
            }
            RouteActionConfig::Status(names) => {
                section.at("status").ensure(!names.is_empty(), "no limit", "at least one");
                Action::Status(reported)
            }
            RouteActionConfig::Decide(own) => {
                Action::Decide(decide::compile(section, route, own, self.config, rule))
            }
        })
    }
}

fn timeouts(route: &config::RouteConfig) -> RouteTimeouts {
    RouteTimeouts {
        request: route.request_timeout.duration().map(Millis::from_duration),
        response_idle: route.response_idle_timeout.duration().map(Millis::from_duration),
        response_body: route.response_body_timeout.duration().map(Millis::from_duration),
        tunnel_idle: route.tunnel_idle_timeout.duration().map(Millis::from_duration),
    }
}

/// The form of the route's errors: the configured one, or that of the API whose tokens its limits
/// count.
fn error_format(route: &config::RouteConfig, config: &Config) -> ErrorFormat {
    let preset = |name: &String| match &config.limits.get(name)?.cost {
        CostConfig::Settled(settled) => settled.preset,
        _ => None,
    };
    let counted = || route.limits.iter().find_map(preset).map(ErrorFormat::from);
    route.refuse_as.or_else(counted).unwrap_or_default()
}

/// The default path pattern.
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
            limits: limits.iter().map(|policy| (policy.limit.name(), policy)).collect(),
        }
    }
}

fn rule(section: &Section<'_>, matches: &config::RouteMatch) -> Option<Rule> {
    let host = match &matches.host {
        None => Some(HostPattern::Any),
        Some(host) => HostPattern::parse(host)
            .map_err(|error| report_pattern_error(&section.at("match").at("host"), error))
            .ok(),
    };
    let pattern = path_pattern(&section.at("match"), matches);
    let mut methods = Vec::new();
    let mut seen = HashSet::<Method, RandomState>::default();
    for (index, method) in matches.methods.iter().enumerate() {
        match Method::from_bytes(method.0.as_bytes()) {
            Ok(method) if !seen.insert(method.clone()) => {
                let section = section.at("match").at("methods").index(index);
                section.fault(format!("duplicate method `{method}`"), "each method once");
            }
            Ok(method) => methods.push(method),
            Err(_) => {
                let section = section.at("match").at("methods").index(index);
                section.fault(format!("`{method}`"), "a method such as GET");
            }
        }
    }
    let conditions = route_match::conditions(&section.at("match"), matches);
    Some(Rule { host: host?, path: pattern?, methods, conditions })
}

/// The pattern of `path` or `path_prefix` in the section `match`.
fn path_pattern(section: &Section<'_>, matches: &config::RouteMatch) -> Option<PathPattern> {
    let (key, pattern) = match (&matches.path, &matches.path_prefix) {
        (Some(_), Some(_)) => {
            let what = "both `path` and `path_prefix`";
            section.at("path_prefix").fault_at_key(what, "one of them");
            return None;
        }
        (Some(pattern), None) => ("path", PathPattern::parse(pattern)),
        (None, Some(prefix)) => ("path_prefix", PathPattern::prefix(prefix)),
        (None, None) => ("path", PathPattern::parse(ANY_PATH)),
    };
    pattern.map_err(|error| report_pattern_error(&section.at(key), error)).ok()
}

fn report_pattern_error(section: &Section<'_>, error: PatternError) {
    match error {
        PatternError::Host { host, why } => {
            let expected = "a host such as api.example.com or *.example.com";
            section.fault(format!("`{host}` ({why})"), expected);
        }
        PatternError::Path { path: configured, why } => {
            let what = format!("`{configured}` ({why})");
            let expected = if section.path().ends_with("path_prefix") {
                "a prefix such as /login, which matches /login and all paths below it"
            } else {
                "a path such as /items/{id} or /files/{*rest}"
            };
            section.fault(what, expected);
        }
    }
}

/// The limits that the list at `section` names. Reports limits whose key has a path parameter that
/// the route's path lacks.
fn named_limits(
    section: &Section<'_>,
    names: &[String],
    rule: Option<&Rule>,
    config: &Config,
    definitions: &Definitions<'_>,
) -> Vec<Arc<LimitPolicy>> {
    let mut named = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let found = definitions.limits.get(name.as_str()).zip(config.limits.get(name));
        let Some((policy, configured)) = found else { continue };
        let section = section.index(index);
        for part in &configured.key {
            let (KeyPart::PathParam(param), Some(rule)) = (part, rule) else { continue };
            if !rule.path.params().contains(param) {
                let what = format!(
                    "`{name}` counts by `{part}`, which `{}` does not have",
                    rule.path.as_str()
                );
                section.fault(what, &section.path_with(part, param));
            }
        }
        named.push(Arc::clone(policy));
    }
    named
}

/// The limit and its candidate, if any: a route charges both.
fn with_candidate(policy: &Arc<LimitPolicy>) -> impl Iterator<Item = Arc<LimitPolicy>> {
    [Some(policy), policy.candidate.as_ref()].into_iter().flatten().map(Arc::clone)
}

/// The prefix without a slash at its end; `None` if there is nothing to strip.
fn strip_prefix(section: &Section<'_>, route: &config::RouteConfig) -> Option<Box<str>> {
    let configured = route.strip_prefix.as_deref()?;
    let is_plain = !configured.contains(['?', '#', '{', '}']);
    let is_valid = is_plain
        && normalize(configured, Slashes::Merge)
            .is_ok_and(|normal| *routed_form(&normal, Slashes::Merge) == *configured);
    let expected = "the beginning of a path, such as /v1";
    section.at("strip_prefix").ensure(is_valid, &format!("`{configured}`"), expected);
    let prefix = configured.trim_end_matches('/');
    (!prefix.is_empty()).then(|| prefix.into())
}

/// Builds the table of `rules`, each paired with its route's index in the configuration.
fn table(root: &Section<'_>, config: &Config, rules: Vec<(usize, Rule)>) -> RouteTable {
    let (indices, rules): (Vec<usize>, Vec<Rule>) = rules.into_iter().unzip();
    RouteTable::build(&rules).unwrap_or_else(|errors| {
        for error in errors.into_iter().take(MAX_FAULTS) {
            let (first, second) = (indices[error.first], indices[error.second]);
            let (name, matches) = (&config.routes[first].name, &config.routes[second].matches);
            let key = if matches.path_prefix.is_some() { "path_prefix" } else { "path" };
            let line = root.at("routes").index(first).line();
            let section = root.at("routes").index(second).at("match");
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
                    section.at(key).fault(what, &expected);
                }
                ConflictKind::Weights => {
                    let what = format!(
                        "the weights up to this one, after route `{name}` (line {line}), exceed 100"
                    );
                    section.at("weight").fault(what, "at most 100 per cent together");
                }
            }
        }
        RouteTable::default()
    })
}
