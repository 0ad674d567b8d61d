//! Refuses requests that a web page in a browser could make. A loopback port may lack a token, so
//! web pages in a browser on the same machine must be kept out.
//!
//! - DNS rebinding: a page whose own name resolves to this port can read responses. Its requests
//!   have that name as `Host`, so only IP addresses, `localhost` and configured names are accepted.
//! - Cross-site requests: a page of another origin cannot read responses, but can send requests.
//!   Requests that change something are refused.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header, uri::Authority},
    middleware::Next,
    response::Response,
};

use super::problem::problem;

/// The values of `Host` that the admin port accepts.
#[derive(Clone, Debug)]
pub struct AllowedHosts {
    /// True if only this machine reaches the port.
    is_local: bool,
    names: Arc<[String]>,
}

impl AllowedHosts {
    /// The accepted values for a port that only this machine reaches: `localhost`, `names` and
    /// loopback addresses.
    pub fn of_local_port(names: impl IntoIterator<Item = String>) -> Self {
        Self { is_local: true, names: names.into_iter().collect() }
    }

    /// The accepted values for any other port: `localhost`, `names` and IP addresses.
    pub fn of_network_port(names: impl IntoIterator<Item = String>) -> Self {
        Self { is_local: false, names: names.into_iter().collect() }
    }

    /// True if `host`, with or without a port, is accepted.
    fn contains(&self, host: &[u8]) -> bool {
        let Ok(authority) = Authority::try_from(host) else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host();
        let port = authority.as_str().get(host.len()..).unwrap_or_default();
        let is_port =
            |port: &str| port.strip_prefix(':').is_some_and(|it| it.parse::<u16>().is_ok());
        if !port.is_empty() && !is_port(port) {
            return false;
        }
        let ipv6 = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(address) = ipv6.unwrap_or(host).parse::<IpAddr>() {
            return !self.is_local || address.to_canonical().is_loopback();
        }
        let name = host.strip_suffix('.').unwrap_or(host);
        let is_name = |allowed: &String| allowed.eq_ignore_ascii_case(name);
        name.eq_ignore_ascii_case("localhost") || self.names.iter().any(is_name)
    }

    fn expected(&self) -> &'static str {
        if self.is_local {
            "expected a loopback address, localhost or a name in `admin.hosts`"
        } else {
            "expected an IP address, localhost or a name in `admin.hosts`"
        }
    }
}

/// Refuses requests with a `Host` that is not accepted, and changes that a page of another origin
/// requests.
pub(super) async fn check_host_and_origin(
    State(hosts): State<AllowedHosts>,
    request: Request,
    next: Next,
) -> Response {
    if !has_allowed_host(&hosts, &request) {
        let detail = format!("the admin port does not accept this Host; {}", hosts.expected());
        return problem(StatusCode::MISDIRECTED_REQUEST, &detail, &[]);
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_read && is_cross_origin(request.headers()) {
        let detail =
            "a web page of another origin must not change the gateway; expected no Origin header";
        return problem(StatusCode::FORBIDDEN, detail, &[]);
    }
    next.run(request).await
}

/// True if `Host` and an absolute target's host are accepted. HTTP/1.0 needs no `Host`.
fn has_allowed_host(allowed: &AllowedHosts, request: &Request) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let is_accepted = match (hosts.next(), hosts.next()) {
        (Some(host), None) => allowed.contains(host.as_bytes()),
        (None, _) => request.version() == Version::HTTP_10,
        (Some(_), Some(_)) => false,
    };
    let target = request.uri().authority();
    is_accepted && target.is_none_or(|target| allowed.contains(target.as_str().as_bytes()))
}

/// True if a web page from another origin sent the request.
pub(super) fn is_cross_origin(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).map_or(&b""[..], HeaderValue::as_bytes);
    let is_own = |origin: &HeaderValue| {
        let schemes = [&b"http://"[..], b"https://"];
        let mut rests = schemes.iter().filter_map(|scheme| origin.as_bytes().strip_prefix(*scheme));
        rests.any(|rest| !rest.is_empty() && rest.eq_ignore_ascii_case(host))
    };
    let is_direct = |site: &HeaderValue| matches!(site.as_bytes(), b"same-origin" | b"none");
    !headers.get_all(header::ORIGIN).iter().all(is_own)
        || !headers.get_all("sec-fetch-site").iter().all(is_direct)
}
