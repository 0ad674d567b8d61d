//! The rules for headers that a message must not carry further, and for those that it must.

use std::{net::IpAddr, rc::Rc};

use http::HeaderName;
use smallvec::SmallVec;

use super::Target;
use crate::framing::{Fields, RequestHead};

/// What one client connection adds to every request: prepared once.
#[derive(Clone, Debug)]
pub struct Forwarding {
    address: Box<str>,
    is_v6: bool,
}

impl Forwarding {
    /// For a peer at `address`.
    pub fn new(address: IpAddr) -> Self {
        Self { address: address.to_string().into(), is_v6: address.is_ipv6() }
    }

    /// The element of `Forwarded`, RFC 7239, 4.
    fn forwarded(&self) -> String {
        let address = &self.address;
        if self.is_v6 {
            format!("for=\"[{address}]\";proto=http")
        } else {
            format!("for={address};proto=http")
        }
    }
}

/// What this gateway says of a request.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    /// Who the request comes from.
    pub from: &'a Forwarding,
    /// Whether what the peer says of the client is believed.
    pub trusted: bool,
    /// The request's name in every log.
    pub request_id: &'a [u8],
    /// The host to name where HTTP/1.0 named none.
    pub server: &'a Target,
    /// This gateway in `Via`.
    pub via: &'a str,
}

/// Headers that a route counts by, or takes a cost, a tier or a token from: a client can neither strip
/// them nor say them twice in another spelling.
#[derive(Clone, Debug, Default)]
pub struct Protected(Rc<[HeaderName]>);

impl Protected {
    /// Protects exactly these.
    pub fn new(names: &[HeaderName]) -> Self {
        Self(names.into())
    }

    fn contains(&self, name: &[u8]) -> bool {
        self.0.iter().any(|known| name.eq_ignore_ascii_case(known.as_str().as_bytes()))
    }

    /// Whether some upstreams cannot tell `name` from one that is protected: CGI and its kin read
    /// `X_Cost` as `X-Cost`, and a client must not count by the one and mean the other.
    fn has_twin(&self, name: &[u8]) -> bool {
        !self.0.is_empty() && has_underscore(name) && self.contains(&dashed(name))
    }
}

/// By hand: names are too short for a vectorized search to pay.
fn has_underscore(name: &[u8]) -> bool {
    name.iter().any(|byte| *byte == b'_')
}

fn dashed(name: &[u8]) -> SmallVec<[u8; 64]> {
    name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect()
}

/// Names that a `Connection` header takes out; more than any honest message has.
#[derive(Debug, Default)]
pub struct Named<'f>(SmallVec<[&'f [u8]; 4]>);

impl<'f> Named<'f> {
    /// What the `Connection` fields among `fields` name, but for what is always end to end.
    pub fn of(fields: &'f Fields) -> Self {
        let lines = fields.get_all("connection");
        let names = lines.flat_map(|line| line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii));
        Self(names.filter(|name| !name.is_empty() && !is_end_to_end(name)).collect())
    }

    /// Whether `name` is among them.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.0.iter().any(|named| named.eq_ignore_ascii_case(name))
    }
}

