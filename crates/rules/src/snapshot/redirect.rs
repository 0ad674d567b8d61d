//! Compiles the redirects of routes, and finds redirects that lead back to their own route.

use std::sync::Arc;

use http::{Method, StatusCode};
use tidegate_config::{self as config, Config};
use tidegate_route::normalize::{normalize, routed_form};
use tidegate_route::{ConditionResult, HostPattern, Lookup, PathPattern, RouteTable, ValueSource};
use tidegate_template::{TemplateValues, UrlTemplate, VARIABLES};

use super::listen;
use super::route_edits::{check_captures, excerpt};
use super::section::Section;
use super::{Action, Redirect, Route};

/// Compiles the redirect at `section`. `None` if it is faulty.
pub(super) fn compile(
    section: &Section<'_>,
    redirect: &config::RedirectConfig,
    pattern: Option<&PathPattern>,
) -> Option<Redirect> {
    let status = redirect.status.0;
    let is_redirect = matches!(status, 301 | 302 | 303 | 307 | 308);
    let expected = "301, 302, 303, 307 or 308";
    section.at("status").ensure(is_redirect, &format!("`{status}`"), expected);
    let section = section.at("to");
    match UrlTemplate::parse(&redirect.to) {
        Ok(to) => {
            check_captures(&section, to.variables(), pattern);
            let status = StatusCode::from_u16(status).ok()?;
            Some(Redirect { to, status })
        }
        Err(why) => {
            let what = format!("`{}` ({why})", excerpt(&redirect.to));
            let expected = format!(
                "a URL such as https://new.example.com/items/{{path.id}}, or a path; variables are {VARIABLES}"
            );
            section.fault(what, &expected);
            None
        }
    }
}

/// The location to which an example request is redirected.
struct RedirectLocation {
    /// True for the requested host; false for another host that the route matches.
    is_same_host: bool,
    host: String,
    path: String,
}

/// Reports redirects to a location on the requested host that has the same route: clients would be
/// redirected again. Notes redirects to another host that the route matches. `routes` and `table`
/// have no fault.
pub(super) fn check_loops(
    root: &Section<'_>,
    config: &Config,
    table: &RouteTable,
    routes: &[Arc<Route>],
) {
    for (index, route) in routes.iter().enumerate() {
        let Action::Redirect(redirect) = &route.action else { continue };
        if route.edits.conditions.tests().iter().any(|test| may_change(&test.source)) {
            continue;
        }
        let matches = &config.routes[index].matches;
        let Some(location) = example_location(config, route, redirect, matches) else { continue };
        let methods: Vec<Method> =
            matches.methods.iter().filter_map(|one| one.0.parse().ok()).collect();
        let method = match redirect.status.as_u16() {
            307 | 308 => methods.first().cloned().unwrap_or(Method::GET),
            _ => Method::GET,
        };
        let found = table.find_where(&location.host, &location.path, &method, |candidate| {
            if candidate.route == index { ConditionResult::Met } else { ConditionResult::Unmet }
        });
        if !matches!(found, Lookup::Found(found) if found.route == index) {
            continue;
        }
        let section = root.at("routes").index(index).at("redirect").at("to");
        let to = excerpt(config.routes[index].redirect.as_ref().map_or("", |to| &to.to));
        if location.is_same_host {
            let what =
                format!("`{to}` leads back to this route: clients would be redirected without end");
            section.fault(what, "another host or path, or a more specific route for it");
        } else {
            let what = format!(
                "the route also matches `{to}`: if `{}` leads to this gateway, clients are redirected without end",
                location.host
            );
            section.note(what, "a more specific route for that host");
        }
    }
}

/// True if the request that follows the redirect may have another value: its query may differ, and
/// a proxy in front of the gateway may report another scheme.
fn may_change(source: &ValueSource) -> bool {
    match source {
        ValueSource::Query(_) => true,
        ValueSource::Header(name) => {
            ["forwarded", "proto", "scheme"].iter().any(|part| name.as_str().contains(part))
        }
    }
}

/// The location for an example request that the route matches; `None` if it has none, or has a port
/// at which this gateway does not listen.
fn example_location(
    config: &Config,
    route: &Route,
    redirect: &Redirect,
    matches: &config::RouteMatch,
) -> Option<RedirectLocation> {
    let pattern = matches.host.as_deref().map(HostPattern::parse);
    let requested = match pattern.transpose().ok()?.unwrap_or_default() {
        HostPattern::Any => "redirect.example".to_owned(),
        HostPattern::Exact(name) => name,
        HostPattern::Wildcard(name) => format!("x.{name}"),
    };
    let path = route.edits.pattern.example();
    let values = TemplateValues {
        host: &requested,
        path: &path,
        method: "GET",
        scheme: "https",
        route: &route.name,
        params: &route.edits.pattern.captures(&path),
        ..TemplateValues::default()
    };
    let location = redirect.to.render(&values)?;
    let (host, target) = match location.split_once("://") {
        Some((_, rest)) if !location.starts_with('/') => {
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            let (authority, target) = rest.split_at(end);
            let port = authority.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
            let is_own = |port: &str| {
                config.listen.iter().any(|listener| port.parse() == Ok(listener.address.0.port()))
            };
            match port {
                Some((_, port)) if !is_own(port) => return None,
                Some((host, _)) => (host.to_ascii_lowercase(), target),
                None => (authority.to_ascii_lowercase(), target),
            }
        }
        _ => (requested.clone(), &*location),
    };
    let target = target.split(['?', '#']).next().filter(|path| !path.is_empty()).unwrap_or("/");
    let slashes = listen::slashes(&config.http);
    let normal = normalize(target, slashes).ok()?;
    let path = routed_form(&normal, slashes).into_owned();
    Some(RedirectLocation { is_same_host: host == requested, host, path })
}
