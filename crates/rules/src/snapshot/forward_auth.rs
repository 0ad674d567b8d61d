//! Compiles `auth.NAME.forward`.

use std::sync::Arc;

use http::{HeaderName, header};
use tidegate_access::auth::{ForwardAuth, ServiceFailure, may_prove};
use tidegate_base::time::Millis;
use tidegate_config::{ForwardAuthConfig, OnAuthFailure};
use tidegate_tls::{ClientTls, TlsFile, client::OfferedToServer};

use super::listen::tls_fault;
use super::parts::header as header_name;
use super::section::Section;

/// Headers of a request that say how its own bytes are read, and are never another message's.
const FRAMING: [HeaderName; 8] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::HOST,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

/// Compiles a service; `None` if it is faulty.
pub(super) fn compile(
    section: &Section<'_>,
    forward: &ForwardAuthConfig,
    prefix: &str,
) -> Option<Arc<ForwardAuth>> {
    let request_headers = headers(&section.at("request_headers"), &forward.request_headers);
    let copied_headers = headers(&section.at("copy"), &forward.copy);
    if forward.plan.is_some() && forward.consumer.is_none() {
        section.at("plan").fault_at_key("`plan` without `consumer`", "`consumer`");
    }
    let cache_time = Millis::from_duration(forward.cache.0);
    let has_credentials = request_headers.iter().any(may_prove);
    if !cache_time.is_zero() && !has_credentials && section.can_read(&["request_headers"]) {
        let what = "`cache` without credentials in `request_headers`: no answer is remembered";
        section.at("cache").fault_at_key(what, "a header such as `cookie` in `request_headers`");
    }
    let (tls, tls_files) = tls(section, forward)?;
    let on_failure = match forward.on_failure {
        OnAuthFailure::Deny => ServiceFailure::Deny,
        OnAuthFailure::Allow => ServiceFailure::Allow,
    };
    Some(Arc::new(ForwardAuth {
        url: forward.to.to_string().into(),
        request_headers,
        copied_headers,
        consumer: forward.consumer.as_ref().map(|header| header.0.clone()),
        prefix: prefix.into(),
        plan: forward.plan.as_ref().map(|header| header.0.clone()),
        timeout: forward.timeout.0,
        cache_time,
        on_failure,
        tls,
        tls_files,
    }))
}

/// Reads a list of headers. Reports invalid ones, duplicates, and headers that belong to a
/// message's own framing.
fn headers(section: &Section<'_>, names: &[String]) -> Box<[HeaderName]> {
    let mut headers: Vec<HeaderName> = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let section = section.index(index);
        let Some(header) = header_name(&section, name) else { continue };
        let is_framing = FRAMING.contains(&header);
        section.ensure(!is_framing, &format!("`{name}`"), "a header that is not of one connection");
        section.ensure(!headers.contains(&header), &format!("`{name}` again"), "each header once");
        headers.push(header);
    }
    headers.into()
}

fn tls(
    section: &Section<'_>,
    forward: &ForwardAuthConfig,
) -> Option<(Arc<rustls::ClientConfig>, Arc<[TlsFile]>)> {
    let authorities = section.at("tls_ca");
    if forward.to.is_tls() {
        let rules = ClientTls::new(forward.tls_ca.as_deref(), None, OfferedToServer::Http1);
        let rules = rules.map_err(|error| tls_fault(&authorities, &error)).ok()?;
        return Some((rules.http1_config, rules.files));
    }
    authorities.ensure(forward.tls_ca.is_none(), "`tls_ca` without TLS", "an https:// URL");
    let rules = ClientTls::without_authorities();
    let rules = rules.map_err(|error| tls_fault(&section.at("to"), &error)).ok()?;
    Some((rules, Arc::default()))
}
