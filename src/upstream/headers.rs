//! The rules for headers that a message must not carry further, and for those that it must.

use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::Frame;
use smallvec::SmallVec;

/// The client's address, and those of the proxies before this one.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The scheme that the client used.
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The host that the client asked for.
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// Names one request in every log that it passes.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const VIA: HeaderValue = HeaderValue::from_static("1.1 tidegate");
const HTTP: HeaderValue = HeaderValue::from_static("http");

/// What one client connection adds to every request: prepared once.
#[derive(Clone, Debug)]
pub struct Forwarding {
    /// Whether the peer's own word about the client is believed.
    pub trusted: bool,
    address: HeaderValue,
    forwarded: HeaderValue,
}

impl Forwarding {
    /// For a peer at `address`.
    pub fn new(address: IpAddr, trusted: bool) -> Self {
        let node = match address {
            IpAddr::V4(v4) => format!("for={v4};proto=http"),
            IpAddr::V6(v6) => format!("for=\"[{v6}]\";proto=http"),
        };
        // An address has no byte that a header value must not have.
        let value = |text: String| HeaderValue::try_from(text).unwrap_or(HTTP);
        Self { trusted, address: value(address.to_string()), forwarded: value(node) }
    }
}

/// Removes what concerns one connection only, RFC 9110, 7.6.1; what `Connection` names too, but for
/// what `kept` protects: a client must not be able to strip what it is counted or known by.
pub fn remove_hop_by_hop(headers: &mut HeaderMap, kept: impl Fn(&HeaderName) -> bool) {
    let mut found: SmallVec<[HeaderName; 4]> = SmallVec::new();
    for name in headers.keys() {
        if is_hop_by_hop(name) {
            found.push(name.clone());
        }
    }
    if found.contains(&header::CONNECTION) {
        for line in headers.get_all(header::CONNECTION) {
            if matches!(line.as_bytes(), b"keep-alive" | b"close") {
                // What nearly all of them say; both are removed in any case.
                continue;
            }
            let names = line.as_bytes().split(|byte| *byte == b',');
            let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
            found.extend(names.filter(|name| !is_end_to_end(name) && !kept(name)));
        }
    }
    for name in found {
        headers.remove(name);
    }
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    // By length first: most names are told apart without a comparison.
    let name = name.as_str();
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

/// Says whom the request comes from. What an untrusted peer claimed is replaced; a trusted proxy's
/// word is carried on and added to. `Forwarded` is added to where it is in use, and not begun: it
/// would say again what `X-Forwarded-For` says.
pub fn add_forwarding(headers: &mut HeaderMap, from: &Forwarding, request_id: HeaderValue) {
    if from.trusted {
        let chain = join(headers, &X_FORWARDED_FOR, &from.address);
        headers.insert(X_FORWARDED_FOR, chain);
        if headers.contains_key(header::FORWARDED) {
            let chain = join(headers, &header::FORWARDED, &from.forwarded);
            headers.insert(header::FORWARDED, chain);
        }
    } else {
        headers.insert(X_FORWARDED_FOR, from.address.clone());
        headers.remove(header::FORWARDED);
    }
    if !from.trusted || !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HTTP);
    }
    if !from.trusted || !headers.contains_key(X_FORWARDED_HOST) {
        match headers.get(header::HOST).cloned() {
            Some(host) => headers.insert(X_FORWARDED_HOST, host),
            None => headers.remove(X_FORWARDED_HOST),
        };
    }
    headers.append(header::VIA, VIA);
    headers.insert(X_REQUEST_ID, request_id);
}

/// All values of a header and one more, as one value.
fn join(headers: &HeaderMap, name: &HeaderName, last: &HeaderValue) -> HeaderValue {
    let mut values: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    values.push(last.as_bytes());
    HeaderValue::from_bytes(&values.join(&b", "[..])).unwrap_or_else(|_| last.clone())
}

/// Takes out of trailers what must not come after the head: framing, routing, identity.
/// RFC 9110, 6.5.1.
pub(super) fn clean_trailers(mut frame: Frame<Bytes>) -> Frame<Bytes> {
    if let Some(trailers) = frame.trailers_mut() {
        remove_hop_by_hop(trailers, |_| false);
        for name in [
            header::CONTENT_LENGTH,
            header::HOST,
            header::AUTHORIZATION,
            header::COOKIE,
            header::SET_COOKIE,
            header::CONTENT_TYPE,
            header::CONTENT_ENCODING,
            header::CONTENT_RANGE,
            header::TRAILER,
            header::FORWARDED,
            X_FORWARDED_FOR,
        ] {
            trailers.remove(name);
        }
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let lines = lines.iter();
        lines
            .map(|(name, value)| {
                (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap())
            })
            .collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn connection_headers_go_and_what_counts_a_client_stays() {
        let mut map = headers(&[
            ("connection", "close, X-Private, Authorization, X-Api-Key, Host"),
            ("connection", "x-forwarded-for"),
            ("x-private", "1"),
            ("authorization", "a"),
            ("x-api-key", "k"),
            ("host", "h"),
            ("x-forwarded-for", "192.0.2.1"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "p"),
            ("proxy-connection", "close"),
            ("transfer-encoding", "chunked"),
            ("accept", "*/*"),
        ]);
        remove_hop_by_hop(&mut map, |name| name == "x-api-key");
        assert_eq!(
            names(&map),
            ["accept", "authorization", "host", "x-api-key", "x-forwarded-for"]
        );
    }

    #[test]
    fn an_untrusted_peer_cannot_say_who_it_is() {
        let claimed = [
            ("host", "api.example.com"),
            ("x-forwarded-for", "6.6.6.6"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "evil"),
            ("forwarded", "for=6.6.6.6"),
        ];
        let mut map = headers(&claimed);
        let from = Forwarding::new("192.0.2.9".parse().unwrap(), false);
        add_forwarding(&mut map, &from, HeaderValue::from_static("id"));
        assert_eq!(map[X_FORWARDED_FOR], "192.0.2.9");
        assert_eq!(map[X_FORWARDED_PROTO], "http");
        assert_eq!(map[X_FORWARDED_HOST], "api.example.com");
        assert!(!map.contains_key(header::FORWARDED));
        assert_eq!(map[X_REQUEST_ID], "id");
        assert_eq!(map[header::VIA], "1.1 tidegate");

        let mut map = headers(&claimed);
        let from = Forwarding::new("2001:db8::1".parse().unwrap(), true);
        add_forwarding(&mut map, &from, HeaderValue::from_static("id"));
        assert_eq!(map[X_FORWARDED_FOR], "6.6.6.6, 2001:db8::1");
        assert_eq!(map[X_FORWARDED_PROTO], "https");
        assert_eq!(map[header::FORWARDED], "for=6.6.6.6, for=\"[2001:db8::1]\";proto=http");
    }

    #[test]
    fn trailers_cannot_smuggle_a_head() {
        let map = headers(&[("x-checksum", "1"), ("authorization", "a"), ("content-length", "3")]);
        let frame = clean_trailers(Frame::trailers(map));
        assert_eq!(names(frame.trailers_ref().unwrap()), ["x-checksum"]);
    }
}
