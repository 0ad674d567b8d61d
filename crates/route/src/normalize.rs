//! The normal form of a path, RFC 3986, 6.2.2, used for routing, for keys and for the forwarded
//! request.
//!
//! `//a`, `/%61` and `/x/../a` are all `/a`, so no spelling bypasses a route or its limits.
//! Ambiguous paths are rejected: `%00`, a malformed escape, a `..` above the root, `..%2F`. Any
//! other `%2F` is kept: it is data in a segment, not a separator.

use std::borrow::Cow;

/// Why a path has no normal form.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PathError {
    /// The path does not start with `/`.
    #[error("the path must start with /")]
    NotAbsolute,
    /// A `%` without two hexadecimal digits.
    #[error("a % in the path must be followed by two hexadecimal digits")]
    MalformedEscape,
    /// `%00`, which some upstreams read as the end of the path.
    #[error("the path must not contain %00")]
    Nul,
    /// `..` segments lead above the root.
    #[error("the path leads above the root")]
    AboveRoot,
    /// `.` or `..` with a parameter, as in `/..;/`: some upstreams resolve it, others do not.
    #[error("a . or .. segment of the path must not have a parameter (;)")]
    DotParameter,
    /// `.` or `..` beside `%2F` or `%5C`, as in `/..%2F`: an upstream that decodes these to slashes
    /// resolves it.
    #[error("a . or .. in the path must not be beside %2F or %5C")]
    DotBesideSlash,
    /// Made by callers: a part of the path that is inserted into another one would change the shape of the new path.
    #[error(
        "a part of the path cannot be inserted into another path: it is . or .., or a part of an escape"
    )]
    Capture,
    /// Made by callers: the route forwards the path as it was sent, and a server could read it as a path of another
    /// route.
    #[error(
        "this route forwards the path as it was sent, and a server could read it as a path outside of the route; \
         send it without //, . and .. segments, %2F and %5C"
    )]
    AmbiguousAsSent,
    /// The route forwards the path as it was sent, and a `.` or `..` segment is percent-encoded.
    #[error(
        "this route forwards the path as it was sent, so its . and .. segments must not be percent-encoded"
    )]
    EncodedDot,
    /// Made by callers: the route forwards the path as it was sent, and HTTP/2 cannot carry it.
    #[error("this route forwards the path as it was sent, so a backtick in it must be written %60")]
    Backtick,
    /// Made by callers: the route accepts only paths in normal form.
    #[error(
        "this route accepts only paths in normal form: without //, without . and .. segments, with escapes \
         in upper case, and only for characters that need them"
    )]
    NotNormal,
}

/// What becomes of `//` in a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Slashes {
    /// It is read as `/`.
    Merge,
    /// It stays, and has an empty segment.
    Keep,
}

/// Returns the normal form of `path`, borrowed if `path` already is normal.
///
/// # Errors
/// The path is relative, ambiguous or has a malformed escape.
pub fn normalize(path: &str, slashes: Slashes) -> Result<Cow<'_, str>, PathError> {
    if !path.starts_with('/') {
        return Err(PathError::NotAbsolute);
    }
    if is_normal(path.as_bytes(), slashes) {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decode_unreserved(path)?;
    let reading =
        PathReading { slashes, dot: DotSegments::Resolved, dot_dot: DotSegments::Resolved };
    reading.apply(&decoded).map(Cow::Owned)
}

/// The form of a normal path that routes and keys use: [`without_parameters`], and with escapes
/// such as `%40` decoded. An escape is decoded if a request may also send its character as it is,
/// because upstreams read both alike. The forwarded path keeps its escapes.
///
/// ```
/// use tidegate_route::normalize::{Slashes, routed_form};
///
/// assert_eq!(routed_form("/users/%40me;v=1", Slashes::Merge), "/users/@me");
/// assert_eq!(routed_form("/a%2Fb%20c", Slashes::Merge), "/a%2Fb%20c");
/// ```
pub fn routed_form(path: &str, slashes: Slashes) -> Cow<'_, str> {
    if memchr::memchr2(b';', b'%', path.as_bytes()).is_none() {
        return Cow::Borrowed(path);
    }
    let path = without_parameters(path, slashes);
    let mut out = String::with_capacity(path.len());
    let mut rest = &*path;
    while let Some(unit) = Unit::first(rest) {
        match unit.decoded {
            Some(byte) => out.push(char::from(byte)),
            None => out.push_str(&rest[..unit.length]),
        }
        rest = &rest[unit.length..];
    }
    Cow::Owned(out)
}

