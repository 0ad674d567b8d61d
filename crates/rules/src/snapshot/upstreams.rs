//! Compiles the `upstreams` section.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use rustls::pki_types::ServerName;
use tidegate_config as config;
use tidegate_tls::{Certificate, ClientTls, TlsError, client::OfferedToServer};
use tidegate_upstream::{
    FixedResponse, Protocol, ServerAddress, Servers, Target, TargetTls, TlsNameSource, Upstream,
    UpstreamKind, WeightedTarget,
};

use super::balance;
use super::listen::tls_fault;
use super::section::Section;

/// Maximum length of a Unix socket's path, in bytes: `sun_path` of unix(7), without its final NUL.
const MAX_SOCKET_PATH: usize = 107;

/// Compiles the upstreams in the order of their names. A faulty upstream is reported and keeps its
/// index.
pub(super) fn compile(
    root: &Section<'_>,
    upstreams: &BTreeMap<String, config::UpstreamConfig>,
) -> Vec<Arc<Upstream>> {
    let compiled = upstreams.iter().enumerate().map(|(index, (name, upstream))| {
        let section = root.at("upstreams").entry(name);
        section.ensure_key_name(name);
        let kind = kind(&section, upstream);
        Arc::new(Upstream { name: name.as_str().into(), index, kind })
    });
    compiled.collect()
}

fn kind(section: &Section<'_>, upstream: &config::UpstreamConfig) -> UpstreamKind {
    match (&upstream.respond, upstream.targets.as_slice()) {
        (Some(_), [_, ..]) => {
            let section = section.at("respond");
            section.fault_at_key("both `targets` and `respond`", "one of them");
        }
        (None, []) if section.can_read(&["targets", "respond"]) => {
            let section = section.at("targets");
            section.fault("neither `targets` nor `respond`", "one of them");
        }
        _ => {}
    }
    match &upstream.respond {
        Some(respond) => {
            ensure_no_connection_keys(section, upstream);
            UpstreamKind::Fixed(self::respond(&section.at("respond"), respond))
        }
        None => UpstreamKind::Servers(Arc::new(servers(section, upstream))),
    }
}

/// Reports keys for connections to targets in an upstream with a fixed response.
fn ensure_no_connection_keys(section: &Section<'_>, upstream: &config::UpstreamConfig) {
    let keys = [
        ("protocol", upstream.protocol != Protocol::Http1),
        ("tls", upstream.tls != config::UpstreamTls::default()),
        ("send_proxy", upstream.send_proxy.is_some()),
    ];
    let keys = keys.into_iter().chain(balance::keys_in_use(upstream));
    for (key, _) in keys.filter(|(_, is_set)| *is_set) {
        let what = format!("`{key}` with `respond`, which connects to no server");
        section.at(key).fault_at_key(what, "`targets`, or no such key");
    }
}

fn servers(section: &Section<'_>, upstream: &config::UpstreamConfig) -> Servers {
    Servers {
        targets: targets(section, upstream),
        policy: balance::policy(section, upstream),
        health: balance::health(section, upstream),
        check: balance::check(section, upstream),
        bounds: balance::bounds(section, upstream),
        retry_on: balance::retry_on(upstream),
        name_servers: upstream.name_servers.iter().map(|address| address.0).collect(),
        connect_timeout: upstream.connect_timeout.0,
        response_timeout: upstream.response_timeout.0,
        idle_timeout: upstream.idle_timeout.0,
        sends_via: upstream.via,
        retries: upstream.retries,
    }
}

