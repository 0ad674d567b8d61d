//! Which header fields are forwarded, dropped or added: RFC 9110, 7.6.

use std::{net::IpAddr, ops::Range, rc::Rc};

use http::HeaderName;
use smallvec::SmallVec;

use super::ServerAddress;
use crate::{
    http1::{Fields, RequestHead, ResponseHead, head::ConnectionOptions},
    template::{HeaderRules, Values},
    trace::{TraceHeader, TraceParent},
};

/// The prefix of the path that the client sees.
const FORWARDED_PREFIX: &str = "x-forwarded-prefix";

/// The address of a client connection's peer as text, formatted once per connection.
#[derive(Clone, Debug)]
pub struct PeerAddress {
    address: Box<str>,
    is_v6: bool,
    /// `http` or `https`.
    scheme: &'static str,
}

impl PeerAddress {
    /// Formats `address`. `is_tls`: the connection is encrypted.
    pub fn new(address: IpAddr, is_tls: bool) -> Self {
        let scheme = if is_tls { "https" } else { "http" };
        Self { address: address.to_string().into(), is_v6: address.is_ipv6(), scheme }
    }

    /// `http` or `https`: that of the connection.
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// The element that is added to `Forwarded`: RFC 7239, 4.
    fn forwarded_element(&self) -> String {
        let Self { address, is_v6, scheme } = self;
        if *is_v6 {
            format!("for=\"[{address}]\";proto={scheme}")
        } else {
            format!("for={address};proto={scheme}")
        }
    }
}

/// The inputs for the fields that the gateway adds to a request.
#[derive(Clone, Copy, Debug)]
pub struct AddedHeaders<'a> {
    /// The address of the connection's peer.
    pub peer: &'a PeerAddress,
    /// Whether the peer is a trusted proxy, whose forwarding fields are kept.
    pub trusted: bool,
    /// The value of `X-Request-Id`.
    pub request_id: &'a [u8],
    /// The value of `Host` for an HTTP/1.0 request without one.
    pub server: &'a ServerAddress,
    /// The value of `Via`.
    pub via: &'a str,
    /// The prefix that was stripped from the path, for `X-Forwarded-Prefix`.
    pub prefix: Option<&'a str>,
    /// The value of `Host`.
    pub host: &'a HostRule,
    /// The trace context; `None`: the client's.
    pub trace: Option<TraceHeader>,
    /// The route's changes, with the values of their variables.
    pub changes: Option<(&'a HeaderRules, &'a Values<'a>)>,
}

/// The value of `Host` in forwarded requests.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum HostRule {
    /// The client's.
    #[default]
    Preserve,
    /// That of the chosen server.
    Upstream,
    /// This one.
    Name(Box<str>),
}

/// The places of values in a written head that depend on the attempt.
#[derive(Debug, Default)]
pub(super) struct AttemptPlaces {
    /// The id of the attempt's span in `traceparent`; `None` if the request is not sampled. Before `host`.
    pub(super) span_id: Option<Range<usize>>,
    /// The value of `Host`, if it is that of the chosen server.
    pub(super) host: Option<Range<usize>>,
}

impl AddedHeaders<'_> {
    /// Whether this is a field of the client's trace context, which is not forwarded.
    fn replaces_context(&self, name: &[u8]) -> bool {
        let Some(trace) = &self.trace else { return false };
        match name.len() {
            10 => !trace.keeps_state && name.eq_ignore_ascii_case(b"tracestate"),
            11 => name.eq_ignore_ascii_case(b"traceparent"),
            _ => false,
        }
    }

    /// Whether the route's changes leave this field out. Upstreams may read `x_user` as `x-user`, so aliases
    /// are left out, too.
    fn drops(&self, name: &[u8]) -> bool {
        self.changes.is_some_and(|(rules, _)| {
            rules.drops(name) || can_be_alias(name) && rules.drops(&dashed_name(name))
        })
    }
}

/// The headers that a route reads a key, cost, tier or token from. A client can neither remove them with
/// `Connection` nor add a second one under an alias.
#[derive(Clone, Debug, Default)]
pub struct ProtectedHeaders {
    own: Rc<[HeaderName]>,
    /// Those that the conditions of all routes test.
    tested: Rc<[HeaderName]>,
    /// Whether one has a character other than letters, digits and dashes: another name may be its alias.
    has_odd_names: bool,
}