/// A character of a path, or an escape.
struct Unit {
    /// The character that it stands for, if a request could send it as it is.
    decoded: Option<u8>,
    /// In bytes.
    length: usize,
}

impl Unit {
    fn first(path: &str) -> Option<Self> {
        let first = path.chars().next()?;
        let escaped = match path.as_bytes() {
            [b'%', high, low, ..] => hex(*high).and_then(|high| Ok(high << 4 | hex(*low)?)).ok(),
            _ => None,
        };
        let is_sendable = |byte: &u8| byte.is_ascii_graphic() && !b"%/;?#<>\\".contains(byte);
        Some(match escaped.filter(is_sendable) {
            Some(byte) => Self { decoded: Some(byte), length: 3 },
            None => Self { decoded: None, length: first.len_utf8() },
        })
    }
}

/// The text of `path` after `prefix`, which is in the [`routed_form`]; `None` if `path` does not
/// begin with it.
pub(super) fn strip_prefix<'p>(path: &'p str, prefix: &str) -> Option<&'p str> {
    let (mut rest, mut prefix) = (path, prefix.as_bytes());
    while let Some((&wanted, others)) = prefix.split_first() {
        let unit = Unit::first(rest)?;
        if let Some(byte) = unit.decoded {
            (byte == wanted).then_some(())?;
            (rest, prefix) = (&rest[unit.length..], others);
        } else {
            prefix = prefix.strip_prefix(&rest.as_bytes()[..unit.length])?;
            rest = &rest[unit.length..];
        }
    }
    Some(rest)
}

/// The text of `path` before `suffix`, which is in the [`routed_form`]; `None` if `path` does not
/// end with it.
pub(super) fn strip_suffix<'p>(path: &'p str, suffix: &str) -> Option<&'p str> {
    let starts = std::iter::successors(Some(path), |rest| {
        Unit::first(rest).map(|unit| &rest[unit.length..])
    });
    let end =
        starts.into_iter().find(|rest| strip_prefix(rest, suffix).is_some_and(str::is_empty))?;
    Some(&path[..path.len() - end.len()])
}

/// True if the [`routed_form`] of `path` is `text`.
pub fn is_routed_as(path: &str, text: &str) -> bool {
    path == text || strip_prefix(path, text).is_some_and(str::is_empty)
}

/// A normal path without the parameters of its segments (`;v=1`), which some upstreams ignore.
///
/// ```
/// use tidegate_route::normalize::{Slashes, without_parameters};
///
/// assert_eq!(without_parameters("/items;v=1/7;x", Slashes::Merge), "/items/7");
/// assert_eq!(without_parameters("/;v=1/items", Slashes::Merge), "/items");
/// ```
pub fn without_parameters(path: &str, slashes: Slashes) -> Cow<'_, str> {
    if memchr::memchr(b';', path.as_bytes()).is_none() {
        return Cow::Borrowed(path);
    }
    let mut out = String::with_capacity(path.len());
    for (index, segment) in path.split('/').enumerate() {
        if index > 0 && !(slashes == Slashes::Merge && out.ends_with('/')) {
            out.push('/');
        }
        out.push_str(segment.split(';').next().unwrap_or_default());
    }
    Cow::Owned(out)
}

fn is_normal(path: &[u8], slashes: Slashes) -> bool {
    let mut previous = b'a';
    for &byte in path {
        let after_slash =
            previous == b'/' && (byte == b'.' || (byte == b'/' && slashes == Slashes::Merge));
        if byte == b'%' || after_slash {
            return false;
        }
        previous = byte;
    }
    true
}

/// Decodes the unreserved characters and writes the other escapes in upper case: RFC 3986, 6.2.2.1
/// and 6.2.2.2.
pub(super) fn decode_unreserved(path: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = memchr::memchr(b'%', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        let digits = rest.as_bytes().get(at + 1..at + 3).ok_or(PathError::MalformedEscape)?;
        let byte = hex(digits[0])? << 4 | hex(digits[1])?;
        match byte {
            0 => return Err(PathError::Nul),
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => {
                out.push('%');
                out.extend(digits.iter().map(|d| char::from(d.to_ascii_uppercase())));
            }
        }
        rest = &rest[at + 3..];
    }
    out.push_str(rest);
    Ok(out)
}

fn hex(digit: u8) -> Result<u8, PathError> {
    char::from(digit).to_digit(16).map(|value| value as u8).ok_or(PathError::MalformedEscape)
}

