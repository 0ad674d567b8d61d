//! The one normal form of a path, used for routing, for keys and for what the upstream is sent.
//!
//! `//a`, `/%61` and `/x/../a` are all `/a`, so no spelling escapes a route or its limits. What could
//! be read in two ways is refused instead: `%00`, a broken escape, a `..` above the root. `%2F` stays
//! as it is: it is data in a segment, never a separator. RFC 3986, 6.2.2.

use std::borrow::Cow;

/// Why a path has no normal form.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PathFault {
    /// The path does not start with `/`.
    #[error("the path must start with /")]
    NotAbsolute,
    /// A `%` that two hexadecimal digits do not follow.
    #[error("a % in the path must be followed by two hexadecimal digits")]
    BrokenEscape,
    /// `%00`, which some upstreams read as the end of the path.
    #[error("the path must not contain %00")]
    Nul,
    /// `..` segments lead above the root.
    #[error("the path leads above the root")]
    AboveRoot,
}

/// Brings `path` into its normal form; borrows where it already is. `merge_slashes` makes `//` one.
pub fn normalize(path: &str, merge_slashes: bool) -> Result<Cow<'_, str>, PathFault> {
    if !path.starts_with('/') {
        return Err(PathFault::NotAbsolute);
    }
    if is_normal(path.as_bytes(), merge_slashes) {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decode_unreserved(path)?;
    remove_dots(&decoded, merge_slashes).map(Cow::Owned)
}

fn is_normal(path: &[u8], merge_slashes: bool) -> bool {
    let mut previous = b'a';
    for &byte in path {
        let after_slash = previous == b'/' && (byte == b'.' || (byte == b'/' && merge_slashes));
        if byte == b'%' || after_slash {
            return false;
        }
        previous = byte;
    }
    true
}

/// Decodes what never needs an escape and writes the other escapes in capitals.
fn decode_unreserved(path: &str) -> Result<String, PathFault> {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = memchr::memchr(b'%', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        let digits = rest.as_bytes().get(at + 1..at + 3).ok_or(PathFault::BrokenEscape)?;
        let byte = hex(digits[0])? << 4 | hex(digits[1])?;
        match byte {
            0 => return Err(PathFault::Nul),
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

fn hex(digit: u8) -> Result<u8, PathFault> {
    char::from(digit).to_digit(16).map(|value| value as u8).ok_or(PathFault::BrokenEscape)
}

/// RFC 3986, 5.2.4, but that a `..` with nothing before it is refused.
fn remove_dots(path: &str, merge_slashes: bool) -> Result<String, PathFault> {
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_directory = false;
    for segment in path[1..].split('/') {
        let skipped = matches!(segment, "." | "..") || (segment.is_empty() && merge_slashes);
        ends_in_directory = skipped;
        if segment == ".." {
            kept.pop().ok_or(PathFault::AboveRoot)?;
        } else if !skipped {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_one_path_are_one() {
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
            ("/a%20b", "/a%20b"),
            ("/a//", "/a/"),
            ("///", "/"),
            ("/./", "/"),
        ] {
            assert_eq!(normalize(given, true).as_deref(), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn slashes_are_kept_where_the_configuration_says_so() {
        for (given, wanted) in
            [("//a", "//a"), ("/a//b", "/a//b"), ("/a//", "/a//"), ("/a//.", "/a//")]
        {
            assert_eq!(normalize(given, false).as_deref(), Ok(wanted), "{given}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for (given, fault) in [
            ("a", PathFault::NotAbsolute),
            ("", PathFault::NotAbsolute),
            ("*", PathFault::NotAbsolute),
            ("/%", PathFault::BrokenEscape),
            ("/%4", PathFault::BrokenEscape),
            ("/%zz", PathFault::BrokenEscape),
            ("/a%00b", PathFault::Nul),
            ("/..", PathFault::AboveRoot),
            ("/a/../..", PathFault::AboveRoot),
            ("/%2e%2e/etc", PathFault::AboveRoot),
        ] {
            assert_eq!(normalize(given, true), Err(fault), "{given}");
        }
    }

    proptest! {
        #[test]
        fn the_normal_form_is_its_own_normal_form(path in "/[a-z%./0-9A-F]{0,24}", merge: bool) {
            if let Ok(once) = normalize(&path, merge) {
                prop_assert!(once.starts_with('/'));
                prop_assert!(!once.split('/').any(|s| s == "." || s == ".."));
                prop_assert!(!merge || !once.contains("//"));
                prop_assert_eq!(normalize(&once, merge), Ok(Cow::Borrowed(&*once)));
            }
        }

        #[test]
        fn no_input_panics(path in "\\PC{0,40}", merge: bool) {
            let _ = normalize(&path, merge);
        }
    }
}