impl ProtectedHeaders {
    /// Protects the headers in `names`.
    pub fn new(names: &[HeaderName]) -> Self {
        let has_odd_names = names.iter().any(|name| can_be_alias(name.as_str().as_bytes()));
        Self { own: names.into(), tested: Rc::default(), has_odd_names }
    }

    /// Protects those in `tested`, too, which routes share.
    #[must_use]
    pub fn with_tested(self, tested: &Rc<[HeaderName]>) -> Self {
        let is_odd = |name: &HeaderName| can_be_alias(name.as_str().as_bytes());
        let has_odd_names = self.has_odd_names || tested.iter().any(is_odd);
        Self { tested: Rc::clone(tested), has_odd_names, ..self }
    }

    fn contains(&self, name: &[u8]) -> bool {
        let mut all = self.own.iter().chain(&*self.tested);
        all.any(|own| name.eq_ignore_ascii_case(own.as_str().as_bytes()))
    }

    /// Whether `name` is an alias of a protected header. CGI-like upstreams read `X_Cost` and `X.Cost` as
    /// `X-Cost`, so a client could send one cost to the gateway and another to the upstream.
    fn has_alias(&self, name: &[u8]) -> bool {
        let is_empty = self.own.is_empty() && self.tested.is_empty();
        if is_empty || !(self.has_odd_names || can_be_alias(name)) {
            return false;
        }
        let dashed = dashed_name(name);
        let mut all = self.own.iter().chain(&*self.tested);
        let is_alias =
            all.any(|own| dashed.eq_ignore_ascii_case(&dashed_name(own.as_str().as_bytes())));
        is_alias && !self.contains(name)
    }
}

/// The name that CGI-like upstreams take for `name`, if it is another one: with dashes only.
pub fn dashed_alias(name: &HeaderName) -> Option<HeaderName> {
    let name = name.as_str().as_bytes();
    can_be_alias(name).then(|| HeaderName::from_bytes(&dashed_name(name)).ok()).flatten()
}

/// Whether upstreams may read `name` as another header: those like CGI map every character that is neither a
/// letter nor a digit to `_`, and some join several of them.
fn can_be_alias(name: &[u8]) -> bool {
    let mut before = b'a';
    name.iter().any(|byte| {
        let is_dash = *byte == b'-';
        let is_doubled = is_dash && before == b'-';
        before = *byte;
        is_doubled || !(is_dash || byte.is_ascii_alphanumeric())
    })
}

/// `name` with one dash in place of each run of characters that are neither letters nor digits.
fn dashed_name(name: &[u8]) -> SmallVec<[u8; 64]> {
    let mut dashed = SmallVec::new();
    for byte in name {
        if byte.is_ascii_alphanumeric() {
            dashed.push(*byte);
        } else if dashed.last() != Some(&b'-') {
            dashed.push(b'-');
        }
    }
    dashed
}

/// Whether `name` is `X-Forwarded-*`.
fn is_x_forwarded(name: &[u8]) -> bool {
    const PREFIX: &[u8] = b"x-forwarded";
    name.get(..PREFIX.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(PREFIX))
}

/// The hop-by-hop fields that `Connection` lists: RFC 9110, 7.6.1.
#[derive(Debug, Default)]
pub struct ListedFields<'f>(SmallVec<[&'f [u8]; 4]>);

impl<'f> ListedFields<'f> {
    /// The fields that `Connection` in `fields` lists, without those that are always end-to-end. `options`
    /// are the parsed options of the same message.
    pub fn of(fields: &'f Fields, options: ConnectionOptions) -> Self {
        if !options.lists_fields {
            return Self::default();
        }
        let lines = fields.get_all("connection");
        let names = lines.flat_map(|line| line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii));
        Self(names.filter(|name| !name.is_empty() && !is_end_to_end(name)).collect())
    }

    /// Whether `Connection` lists `name`.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.0.iter().any(|field| field.eq_ignore_ascii_case(name))
    }
}