/// What becomes of `.` or of `..` segments.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DotSegments {
    /// They are removed as RFC 3986, 5.2.4, tells.
    Resolved,
    /// They stay, as names of objects.
    Kept,
}

/// How a server reads the segments of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PathReading {
    pub(super) slashes: Slashes,
    /// What becomes of `.`.
    pub(super) dot: DotSegments,
    /// What becomes of `..`.
    pub(super) dot_dot: DotSegments,
}

impl PathReading {
    /// Reads `path`, whose unreserved characters are decoded. Other than in RFC 3986, a `..` above
    /// the root is an error.
    pub(super) fn apply(self, path: &str) -> Result<String, PathError> {
        let mut kept: Vec<&str> = Vec::new();
        let mut ends_in_directory = false;
        for segment in path[1..].split('/') {
            if let Some((".." | ".", _)) = segment.split_once(';') {
                return Err(PathError::DotParameter);
            }
            if has_dots_beside_slash(segment) {
                return Err(PathError::DotBesideSlash);
            }
            let is_up = segment == ".." && self.dot_dot == DotSegments::Resolved;
            let is_here = segment == "." && self.dot == DotSegments::Resolved;
            let is_merged = segment.is_empty() && self.slashes == Slashes::Merge;
            ends_in_directory = is_up || is_here || is_merged;
            if is_up {
                kept.pop().ok_or(PathError::AboveRoot)?;
            } else if !ends_in_directory {
                kept.push(segment);
            }
        }
        if ends_in_directory {
            kept.push("");
        }
        let mut out = String::with_capacity(path.len());
        for segment in kept {
            out.push('/');
            out.push_str(segment);
        }
        Ok(out)
    }
}

