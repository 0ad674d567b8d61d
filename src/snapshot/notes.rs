//! Notes on valid settings that are rarely intended: rules that match nothing, targets that lead back to
//! the gateway, an admin API that other machines can reach.

use std::net::IpAddr;

use ahash::RandomState;
use hashbrown::HashSet;

use super::fault_collector::FaultCollector;
use crate::config::{self, Address, Config, Target};
use crate::route::PathPattern;

/// Adds the notes of all sections.
pub(super) fn add(collector: &mut FaultCollector<'_>, config: &Config) {
    note_admin(collector, config);
    for (name, upstream) in &config.upstreams {
        let path = format!("upstreams.{name}");
        note_targets(collector, &format!("{path}.targets"), &upstream.targets, config);
        note_protocol(collector, &format!("{path}.protocol"), upstream);
    }
    for (index, route) in config.routes.iter().enumerate() {
        let path = format!("routes[{index}]");
        note_path(collector, &path, route);
        note_methods(collector, &path, route);
        note_strip_prefix(collector, &path, route);
    }
}

fn note_admin(collector: &mut FaultCollector<'_>, config: &Config) {
    let Some(admin) = &config.admin else { return };
    if !admin.address.0.ip().is_loopback() {
        let what =
            format!("the admin API has no password, and `{}` is not on loopback", admin.address);
        let expected = "a loopback address, or a port that only a private network reaches";
        collector.note("admin.address", what, expected);
    }
}

fn note_targets(
    collector: &mut FaultCollector<'_>,
    path: &str,
    targets: &[config::WeightedTarget],
    config: &Config,
) {
    let mut seen = HashSet::<&Target, RandomState>::default();
    for (index, target) in targets.iter().map(|target| &target.url).enumerate() {
        let path = format!("{path}[{index}]");
        if !seen.insert(target) {
            let what = format!("duplicate target `{target}`, which gets a share for each entry");
            collector.note(&path, what, "each server once");
        }
        let own = config.listen.iter().position(|own| is_same_server(target, own.address));
        if let Some(own) = own {
            let line = collector.line(&format!("listen[{own}].address"));
            let what = format!(
                "`{target}` is this gateway's own listener (line {line}); a request that comes back to \
                 the gateway gets a 508"
            );
            collector.note(&path, what, "the address of another server");
        }
        if config.admin.as_ref().is_some_and(|admin| is_same_server(target, admin.address)) {
            let what = format!("`{target}` is the gateway's own admin API, which has no password");
            collector.note(&path, what, "the address of another server");
        }
    }
}

/// Notes `auto` where no handshake chooses the protocol.
fn note_protocol(collector: &mut FaultCollector<'_>, path: &str, upstream: &config::Upstream) {
    let has_tls = upstream.targets.iter().any(|target| target.url.is_tls());
    if upstream.protocol == config::Protocol::Auto && !has_tls {
        let what = "`auto` is HTTP/1.1 with targets in clear";
        collector.note(path, what, "targets with https://, `http1` or `http2`");
    }
}

/// Whether a connection to `target` reaches a listener of this process, as far as the configuration shows
/// it: names other than `localhost` are not resolved.
fn is_same_server(target: &Target, listener: Address) -> bool {
    let (Target::Http(server) | Target::Https(server)) = target else { return false };
    let own = listener.0.ip().to_canonical();
    let is_same_address = match server.host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) => ip == own || own.is_unspecified() && ip.is_loopback(),
        Err(_) => {
            server.host.eq_ignore_ascii_case("localhost")
                && (own.is_loopback() || own.is_unspecified())
        }
    };
    is_same_address && server.port == listener.0.port()
}

/// Notes a `*` outside of `{*name}`: it is a wildcard in other gateways, but not here.
fn note_path(collector: &mut FaultCollector<'_>, path: &str, route: &config::Route) {
    let pattern = &*route.matches.path;
    if pattern.replace("{*", "{").contains('*') {
        let expected = match pattern.strip_suffix("/*").filter(|rest| !rest.contains('*')) {
            Some(rest) => format!("`{rest}/{{*rest}}` for all paths below `{rest}/`"),
            None => {
                "`{name}` for any text in a segment, or `{*name}` for the rest of a path".to_owned()
            }
        };
        let what = format!("`{pattern}` matches only paths with the character `*`");
        collector.note(&format!("{path}.match.path"), what, &expected);
    }
}

fn note_methods(collector: &mut FaultCollector<'_>, path: &str, route: &config::Route) {
    for (index, method) in route.matches.methods.iter().enumerate() {
        if matches!(&*method.0, "CONNECT" | "TRACE") {
            let what = format!("`{method}` gets a 405 before any route is looked up");
            collector.note(&format!("{path}.match.methods[{index}]"), what, "a method such as GET");
        }
    }
}

fn note_strip_prefix(collector: &mut FaultCollector<'_>, path: &str, route: &config::Route) {
    let Some(prefix) = &route.strip_prefix else { return };
    // The fault of an invalid pattern is reported by `routes`.
    let Ok(pattern) = PathPattern::parse(&route.matches.path) else { return };
    if !pattern.can_start_with(prefix) {
        let what = format!(
            "`{prefix}` is never stripped: no path of `{}` begins with it",
            pattern.as_str()
        );
        let expected = "the beginning of the route's path, in whole segments";
        collector.note(&format!("{path}.strip_prefix"), what, expected);
    }
}
