//! The rules for headers that a message must not carry further, and for those that it must.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::Frame;
use smallvec::SmallVec;

use super::Target;

/// The client's address, and those of the proxies before this one.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The scheme that the client used.
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The host that the client asked for.
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// Names one request in every log that it passes.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What one client connection adds to every request: prepared once.
#[derive(Clone, Debug)]
pub struct Forwarding {
    address: String,
    forwarded: String,
}

impl Forwarding {
    /// For a peer at `address`.
    pub fn new(address: IpAddr) -> Self {
        let forwarded = match address {
            IpAddr::V4(v4) => format!("for={v4};proto=http"),
            IpAddr::V6(v6) => format!("for=\"[{v6}]\";proto=http"),
        };
        Self { address: address.to_string(), forwarded }
    }
}

/// Names that a `Connection` header takes out; more than any honest message has.
type Named = SmallVec<[HeaderName; 4]>;

/// What a value of `Connection` names, but for what is always end to end.
pub(super) fn named_by_connection(value: &[u8]) -> impl Iterator<Item = HeaderName> {
    let names = value.split(|byte| *byte == b',');
    let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
    names.filter(|name| !is_end_to_end(name))
}

/// Writes the client's `headers` as the upstream gets them, each line with its end: without what
/// concerns one connection only, RFC 9110, 7.6.1, and what `Connection` names, but for what
/// `protected` protects: a client must not be able to strip what it is counted or known by. Then who
/// the request comes from: what an untrusted peer claimed is replaced, a trusted proxy's word is
/// carried on and added to. `Forwarded` is added to where it is in use, and not begun: it would say
/// again what `X-Forwarded-For` says.
pub(super) fn write_forwarded(
    out: &mut Vec<u8>,
    headers: &HeaderMap,
    from: &Forwarding,
    trusted: bool,
    request_id: &HeaderValue,
    target: &Target,
    protected: impl Fn(&HeaderName) -> bool,
) {
    let named = named(headers, &protected);
    let (mut proto, mut host) = (false, false);
    for (name, value) in headers {
        let kept = match name.as_str().len() {
            2 | 6 | 7 | 9 | 10 | 12 | 14..=19 => match Fate::of(name) {
                Fate::Carried => true,
                Fate::Dropped => false,
                Fate::Proto => std::mem::replace(&mut proto, trusted) != trusted,
                Fate::Host => std::mem::replace(&mut host, trusted) != trusted,
            },
            _ => true,
        };
        let kept = kept && !is_twin(name, &protected);
        if kept && (named.is_empty() || !named.contains(name)) {
            write_field(out, name.as_str(), value.as_bytes());
        }
    }
    if trusted {
        write_chain(out, headers, &X_FORWARDED_FOR, &from.address);
        if headers.contains_key(header::FORWARDED) {
            write_chain(out, headers, &header::FORWARDED, &from.forwarded);
        }
    } else {
        write_field(out, "x-forwarded-for", from.address.as_bytes());
    }
    if !proto {
        out.extend_from_slice(b"x-forwarded-proto: http\r\n");
    }
    write_host(out, headers, target, host);
    out.extend_from_slice(b"via: 1.1 tidegate\r\n");
    write_field(out, "x-request-id", request_id.as_bytes());
}

/// What becomes of a client's header.
enum Fate {
    Carried,
    /// It concerns the connection, or is written anew.
    Dropped,
    /// `X-Forwarded-Proto` and `X-Forwarded-Host`: once, and from trusted proxies only.
    Proto,
    Host,
}

impl Fate {
    fn of(name: &HeaderName) -> Self {
        if is_hop_by_hop(name.as_str()) {
            return Self::Dropped;
        }
        match name.as_str() {
            // To what is expected the gateway itself answers.
            "expect" | "forwarded" | "x-forwarded-for" | "x-request-id" | "content-length" => {
                Self::Dropped
            }
            "x-forwarded-proto" => Self::Proto,
            "x-forwarded-host" => Self::Host,
            // CGI and its kin read `X_Forwarded_For` as `X-Forwarded-For`: nobody may say it so.
            name if name.contains('_') => Self::of_twin(&name.replace('_', "-")),
            _ => Self::Carried,
        }
    }

