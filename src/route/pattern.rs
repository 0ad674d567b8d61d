//! The patterns that a route's host and path are written in.

/// Why a pattern is not one.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PatternError {
    /// A host that no request could name.
    #[error("`{0}` is no host; expected a name such as api.example.com, or *.example.com")]
    Host(String),
    /// A path that is not absolute or whose braces are wrong.
    #[error(
        "`{path}` is no path pattern ({why}); expected such as /items/{{id}} or /files/{{*rest}}"
    )]
    Path {
        /// The pattern as written.
        path: String,
        /// What is wrong with it.
        why: String,
    },
}

/// Which hosts a route answers for.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub enum HostPattern {
    /// Every host.
    #[default]
    Any,
    /// `api.example.com`, in lower case.
    Exact(String),
    /// `*.example.com`, kept as `example.com`: every name below it, not itself.
    Below(String),
}

impl HostPattern {
    /// Reads `*`, `*.example.com`, `api.example.com` or an address literal; case does not count.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if text == "*" {
            return Ok(Self::Any);
        }
        let (name, below) = match lower.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (lower.as_str(), false),
        };
        let literal = name.starts_with('[') && name.ends_with(']') && !below;
        let plain =
            name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'));
        if name.is_empty() || name == "*" || name.contains("..") || !(plain || literal) {
            return Err(PatternError::Host(text.to_owned()));
        }
        Ok(if below { Self::Below(name.to_owned()) } else { Self::Exact(name.to_owned()) })
    }
}

/// Which paths a route answers for: `/items/{id}`, `/files/{*rest}`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PathPattern {
    text: String,
    params: Vec<String>,
}

impl PathPattern {
    /// Reads a pattern. `{name}` stands for one segment or a part of it, `{*name}` for all that is
    /// left, nothing included.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let fault = |why: &str| PatternError::Path { path: text.to_owned(), why: why.to_owned() };
        if !text.starts_with('/') {
            return Err(fault("it must start with /"));
        }
        if text.contains(['?', '#']) {
            return Err(fault("a path has neither ? nor #"));
        }
        let bare = text.replace("{*", "{");
        if super::normalize::normalize(&bare, true).as_deref() != Ok(bare.as_str()) {
            return Err(fault("it is not in normal form, so no request would match it"));
        }
        matchit::Router::new().insert(text, ()).map_err(|error| fault(&error.to_string()))?;
        let params = text
            .split('{')
            .skip(1)
            .filter_map(|part| part.split_once('}'))
            .map(|(name, _)| name.trim_start_matches('*').to_owned())
            .collect();
        Ok(Self { text: text.to_owned(), params })
    }

    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The names of its parameters, in order.
    pub fn params(&self) -> &[String] {
        &self.params
    }

    /// For `/files/{*rest}` the pattern that an empty rest matches: `/files/`.
    pub(super) fn without_rest(&self) -> Option<&str> {
        self.text.rfind("{*").map(|at| &self.text[..at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_without_case() {
        assert_eq!(
            HostPattern::parse("API.Example.com."),
            Ok(HostPattern::Exact("api.example.com".into()))
        );
        assert_eq!(
            HostPattern::parse("*.example.com"),
            Ok(HostPattern::Below("example.com".into()))
        );
        assert_eq!(HostPattern::parse("*"), Ok(HostPattern::Any));
        assert_eq!(HostPattern::parse("[::1]"), Ok(HostPattern::Exact("[::1]".into())));
        for wrong in ["", "a b", "*.*.com", "http://x", "a..b", "x/y", "*."] {
            assert!(HostPattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn path_patterns_know_their_parameters() {
        let pattern = PathPattern::parse("/shops/{shop}/items/{*rest}").unwrap();
        assert_eq!(pattern.params(), ["shop", "rest"]);
        assert_eq!(pattern.without_rest(), Some("/shops/{shop}/items/"));
        for wrong in ["", "items", "/a?b", "/a/../b", "//a", "/{", "/{}", "/{*a}/b", "/%61"] {
            assert!(PathPattern::parse(wrong).is_err(), "{wrong}");
        }
    }
}
