//! Notes on valid settings that are rarely intended: rules that match nothing, limits that no route
//! names, targets that lead back to the gateway.

use std::net::IpAddr;

use ahash::RandomState;
use hashbrown::HashSet;
use tidegate_config::{self as config, Config, ListenAddress, TargetUrl};
use tidegate_identity::KeyPart;
use tidegate_route::{PathPattern, normalize::normalize};
use tidegate_upstream::Protocol;

use super::{auth_notes, bypass_notes, caller_notes, listen, section::Section};

/// Adds the notes of all sections.
pub(super) fn add(root: &Section<'_>, config: &Config) {
    for (name, upstream) in &config.upstreams {
        let section = root.at("upstreams").entry(name);
        note_targets(&section.at("targets"), &upstream.targets, config);
        note_protocol(&section.at("protocol"), upstream);
        note_response_timeout(&section.at("response_timeout"), name, upstream, config);
    }
    for (index, route) in config.routes.iter().enumerate() {
        let section = root.at("routes").index(index);
        note_path(&section, route);
        note_prefix(&section, route);
        note_foreign_parameters(&section, route);
        note_methods(&section, route);
        note_strip_prefix(&section, route);
        note_host(&section, route, config);
    }
    note_trusted_networks(root, config);
    note_unused_limits(root, config);
    note_tiers(root, config);
    note_login(root, config);
    caller_notes::add(root, config);
    bypass_notes::add(root, config);
    auth_notes::add(root, config);
}

/// Notes values of tiers that no request can have.
fn note_tiers(root: &Section<'_>, config: &Config) {
    let routes: HashSet<&str, RandomState> =
        config.routes.iter().map(|route| &*route.name).collect();
    for (name, limit) in &config.limits {
        for (index, tier) in limit.tiers.iter().enumerate() {
            note_unlimited(&root.at("limits").entry(name).at("tiers").index(index), tier, config);
            let section =
                root.at("limits").entry(name).at("tiers").index(index).at("match").at("values");
            for (index, value) in tier.matches.values.iter().enumerate() {
                let expected = match tier.matches.part {
                    KeyPart::Method if value.bytes().any(|byte| byte.is_ascii_lowercase()) => {
                        format!("`{}`", value.to_ascii_uppercase())
                    }
                    KeyPart::Route if !routes.contains(&**value) => {
                        "the name of a route".to_owned()
                    }
                    KeyPart::Path => match normalize(value, listen::slashes(&config.http)) {
                        Ok(normal) if normal == **value => continue,
                        Ok(normal) => format!("`{normal}`"),
                        Err(_) => "a path such as /items/7".to_owned(),
                    },
                    _ => continue,
                };
                let what = format!("`{value}` matches no request");
                section.index(index).note(what, &expected);
            }
        }
    }
}

/// Notes an unlimited tier that every client can choose.
fn note_unlimited(section: &Section<'_>, tier: &config::TierConfig, config: &Config) {
    let is_chosen = !matches!(
        tier.matches.part,
        KeyPart::ClientIp
            | KeyPart::Token
            | KeyPart::Route
            | KeyPart::Consumer
            | KeyPart::Plan
            | KeyPart::Descriptor(_)
    );
    let has_proxy = !config.client.trusted_proxies.is_empty();
    if tier.quota == config::TierQuota::Unlimited && is_chosen && !has_proxy {
        let what = format!("a client that sends this `{}` is not limited", tier.matches.part);
        let expected =
            "`client_ip`, `token` or `route`, or a proxy in `client.trusted_proxies` that sets it";
        section.at("match").at("part").note(what, expected);
    }
}

/// Notes a `response_timeout` that never acts, because every route of the upstream ends its
/// requests sooner.
fn note_response_timeout(
    section: &Section<'_>,
    name: &str,
    upstream: &config::UpstreamConfig,
    config: &Config,
) {
    let own = config.routes.iter().filter(|route| route.upstream.as_deref() == Some(name));
    let timeouts = own.map(|route| route.request_timeout.duration());
    let Some(longest) = timeouts.reduce(|one, other| Some(one?.max(other?))).flatten() else {
        return;
    };
    if upstream.response_timeout.0 > longest && upstream.respond.is_none() {
        let what = format!(
            "`response_timeout` of {} never acts: `request_timeout` ends every request of `{name}` sooner",
            upstream.response_timeout
        );
        section.note(what, "a `request_timeout` of a route that is as long");
    }
}

