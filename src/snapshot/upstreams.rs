//! Compiles the `upstreams` section.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::fault_collector::FaultCollector;
use crate::config;
use crate::upstream::{FixedResponse, ServerAddress, Servers, Upstream, UpstreamKind};

/// Compiles the upstreams in the order of their names. A faulty upstream is reported and keeps its index.
pub(super) fn compile(
    collector: &mut FaultCollector<'_>,
    upstreams: &BTreeMap<String, config::Upstream>,
) -> Vec<Arc<Upstream>> {
    let compiled = upstreams.iter().enumerate().map(|(index, (name, upstream))| {
        let path = format!("upstreams.{name}");
        collector.ensure_key_name(&path, name);
        let kind = kind(collector, &path, upstream);
        Arc::new(Upstream { name: name.as_str().into(), index, kind })
    });
    compiled.collect()
}

fn kind(
    collector: &mut FaultCollector<'_>,
    path: &str,
    upstream: &config::Upstream,
) -> UpstreamKind {
    match (&upstream.respond, upstream.targets.as_slice()) {
        (Some(_), [_, ..]) => {
            let path = format!("{path}.respond");
            collector.fault_at_key(&path, "both `targets` and `respond`", "one of them");
        }
        (None, []) if collector.can_read(path, &["targets", "respond"]) => {
            let path = format!("{path}.targets");
            collector.fault(&path, "neither `targets` nor `respond`", "one of them");
        }
        _ => {}
    }
    match &upstream.respond {
        Some(respond) => {
            UpstreamKind::Fixed(self::respond(collector, &format!("{path}.respond"), respond))
        }
        None => UpstreamKind::Servers(servers(upstream)),
    }
}

fn servers(upstream: &config::Upstream) -> Servers {
    let address = |config::Target(server): &config::Target| ServerAddress {
        host: server.host.as_str().into(),
        port: server.port,
    };
    Servers {
        addresses: upstream.targets.iter().map(address).collect(),
        connect_timeout: upstream.connect_timeout.0,
        response_timeout: upstream.response_timeout.0,
        idle_timeout: upstream.idle_timeout.0,
        retries: upstream.retries,
    }
}

fn respond(
    collector: &mut FaultCollector<'_>,
    path: &str,
    respond: &config::FixedResponse,
) -> FixedResponse {
    let status = StatusCode::from_u16(respond.status.0).unwrap_or_default();
    let is_bodyless = matches!(status.as_u16(), 204 | 205 | 304);
    let what = format!("a body with status {}", status.as_u16());
    let body = format!("{path}.body");
    let is_valid =
        !is_bodyless || respond.body.is_empty() || !collector.can_read(path, &["status"]);
    collector.ensure(is_valid, &body, &what, "no `body`");
    let configured = Some(&respond.content_type).filter(|text| text.is_ascii());
    let content_type = configured.and_then(|text| HeaderValue::from_str(text).ok());
    let what = format!("`{}`", respond.content_type);
    let is_valid = content_type.as_ref().is_some_and(|value| !value.is_empty());
    collector.ensure(
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
