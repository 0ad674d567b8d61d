//! [`PublicUrl`]: the URL that a client sees for an upstream that receives a different path or host
//! than the client sent.

use tidegate_http1::host;

/// The URL as the client sees it, to which an upstream's locations are rewritten.
#[derive(Clone, Copy)]
pub struct PublicUrl<'a> {
    /// The scheme that the client used.
    pub scheme: &'a str,
    /// The client's `Host`.
    pub host: &'a [u8],
    /// The prefix that the upstream does not see; empty without one.
    pub prefix: &'a str,
    /// The `Host` that was sent to the upstream.
    pub sent_host: &'a [u8],
    /// The upstream's own host.
    pub upstream_host: &'a [u8],
}

impl PublicUrl<'_> {
    /// Appends the URL that the client sees for `location`. Returns false, and appends nothing, if
    /// `location` stays as it is: it leads elsewhere, is relative to the requested path, or has the
    /// prefix already.
    pub fn write(&self, location: &[u8], out: &mut Vec<u8>) -> bool {
        let (authority, target) = match split(location) {
            Some((authority, target)) => (Some(authority), target),
            None if location.starts_with(b"/") && !location.starts_with(b"//") => (None, location),
            None => return false,
        };
        let own = [self.host, self.sent_host, self.upstream_host];
        let is_own = |authority: &[u8]| {
            let authority = without_scheme_port(authority, location);
            own.iter().any(|own| without_default_port(own).eq_ignore_ascii_case(authority))
        };
        let is_requested = |authority: &[u8]| {
            let authority = without_scheme_port(authority, location);
            authority.eq_ignore_ascii_case(without_default_port(self.host))
        };
        let adds_prefix = !self.prefix.is_empty() && !self.has_prefix(target);
        match authority {
            Some(authority) if !is_own(authority) || host::check(self.host).is_err() => {
                return false;
            }
            // The upstream may redirect clients to `https`.
            Some(authority) if is_requested(authority) && is_https(location) => {
                if !adds_prefix {
                    return false;
                }
                out.extend_from_slice(&location[..location.len() - target.len()]);
            }
            Some(_) => {
                out.extend_from_slice(self.scheme.as_bytes());
                out.extend_from_slice(b"://");
                out.extend_from_slice(self.host);
            }
            None if !adds_prefix => return false,
            None => {}
        }
        if adds_prefix {
            out.extend_from_slice(self.prefix.as_bytes());
        }
        out.extend_from_slice(target);
        true
    }

    /// True if `target` begins with the segments of the prefix.
    pub(super) fn has_prefix(&self, target: &[u8]) -> bool {
        let rest = target.strip_prefix(self.prefix.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|next| b"/?#;".contains(next)))
    }
}

fn is_https(location: &[u8]) -> bool {
    location.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https:"))
}

/// Splits an absolute `http` or `https` URL into its authority and the rest.
pub(super) fn split(location: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let (start, rest) = location.split_at_checked(scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then_some(rest)
    })?;
    let end = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
    (end > 0).then(|| rest.split_at(end))
}

/// Removes the port that is the default of the location's scheme.
pub(super) fn without_scheme_port<'a>(authority: &'a [u8], location: &[u8]) -> &'a [u8] {
    let port: &[u8] = if is_https(location) { b":443" } else { b":80" };
    authority.strip_suffix(port).unwrap_or(authority)
}

/// Removes port 80 or 443 from an authority whose scheme is not known.
pub(super) fn without_default_port(authority: &[u8]) -> &[u8] {
    let stripped = authority.strip_suffix(b":80").or_else(|| authority.strip_suffix(b":443"));
    stripped.unwrap_or(authority)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn public<'a>(prefix: &'a str, sent_host: &'a str) -> PublicUrl<'a> {
        PublicUrl {
            scheme: "https",
            host: b"api.test",
            prefix,
            sent_host: sent_host.as_bytes(),
            upstream_host: b"10.0.0.1:9000",
        }
    }

    fn written(url: PublicUrl<'_>, location: &str) -> Option<String> {
        let mut out = Vec::new();
        let is_written = url.write(location.as_bytes(), &mut out);
        assert_eq!(is_written, !out.is_empty(), "{location}");
        is_written.then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_location_at_the_upstream_gets_the_prefix_and_the_clients_host() {
        for (location, wanted) in [
            ("/items/7", Some("/v1/items/7")),
            ("/", Some("/v1/")),
            ("/v10/x", Some("/v1/v10/x")),
            ("/x?next=/v1", Some("/v1/x?next=/v1")),
            ("http://10.0.0.1:9000/x", Some("https://api.test/v1/x")),
            ("HTTP://10.0.0.1:9000", Some("https://api.test/v1")),
            ("http://api.test/x#a", Some("https://api.test/v1/x#a")),
            ("https://API.test:443/x", Some("https://API.test:443/v1/x")),
            ("http://api.test:443/x", None),
            ("http://internal.test/x", Some("https://api.test/v1/x")),
            // The upstream knows the prefix.
            ("/v1/x", None),
            ("/v1", None),
            ("http://api.test/v1/x", Some("https://api.test/v1/x")),
            // Elsewhere, or relative.
            ("http://10.0.0.1:9001/x", None),
            ("https://other.test/x", None),
            ("https://api.test.evil.test/x", None),
            ("https://user@api.test/x", None),
            ("//other.test/x", None),
            ("items/7", None),
            ("?x", None),
            ("", None),
            ("ftp://api.test/x", None),
        ] {
            assert_eq!(
                written(public("/v1", "internal.test"), location).as_deref(),
                wanted,
                "{location}"
            );
        }
        let (host_only, location) = (public("", "internal.test"), "http://internal.test/x");
        assert_eq!(written(host_only, location).as_deref(), Some("https://api.test/x"));
        assert_eq!(written(host_only, "/x"), None);
    }

    #[test]
    fn the_upstream_may_lead_to_https() {
        let plain = PublicUrl { scheme: "http", ..public("", "api.test") };
        assert_eq!(written(plain, "https://api.test/x"), None);
        let stripped = PublicUrl { prefix: "/v1", ..plain };
        assert_eq!(
            written(stripped, "https://api.test/x").as_deref(),
            Some("https://api.test/v1/x")
        );
        assert_eq!(written(stripped, "https://api.test/v1/x"), None);
        assert_eq!(
            written(stripped, "http://10.0.0.1:9000/x").as_deref(),
            Some("http://api.test/v1/x")
        );
    }

    proptest! {
        #[test]
        fn other_hosts_are_never_changed(host in "[a-z]{1,8}\\.(com|org)", rest in "[/?#][!-~]{0,20}") {
            let location = format!("https://{host}{rest}");
            prop_assert_eq!(written(public("/v1", "internal.test"), &location), None);
        }

        #[test]
        fn arbitrary_locations_do_not_panic(location: Vec<u8>) {
            public("/v1", "").write(&location, &mut Vec::new());
        }
    }
}