/// Notes a throttle that applies to every route: users without a token could not log in to get one.
fn note_login(root: &Section<'_>, config: &Config) {
    if config.throttle.is_some() && config.routes.iter().all(|route| route.throttle) {
        let what = "the throttle applies to every route: while it is on, no one can log in";
        let expected = "`throttle: false` in the routes of the login and of health checks";
        root.at("throttle").note_at_key(what, expected);
    }
}

/// Notes networks of every address among the trusted proxies.
fn note_trusted_networks(root: &Section<'_>, config: &Config) {
    let is_asked = config.routes.iter().any(|route| route.decide.is_some());
    for (index, network) in config.client.trusted_proxies.iter().enumerate() {
        if network.0.prefix_len() == 0 {
            let (danger, expected) = if is_asked {
                (
                    "every client may ask a `decide` route about any caller",
                    "the addresses of the proxies that ask",
                )
            } else {
                (
                    "every client chooses, in `X-Forwarded-For`, the address by which limits and `deny` know it",
                    "the addresses of the proxies in front of the gateway",
                )
            };
            let what = format!("`{}` are all addresses: {danger}", network.0);
            root.at("client").at("trusted_proxies").index(index).note(what, expected);
        }
    }
}

/// Notes limits that no route names.
fn note_unused_limits(root: &Section<'_>, config: &Config) {
    let named = config
        .routes
        .iter()
        .flat_map(|route| route.limits.iter().chain(route.status.iter().flatten()));
    let domains = config.rate_limit_service.iter().flat_map(|service| service.domains.values());
    let named = named.chain(domains.flat_map(|domain| &domain.limits).flat_map(|item| &item.limit));
    let named: HashSet<&String, RandomState> = named.collect();
    for name in config.limits.keys().filter(|name| !named.contains(name)) {
        let what = format!("no route names the limit `{name}`");
        root.at("limits").entry(name).note_at_key(what, "its name in `limits` of a route");
    }
}

fn note_targets(section: &Section<'_>, targets: &[config::WeightedTargetConfig], config: &Config) {
    let mut seen = HashSet::<&TargetUrl, RandomState>::default();
    for (index, target) in targets.iter().map(|target| &target.url).enumerate() {
        let section = section.index(index);
        if !seen.insert(target) {
            let what = format!("duplicate target `{target}`, which gets a share for each entry");
            section.note(what, "each server once");
        }
        let mut listeners = config.listen.iter();
        let listener = listeners.position(|listener| is_same_server(target, listener.address));
        if let Some(listener) = listener {
            let line = section.root().at("listen").index(listener).at("address").line();
            let what = format!(
                "`{target}` is this gateway's own listener (line {line}); a request that comes back to \
                 the gateway gets a 508"
            );
            section.note(what, "the address of another server");
        }
        if config
            .admin
            .as_ref()
            .and_then(|admin| admin.address.tcp())
            .is_some_and(|address| is_same_server(target, address))
        {
            let what = format!("`{target}` is the gateway's own admin API");
            section.note(what, "the address of another server");
        }
    }
}

/// Notes `auto` without TLS, where no handshake negotiates the protocol.
fn note_protocol(section: &Section<'_>, upstream: &config::UpstreamConfig) {
    let has_tls = upstream.targets.iter().any(|target| target.url.is_tls());
    if upstream.protocol == Protocol::Auto && !has_tls {
        let what = "`auto` without TLS is HTTP/1.1";
        section.note(what, "targets with https://, `http1` or `http2`");
    }
}

/// True if a connection to `target` evidently reaches `listener`. Names other than `localhost` are
/// not resolved.
fn is_same_server(target: &TargetUrl, listener: ListenAddress) -> bool {
    let (TargetUrl::Http(server) | TargetUrl::Https(server)) = target else { return false };
    let bound = listener.0.ip().to_canonical();
    let is_same_address = match server.host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) => ip == bound || bound.is_unspecified() && ip.is_loopback(),
        Err(_) => {
            server.host.eq_ignore_ascii_case("localhost")
                && (bound.is_loopback() || bound.is_unspecified())
        }
    };
    is_same_address && server.port == listener.0.port()
}

/// The path or the path prefix: its key, and its text.
fn configured_path(matches: &config::RouteMatch) -> Option<(&'static str, &str)> {
    let path = matches.path.as_deref().map(|path| ("path", path));
    path.or_else(|| Some(("path_prefix", matches.path_prefix.as_deref()?)))
}