/// Writes the header fields that the upstream receives, each as a line with CR LF.
///
/// Hop-by-hop fields (RFC 9110, 7.6.1) are dropped, including those that `Connection` lists unless they are
/// `protected`. The forwarding fields of a trusted peer are kept and extended, those of any other peer are
/// replaced, or dropped if the gateway writes no such field itself, such as `X-Real-IP`. `Forwarded` is only
/// extended, never added: it would repeat `X-Forwarded-For`. The route's changes come last.
///
/// Returns the places in `out` that depend on the attempt.
pub(super) fn write_request_fields(
    out: &mut Vec<u8>,
    head: &RequestHead,
    added: &AddedHeaders<'_>,
    protected: &ProtectedHeaders,
) -> AttemptPlaces {
    let fields = &head.fields;
    let listed = ListedFields::of(fields, head.connection);
    let (mut proto, mut host) = (false, false);
    let is_host_kept = *added.host == HostRule::Preserve;
    fields.write_to(out, |name, _| {
        if !is_host_kept && name.eq_ignore_ascii_case(b"host") {
            return false;
        }
        if added.prefix.is_some() && name.eq_ignore_ascii_case(FORWARDED_PREFIX.as_bytes()) {
            return false;
        }
        if added.replaces_context(name) {
            return false;
        }
        let kept = match FieldRule::of(name) {
            FieldRule::Forward => true,
            FieldRule::Drop => false,
            FieldRule::TrustedOnly => added.trusted,
            FieldRule::Proto => std::mem::replace(&mut proto, added.trusted) != added.trusted,
            FieldRule::Host => std::mem::replace(&mut host, added.trusted) != added.trusted,
        };
        let stripped = || listed.contains(name) && !protected.contains(name);
        let kept = kept && !protected.has_alias(name) && (listed.0.is_empty() || !stripped());
        kept && !added.drops(name)
    });
    if added.drops(b"x-forwarded-for") {
        // The route's own, or none.
    } else if added.trusted {
        write_list(out, fields, "x-forwarded-for", &added.peer.address);
    } else {
        write_field(out, "x-forwarded-for", added.peer.address.as_bytes());
    }
    if added.trusted && fields.contains("forwarded") && !added.drops(b"forwarded") {
        write_list(out, fields, "forwarded", &added.peer.forwarded_element());
    }
    if !proto && !added.drops(b"x-forwarded-proto") {
        write_field(out, "x-forwarded-proto", added.peer.scheme.as_bytes());
    }
    let span_id = write_trace(out, added);
    let host = write_host(out, fields, added, host);
    if let Some(prefix) = added.prefix.filter(|_| !added.drops(FORWARDED_PREFIX.as_bytes())) {
        let outer = fields.get(FORWARDED_PREFIX).filter(|_| added.trusted);
        let outer = outer.filter(|outer| outer.starts_with(b"/")).unwrap_or_default();
        let outer = outer.strip_suffix(b"/").unwrap_or(outer);
        write_field(out, FORWARDED_PREFIX, &[outer, prefix.as_bytes()].concat());
    }
    write_field(out, "via", added.via.as_bytes());
    if !added.drops(b"x-request-id") {
        write_field(out, "x-request-id", added.request_id);
    }
    if let Some((rules, values)) = added.changes {
        rules.write(values, out);
    }
    AttemptPlaces { span_id, host }
}

/// Writes `traceparent`. Returns the place of the span's id if each attempt has its own.
fn write_trace(out: &mut Vec<u8>, added: &AddedHeaders<'_>) -> Option<Range<usize>> {
    let trace = added.trace.filter(|_| !added.drops(b"traceparent"))?;
    let value = trace.parent.format();
    write_field(out, "traceparent", &value);
    let value = out.len() - b"\r\n".len() - value.len();
    let Range { start, end } = TraceParent::SPAN_ID;
    trace.parent.is_sampled.then_some(value + start..value + end)
}