/// Writes the client's headers as the upstream gets them, each line with its end: without what concerns
/// one connection only, RFC 9110, 7.6.1, and what `Connection` names, but for what is `protected`. Then
/// who the request comes from: what an untrusted peer claimed is replaced, a trusted proxy's word is
/// carried on and added to. `Forwarded` is added to where it is in use, and not begun: it would say
/// again what `X-Forwarded-For` says.
pub(super) fn write_forwarded(
    out: &mut Vec<u8>,
    head: &RequestHead,
    hop: &Hop<'_>,
    protected: &Protected,
) {
    let fields = &head.fields;
    let named = if head.connection.names { Named::of(fields) } else { Named::default() };
    let (mut proto, mut host) = (false, false);
    fields.write_to(out, |name, _| {
        let kept = match Fate::of(name) {
            Fate::Carried => true,
            Fate::Dropped => false,
            Fate::Proto => std::mem::replace(&mut proto, hop.trusted) != hop.trusted,
            Fate::Host => std::mem::replace(&mut host, hop.trusted) != hop.trusted,
        };
        let stripped = || named.contains(name) && !protected.contains(name);
        kept && !protected.has_twin(name) && (named.0.is_empty() || !stripped())
    });
    if hop.trusted {
        write_chain(out, fields, "x-forwarded-for", &hop.from.address);
        if fields.contains("forwarded") {
            write_chain(out, fields, "forwarded", &hop.from.forwarded());
        }
    } else {
        write_field(out, "x-forwarded-for", hop.from.address.as_bytes());
    }
    if !proto {
        out.extend_from_slice(b"x-forwarded-proto: http\r\n");
    }
    write_host(out, fields, hop.server, host);
    write_field(out, "via", hop.via.as_bytes());
    write_field(out, "x-request-id", hop.request_id);
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
    fn of(name: &[u8]) -> Self {
        // By length first: most names are told apart without a comparison.
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let dropped = match name.len() {
            2 | 7 | 10 | 16 | 18 | 19 if is_hop_by_hop(name) => true,
            // To what is expected the gateway itself answers.
            6 => is("expect"),
            9 => is("forwarded"),
            12 => is("x-request-id"),
            14 => is("content-length"),
            15 => is("x-forwarded-for"),
            17 if is("x-forwarded-proto") => return Self::Proto,
            16 if is("x-forwarded-host") => return Self::Host,
            17 => is_hop_by_hop(name),
            _ => false,
        };
        match dropped {
            true => Self::Dropped,
            // CGI and its kin read `X_Forwarded_For` as `X-Forwarded-For`: nobody may say it so.
            false if has_underscore(name) => match Self::of(&dashed(name)) {
                Self::Carried => Self::Carried,
                _ => Self::Dropped,
            },
            false => Self::Carried,
        }
    }
}

/// What goes on is HTTP/1.1 and must name a host, which HTTP/1.0 need not.
fn write_host(out: &mut Vec<u8>, fields: &Fields, server: &Target, told: bool) {
    match fields.get("host") {
        Some(host) if !told => write_field(out, "x-forwarded-host", host),
        Some(_) => {}
        None => write_field(out, "host", server.authority().as_bytes()),
    }
}

/// Writes all values of a header and one more, as one value.
fn write_chain(out: &mut Vec<u8>, fields: &Fields, name: &str, last: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    for value in fields.get_all(name) {
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
    out.extend_from_slice(last.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a header concerns one connection only.
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
    match name.len() {
        2 => is("te"),
        7 => is("upgrade"),
        10 => is("connection") || is("keep-alive"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        18 => is("proxy-authenticate"),
        19 => is("proxy-authorization"),
        _ => false,
    }
}

/// What `Connection` may name without being heard.
fn is_end_to_end(name: &[u8]) -> bool {
    const NAMES: [&str; 11] = [
        "host",
        "authorization",
        "cookie",
        "content-length",
        "content-type",
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "x-request-id",
    ];
    NAMES.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

/// Whether a field may come behind the body. Not what frames, routes, identifies or counts, in any
/// spelling that an upstream may read as such: RFC 9110, 6.5.1.
pub fn may_trail(name: &[u8], protected: &Protected) -> bool {
    const FORBIDDEN: [&str; 12] = [
        "set-cookie",
        "content-encoding",
        "content-range",
        "trailer",
        "expect",
        "max-forwards",
        "cache-control",
        "range",
        "te",
        "retry-after",
        "location",
        "x-real-ip",
    ];
    let name = &*dashed(name);
    let starts = |prefix: &[u8]| {
        name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    let forbidden = FORBIDDEN.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()));
    let family = starts(b"x-forwarded") || starts(b"x-ratelimit") || starts(b"ratelimit");
    let framing = is_hop_by_hop(name) || is_end_to_end(name);
    !(framing || family || forbidden || starts(b"if-") || protected.contains(name))
}

#[cfg(test)]
mod tests;
