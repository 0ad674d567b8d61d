//! [`OriginMatcher`]: the origins whose scripts may use a route.

use tidegate_config::CorsOrigin;

/// The origins whose scripts may use a route.
#[derive(Debug, Default)]
pub struct OriginMatcher {
    any: bool,
    /// Exact origins, including `null` if it is listed.
    exact: Box<[Box<str>]>,
    /// Origins such as `https://*.example.org`, each as its `https://` and its `.example.org`.
    below: Box<[(Box<str>, Box<str>)]>,
}

impl OriginMatcher {
    pub(super) fn new(origins: &[CorsOrigin]) -> Self {
        let exact = origins.iter().filter_map(|origin| match origin {
            CorsOrigin::Null => Some("null".into()),
            CorsOrigin::Exact(origin) => Some(origin.as_str().into()),
            CorsOrigin::Any | CorsOrigin::Below { .. } => None,
        });
        let below = origins.iter().filter_map(|origin| match origin {
            CorsOrigin::Below { scheme, suffix } => {
                Some((scheme.as_str().into(), suffix.as_str().into()))
            }
            _ => None,
        });
        Self {
            any: origins.contains(&CorsOrigin::Any),
            exact: exact.collect(),
            below: below.collect(),
        }
    }

    /// True if every origin may use the route, so that responses do not depend on the origin.
    pub fn is_any(&self) -> bool {
        self.any
    }

    /// True if scripts of `origin`, the value of `Origin`, may use the route. Browsers send origins
    /// in lower case; other spellings do not match.
    pub fn contains(&self, origin: &[u8]) -> bool {
        self.any
            || self.exact.iter().any(|exact| exact.as_bytes() == origin)
            || self.below.iter().any(|(scheme, suffix)| {
                let host = origin.strip_prefix(scheme.as_bytes());
                let labels = host.and_then(|host| host.strip_suffix(suffix.as_bytes()));
                labels.is_some_and(|labels| labels.split(|byte| *byte == b'.').all(is_label))
            })
    }
}

fn is_label(label: &[u8]) -> bool {
    let is_allowed = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(b);
    !label.is_empty() && label.iter().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn origin(text: &str) -> Option<CorsOrigin> {
        serde_yaml::from_str(&format!("\"{text}\"")).ok()
    }

    fn matcher(origins: &[&str]) -> OriginMatcher {
        let origins: Vec<_> = origins.iter().map(|text| origin(text).expect(text)).collect();
        OriginMatcher::new(&origins)
    }

    #[test]
    fn origins_match_as_browsers_send_them() {
        let listed = matcher(&[
            "https://app.example.com",
            "HTTPS://Default.example.com:443",
            "http://localhost:3000",
            "http://[::1]:8080",
            "https://*.example.org",
            "http://*.dev.test:8080",
            "capacitor://localhost",
        ]);
        for (origin, expected) in [
            ("https://app.example.com", true),
            ("http://app.example.com", false),
            ("https://app.example.com:8443", false),
            ("https://app.example.com.evil.test", false),
            ("https://xapp.example.com", false),
            ("https://default.example.com", true),
            ("http://localhost:3000", true),
            ("http://localhost", false),
            ("http://[::1]:8080", true),
            ("https://a.example.org", true),
            ("https://a.b.example.org", true),
            ("https://example.org", false),
            ("https://.example.org", false),
            ("https://a..example.org", false),
            ("https://evilexample.org", false),
            ("https://evil.test/.example.org", false),
            ("https://evil.test:80.example.org", false),
            ("https://user@a.example.org", false),
            ("https://a.example.org:8443", false),
            ("https://a.example.org.evil.test", false),
            ("http://a.dev.test:8080", true),
            ("http://a.dev.test", false),
            ("capacitor://localhost", true),
            ("null", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(listed.contains(origin.as_bytes()), expected, "{origin}");
        }
        assert!(matcher(&["null"]).contains(b"null"));
        assert!(matcher(&["*"]).contains(b"null") && matcher(&["*"]).is_any());
        assert!(!matcher(&["https://*.example.org"]).contains(b"https://\xff.example.org"));
    }

    #[test]
    fn only_origins_are_accepted() {
        for text in [
            "https://app.example.com/",
            "https://app.example.com/path",
            "https://*",
            "https://*.",
            "https://*.*.example.org",
            "https://a.*.example.org",
            "https://a*.example.org",
            "*.example.org",
            "app.example.com",
            "https://user@app.example.com",
            "https://app.example.com:0",
            "https://app.example.com:65536",
            "https://app.example.com:",
            "https://[::1",
            "https://[0:0:0:0:0:0:0:1]",
            "https://a..b",
            "https://b\u{fc}cher.example",
            "://a.b",
            "1http://a.b",
            "",
        ] {
            assert!(origin(text).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_exact_origin_matches_itself_alone(
            own in "[a-z]{1,3}://[a-c]{1,2}(\\.[a-c]{1,2}){0,2}(:8[1-9])?",
            other in "[a-z]{1,3}://[a-c]{1,2}(\\.[a-c]{1,2}){0,2}(:8[1-9])?",
        ) {
            let listed = matcher(&[&own]);
            prop_assert!(listed.contains(own.as_bytes()));
            prop_assert_eq!(listed.contains(other.as_bytes()), own == other);
        }

        /// Compared with a model, which matches labels from the right.
        #[test]
        fn a_wildcard_matches_one_or_more_labels(
            domain in "[ab](\\.[ab]){0,2}",
            sent in "[ab.]{0,8}",
            (port, sent_port) in ("(:81)?", "(:81|:82)?"),
        ) {
            let listed = matcher(&[&format!("https://*.{domain}{port}")]);
            let labels: Vec<_> = sent.split('.').collect();
            let own: Vec<_> = domain.split('.').collect();
            let expected = labels.len() > own.len()
                && labels.ends_with(&own)
                && labels.iter().all(|label| !label.is_empty())
                && port == sent_port;
            prop_assert_eq!(listed.contains(format!("https://{sent}{sent_port}").as_bytes()), expected);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            matcher(&["https://*.example.org", "null", "https://a"]).contains(&bytes);
        }
    }
}
