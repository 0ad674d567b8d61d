//! The requested host and the path to forward: RFC 9112, 3.2.

use std::{borrow::Cow, net::Ipv6Addr};

use crate::framing::Fields;

/// The requested host in the form that routes and keys use: lower case, without port and trailing dot, an
/// IPv6 address in its shortest form. Empty for an HTTP/1.0 request without `Host`.
pub fn host(fields: &Fields) -> Cow<'_, str> {
    let value = fields.get("host").unwrap_or_default();
    // Always valid: the framing accepts only ASCII names and addresses.
    let value = std::str::from_utf8(value).unwrap_or_default();
    if let Some((address, _)) = value.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let address = address.parse::<Ipv6Addr>().unwrap_or(Ipv6Addr::UNSPECIFIED);
        return Cow::Owned(format!("[{address}]"));
    }
    let name = value.split_once(':').map_or(value, |(name, _)| name);
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

/// The path to forward: the normalized `path` without the route's `strip_prefix`.
pub fn forwarded_path<'p>(path: &'p str, strip_prefix: Option<&str>) -> &'p str {
    match strip_prefix.and_then(|prefix| path.strip_prefix(prefix)) {
        Some("") => "/",
        Some(rest) if rest.starts_with('/') => rest,
        // The prefix ends within a segment, so it does not match.
        Some(_) | None => path,
    }
}

#[cfg(test)]
mod tests {
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
            ("/items", None, "/items"),
        ] {
            assert_eq!(forwarded_path(path, prefix), wanted);
        }
    }
}