fn targets(section: &Section<'_>, upstream: &config::UpstreamConfig) -> Vec<WeightedTarget> {
    let protocol = upstream.protocol;
    let offer = match protocol {
        Protocol::Http1 => OfferedToServer::Http1,
        Protocol::Http2 => OfferedToServer::Http2,
        Protocol::Auto => OfferedToServer::Either,
    };
    let send_proxy = upstream.send_proxy;
    if send_proxy.is_some() && protocol != Protocol::Http1 {
        let expected = "`protocol: http1`: an HTTP/2 connection carries requests of many clients";
        section.at("send_proxy").fault("`send_proxy` with HTTP/2", expected);
    }
    balance::ensure_weights(section, upstream);
    let rules = if upstream.targets.iter().any(|target| target.url.is_tls()) {
        client_tls(&section.at("tls"), &upstream.tls, offer)
    } else {
        if upstream.tls != config::UpstreamTls::default() {
            let expected = "targets with https://, or no `tls`";
            section.at("tls").fault("`tls` without an https target", expected);
        }
        None
    };
    let mut compiled = Vec::new();
    for (index, weighted) in upstream.targets.iter().enumerate() {
        let target = &weighted.url;
        let section = section.at("targets").index(index);
        if target.is_tls() != upstream.targets[0].url.is_tls() {
            let what = "targets with and without https in one upstream";
            section.fault(what, "the same for all targets");
        }
        let tcp = |server: &config::HostPort| ServerAddress::Tcp {
            host: server.host.as_str().into(),
            port: server.port,
        };
        if let config::TargetUrl::Unix(socket) = target {
            let (bytes, expected) = (socket.as_os_str().as_bytes(), "a path of at most 107 bytes");
            let is_valid = bytes.len() <= MAX_SOCKET_PATH && !bytes.contains(&0);
            section.ensure(is_valid, &format!("`{target}`"), expected);
        }
        let address = match target {
            config::TargetUrl::Http(server) | config::TargetUrl::Https(server) => tcp(server),
            config::TargetUrl::Unix(path) => ServerAddress::Unix(path.as_path().into()),
            config::TargetUrl::Srv(name) | config::TargetUrl::Srvs(name) => {
                ServerAddress::Service(name.as_str().into())
            }
        };
        let tls = match (target, &rules) {
            (config::TargetUrl::Https(server), Some(rules)) => {
                // A faulty `tls.name` is reported once, in `client_tls`.
                let name = match upstream.tls.fixed_name() {
                    Some(name) => ClientTls::server_name(name).ok(),
                    None => server_name(&section, &server.host),
                };
                name.map(|name| TargetTls { rules: rules.clone(), name })
            }
            (config::TargetUrl::Srvs(_), Some(rules)) => {
                // Without `tls.name`, each server's certificate must have the server's own name,
                // which is set when the record is resolved.
                let name = upstream.tls.fixed_name().unwrap_or("srv.invalid");
                let name = ClientTls::server_name(name).ok();
                name.map(|name| TargetTls { rules: rules.clone(), name })
            }
            _ => None,
        };
        let tls_name = match &upstream.tls.name {
            None => TlsNameSource::Target,
            Some(_) if upstream.tls.fixed_name().is_none() => TlsNameSource::Request,
            Some(_) => TlsNameSource::Configured,
        };
        let target = Target { address, protocol, tls, tls_name, send_proxy, resolved: None };
        compiled.push(WeightedTarget { target, weight: weighted.weight });
    }
    compiled
}

/// The name that a certificate must have, from the configuration's value at `section`.
fn server_name(section: &Section<'_>, name: &str) -> Option<ServerName<'static>> {
    let parsed = ClientTls::server_name(name);
    let expected = "a DNS name or an address";
    section.ensure(parsed.is_ok(), &format!("`{name}`"), expected);
    parsed.ok()
}

/// Compiles the TLS settings for connections to the targets.
fn client_tls(
    section: &Section<'_>,
    tls: &config::UpstreamTls,
    offer: OfferedToServer,
) -> Option<ClientTls> {
    let certificate = match (&tls.cert, &tls.key) {
        (None, None) => None,
        (Some(cert), Some(key)) => {
            let loaded = Certificate::load(cert, key);
            let reported = |error: TlsError| {
                let key = if error.is_about_key(cert, key) { "key" } else { "cert" };
                tls_fault(&section.at(key), &error);
            };
            Some(loaded.map_err(reported).ok()?)
        }
        (Some(_), None) => {
            section.fault("`cert` without `key`", "both or none");
            return None;
        }
        (None, Some(_)) => {
            section.fault("`key` without `cert`", "both or none");
            return None;
        }
    };
    if let Some(name) = tls.fixed_name() {
        server_name(&section.at("name"), name)?;
    }
    let rules = ClientTls::new(tls.ca.as_deref(), certificate, offer);
    rules.map_err(|error| tls_fault(&section.at("ca"), &error)).ok()
}

pub(super) fn respond(
    section: &Section<'_>,
    respond: &config::FixedResponseConfig,
) -> FixedResponse {
    let status = StatusCode::from_u16(respond.status.0).unwrap_or_default();
    let is_bodyless = matches!(status.as_u16(), 204 | 205 | 304);
    let what = format!("a body with status {}", status.as_u16());
    let body = section.at("body");
    let is_valid = !is_bodyless || respond.body.is_empty() || !section.can_read(&["status"]);
    body.ensure(is_valid, &what, "no `body`");
    let configured = Some(&respond.content_type).filter(|text| text.is_ascii());
    let content_type = configured.and_then(|text| HeaderValue::from_str(text).ok());
    let what = format!("`{}`", respond.content_type);
    let is_valid = content_type.as_ref().is_some_and(|value| !value.is_empty());
    section.at("content_type").ensure(is_valid, &what, "a media type such as text/plain");
    FixedResponse {
        status,
        body: Bytes::copy_from_slice(respond.body.as_bytes()),
        content_type: content_type.unwrap_or(HeaderValue::from_static("text/plain")),
    }
}
