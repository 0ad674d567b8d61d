//! Compiles the `upstreams` section.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::check::Check;
use crate::config;
use crate::upstream::{FixedResponse, ServerAddress, Servers, Upstream, UpstreamKind};

/// Maximum number of retries of a request.
const MAX_RETRIES: u32 = 10;

/// Compiles the upstreams in the order of their names. A faulty upstream is reported and keeps its index.
pub(super) fn compile(
    check: &mut Check<'_>,
    upstreams: &BTreeMap<String, config::Upstream>,
) -> Vec<Arc<Upstream>> {
    let compiled = upstreams.iter().enumerate().map(|(index, (name, upstream))| {
        let path = format!("upstreams.{name}");
        check.ensure_key_name(&path, name);
        let kind = kind(check, &path, upstream);
        Arc::new(Upstream { name: name.as_str().into(), index, kind })
    });
    compiled.collect()
}

fn kind(check: &mut Check<'_>, path: &str, upstream: &config::Upstream) -> UpstreamKind {
    match (&upstream.respond, upstream.targets.as_slice()) {
        (Some(_), [_, ..]) => {
            check.fault(path, "both `targets` and `respond`", "one of them");
        }
        (None, []) => check.fault(path, "neither `targets` nor `respond`", "one of them"),
        _ => {}
    }
    let servers = servers(check, path, upstream);
    match &upstream.respond {
        Some(respond) => {
            UpstreamKind::Fixed(self::respond(check, &format!("{path}.respond"), respond))
        }
        None => UpstreamKind::Servers(servers),
    }
}

fn servers(check: &mut Check<'_>, path: &str, upstream: &config::Upstream) -> Servers {
    match upstream.balance {
        config::Balance::RoundRobin => {}
        config::Balance::LeastRequests => {
            check.unsupported(&format!("{path}.balance"), "`least_requests`", "round_robin");
        }
        config::Balance::Hash => {
            check.unsupported(&format!("{path}.balance"), "`hash`", "round_robin");
        }
    }
    if upstream.protocol == config::Protocol::Http2 {
        check.unsupported(&format!("{path}.protocol"), "`http2`", "http1");
    }
    if upstream.health.is_some() {
        check.unsupported(&format!("{path}.health"), "`health`", "no such section");
    }
    check.ensure_positive_duration(&format!("{path}.connect_timeout"), upstream.connect_timeout);
    check.ensure_positive_duration(&format!("{path}.response_timeout"), upstream.response_timeout);
    check.ensure_positive_duration(&format!("{path}.idle_timeout"), upstream.idle_timeout);
    let retries = upstream.retries;
    let is_valid = retries <= MAX_RETRIES;
    check.ensure(is_valid, &format!("{path}.retries"), &format!("`{retries}`"), "0 to 10");
    Servers {
        addresses: targets(check, path, &upstream.targets),
        connect_timeout: upstream.connect_timeout.0,
        response_timeout: upstream.response_timeout.0,
        idle_timeout: upstream.idle_timeout.0,
        retries,
    }
}

fn targets(check: &mut Check<'_>, path: &str, targets: &[config::Target]) -> Vec<ServerAddress> {
    let mut compiled = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let path = format!("{path}.targets[{index}]");
        let (scheme, first) = (scheme(target), scheme(&targets[0]));
        if scheme != first {
            let what = format!("a target with scheme {scheme} among targets with {first}");
            check.fault(&path, what, "one scheme per upstream");
        }
        match target {
            config::Target::Http(server) => {
                compiled
                    .push(ServerAddress { host: server.host.as_str().into(), port: server.port });
            }
            config::Target::Https(_) => check.unsupported(&path, "`https`", "http://host:port"),
            config::Target::Unix(_) => check.unsupported(&path, "`unix`", "http://host:port"),
        }
    }
    compiled
}

fn scheme(target: &config::Target) -> &'static str {
    match target {
        config::Target::Http(_) => "http",
        config::Target::Https(_) => "https",
        config::Target::Unix(_) => "unix",
    }
}

fn respond(check: &mut Check<'_>, path: &str, respond: &config::FixedResponse) -> FixedResponse {
    let status = StatusCode::from_u16(respond.status.0).unwrap_or_default();
    let is_bodyless = matches!(status.as_u16(), 204 | 205 | 304);
    let what = format!("a body with status {}", status.as_u16());
    let body = format!("{path}.body");
    check.ensure(!is_bodyless || respond.body.is_empty(), &body, &what, "no `body`");
    let configured = Some(&respond.content_type).filter(|text| text.is_ascii());
    let content_type = configured.and_then(|text| HeaderValue::from_str(text).ok());
    let what = format!("`{}`", respond.content_type.escape_debug());
    let is_valid = content_type.as_ref().is_some_and(|value| !value.is_empty());
    check.ensure(
        is_valid,
        &format!("{path}.content_type"),
        &what,
        "a media type such as text/plain",
    );
    FixedResponse {
        status,
        body: Bytes::copy_from_slice(respond.body.as_bytes()),
        content_type: content_type.unwrap_or(HeaderValue::from_static("text/plain")),
    }
}
