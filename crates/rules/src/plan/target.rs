//! The requested host and the path to forward: RFC 9112, 3.2.

use std::{borrow::Cow, net::Ipv6Addr};

use tidegate_http1::{Fields, host::BareHost};
use tidegate_route::normalize::is_routed_as;

/// The requested host in the form that routes and keys use: lower case, without port and trailing
/// dot, an IPv6 address in its shortest form. Empty for an HTTP/1.0 request without `Host`.
pub fn host(fields: &Fields) -> Cow<'_, str> {
    text(host_bytes(fields))
}

/// As [`host`], of a value of `Host`.
pub fn normal_host(value: &[u8]) -> Cow<'_, str> {
    text(normal_bytes(value))
}

fn text(host: Cow<'_, [u8]>) -> Cow<'_, str> {
    // Always valid: the framing accepts only ASCII names and addresses.
    match host {
        Cow::Borrowed(host) => Cow::Borrowed(std::str::from_utf8(host).unwrap_or_default()),
        Cow::Owned(host) => Cow::Owned(String::from_utf8(host).unwrap_or_default()),
    }
}

/// As [`host`], in bytes.
pub fn host_bytes(fields: &Fields) -> Cow<'_, [u8]> {
    normal_bytes(fields.host().unwrap_or_default())
}

fn normal_bytes(value: &[u8]) -> Cow<'_, [u8]> {
    if value.starts_with(b"[") {
        let address = value[1..].split(|byte| *byte == b']').next().unwrap_or_default();
        let address = std::str::from_utf8(address).ok().and_then(|address| address.parse().ok());
        let address = address.unwrap_or(Ipv6Addr::UNSPECIFIED);
        return Cow::Owned(format!("[{address}]").into_bytes());
    }
    let BareHost { name, has_upper_case } = BareHost::of(value);
    let name = name.strip_suffix(b".").unwrap_or(name);
    if has_upper_case { Cow::Owned(name.to_ascii_lowercase()) } else { Cow::Borrowed(name) }
}

/// The scheme that proxies say the client used; `None` if they say none, an unknown one, or
/// different ones: a proxy that appends its own would leave the first to the client.
pub fn forwarded_scheme(fields: &Fields) -> Option<&'static str> {
    let lines = fields.get_all("x-forwarded-proto");
    let mut schemes = lines.flat_map(|line| line.split(|byte| *byte == b',')).map(http_scheme);
    let first = schemes.next()??;
    schemes.all(|scheme| scheme == Some(first)).then_some(first)
}

/// The scheme of HTTP in an element of `X-Forwarded-Proto`. Traefik sends `wss` and `ws` for
/// handshakes of `WebSocket`.
fn http_scheme(element: &[u8]) -> Option<&'static str> {
    const SCHEMES: [(&str, &str); 4] =
        [("https", "https"), ("http", "http"), ("wss", "https"), ("ws", "http")];
    let is = |name: &str| element.trim_ascii().eq_ignore_ascii_case(name.as_bytes());
    SCHEMES.into_iter().find(|(name, _)| is(name)).map(|(_, scheme)| scheme)
}

/// The path to forward: the normalized `path` without the segments of the route's `strip_prefix`,
/// whose parameters (`;v=1`) are stripped with them.
pub fn forwarded_path<'p>(path: &'p str, strip_prefix: Option<&str>) -> &'p str {
    match strip_prefix.and_then(|prefix| strip_segments(path, prefix)) {
        Some("") => "/",
        Some(rest) => rest,
        None => path,
    }
}

fn strip_segments<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    let mut rest = path;
    for expected in prefix.split('/').skip(1) {
        let mut segment;
        loop {
            rest = rest.strip_prefix('/')?;
            let end = memchr::memchr(b'/', rest.as_bytes()).unwrap_or(rest.len());
            (segment, rest) = rest.split_at(end);
            // Without its parameters, this segment is empty, so it is skipped as in `//`.
            if !segment.starts_with(';') {
                break;
            }
        }
        if !segment.split(';').next().is_some_and(|text| is_routed_as(text, expected)) {
            return None;
        }
    }
    Some(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_route::normalize::{Slashes, normalize, without_parameters};

    use super::*;

    #[test]
    fn host_is_normalized() {
        for (sent, wanted) in [
            ("API.example.com:8080", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("api.example.com.:80", "api.example.com"),
            ("[2001:DB8::1]:80", "[2001:db8::1]"),
            ("[2001:db8:0:0:0:0:0:1]", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
        ] {
            assert_eq!(host(&[("Host", sent)].into_iter().collect()), wanted);
        }
        assert_eq!(host(&Fields::default()), "");
    }

    #[test]
    fn prefix_is_stripped_only_as_whole_segments() {
        for (path, prefix, wanted) in [
            ("/v1/items", Some("/v1"), "/items"),
            ("/v1", Some("/v1"), "/"),
            ("/v10/items", Some("/v1"), "/v10/items"),
            ("/v1;a=b/items;c", Some("/v1"), "/items;c"),
            ("/a/v1;/x", Some("/a/v1"), "/x"),
            ("/;a/v1/x", Some("/v1"), "/x"),
            ("/a/;b/;c/v1/;d/x", Some("/a/v1"), "/;d/x"),
            ("/items", None, "/items"),
        ] {
            assert_eq!(forwarded_path(path, prefix), wanted);
        }
    }

    proptest! {
        #[test]
        fn a_prefix_that_is_routed_is_stripped(path in "/[ab.;=/]{0,24}") {
            let Ok(path) = normalize(&path, Slashes::Merge) else { return Ok(()) };
            let routed = without_parameters(&path, Slashes::Merge);
            for prefix in ["/a", "/a/b", "/aa"] {
                let Some(rest) = routed.strip_prefix(prefix) else { continue };
                if rest.is_empty() || rest.starts_with('/') {
                    let forwarded = forwarded_path(&path, Some(prefix));
                    let rest = if rest.is_empty() { "/" } else { rest };
                    prop_assert_eq!(without_parameters(forwarded, Slashes::Merge), rest);
                }
            }
        }
    }
}