/// True if a segment, whose escapes are in upper case, would have a `.` or `..` segment with its
/// `%2F` and `%5C` decoded to slashes.
fn has_dots_beside_slash(segment: &str) -> bool {
    let has_slash = segment.contains("%2F") || segment.contains("%5C");
    let mut parts = segment.split("%2F").flat_map(|part| part.split("%5C"));
    has_slash && parts.any(|part| matches!(part.split(';').next(), Some("." | "..")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_a_path_have_one_normal_form() {
        for (given, wanted) in [
            ("/", "/"),
            ("/a", "/a"),
            ("/a/", "/a/"),
            ("//a", "/a"),
            ("/%61", "/a"),
            ("/x/../a", "/a"),
            ("/x/%2e%2E/a", "/a"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/..a/.b", "/..a/.b"),
            ("/a%2fb", "/a%2Fb"),
            ("/a..%2F.b%5C...", "/a..%2F.b%5C..."),
            ("/a%20b", "/a%20b"),
            ("/a//", "/a/"),
            ("///", "/"),
            ("/./", "/"),
        ] {
            assert_eq!(normalize(given, Slashes::Merge).as_deref(), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn slashes_are_kept_without_merge_slashes() {
        for (given, wanted) in
            [("//a", "//a"), ("/a//b", "/a//b"), ("/a//", "/a//"), ("/a//.", "/a//")]
        {
            assert_eq!(normalize(given, Slashes::Keep).as_deref(), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn ambiguous_paths_are_rejected() {
        for (given, error) in [
            ("a", PathError::NotAbsolute),
            ("", PathError::NotAbsolute),
            ("*", PathError::NotAbsolute),
            ("/%", PathError::MalformedEscape),
            ("/%4", PathError::MalformedEscape),
            ("/%zz", PathError::MalformedEscape),
            ("/a%00b", PathError::Nul),
            ("/..", PathError::AboveRoot),
            ("/a/../..", PathError::AboveRoot),
            ("/%2e%2e/etc", PathError::AboveRoot),
            ("/a/..;/b", PathError::DotParameter),
            ("/.;x=1", PathError::DotParameter),
            ("/%2e%2E;", PathError::DotParameter),
            ("/..%2fadmin", PathError::DotBesideSlash),
            ("/x%2f..%2Fadmin", PathError::DotBesideSlash),
            ("/x/.%2f", PathError::DotBesideSlash),
            ("/x%2F%2e%2e", PathError::DotBesideSlash),
            ("/x%5c..%5Cadmin", PathError::DotBesideSlash),
            ("/x%2F..%5Cadmin", PathError::DotBesideSlash),
            ("/x%2F..;v=1%2Fadmin", PathError::DotBesideSlash),
            ("/x%2F..;/admin", PathError::DotBesideSlash),
        ] {
            assert_eq!(normalize(given, Slashes::Merge), Err(error), "{given}");
        }
    }

    #[test]
    fn parameters_are_removed_from_every_segment() {
        for (path, merged, kept) in [
            ("/", "/", "/"),
            ("/a;v=1/b", "/a/b", "/a/b"),
            ("/a/b;v=1;w", "/a/b", "/a/b"),
            ("/;v=1", "/", "/"),
            ("/;v=1/a", "/a", "//a"),
            ("/a/;v=1/b", "/a/b", "/a//b"),
            ("/a/;v=1", "/a/", "/a/"),
            ("/a%3Bv=1", "/a%3Bv=1", "/a%3Bv=1"),
        ] {
            assert_eq!(without_parameters(path, Slashes::Merge), merged, "{path}");
            assert_eq!(without_parameters(path, Slashes::Keep), kept, "{path}");
        }
    }

    #[test]
    fn what_could_be_sent_as_it_is_has_one_routed_form() {
        for (path, routed) in [
            ("/users/%40me", "/users/@me"),
            ("/items%3Apurge", "/items:purge"),
            ("/Items%285%29;v=1", "/Items(5)"),
            ("/%7B%22%7C%5E%60%7D", "/{\"|^`}"),
            ("/a%2Fb%25%3B%3F%23%20%5C%3C%3E%C3%A9", "/a%2Fb%25%3B%3F%23%20%5C%3C%3E%C3%A9"),
        ] {
            assert_eq!(routed_form(path, Slashes::Merge), routed);
            assert_eq!(routed_form(routed, Slashes::Merge), routed, "it stays");
        }
    }

    #[test]
    fn parts_are_compared_in_their_routed_form_and_kept_as_they_are() {
        assert_eq!(strip_prefix("%40a%2Fb", "@a"), Some("%2Fb"));
        assert_eq!(strip_prefix("%40a", "@b"), None);
        assert_eq!(strip_prefix("%2Fa", "%2F"), Some("a"));
        assert_eq!(strip_suffix("a%40%3Ajson", ":json"), Some("a%40"));
        assert_eq!(strip_suffix("a.json", ".json"), Some("a"));
        assert_eq!(strip_suffix("a%2Ejson", "json"), Some("a%2E"));
        assert_eq!(strip_suffix("a%2F", "F"), Some("a%2"), "as routes match; a rewrite refuses it");
        assert_eq!(strip_suffix("", ""), Some(""));
        assert!(is_routed_as("%40", "@") && !is_routed_as("%40x", "@"));
    }

    fn slashes() -> impl Strategy<Value = Slashes> {
        prop_oneof![Just(Slashes::Merge), Just(Slashes::Keep)]
    }

    proptest! {
        #[test]
        fn a_routed_form_is_its_own(path in "/[a-c%0-9A-F;/@:]{0,24}", slashes in slashes()) {
            if let Ok(path) = normalize(&path, slashes) {
                let routed = routed_form(&path, slashes);
                prop_assert_eq!(&*routed_form(&routed, slashes), &*routed);
                prop_assert_eq!(normalize(&routed, slashes), Ok(Cow::Borrowed(&*routed)));
                let plain = without_parameters(&path, slashes);
                prop_assert!(is_routed_as(&plain, &routed));
            }
        }

        #[test]
        fn without_parameters_is_normal(path in "/[a.;=/]{0,24}", slashes in slashes()) {
            if let Ok(path) = normalize(&path, slashes) {
                let routed = without_parameters(&path, slashes);
                prop_assert!(!routed.contains(';'));
                prop_assert_eq!(normalize(&routed, slashes), Ok(Cow::Borrowed(&*routed)));
            }
        }

        #[test]
        fn normalize_is_idempotent(path in "/([a-z%./0-9A-F]|%2F|%5c|\\.\\.){0,24}", slashes in slashes()) {
            if let Ok(once) = normalize(&path, slashes) {
                prop_assert!(once.starts_with('/'));
                let decoded = once.replace("%2F", "/").replace("%5C", "/");
                prop_assert!(!decoded.split('/').any(|s| s == "." || s == ".."));
                prop_assert!(slashes == Slashes::Keep || !once.contains("//"));
                prop_assert_eq!(normalize(&once, slashes), Ok(Cow::Borrowed(&*once)));
            }
        }

        #[test]
        fn arbitrary_paths_do_not_panic(path in "\\PC{0,40}", slashes in slashes()) {
            let _ = normalize(&path, slashes);
        }
    }
}
