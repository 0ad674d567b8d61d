//! Rules for forwarding, dropping and adding header fields (RFC 9110, 7.6).

use std::rc::Rc;

use http::HeaderName;
use smallvec::SmallVec;
use tidegate_http1::{
    FieldSink, Fields, ResponseHead, dashed_name, head::ConnectionOptions, is_foldable,
    is_same_name,
};

/// The header with the path prefix that the client sees.
pub(super) const FORWARDED_PREFIX: &str = "x-forwarded-prefix";

/// The name of a client's field.
#[derive(Clone, Copy)]
pub(super) struct ClientFieldName<'f> {
    pub(super) bytes: &'f [u8],
    /// True if upstreams may read it as another name: see [`is_foldable`].
    pub(super) is_foldable: bool,
}

impl<'f> ClientFieldName<'f> {
    pub(super) fn of(bytes: &'f [u8]) -> Self {
        Self { bytes, is_foldable: is_foldable(bytes) }
    }
}

/// The headers from which a route reads a key, cost, tier or token, or which it removes, replaces
/// or changes, and the headers that conditions of routes test. A client can neither remove them
/// with `Connection` nor add a second one under an alias.
#[derive(Clone, Debug, Default)]
pub struct ProtectedHeaders {
    own: Rc<[HeaderName]>,
    /// The headers that the conditions of all routes test.
    tested: Rc<[HeaderName]>,
    /// True if one has a character other than letters, digits and dashes, so that another name may
    /// be its alias.
    has_odd_names: bool,
}

impl ProtectedHeaders {
    /// Protects the headers in `names`.
    pub fn new(names: &[HeaderName]) -> Self {
        let has_odd_names = names.iter().any(|name| is_foldable(name.as_str().as_bytes()));
        Self { own: names.into(), tested: Rc::default(), has_odd_names }
    }

    /// Also protects the headers in `tested`, which routes share.
    #[must_use]
    pub fn with_tested(self, tested: &Rc<[HeaderName]>) -> Self {
        let is_odd = |name: &HeaderName| is_foldable(name.as_str().as_bytes());
        let has_odd_names = self.has_odd_names || tested.iter().any(is_odd);
        Self { tested: Rc::clone(tested), has_odd_names, ..self }
    }

    pub(super) fn contains(&self, name: &[u8]) -> bool {
        let mut all = self.own.iter().chain(&*self.tested);
        all.any(|header| name.eq_ignore_ascii_case(header.as_str().as_bytes()))
    }

    /// True if `name` is an alias of a protected header. CGI-like upstreams read `X_Cost` and
    /// `X.Cost` as `X-Cost`, so a client could send one cost to the gateway and another to the
    /// upstream.
    pub(super) fn has_alias(&self, name: ClientFieldName<'_>) -> bool {
        let is_empty = self.own.is_empty() && self.tested.is_empty();
        if is_empty || !(self.has_odd_names || name.is_foldable) {
            return false;
        }
        let name = name.bytes;
        let dashed = dashed_name(name);
        let mut all = self.own.iter().chain(&*self.tested);
        let is_alias =
            all.any(|header| dashed.eq_ignore_ascii_case(&dashed_name(header.as_str().as_bytes())));
        is_alias && !self.contains(name)
    }
}

/// The spelling of `name` with dashes only, if it differs: CGI-like upstreams read both alike.
pub fn dashed_alias(name: &HeaderName) -> Option<HeaderName> {
    let name = name.as_str().as_bytes();
    is_foldable(name).then(|| HeaderName::from_bytes(&dashed_name(name)).ok()).flatten()
}

fn is_x_forwarded(name: &[u8]) -> bool {
    starts_with(name, b"x-forwarded")
}

/// True for a field in which the gateway names who sends a request. A client's own is never
/// forwarded.
fn is_x_consumer(name: &[u8]) -> bool {
    starts_with(name, b"x-consumer-")
}

fn starts_with(name: &[u8], prefix: &[u8]) -> bool {
    name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
}

/// The hop-by-hop fields that `Connection` lists: RFC 9110, 7.6.1.
#[derive(Debug, Default)]
pub struct ListedFields<'f>(SmallVec<[&'f [u8]; 4]>);

impl<'f> ListedFields<'f> {
    /// The fields that `Connection` in `fields` lists, without fields that are always end-to-end.
    /// `options` are the parsed options of the same message.
    pub fn of(fields: &'f Fields, options: ConnectionOptions) -> Self {
        if !options.lists_fields {
            return Self::default();
        }
        let lines = fields.get_all("connection");
        let names = lines.flat_map(|line| line.split(|byte| *byte == b',').map(<[u8]>::trim_ascii));
        Self(names.filter(|name| !name.is_empty() && !is_end_to_end(name)).collect())
    }

    /// True if `Connection` lists no field.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if `Connection` lists `name`.
    pub fn contains(&self, name: &[u8]) -> bool {
        self.0.iter().any(|field| field.eq_ignore_ascii_case(name))
    }
}