/// Writes the end-to-end fields of an upstream's head for which `keep` returns true, each as a line with
/// CR LF. `Content-Length` is left out: it depends on how the body is forwarded.
pub fn write_response_fields(
    head: &ResponseHead,
    out: &mut Vec<u8>,
    mut keep: impl FnMut(&[u8]) -> bool,
) {
    let listed = ListedFields::of(&head.fields, head.connection);
    head.fields.write_to(out, |name, _| {
        let is_length = name.len() == 14 && name.eq_ignore_ascii_case(b"content-length");
        !is_length && !is_hop_by_hop(name) && !listed.contains(name) && keep(name)
    });
}

/// What happens to a client's header field.
enum FieldRule {
    Forward,
    /// Hop-by-hop, or written by the gateway.
    Drop,
    /// Another `X-Forwarded-*`, or `X-Real-IP`: forwarded from trusted peers only.
    TrustedOnly,
    /// `X-Forwarded-Proto`: the first one, from trusted peers only.
    Proto,
    /// `X-Forwarded-Host`: the first one, from trusted peers only.
    Host,
}

impl FieldRule {
    fn of(name: &[u8]) -> Self {
        // The length excludes most names without a comparison.
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let dropped = match name.len() {
            2 | 7 | 10 | 16 | 18 | 19 if is_hop_by_hop(name) => true,
            // The gateway itself handles `Expect`.
            6 => is("expect"),
            9 if is("x-real-ip") => return Self::TrustedOnly,
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
            true => Self::Drop,
            // CGI-like upstreams read `X_Forwarded_For` as `X-Forwarded-For`.
            false if can_be_alias(name) => match Self::of(&dashed_name(name)) {
                Self::Forward => Self::Forward,
                _ => Self::Drop,
            },
            false if is_x_forwarded(name) => Self::TrustedOnly,
            false => Self::Forward,
        }
    }
}

/// Writes `X-Forwarded-Host` with the value of the client's `Host`, unless a trusted peer's was forwarded
/// (`is_forwarded`), and `Host` if it is not the client's. An HTTP/1.0 request without `Host` gets a `Host` with
/// the server's address, because the forwarded request is HTTP/1.1.
///
/// Returns the place of the value of `Host` if it is that of the chosen server.
fn write_host(
    out: &mut Vec<u8>,
    fields: &Fields,
    added: &AddedHeaders<'_>,
    is_forwarded: bool,
) -> Option<Range<usize>> {
    let sent = fields.get("host");
    if let Some(host) = sent.filter(|_| !is_forwarded && !added.drops(b"x-forwarded-host")) {
        write_field(out, "x-forwarded-host", host);
    }
    match added.host {
        HostRule::Name(name) => write_field(out, "host", name.as_bytes()),
        HostRule::Preserve if sent.is_some() => {}
        HostRule::Preserve => write_field(out, "host", added.server.authority().as_bytes()),
        HostRule::Upstream => {
            out.extend_from_slice(b"host: ");
            let start = out.len();
            out.extend_from_slice(added.server.authority().as_bytes());
            let place = start..out.len();
            out.extend_from_slice(b"\r\n");
            return Some(place);
        }
    }
    None
}

/// Writes one field that lists all values of the header `name` and then `last`.
fn write_list(out: &mut Vec<u8>, fields: &Fields, name: &str, last: &str) {
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

/// Whether a field is hop-by-hop: RFC 9110, 7.6.1.
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

/// Whether a field is end-to-end even if `Connection` lists it.
fn is_end_to_end(name: &[u8]) -> bool {
    const NAMES: [&str; 12] = [
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
        "x-real-ip",
        "x-request-id",
    ];
    NAMES.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()))
}

/// Whether a trailer field is forwarded: RFC 9110, 6.5.1. Fields for framing, routing, identity and limits
/// and their aliases are not.
pub fn is_trailer_allowed(name: &[u8], protected: &ProtectedHeaders) -> bool {
    const FORBIDDEN: [&str; 11] = [
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
    ];
    let name = &*dashed_name(name);
    let starts = |prefix: &[u8]| {
        name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    let forbidden = FORBIDDEN.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()));
    let by_prefix = is_x_forwarded(name) || starts(b"x-ratelimit") || starts(b"ratelimit");
    let by_role = is_hop_by_hop(name) || is_end_to_end(name);
    !(by_role || by_prefix || forbidden || starts(b"if-") || protected.contains(name))
}

#[cfg(test)]
mod tests;