    /// Of a name that some upstreams cannot tell from `name`.
    fn of_twin(name: &str) -> Self {
        let told_here = matches!(
            name,
            "forwarded"
                | "x-forwarded-for"
                | "x-forwarded-proto"
                | "x-forwarded-host"
                | "x-request-id"
                | "content-length"
        );
        if told_here || is_hop_by_hop(name) { Self::Dropped } else { Self::Carried }
    }
}

/// Whether some upstreams cannot tell `name` from one that is `protected`: CGI and its kin read
/// `X_Cost` as `X-Cost`, and a client must not count by the one and mean the other.
fn is_twin(name: &HeaderName, protected: impl Fn(&HeaderName) -> bool) -> bool {
    let name = name.as_str();
    name.contains('_') && name.replace('_', "-").parse().is_ok_and(|name| protected(&name))
}

fn named(headers: &HeaderMap, protected: impl Fn(&HeaderName) -> bool) -> Named {
    let mut named = Named::new();
    for line in headers.get_all(header::CONNECTION) {
        if !matches!(line.as_bytes(), b"keep-alive" | b"close") {
            named.extend(named_by_connection(line.as_bytes()).filter(|name| !protected(name)));
        }
    }
    named
}

/// What goes on is HTTP/1.1 and must name a host, which HTTP/1.0 need not.
fn write_host(out: &mut Vec<u8>, headers: &HeaderMap, target: &Target, told: bool) {
    match headers.get(header::HOST) {
        Some(host) if !told => write_field(out, "x-forwarded-host", host.as_bytes()),
        Some(_) => {}
        None => write_field(out, "host", target.authority().as_bytes()),
    }
}

/// Writes all values of a header and one more, as one value.
fn write_chain(out: &mut Vec<u8>, headers: &HeaderMap, name: &HeaderName, last: &str) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    for value in headers.get_all(name) {
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(last.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes all fields of `headers`, each line with its end.
pub(super) fn write_fields(out: &mut Vec<u8>, headers: &HeaderMap) {
    for (name, value) in headers {
        write_field(out, name.as_str(), value.as_bytes());
    }
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a header concerns one connection only.
pub(super) fn is_hop_by_hop(name: &str) -> bool {
    // By length first: most names are told apart without a comparison.
    match name.len() {
        2 => name == "te",
        7 => name == "upgrade",
        10 => matches!(name, "connection" | "keep-alive"),
        16 => name == "proxy-connection",
        17 => name == "transfer-encoding",
        18 => name == "proxy-authenticate",
        19 => name == "proxy-authorization",
        _ => false,
    }
}

/// What `Connection` may name without being heard.
fn is_end_to_end(name: &HeaderName) -> bool {
    [
        header::HOST,
        header::AUTHORIZATION,
        header::COOKIE,
        header::CONTENT_LENGTH,
        header::CONTENT_TYPE,
        header::FORWARDED,
        header::VIA,
        X_FORWARDED_FOR,
        X_FORWARDED_PROTO,
        X_FORWARDED_HOST,
        X_REQUEST_ID,
    ]
    .contains(name)
}

/// Takes out of trailers what must not come after the head: framing, routing, identity.
/// RFC 9110, 6.5.1.
pub(super) fn clean_trailers(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        let names: Vec<HeaderName> = trailers.keys().filter(|n| !may_trail(n)).cloned().collect();
        for name in names {
            trailers.remove(name);
        }
    }
    frame
}

fn may_trail(name: &HeaderName) -> bool {
    let forbidden = [
        header::SET_COOKIE,
        header::CONTENT_ENCODING,
        header::CONTENT_RANGE,
        header::TRAILER,
        header::EXPECT,
    ];
    !(is_hop_by_hop(name.as_str()) || is_end_to_end(name) || forbidden.contains(name))
}

#[cfg(test)]
mod tests;