/// Writes the end-to-end fields of an upstream's head for which `keep` returns true. Leaves out
/// `Content-Length`, which depends on how the body is forwarded.
pub fn write_response_fields(
    head: &ResponseHead,
    out: &mut impl FieldSink,
    mut keep: impl FnMut(&[u8]) -> bool,
) {
    let listed = ListedFields::of(&head.fields, head.connection);
    out.append(&head.fields, |name| {
        let is_length = is_same_name(name, b"content-length");
        !is_length && !is_hop_by_hop(name) && !listed.contains(name) && keep(name)
    });
}

/// The treatment of a client's header field.
pub(super) enum FieldRule {
    Forward,
    /// Hop-by-hop, or written by the gateway.
    Drop,
    /// Another `X-Forwarded-*`, or `X-Real-IP`: forwarded only from trusted peers.
    TrustedOnly,
    /// `X-Forwarded-Proto`: the first one, only from trusted peers.
    Proto,
    /// `X-Forwarded-Host`: the first one, only from trusted peers.
    Host,
}

impl FieldRule {
    pub(super) fn of(name: ClientFieldName<'_>) -> Self {
        let ClientFieldName { bytes: name, is_foldable } = name;
        // The length excludes most names without a comparison.
        let is = |other: &str| is_same_name(name, other.as_bytes());
        let dropped = match name.len() {
            2 | 7 | 10 | 16 | 18 | 19 if is_hop_by_hop(name) => true,
            // CGI programs read it as `HTTP_PROXY`, the proxy for their own requests
            // (CVE-2016-5385).
            5 => is("proxy"),
            // It is written once the body is known to wait.
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
            false if is_foldable => match Self::of(ClientFieldName::of(&dashed_name(name))) {
                Self::Forward => Self::Forward,
                _ => Self::Drop,
            },
            // Most names need no further comparison.
            false if !matches!(name.first(), Some(b'x' | b'X')) => Self::Forward,
            false if is_x_forwarded(name) => Self::TrustedOnly,
            false if is_x_consumer(name) => Self::Drop,
            false => Self::Forward,
        }
    }
}

/// True if the gateway forwards the field of any client as it is, and writes none of this name
/// itself.
pub fn is_forwarded_as_sent(name: &HeaderName) -> bool {
    let rule = FieldRule::of(ClientFieldName::of(name.as_str().as_bytes()));
    matches!(rule, FieldRule::Forward) && !matches!(name.as_str(), "traceparent" | "tracestate")
}

/// True if a field is hop-by-hop (RFC 9110, 7.6.1).
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    let is = |other: &str| is_same_name(name, other.as_bytes());
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

/// True if a field is end-to-end even if `Connection` lists it.
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

/// True for a digest of the bytes of a body as it was sent. `Content-Digest` and `Repr-Digest` (RFC
/// 9530), and the older `Digest` and `Content-MD5`, all cover the content coding, so a body that
/// the gateway compresses cannot keep them.
pub fn is_digest(name: &[u8]) -> bool {
    const DIGESTS: [&[u8]; 4] = [b"content-digest", b"repr-digest", b"digest", b"content-md5"];
    DIGESTS.iter().any(|digest| name.eq_ignore_ascii_case(digest))
}

/// True if a trailer field is forwarded (RFC 9110, 6.5.1). Fields for framing, routing, identity
/// and limits, and their aliases, are not.
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
    let is_protected = protected.contains(name) || protected.has_alias(ClientFieldName::of(name));
    let name = &*dashed_name(name);
    let starts = |prefix: &[u8]| {
        name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    let forbidden = FORBIDDEN.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes()));
    let by_prefix = is_x_forwarded(name)
        || is_x_consumer(name)
        || starts(b"x-ratelimit")
        || starts(b"ratelimit");
    let by_role = is_hop_by_hop(name) || is_end_to_end(name);
    !(is_protected || by_role || by_prefix || forbidden || starts(b"if-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_for_framing_identity_and_limits_are_dropped() {
        let protected = ProtectedHeaders::new(&[
            HeaderName::from_static("x-api-key"),
            HeaderName::from_static("x_plan"),
            http::header::AUTHORIZATION,
        ]);
        let kept = |name: &str| is_trailer_allowed(name.as_bytes(), &protected);
        for name in ["x-checksum", "Grpc-Status", "server-timing"] {
            assert!(kept(name), "{name}");
        }
        for name in [
            "authorization",
            "content-length",
            "Transfer-Encoding",
            "host",
            "X-Api-Key",
            "x_api_key",
            "x_plan",
            "X-Plan",
            "X-Forwarded-For",
            "X-Real-IP",
            "x_forwarded_host",
            "x-forwarded-user",
            "X-Consumer-Name",
            "x_consumer_plan",
            "forwarded",
            "x-request-id",
            "x-ratelimit-remaining",
            "ratelimit",
            "cookie",
            "Set-Cookie",
            "connection",
            "trailer",
        ] {
            assert!(!kept(name), "{name}");
        }
    }
}
