//! Refuses requests that a web page could make: the port has no password, so a browser on a machine that
//! reaches it must not become a way in.
//!
//! A page whose own name suddenly resolves to this port (DNS rebinding) reads answers as its own; such a
//! request has that name as its `Host`. No page can do so with an IP address or with `localhost`. A page of
//! another origin cannot read answers, but its requests arrive: those that change something are refused.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header, uri::Authority},
    middleware::Next,
    response::Response,
};

use super::problem;

/// The hosts that the port answers to.
#[derive(Clone, Debug)]
pub struct OwnHosts {
    /// Whether it listens on loopback only.
    loopback: bool,
    names: Arc<[String]>,
}

impl OwnHosts {
    /// For a port that listens on `address`: `localhost` and IP addresses, of loopback where it listens there,
    /// and these `names`.
    pub fn new(address: IpAddr, names: impl IntoIterator<Item = String>) -> Self {
        Self { loopback: address.to_canonical().is_loopback(), names: names.into_iter().collect() }
    }

    /// Whether a `Host`, with or without a port, is one of them.
    fn contains(&self, host: &[u8]) -> bool {
        let Ok(authority) = Authority::try_from(host) else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host();
        let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Ok(address) = inside.unwrap_or(host).parse::<IpAddr>() {
            return !self.loopback || address.to_canonical().is_loopback();
        }
        let name = host.strip_suffix('.').unwrap_or(host);
        let own = |own: &String| own.eq_ignore_ascii_case(name);
        name.eq_ignore_ascii_case("localhost") || self.names.iter().any(own)
    }

    fn expected(&self) -> &'static str {
        if self.loopback {
            "expected a loopback address, localhost or a name in `admin.hosts`"
        } else {
            "expected an IP address, localhost or a name in `admin.hosts`"
        }
    }
}

/// Lets a request through that names this port, and that no web page of another origin sent to change
/// something.
pub(super) async fn guard(State(own): State<OwnHosts>, request: Request, next: Next) -> Response {
    if !is_addressed(&own, &request) {
        let detail = format!("the admin port does not answer to this Host; {}", own.expected());
        return problem(StatusCode::MISDIRECTED_REQUEST, &detail, &[]);
    }
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads && is_foreign(request.headers()) {
        let detail = "a web page of another origin must not change the gateway; expected no Origin";
        return problem(StatusCode::FORBIDDEN, detail, &[]);
    }
    next.run(request).await
}

/// Whether the request names the port in every way in which it names a host. HTTP/1.0 need not.
fn is_addressed(own: &OwnHosts, request: &Request) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let sent = match (hosts.next(), hosts.next()) {
        (Some(host), None) => own.contains(host.as_bytes()),
        (None, _) => request.version() == Version::HTTP_10,
        (Some(_), Some(_)) => false,
    };
    let target = request.uri().authority();
    sent && target.is_none_or(|target| own.contains(target.as_str().as_bytes()))
}

/// Whether a web page sent it that did not come from this port.
fn is_foreign(headers: &HeaderMap) -> bool {
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
