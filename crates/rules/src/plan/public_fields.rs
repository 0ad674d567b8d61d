//! Rewrites fields of a response that name the upstream's own URL, host or paths: clients know
//! others.

use tidegate_http1::{host::BareHost, is_same_name};

use super::PublicUrl;

impl PublicUrl<'_> {
    /// True if [`Self::write_field`] may rewrite a field of this name. Ignores case.
    pub fn concerns(name: &[u8]) -> bool {
        FieldKind::of(name).is_some()
    }

    /// Appends the value that the client sees of the field `name` with this `value`.
    pub fn write_field(&self, name: &[u8], value: &[u8], out: &mut Vec<u8>) {
        match FieldKind::of(name) {
            Some(FieldKind::Location) => self.write_or_keep(value, out),
            Some(FieldKind::Refresh) => {
                let url = refresh_url(value);
                out.extend_from_slice(&value[..url.start]);
                self.write_or_keep(&value[url.clone()], out);
                out.extend_from_slice(&value[url.end..]);
            }
            Some(FieldKind::Cookie) => self.write_cookie(value, out),
            None => out.extend_from_slice(value),
        }
    }

    fn write_or_keep(&self, url: &[u8], out: &mut Vec<u8>) {
        if !self.write(url, out) {
            out.extend_from_slice(url);
        }
    }

    /// A cookie for the upstream's host is for the client's, and one for a path below it is for
    /// that path behind the prefix. One for `/` stays: it is sent to every path already.
    fn write_cookie(&self, cookie: &[u8], out: &mut Vec<u8>) {
        for (index, part) in cookie.split(|byte| *byte == b';').enumerate() {
            if index > 0 {
                out.push(b';');
            }
            let split = part.iter().position(|byte| *byte == b'=').filter(|_| index > 0);
            let Some(equals) = split else {
                out.extend_from_slice(part);
                continue;
            };
            let (name, value) = (part[..equals].trim_ascii(), part[equals + 1..].trim_ascii());
            let changed = if name.eq_ignore_ascii_case(b"domain") && self.is_own_domain(value) {
                Some([&b""[..], BareHost::of(self.host).name])
            } else if name.eq_ignore_ascii_case(b"path") && self.is_below(value) {
                Some([self.prefix.as_bytes(), value])
            } else {
                None
            };
            match changed {
                Some(pieces) => {
                    out.extend_from_slice(&part[..=equals]);
                    out.extend_from_slice(&pieces.concat());
                }
                None => out.extend_from_slice(part),
            }
        }
    }

    /// True if `domain` is the upstream's host and not the client's.
    fn is_own_domain(&self, domain: &[u8]) -> bool {
        let domain = domain.strip_prefix(b".").unwrap_or(domain);
        let is = |host: &[u8]| BareHost::of(host).name.eq_ignore_ascii_case(domain);
        !domain.is_empty() && !is(self.host) && (is(self.sent_host) || is(self.upstream_host))
    }

    /// True if `path` is one of the upstream's, to which the client must add the prefix.
    fn is_below(&self, path: &[u8]) -> bool {
        let is_path = path.starts_with(b"/") && path.len() > 1;
        !self.prefix.is_empty() && is_path && !self.has_prefix(path)
    }
}

/// What a field names.
#[derive(Clone, Copy)]
enum FieldKind {
    /// A URL: `Location`, `Content-Location`.
    Location,
    /// A time and a URL.
    Refresh,
    /// The host and the path of a cookie.
    Cookie,
}

impl FieldKind {
    fn of(name: &[u8]) -> Option<Self> {
        // By length first: most names then need no comparison.
        let (kind, other) = match name.len() {
            7 => (Self::Refresh, "refresh"),
            8 => (Self::Location, "location"),
            10 => (Self::Cookie, "set-cookie"),
            16 => (Self::Location, "content-location"),
            _ => return None,
        };
        is_same_name(name, other.as_bytes()).then_some(kind)
    }
}

/// The place of the URL in a `Refresh`, such as `5; url=/items` or `5; url="/items"`; empty without
/// one.
fn refresh_url(value: &[u8]) -> std::ops::Range<usize> {
    let none = value.len()..value.len();
    let Some(separator) = value.iter().position(|byte| b";,".contains(byte)) else { return none };
    let after = &value[separator + 1..];
    let rest = after.trim_ascii_start();
    let has_name = rest.get(..3).is_some_and(|name| name.eq_ignore_ascii_case(b"url"));
    let rest = if has_name { rest[3..].trim_ascii_start() } else { rest };
    let rest = if has_name { rest.strip_prefix(b"=").unwrap_or(rest) } else { rest };
    let rest = rest.trim_ascii_start();
    let quote = rest.first().copied().filter(|byte| b"\"'".contains(byte));
    let rest = if quote.is_some() { &rest[1..] } else { rest };
    let end = quote.and_then(|quote| memchr::memchr(quote, rest)).unwrap_or(rest.len());
    let start = value.len() - rest.len();
    start..start + end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, value: &str) -> String {
        let url = PublicUrl {
            scheme: "https",
            host: b"api.test:8443",
            prefix: "/v1",
            sent_host: b"internal.test:81",
            upstream_host: b"10.0.0.1:9000",
        };
        let mut out = Vec::new();
        url.write_field(name.as_bytes(), value.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_refresh_leads_to_the_public_url() {
        for (value, wanted) in [
            ("5; url=/items", "5; url=/v1/items"),
            ("0;URL='http://internal.test:81/x'", "0;URL='https://api.test:8443/v1/x'"),
            ("5, /items", "5, /v1/items"),
            ("5; url = \"/v1/x\"; a", "5; url = \"/v1/x\"; a"),
            ("5; url=https://other.test/", "5; url=https://other.test/"),
            ("5", "5"),
            ("5;", "5;"),
            ("", ""),
        ] {
            assert_eq!(written("Refresh", value), wanted);
        }
    }

    #[test]
    fn a_cookie_is_for_the_public_host_and_path() {
        for (value, wanted) in [
            ("a=1", "a=1"),
            ("a=/x; Path=/", "a=/x; Path=/"),
            ("Path=/x; path=/x; Secure", "Path=/x; path=/v1/x; Secure"),
            ("a=1; Path=/v1/x", "a=1; Path=/v1/x"),
            ("a=1; Path=/v10", "a=1; Path=/v1/v10"),
            ("a=1;domain=.Internal.test;HttpOnly", "a=1;domain=api.test;HttpOnly"),
            ("a=1; Domain=10.0.0.1", "a=1; Domain=api.test"),
            ("a=1; Domain=test", "a=1; Domain=test"),
            ("a=1; Domain=api.test", "a=1; Domain=api.test"),
            ("a=1; Domain=; Path", "a=1; Domain=; Path"),
        ] {
            assert_eq!(written("set-cookie", value), wanted);
        }
        assert_eq!(written("x-path", "a=1; Path=/x"), "a=1; Path=/x");
    }
}