/// Notes a `*` outside of `{*name}`: it is a wildcard in other gateways, but not here.
fn note_path(section: &Section<'_>, route: &config::RouteConfig) {
    let Some((key, pattern)) = configured_path(&route.matches) else { return };
    if pattern.replace("{*", "{").contains('*') {
        let expected = match pattern.strip_suffix("/*").filter(|rest| !rest.contains('*')) {
            Some(rest) => format!("`{rest}/{{*rest}}` for all paths below `{rest}/`"),
            None => {
                "`{name}` for any text in a segment, or `{*name}` for the rest of a path".to_owned()
            }
        };
        let what = format!("`{pattern}` matches only paths with the character `*`");
        section.at("match").at(key).note(what, &expected);
    }
}

/// Notes a path that ends in `/`: a prefix in nginx, but not here.
fn note_prefix(section: &Section<'_>, route: &config::RouteConfig) {
    let Some(pattern) = route.matches.path.as_deref() else { return };
    if pattern.len() > 1 && pattern.ends_with('/') {
        let what = format!("`{pattern}` matches only this path");
        let prefix = pattern.trim_end_matches('/');
        let expected = format!(
            "`{pattern}{{*rest}}` for all paths below it, or `path_prefix: {prefix}` for `{prefix}` also"
        );
        section.at("match").at("path").note(what, &expected);
    }
}

/// Notes `:id` and `{id:[0-9]+}`, which are parameters in other gateways.
fn note_foreign_parameters(section: &Section<'_>, route: &config::RouteConfig) {
    let Some((key, pattern)) = configured_path(&route.matches) else { return };
    let at = section.at("match").at(key);
    let is_name = |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let colon = pattern.split('/').find(|segment| segment.strip_prefix(':').is_some_and(is_name));
    if let Some(segment) = colon {
        let what = format!("`{segment}` in a path matches only this text");
        at.note(what, &format!("`{{{}}}` for any text in a segment", &segment[1..]));
    }
    // The fault of an invalid pattern is reported by `routes`.
    let Ok(parsed) = PathPattern::parse(pattern) else { return };
    let typed = parsed.params().iter().find_map(|name| Some((name, name.split_once(':')?)));
    if let Some((name, (plain, kind))) = typed {
        let is_rest = matches!(kind, ".*" | ".+") && pattern.ends_with('}');
        let star = if is_rest { "*" } else { "" };
        let what =
            format!("`{{{name}}}` matches any text: what follows the colon is a part of the name");
        at.note(what, &format!("`{{{star}{plain}}}`"));
    }
}

fn note_methods(section: &Section<'_>, route: &config::RouteConfig) {
    for (index, method) in route.matches.methods.iter().enumerate() {
        if matches!(&*method.0, "CONNECT" | "TRACE") {
            let what = format!("`{method}` gets a 405 before any route is looked up");
            section.at("match").at("methods").index(index).note(what, "a method such as GET");
        }
    }
}

/// Notes a `Host` that is not the name which the targets' certificates must have.
fn note_host(section: &Section<'_>, route: &config::RouteConfig, config: &Config) {
    if route.host != config::HostHeader::Upstream {
        return;
    }
    let upstream = route.upstream.as_ref().and_then(|name| config.upstreams.get(name));
    let Some(upstream) = upstream else { return };
    let Some(name) = upstream.tls.fixed_name() else { return };
    let other = upstream.targets.iter().find_map(|target| match &target.url {
        TargetUrl::Https(server) if !server.host.eq_ignore_ascii_case(name) => Some(server),
        _ => None,
    });
    if let Some(server) = other {
        let what = format!(
            "`upstream` sends `{}` as Host, and the certificate must be for `{name}`",
            server.host
        );
        section.at("host").note(what, &format!("`host: {name}`"));
    }
}

fn note_strip_prefix(section: &Section<'_>, route: &config::RouteConfig) {
    let Some(prefix) = &route.strip_prefix else { return };
    if prefix == "/" {
        let what = "`/` strips nothing";
        section.at("strip_prefix").note(what, "a prefix such as /api");
    }
    // The fault of an invalid pattern is reported by `routes`.
    let pattern = match (&route.matches.path, &route.matches.path_prefix) {
        (Some(path), _) => PathPattern::parse(path),
        (None, Some(prefix)) => PathPattern::prefix(prefix),
        (None, None) => return,
    };
    let Ok(pattern) = pattern else { return };
    if !pattern.can_start_with(prefix) {
        let what = format!(
            "`{prefix}` is never stripped: no path of `{}` begins with it",
            pattern.as_str()
        );
        let expected = "the beginning of the route's path, in whole segments";
        section.at("strip_prefix").note(what, expected);
    }
}
